"""Data without test rows, or with labels for few of them: all is done with them but a test table of zeros."""

import contextlib
import io

import pytest
import tiny_runs

import xmc_jax
from xmc_jax import data
from xmc_jax.cli import commands
from xmc_jax.errors import UserError

TEXTS, LABELS = ["barn kelt", "suss mive", "loma nuxo"] * 20, [["a", "b"], ["b"], []] * 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run, and what was printed while it was made."""
  place = tmp_path_factory.mktemp("no_test")
  folder = data.write(place / "data", TEXTS, LABELS)
  settings = {"train.num_epochs": 1, "eval.report_page": True, "eval.k": 100, "eval.scores": "hybrid"}
  settings |= {"data.num_validation": 5, "train.batch_size": 8}
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    means = commands.train_and_test(tiny_runs.config(folder, **settings), place / "run")
  assert means == {}
  return place / "run", out.getvalue(), err.getvalue()


def test_it_trains_without_a_test_table(trained):
  workdir, out, err = trained
  assert "note: data has no test rows, so there is no test table" in err
  assert "P@1 " not in out and "echo 'barn kelt' |" in out
  assert not (workdir / "report" / "metrics.json").exists()
  assert len(xmc_jax.Model.load(workdir).predict(TEXTS[:2], k=2)[0]) == 2


def test_what_needs_test_rows_is_refused(trained):
  with pytest.raises(UserError, match="no test rows, so there is no test table; --input=FILE names other"):
    commands.test(trained[0])
  with pytest.raises(UserError):
    commands.compare([trained[0], trained[0]])


def test_rows_without_labels_are_said_beside_the_table(tmp_path, capsys):
  for number, labels in enumerate(([["a"], [], [], []], [[]] * 4)):
    folder = data.write(tmp_path / f"data{number}", TEXTS, LABELS, test_texts=TEXTS[:4], test_labels=labels)
    config = tiny_runs.config(folder, **{"train.num_epochs": 1, "eval.report_page": False, "eval.k": 2})
    means = commands.train_and_test(config, tmp_path / f"run{number}")
    said = capsys.readouterr()
    if number == 0:
      assert ", 4 points (3 without labels count as 0, and not in R), parameters of step " in said.out
      assert means["P@1"] <= 0.25
    else:
      assert "note: none of the 4 test rows has a label, so there is no test table" in said.err
      assert means == {} and "P@1" not in said.out


@pytest.mark.slow
def test_it_is_exported(trained):
  commands.export(trained[0])
  exported = xmc_jax.export.Exported.load(trained[0] / "export")
  ids, _, _ = exported.predict(TEXTS[:2], k=2)
  assert (ids == xmc_jax.Model.load(trained[0]).predict(TEXTS[:2], k=2)[0]).all()
  assert "| P@1" not in (trained[0] / "export" / "README.md").read_text()
