"""--mode=evaluate --checkpoint=last: the last step, ranked by nothing that the best parameters left."""

import json
import os
import shutil
import types

import pytest
import tiny_runs

from xmc_jax.cli import commands
from xmc_jax.errors import UserError
from xmc_jax.runs import ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.trained import Trained, to_test
from xmc_jax.storage import run_folder

_COMMON = {
  "eval.scores": "hybrid",
  "train.num_epochs": 4,
  "eval.every_epochs": 1.0,
  "train.learning_rate": 0.05,
  "eval.report_page": False,
}
CASES = {
  "dexml": {},
  "unidec": {**tiny_runs.UNIDEC, "eval.fusion_rows": 100, "train.learning_rate": 1.0, "train.num_epochs": 6},
  "rae_xmc": tiny_runs.RAE_XMC,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_last_step_is_tested_as_if_it_were_the_best(name, tmp_path):
  """As a copy of the run ranks that has no better parameters, and nothing that was fitted to them."""
  data, workdir, bare = tiny_runs.write_data(tmp_path / "data"), tmp_path / "run", tmp_path / "bare"
  commands.train_and_test(tiny_runs.config(data, **{**_COMMON, **CASES[name]}), workdir)
  run = runs.reopen(workdir)
  best, last = run.trained().step, run.trained(last=True).step
  assert best < last, "choose settings under which validation falls in the end"
  kept = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
  for scores in ("", "fused", "encoder"):
    found = commands.test(workdir, scores=scores, checkpoint="last")
    other = f"_{scores}" if scores not in ("", run.config.eval.scores) else ""
    report = json.loads((workdir / "report" / f"metrics{other}_last.json").read_text())
    assert report["step"] == last and report["metrics"] == found
    shutil.copytree(workdir, bare)
    shutil.rmtree(bare / "best")
    for made in run_folder.RANKING_FILES:
      (bare / made).unlink(missing_ok=True)
    if scores in ("", "fused"):  # what a training fits at its end
      alone = runs.reopen(bare)
      ranking.fit_own_scores(alone.trained())
    assert commands.test(bare, scores=scores) == found
    shutil.rmtree(bare)
  assert not (workdir / run_folder.LAST).exists()
  changed = [path.name for path, content in kept.items() if path.read_bytes() != content]
  assert not changed, changed


def test_two_tests_of_a_last_step_at_once(tmp_path, monkeypatch):
  """The second is refused, and leaves the first one's folder as it is; then it may."""

  def open_run(folder):
    run = types.SimpleNamespace(workdir=tmp_path, ranking_folder=folder, ranking_in=open_run)
    run.trained = lambda last: Trained(run, "params", "extra_state", 7)
    return run

  run = open_run(tmp_path)
  fitted = []
  monkeypatch.setattr(ranking, "fit_own_scores", fitted.append)
  with to_test(run, "last") as last:
    assert (last.params, last.extra_state, last.step) == ("params", "extra_state", 7) and fitted == [last]
    folder = last.run.ranking_folder
    assert folder == tmp_path / run_folder.LAST
    (folder / "kept").touch()
    said = rf"process {os.getpid()} on \S+ tests the last step in this folder; wait for it, or stop it"
    with pytest.raises(UserError, match=said), to_test(run, "last"):
      pass
    assert (folder / "kept").exists()
  assert not folder.exists()
  with to_test(run, "last"):
    assert not (folder / "kept").exists()
