"""Loops of cases: all of them run, and a failure names the cases that failed."""

import cases
import pytest
from cases import each_case


def test_all_cases_run_and_those_that_fail_are_named():
  seen = []

  @each_case("number, word", [(1, "one"), (2, "two"), pytest.param(3, "three"), (4, "four")])
  def loop(number, word):
    seen.append((number, word))
    assert number % 2
    if number == 3:
      with pytest.raises(ValueError):
        int("3")

  with pytest.raises(
    BaseExceptionGroup, match=r"3 of 4 cases failed \(1: 2, 'two'; 2: 3, 'three'; 3: 4, 'four'\)"
  ) as said:
    loop()
  assert seen == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]
  assert said.value.exceptions[0].__notes__ == ["case: 2, 'two'"]


def test_stacked_loops_run_every_pair():
  seen = []

  @each_case("one", "ab")
  @each_case("other", [1, 2], ids=["first", "second"])
  def loop(one, other):
    seen.append((one, other))
    assert (one, other) != ("b", 2)

  with pytest.raises(BaseExceptionGroup, match=r"1 of 2 cases failed \(1: 'b'\)") as said:
    loop()
  assert seen == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
  assert "1 of 2 cases failed (1: second)" in str(said.value.exceptions[0])


@each_case("word", ["a", "b"])
def test_every_case_has_a_folder_and_patches_of_its_own(word, tmp_path, monkeypatch):
  assert not list(tmp_path.iterdir())
  (tmp_path / word).write_text(word)
  assert not hasattr(cases, "patched")
  monkeypatch.setattr(cases, "patched", word, raising=False)


def test_no_cases_and_marked_ones_are_refused():
  with pytest.raises(ValueError, match="no cases"):
    each_case("word", [])
  with pytest.raises(ValueError, match="has no marks"):
    each_case("word", [pytest.param("a", marks=pytest.mark.slow)])
