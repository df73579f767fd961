"""Kill -9 at any point, the same command again: the end is, bit by bit, that of a run never stopped."""

import contextlib
import pathlib
import re
import shutil
import sys

import jax
import numpy as np
import pytest
import tiny_devices
import tiny_runs
from kills import killed, newest_checkpoint
from same_runs import assert_same_runs, saved_state

from tests import command_lines
from xmc_jax import methods
from xmc_jax.cli import commands
from xmc_jax.distributed import sharding
from xmc_jax.runs import create, evaluate, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.storage import checksums
from xmc_jax.storage.checkpoints import StepFolder
from xmc_jax.training import loop

HERE = pathlib.Path(__file__).parents[1]
# Runs the command line, and kills itself before a call of a function: its owner, its name and how many calls.
DRIVER = """
import os, pkgutil, signal
from xmc_jax import main

owner, name, left = os.environ["KILL"].split()
owner, left = pkgutil.resolve_name(owner), int(left)
original = getattr(owner, name)

def wrapped(*args, **kwargs):
  global left
  left -= 1
  if not left:
    os.kill(os.getpid(), signal.SIGKILL)
  return original(*args, **kwargs)

setattr(owner, name, wrapped)
main.cli()
"""
STEP, SAVING = "xmc_jax.training.loop:TrainStep __call__", "xmc_jax.storage.checksums write_manifest"


def _command(workdir, config, kill=""):
  """Runs the command line in a child process; returns it when it has ended."""
  flags = [f"--config={config}", f"--workdir={workdir}"]
  script = ["-c", DRIVER] if kill else ["-m", "xmc_jax.main"]
  environment = {"XLA_FLAGS": tiny_devices.flags(1), "KILL": kill}
  return command_lines.run(sys.executable, *script, *flags, **environment)


# Six steps an epoch, a checkpoint every two, an evaluation every six. What the run goes on from
# after each kill is the newest checkpoint.
KILLS = [
  ("os link 4", 0),  # while the data are put into the run's folder
  (f"{STEP} 4", 2),  # inside an epoch, one step after a save
  ("xmc_jax.runs.ranking:Index search 1", 4),  # in an evaluation
  (f"{SAVING} 1", 4),  # in the middle of saving step 6
  ("xmc_jax.storage.checkpoints:Checkpoints keep_best 1", 6),  # before its parameters are kept as the best
  (f"{SAVING} 1", 6),  # in the middle of keeping them, which the next start makes up for
  (f"{STEP} 1", 6),  # right after that
  ("os rmdir 1", 8),  # while an older step is deleted
]


def test_a_run_that_ends_inside_an_epoch_goes_on_to_the_same_bits(data, tmp_path):
  config = tiny_runs.config(data, **{"encoder.dropout": 0.1, "checkpoint.every_epochs": 0.0})

  def ended(workdir, *last_steps):
    for last_step in last_steps:
      writer = MetricWriter(workdir)
      run = create.create(config, workdir, writer)
      loop.train(run, writer, last_step=last_step)
    return run.trained(last=True)

  whole, parted = ended(tmp_path / "whole", 8), ended(tmp_path / "parted", 4, 5, 8)
  assert whole.step == parted.step == 8
  jax.tree.map(np.testing.assert_array_equal, parted.params, whole.params)


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_like_one_never_stopped(data, tmp_path, monkeypatch):
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path / "cache"))
  overrides = {"checkpoint.every_epochs": 0.4}
  config = tiny_runs.config_file(tmp_path / "config.py", data, **overrides)
  undisturbed = _command(tmp_path / "undisturbed", config)
  assert undisturbed.returncode == 0, undisturbed.stderr
  for kill, newest in KILLS:
    killed = _command(tmp_path / "killed", config, kill)
    assert killed.returncode == -9, f"{kill}: {killed.stderr}"
    assert newest_checkpoint(tmp_path / "killed") == (newest or None), kill
  last = _command(tmp_path / "killed", config)
  assert last.returncode == 0, last.stderr
  for text in (undisturbed.stderr, last.stderr):  # no library speaks to the user
    assert [line for line in text.splitlines() if re.search(r"warn|info|absl|^[IWE]\d{4}", line, re.I)] == []
  assert f"train: going on from step {newest} of 18" in last.stderr
  first_lines = [text.partition("written to")[0] for text in (undisturbed.stdout, last.stdout)]
  assert first_lines[0] == first_lines[1]
  assert_same_runs(tmp_path / "undisturbed", tmp_path / "killed")


@pytest.mark.slow
def test_so_does_one_that_saves_in_the_background(data, tmp_path, monkeypatch):
  """Steps after a save may run before it is finished, so the newest step depends on when the kill came."""
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path / "cache"))
  configs = [
    tiny_runs.config_file(
      tmp_path / f"{kind}.py", data, **{"checkpoint.every_epochs": 0.4, "checkpoint.in_background": kind}
    )
    for kind in ("never", "always")
  ]
  undisturbed = _command(tmp_path / "undisturbed", configs[0])
  assert undisturbed.returncode == 0, undisturbed.stderr
  for kill in (f"{STEP} 6", f"{SAVING} 1", f"{SAVING} 2"):
    killed = _command(tmp_path / "killed", configs[1], kill)
    assert killed.returncode == -9, f"{kill}: {killed.stderr}"
  last = _command(tmp_path / "killed", configs[1])
  assert last.returncode == 0 and "train: going on from step" in last.stderr, last.stderr
  saved = tmp_path / "killed" / "config.json"
  assert '"always"' in saved.read_text()
  saved.write_text(saved.read_text().replace('"always"', '"never"'))
  assert_same_runs(tmp_path / "undisturbed", tmp_path / "killed")


@pytest.mark.slow
def test_a_run_that_stops_early_resumes_bit_identically(data, tmp_path):
  """Pools of sampled labels, evaluations and checkpoints out of step, and kills around the early stop."""
  config = tiny_runs.config(
    data,
    **{
      "method.labels": "in_batch",
      "method.num_random_negatives": 10,
      "train.num_epochs": 9,
      "train.learning_rate": 0.1,
      "train.early_stop_evals": 2,
      "eval.every_epochs": 0.5,
      "checkpoint.every_epochs": 0.7,
    },
  )
  expected = commands.train_and_test(config, tmp_path / "undisturbed")
  lines = [line for line in tiny_runs.metric_lines(tmp_path / "undisturbed") if "eval/P@1" in line]
  stopped = lines[-1]["step"]
  assert stopped < 54, "the run never stops early: choose other settings"
  last = (stopped - 1) // 4 * 4  # checkpoint before it: they stand every four steps
  for kill in (
    (loop.TrainStep, "__call__", 6),
    (evaluate, "score", 2),
    # In the evaluation that stops the run, and then between it and its checkpoint.
    (evaluate, "score", lambda *_: newest_checkpoint(tmp_path / "killed") == last),
    (StepFolder, "save", lambda *arguments: arguments[-1].get("stopped")),
    # After the stop was saved, before the test.
    (evaluate, "write_report"),
  ):
    with killed(*kill):
      commands.train_and_test(config, tmp_path / "killed")
  assert commands.train_and_test(config, tmp_path / "killed") == expected
  assert_same_runs(tmp_path / "undisturbed", tmp_path / "killed")


_SAVED_OFTEN = {"checkpoint.every_epochs": 0.4}
_CLUSTERED = {
  "method.clusters_first_epoch": 0.5,
  "method.clusters_every_steps": 7,
  "encoder.embedding_dropout": 0.1,
  **_SAVED_OFTEN,
}
_DEXA = {**tiny_runs.DEXA, **_CLUSTERED, "method.label_clusters_every_epochs": 1.5}
_UNIDEC = {
  **tiny_runs.UNIDEC,
  "method.shortlist_every_epochs": 5.0,
  "method.shortlist_every_steps": 5,
  "method.pool_size": 40,
  "encoder.embedding_dropout": 0.1,
  **_SAVED_OFTEN,
  "train.head_learning_rate": 0.03,
}
_RAMEN = {**tiny_runs.RAMEN, "method.clusters_first_epoch": 0.5, **_SAVED_OFTEN}
# Odds of walks are in the run's folder; what the encoder at the start kept, in checkpoints alone.
_RAMEN_PRETRAINED = {
  **_RAMEN,
  "method.anchor_sampling": "visits",
  "method.walk_sides": "query",
  "method.pruning_by": "pretrained_centred",
}
# Hidden states and attention weights dropped, texts in chunks of the gradient cache, layers made again.
_TRANSFORMER = {
  "encoder.dropout": 0.1,
  "encoder.attention_dropout": 0.1,
  "encoder.remat": True,
  "method.query_chunk": 16,
  **_SAVED_OFTEN,
}
_SETTINGS = {
  "fresh": {
    "method.labels": "in_batch",
    "method.num_fresh_negatives": 6,
    **_SAVED_OFTEN,
  },  # a cache of labels
  "dexa": _DEXA,
  "unidec": _UNIDEC,
  "prime": {**tiny_runs.PRIME, **_CLUSTERED, "encoder.embedding_dropout": 0.0},
  "ramen": _RAMEN,
  "ramen_pretrained": _RAMEN_PRETRAINED,
  "bert": _TRANSFORMER,
  "distilbert": _TRANSFORMER,
  "rae_xmc": {
    **tiny_runs.RAE_XMC,
    "method.point_positive_weight": 0.5,
    "method.clusters_first_epoch": 0.5,
    **_SAVED_OFTEN,
  },
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["classifier", *_SETTINGS])
def test_refreshes_and_tables_resume_bit_identically(method, graph_data, tmp_path):
  """What refreshes made is saved: made anew from later parameters it would be another."""
  settings = _SETTINGS.get(method)
  if method in ("bert", "distilbert"):
    settings = {**settings, "encoder.name": str(tiny_runs.tiny_bert(tmp_path / "encoder", method))}
  if method == "classifier":
    commands.train_and_test(tiny_runs.config(graph_data, **_DEXA), tmp_path / "encoder")
    settings = {**tiny_runs.CLASSIFIER, **_CLUSTERED, "data.path": "", "eval.num_candidates": 20}
    settings |= {
      "init_from": str(tmp_path / "encoder"),
      "method.num_positives": 1,
      "method.query_dropout": 0.5,
    }
  config = tiny_runs.config(graph_data, **settings)
  expected = commands.train_and_test(config, tmp_path / "undisturbed")
  for at in (3, 6, 9):
    with killed(loop.TrainStep, "__call__", at):
      commands.train_and_test(config, tmp_path / "killed")
  if method == "classifier":
    shutil.rmtree(tmp_path / "encoder")  # a run that goes on no longer needs it
    for owner, point in ((ranking, "fit_own_scores"), (evaluate, "write_report")):
      with killed(owner, point):
        commands.train_and_test(config, tmp_path / "killed")
  assert commands.train_and_test(config, tmp_path / "killed") == expected
  assert_same_runs(tmp_path / "undisturbed", tmp_path / "killed")


@pytest.mark.slow
def test_times_go_on_over_a_kill(data, tmp_path):
  """Stage times are those of all processes, up to the checkpoint that was gone on from."""
  config = tiny_runs.config(data, **{"train.num_epochs": 2, "eval.every_epochs": 0.0})
  with killed(loop.TrainStep, "__call__", 9):
    commands.train_and_test(config, tmp_path / "run")
  run = runs.reopen(tmp_path / "run")
  saved = checksums.read_record(run.workdir / "checkpoints" / "6")["seconds"]
  assert saved["compile"] > 0 and saved["train"] > 0
  with contextlib.closing(MetricWriter(run.workdir)) as voice:
    loop.train(run, voice)
  assert all(voice.seconds[name] >= saved[name] for name in saved)
  assert voice.seconds["compile"] > saved["compile"]


_MOVED = {
  "ova": {"method.name": "ova", "method.loss": "binary", "method.labels": "table"},
  "fresh": {"method.labels": "in_batch", "method.num_fresh_negatives": 5},
  "dexa": {**_DEXA, "method.num_head_labels": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("method", "begun", "ended"),
  [
    ("ova", (1, 1), (2, 4)),
    ("ova", (2, 4), (1, 1)),
    ("ova", (2, 4), (1, 8)),
    ("fresh", (1, 1), (2, 4)),
    ("dexa", (1, 1), (2, 4)),
    ("dexa", (2, 4), (1, 1)),
  ],
)
def test_a_run_goes_on_over_another_mesh(method, begun, ended, data, tmp_path):
  """60 labels are 60 rows on one device and 64 on eight: of tables, their moments, and the label cache.

  DEXA's 11 auxiliary vectors likewise are 11 rows and 16. Equal but for rounding, to a relative 1e-4.
  """
  settings = {**_MOVED[method], "encoder.embedding_dropout": 0.0, "train.num_epochs": 2}
  tables = []

  def go(name, **overrides):
    workdir = tmp_path / name
    run = tiny_runs.open_run(data, workdir, **settings, **overrides)
    loop.train(run, MetricWriter(workdir))
    state = saved_state(workdir / "checkpoints", newest_checkpoint(workdir))
    tables.append(run.trained().labels())  # whatever mesh saved the parameters
    return {"params": state["params"], "extra_state": state["extra_state"]}

  expected = go("whole")
  with killed(loop.TrainStep, "__call__", 9):
    go("moved", **dict(zip(("mesh.data", "mesh.label"), begun)))
  found = go("moved", **dict(zip(("mesh.data", "mesh.label"), ended)))
  num_padded = 0
  for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    if left.shape != right.shape:
      rows, num_padded = len(right), num_padded + 1
      assert rows in (11, tiny_runs.NUM_LABELS) and len(left) == sharding.rounded_up(rows, np.prod(ended))
      left = left[:rows]
    np.testing.assert_allclose(left, right, atol=1e-4 * np.abs(right).max())
  assert num_padded == (np.prod(ended) > 1)
  found = runs.reopen(tmp_path / "moved", methods.default_config().mesh)  # opened on one device
  tables.append(found.trained().labels())
  for table in tables[1:]:
    np.testing.assert_allclose(table, tables[0], atol=1e-4)


@pytest.mark.slow
def test_going_on_from_further_back_forgets_the_best_of_a_later_step(data, tmp_path):
  """As after deleting a damaged checkpoint: what best/ holds of later steps is another run's by then."""
  workdir = tmp_path / "run"
  config = tiny_runs.config(data, **{"train.num_epochs": 2})
  expected = commands.train_and_test(config, workdir)
  shutil.rmtree(workdir / "checkpoints" / "12")
  (kept,) = (workdir / "best").iterdir()
  kept.rename(kept.with_name("99"))
  assert commands.train_and_test(config, workdir) == expected
  assert [path.name for path in (workdir / "best").iterdir()] != ["99"]
  assert runs.reopen(workdir).trained().step <= 12
