"""Training again on all rows: how long, what is used afterwards, and kills on the way."""

import json

import jax
import numpy as np
import pytest
import tiny_runs
from kills import killed
from same_runs import assert_same_runs

from xmc_jax import methods
from xmc_jax.cli import commands
from xmc_jax.errors import ConfigError
from xmc_jax.runs import evaluate
from xmc_jax.runs import run as runs
from xmc_jax.runs.trained import SavedSteps
from xmc_jax.training import loop, one_run

SETTINGS = {
  "train.refit": True,
  "method.log_prior": 1.0,
  "train.batch_size": 16,
  "train.num_epochs": 2,
  "checkpoint.every_epochs": 0.5,
}


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("run") / "undisturbed"
  return workdir, commands.train_and_test(tiny_runs.config(data, **SETTINGS), workdir)


@pytest.mark.parametrize(
  "best, per_epoch, of_all, last",
  [(34, 17, 19, 38), (17, 17, 19, 19), (12, 6, 6, 12), (5, 6, 7, 6), (1, 100, 30, 1)],
)
def test_as_many_epochs_as_were_best(best, per_epoch, of_all, last):
  assert one_run.last_step(best, per_epoch, of_all) == last


@pytest.mark.parametrize("key", ["data.num_validation", "train.num_epochs"])
def test_nothing_to_train_again_with(key):
  config = methods.default_config()
  config.update_from_flattened_dict({"train.refit": True, key: 0})
  with pytest.raises(ConfigError, match=rf"train.refit = True .*{key} = 0.*train.refit=False"):
    methods.check_config(config)


def test_labels_are_as_frequent_as_in_the_rows_that_the_parameters_saw(data, tmp_path, monkeypatch):
  run = tiny_runs.open_run(data, tmp_path / "run", **SETTINGS)
  monkeypatch.setattr(SavedSteps, "is_refitted", lambda self: True)
  for where, rows in ((run.workdir, run.dataset.train), (tmp_path / "last", run.data.train)):
    again = run.ranking_in(where)
    column = again.embedder.labels(*again.initial_parameters())[:, -1] / run.config.method.temperature
    counts = (rows.unfiltered_positives > 0).sum(axis=0).A1
    np.testing.assert_allclose(column, np.log1p(counts), rtol=1e-5)
    np.testing.assert_array_equal(again.label_counts, counts)


def bits(tree) -> list[bytes]:
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def newest(folder):
  return max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


@pytest.mark.slow
def test_what_is_used_saw_all_rows(undisturbed, data, tmp_path):
  workdir, means = undisturbed
  trained = runs.reopen(workdir).trained()
  run, step = trained.run, trained.step
  best, per_epoch = newest(workdir / "best"), run.batches.steps_per_epoch
  assert (per_epoch, len(run.data.validation)) == (11, 20)  # 170 rows, 16 at a time; of all 190 rows it is 12
  assert step == newest(workdir / "refit" / "best") == best // 11 * 12
  assert json.loads((workdir / "report" / "metrics.json").read_text())["step"] == step
  assert commands.test(workdir) == means
  # By hand: the same settings, with no rows held out and as many steps.
  settings = SETTINGS | {"train.refit": False, "data.num_validation": 0}
  other = tiny_runs.open_run(data, tmp_path / "all", **settings)
  loop.train(other, loop.MetricWriter(tmp_path / "all"), last_step=step)
  with_all = other.trained().params
  first = run.saved.best.restore_trained(best, run.method.sharding_rules, run.mesh)[0]
  assert bits(trained.params) == bits(with_all) != bits(first)


@pytest.mark.slow
def test_kills_leave_no_trace(undisturbed, data, tmp_path):
  config, workdir = tiny_runs.config(data, **SETTINGS), tmp_path / "killed"
  left = [4]

  def fourth_step_on_all(step, *_):
    left[0] -= not step._settings.refit  # the training on all rows is none that asks for one
    return left[0] == 0

  for owner, name, when in (
    (one_run, "_on_all_rows", lambda run: True),
    (loop.TrainStep, "__call__", fourth_step_on_all),
    (one_run, "_save_final", lambda *_: True),
    (evaluate, "write_report", lambda *_: True),
  ):
    with killed(owner, name, when):
      commands.train_and_test(config, workdir)
    if name == "_save_final":  # until all is done, what the first training found is used
      assert runs.reopen(workdir).trained().step == newest(workdir / "best")
  whole, means = undisturbed
  assert commands.train_and_test(config, workdir) == means
  assert_same_runs(whole, workdir)
  for name in ("checkpoints", "best"):
    assert newest(workdir / "refit" / name) == newest(whole / "refit" / name)
  assert bits(runs.reopen(workdir).trained().params) == bits(runs.reopen(whole).trained().params)
  assert tiny_runs.metric_lines(workdir / "refit") == tiny_runs.metric_lines(whole / "refit")


DEXA = {**tiny_runs.DEXA, "method.head_label_points": 8}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dexa", "prime", "unidec"])
def test_tables_are_those_of_all_rows(name, data, tmp_path):
  """What labels are made of may depend on the rows, such as how many are frequent: all are by hand's."""
  settings = SETTINGS | {"dexa": DEXA, "prime": tiny_runs.PRIME, "unidec": tiny_runs.UNIDEC}[name]
  if name != "unidec":  # margins have no label frequency
    settings.pop("method.log_prior")
  means = commands.train_and_test(tiny_runs.config(data, **settings), tmp_path / "run")
  assert commands.test(tmp_path / "run") == means
  trained = runs.reopen(tmp_path / "run").trained()
  other = tiny_runs.open_run(
    data, tmp_path / "all", **(settings | {"train.refit": False, "data.num_validation": 0})
  )
  loop.train(other, loop.MetricWriter(tmp_path / "all"), last_step=trained.step)
  by_hand = other.trained()
  assert bits(trained.tree) == bits(by_hand.tree)
  np.testing.assert_array_equal(trained.labels(), by_hand.labels())
  counts = [
    np.bincount(one.data.train.unfiltered_positives.indices, minlength=60) for one in (trained.run, other)
  ]
  assert name != "dexa" or (counts[0] >= 8).sum() < (counts[1] >= 8).sum()
