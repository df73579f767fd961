"""docs/sklearn.md: its code runs from top to bottom, and its parameters are those that there are."""

import inspect
import re

import pytest

import xmc_jax
from tests.docs.documents_test import ROOT, blocks
from xmc_jax.training import members

PAGE = ROOT / "docs" / "sklearn.md"


def section(title: str) -> str:
  return PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.slow
def test_the_code_runs(tmp_path, monkeypatch, capfd):
  """All blocks in turn, as a reader types them; they print nothing, and the predictions make sense."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(members, "MEMBERS", ("dexml",))  # one is enough
  known: dict = {}
  first, *others = blocks(PAGE, "python")
  exec(first, known)
  assert known["model"].predict(["a music player for the terminal"]) == [["audio", "terminal", "desktop"]]
  for block in others:
    exec(block, known)
  assert capfd.readouterr() == ("", "")
  assert known["model"].score(known["texts"], known["labels"]) > 0.9
  assert known["names"][0][0] == "mail"
  assert known["again"].predict(["a mail reader"]) == known["model"].predict(["a mail reader"])
  assert known["batches"].predict(["plays chess"]) == [["games"]]
  assert known["model"].classes_[-1].startswith("games")
  assert not list(tmp_path.iterdir())


def test_it_lists_the_parameters_with_their_defaults():
  listed = {}
  for names, default in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `(.*?)` \|", section("Parameters"), re.M):
    listed |= dict.fromkeys(re.findall(r"\w+", names), default)
  parameters = inspect.signature(xmc_jax.XMCClassifier).parameters.values()
  expected = {each.name: repr(each.default).replace("'", '"') for each in parameters}
  assert listed == expected
