"""Which labels may be answers, by key."""

import json

import numpy as np
import pytest

from xmc_jax.errors import UserError
from xmc_jax.runs.label_filter import LabelFilter

KEYS = ("a", "b", "c", "d")


@pytest.mark.parametrize(
  ("include", "exclude", "expected"),
  [((), ("b",), [1, 0, 1, 1]), (("d", "b"), (), [0, 1, 0, 1]), (("b", "c"), ("c", "a"), [0, 1, 0, 0])],
)
def test_labels_are_included_then_excluded(include, exclude, expected):
  where = LabelFilter(KEYS).where(include, exclude)
  assert where.dtype == bool
  np.testing.assert_array_equal(where, expected)


def test_without_keys_all_labels_are_answers_and_a_stranger_is_refused():
  assert LabelFilter(KEYS).where() is None
  with pytest.raises(UserError, match="exclude: 'x' is the key of no label, such as 'a'"):
    LabelFilter(KEYS).where(exclude=("a", "x"))


def concept(broader=(), schemes=(), deprecated=False):
  return json.dumps({"broader": broader, "schemes": schemes, "deprecated": deprecated})


# a > b > d in a circle with it, and c is old; e was added later and has no concept.
CONCEPTS = [concept(["d"], ["s"]), concept(["a", "zzz"]), concept(["a"], ["s"], True), concept(["b"], ["t"])]


@pytest.mark.parametrize(
  ("include", "exclude", "expected"),
  [
    ((), (), "abde"),
    (("below:b",), (), "abd"),
    (("below:zzz",), (), "abd"),
    (("below:b", "c"), ("a",), "bcd"),
    (("scheme:s", "e"), (), "ae"),
    ((), ("scheme:t",), "abe"),
  ],
)
def test_a_vocabulary_names_many_labels_at_once(include, exclude, expected):
  where = LabelFilter((*KEYS, "e"), CONCEPTS).where(include, exclude)
  assert "".join(np.array([*KEYS, "e"])[where]) == expected


def test_a_key_of_several_labels_means_all_of_them_and_the_answer_is_not_to_be_changed():
  where = LabelFilter(("a", "b", "a")).where(exclude=("a",))
  assert where.tolist() == [False, True, False] and not where.flags.writeable


def test_tops_have_labels_below_them_and_none_above():
  """A label may be added whose key is broader than a concept's."""
  assert LabelFilter(list("abt"), [concept(["t"]), concept(["a"])]).tops == [2]
  assert LabelFilter(list("ab"), [concept(["t"]), concept(["a"])]).tops == [0]
  assert LabelFilter(list("ab")).tops == []
