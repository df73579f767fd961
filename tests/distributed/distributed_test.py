"""Two real processes on loopback train one run; one process goes on with it and evaluates it."""

import json
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import processes
import pytest
import same_runs
import tiny_runs
from kills import DRIVER, newest_checkpoint

SETTINGS = {
  "mesh.data": 2,
  "mesh.label": 2,
  "encoder.embedding_dropout": 0.0,
  "train.num_epochs": 2,
  "checkpoint.every_epochs": 0.5,
}


def _launch(flags, count, devices_each, **environment):
  """Runs `count` processes of one run; returns `(out, err, exit code)` of each."""
  command = [sys.executable, "-c", DRIVER, *flags]
  if count == 1:
    return processes.run_together([command], devices_each, [environment])
  address = {"JAX_COORDINATOR_ADDRESS": f"localhost:{processes.free_port()}", "JAX_NUM_PROCESSES": str(count)}
  own = [environment | address | {"JAX_PROCESS_ID": str(number)} for number in range(count)]
  return processes.run_together([[*command, "--distributed"]] * count, devices_each, own)


def _trained(workdir):
  step = newest_checkpoint(workdir)
  return step, same_runs.saved_state(workdir / "checkpoints", step)["params"]


# By method: settings, training rows, steps of an epoch. DEXML has what comes after, too: the hybrid ranker is
# fitted, and all rows are trained on. UniDEC has refreshes, and a table whose rows the processes share. Its
# rate is low: where gradients cancel, Adam makes a step of what rounding leaves, and two processes round
# otherwise than one.
TRAININGS = {
  "dexml": ({"eval.scores": "hybrid", "train.refit": True, "data.num_validation": 220}, 430, 6),
  "unidec": ({**tiny_runs.UNIDEC, "method.pool_size": 40, "train.learning_rate": 0.005}, 200, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", TRAININGS)
def test_two_processes_train_what_one_does_and_one_goes_on(method, tmp_path, monkeypatch):
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path / "cache"))
  settings, num_train, per_epoch = TRAININGS[method]
  data = tiny_runs.write_data(tmp_path / "data", num_train=num_train)
  config = tiny_runs.config_file(tmp_path / "config.py", data, **SETTINGS | settings)

  def flags(name):
    return [f"--config={config}", f"--workdir={tmp_path / name}"]

  ((out, err, code),) = _launch(flags("one"), 1, 4)
  assert code == 0, err
  both = _launch(flags("two"), 2, 2)
  for _, errors, returned in both:
    assert returned == 0, errors
  (spoken, progress, _), (silent, noise, _) = both
  if method != "dexml":
    assert spoken.partition("written to")[0] == out.partition("written to")[0]
  # One process speaks for all; the CPU's collectives library names its peers in both.
  assert silent == ""
  assert "epoch" in progress and "epoch" not in noise
  # Killed in the second epoch, after the checkpoint of the first; one process with as many devices goes on.
  killed = _launch(flags("moved"), 2, 2, STOP=str(per_epoch + 2))
  assert all(returned != 0 for *_, returned in killed)
  assert newest_checkpoint(tmp_path / "moved") == per_epoch
  ((_, err, code),) = _launch(flags("moved"), 1, 4)
  assert code == 0, err
  assert f"going on from step {per_epoch} of {2 * per_epoch}" in err

  expected_step, expected = _trained(tmp_path / "one")
  for name in ("two", "moved"):
    step, found = _trained(tmp_path / name)
    assert step == expected_step == 2 * per_epoch
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(left, right, atol=1e-5 * np.abs(right).max())
  reports = [json.loads((tmp_path / name / "report" / "metrics.json").read_text()) for name in ("one", "two")]
  if method != "dexml":
    assert reports[0] == reports[1]
    return
  # The hybrid's trees have thresholds, at which the last bits of two trainings may fall on either side: its
  # sources are compared, and what two processes rank with what one ranks by the same trees.
  assert reports[0]["by_source"] == reports[1]["by_source"]
  ((_, err, code),) = _launch(["--mode=evaluate", f"--workdir={tmp_path / 'two'}"], 1, 4)
  assert code == 0, err
  assert json.loads((tmp_path / "two" / "report" / "metrics.json").read_text()) == reports[1]


@pytest.mark.slow
def test_when_one_process_is_gone_the_other_says_so_and_stops(data, tmp_path, monkeypatch):
  """Within a minute, whichever it is; then both go on from the last checkpoint."""
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path / "cache"))
  config = tiny_runs.config_file(tmp_path / "config.py", data, **SETTINGS)
  flags = [f"--config={config}", f"--workdir={tmp_path / 'run'}"]
  for dead, step, saved in ((1, 4, 3), (0, 8, 6)):
    ended = _launch(flags, 2, 2, STOP=str(step), WHO=str(dead))
    _, err, code = ended[1 - dead]
    told = "\nerror: another process of this run is gone, so this one stops, too; the same commands go on"
    by_jax = "This most likely indicates that another task died"  # which aborts when the main one is gone
    assert ended[dead][-1] == -signal.SIGKILL
    assert (code == 1 and told in err) or (dead == 0 and code == -signal.SIGABRT and by_jax in err)
    assert "Traceback" not in err and "Extension modules" not in err
    assert newest_checkpoint(tmp_path / "run") == saved
  both = _launch(flags, 2, 2)
  assert [code for *_, code in both] == [0, 0] and "going on from step 6 of 12" in both[0][1]


@pytest.mark.slow
def test_a_signal_to_one_of_two_saves_the_same_step_of_both(data, tmp_path, monkeypatch):
  """SIGUSR1, which the process passes on to itself as SIGTERM."""
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path / "cache"))
  settings = {**SETTINGS, "train.num_epochs": 1000, "checkpoint.every_epochs": 0.0}
  config = tiny_runs.config_file(tmp_path / "config.py", data, **settings)
  flags = [f"--config={config}", f"--workdir={tmp_path / 'run'}"]
  both = _launch(flags, 2, 2, STOP="8", WHO="1", SIGNAL=str(int(signal.SIGUSR1)))
  assert [code for *_, code in both] == [0, 0]
  step = newest_checkpoint(tmp_path / "run")
  assert 8 <= step < 6000
  assert f"stopped at step {step:,} of 6,000; the same command goes on" in both[0][1]


def test_processes_that_do_not_find_each_other_are_told_what_to_set(tmp_path):
  environment = {"JAX_PLATFORMS": "cpu", "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
  command = [sys.executable, "-m", "xmc_jax.main"]
  command += ["--mode=evaluate", f"--workdir={tmp_path}", "--distributed"]
  options = {"env": environment, "capture_output": True, "text": True, "timeout": 120}
  child = subprocess.run(command, cwd=processes.ROOT, **options)
  assert child.returncode == 1 and "Traceback" not in child.stderr
