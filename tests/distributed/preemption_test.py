"""SIGTERM and Ctrl-C: a training saves the step that it is at, says how to go on, and loses nothing."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
import tiny_runs
from kills import DRIVER, newest_checkpoint
from same_runs import assert_same_runs

from tests import command_lines
from xmc_jax import refresh
from xmc_jax.cli import commands
from xmc_jax.distributed import preemption
from xmc_jax.distributed.preemption import Stop, StopRequested
from xmc_jax.runs import evaluate
from xmc_jax.training import loop, one_run

ROOT = pathlib.Path(__file__).parents[2]


def _asked_in(patch, owner, name, at):
  """Asks to stop in the `at`-th call of a function."""
  stops, original, left = [], getattr(owner, name), [at]

  class Kept(Stop):
    def __init__(self, *args):
      super().__init__(*args)
      stops.append(self)

  def wrapped(*args, **kwargs):
    left[0] -= 1
    if not left[0]:
      stops[-1]._signal = signal.SIGTERM  # that nobody sends
    return original(*args, **kwargs)

  patch.setattr(one_run, "Stop", Kept)
  patch.setattr(owner, name, wrapped)


# Six steps an epoch: clusters are made at steps 6 and 12, points scored at 12, checkpoints not due till 18.
CLUSTERED = {
  **tiny_runs.NGAME,
  "method.clusters_first_epoch": 0.5,
  "method.clusters_every_steps": 7,
  "eval.every_epochs": 2.0,
  "checkpoint.every_epochs": 3.0,
  "checkpoint.keep": 1,
}
ASKED = [
  ((loop.TrainStep, "__call__", 5), 5),
  ((refresh, "renew", 1), 6),  # its embedding is left, and made anew
  ((evaluate, "embed_split", 1), 12),  # likewise
  ((evaluate, "score", 1), 12),  # too late to leave it: what comes next is left
  ((loop.TrainStep, "__call__", 3), 15),
]


@pytest.mark.slow
def test_a_run_asked_to_stop_again_and_again_ends_like_one_never_asked(data, tmp_path, monkeypatch):
  """Wherever it is asked, the step that it is at is saved: nothing is trained twice."""
  config = tiny_runs.config(data, **CLUSTERED)
  expected = commands.train_and_test(config, tmp_path / "undisturbed")
  for point, newest in ASKED:
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
      _asked_in(patch, *point)
      commands.train_and_test(config, tmp_path / "asked", owns_process=True)
    assert ended.value.code == 0
    assert newest_checkpoint(tmp_path / "asked") == newest, point
  assert commands.train_and_test(config, tmp_path / "asked") == expected
  assert_same_runs(tmp_path / "undisturbed", tmp_path / "asked")


@pytest.mark.slow
def test_asked_in_the_evaluation_that_ends_a_training(data, tmp_path, monkeypatch):
  config = tiny_runs.config(data, **{"train.num_epochs": 1})
  expected = commands.train_and_test(config, tmp_path / "undisturbed")
  for _ in range(2):  # the second time nothing is left but this evaluation
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
      _asked_in(patch, evaluate, "embed_split", 1)
      commands.train_and_test(config, tmp_path / "asked")
  assert commands.train_and_test(config, tmp_path / "asked") == expected
  assert_same_runs(tmp_path / "undisturbed", tmp_path / "asked")


def _start(workdir, config, SLOW="0"):
  command = [sys.executable, "-c", DRIVER, f"--config={config}", f"--workdir={workdir}"]
  environment = {**os.environ, "STOP": "4", "SLOW": SLOW}
  return subprocess.Popen(command, cwd=ROOT, env=environment, **command_lines.PIPES)


def _signalled(process, *numbers, every=0.0):
  """Sends signals once step 4 is under way; what the process said afterwards, its exit code and seconds."""
  try:
    for line in process.stderr:
      if line == "step 4\n":
        break
    start = time.monotonic()
    for number in numbers:
      process.send_signal(number)
      time.sleep(every)
    out, err = process.communicate(timeout=60)
  finally:
    process.kill()
  assert "Traceback" not in err and "Exception" not in err
  assert out == ""
  return err, process.returncode, time.monotonic() - start


LONG = {"train.num_epochs": 100_000, "checkpoint.every_epochs": 0.0, "eval.every_epochs": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_saves_the_step_and_the_same_command_goes_on(number, code, data, tmp_path):
  config = tiny_runs.config_file(tmp_path / "config.py", data, **LONG)
  err, returned, _ = _signalled(_start(tmp_path / "run", config, SLOW="0.5"), number)
  assert returned == code, err
  saved = newest_checkpoint(tmp_path / "run")
  assert saved >= 4
  assert f"\nstopped at step {saved:,} of 600,000; the same command goes on\n" in err
  again = _start(tmp_path / "run", config)
  try:
    assert any(line.startswith(f"train: going on from step {saved:,} of") for line in again.stderr)
  finally:
    again.kill()
    again.communicate()


@pytest.mark.slow
def test_the_second_ctrl_c_stops_at_once(data, tmp_path):
  config = tiny_runs.config_file(tmp_path / "config.py", data, **LONG)
  process = _start(tmp_path / "run", config, SLOW="40")
  err, returned, seconds = _signalled(process, signal.SIGINT, signal.SIGINT, every=0.3)
  assert returned == 130 and seconds < 20
  assert "Ctrl-C again stops at once" in err and "\ninterrupted at once; " in err
  assert newest_checkpoint(tmp_path / "run") is None


@pytest.mark.slow
def test_a_step_longer_than_the_schedulers_patience_is_left(data, tmp_path):
  """Exit code 0 in time, with what was saved before."""
  config = tiny_runs.config_file(
    tmp_path / "config.py", data, **{**LONG, "checkpoint.every_epochs": 0.5, "checkpoint.grace_seconds": 1.0}
  )
  err, returned, seconds = _signalled(_start(tmp_path / "run", config, SLOW="40"), signal.SIGTERM)
  assert returned == 0 and seconds < 20
  assert "\nthere was no time to save; the same command goes on" in err
  assert newest_checkpoint(tmp_path / "run") == 3


# --- the listener, without a training ---

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def handlers():
  """Lets a test set handlers of signals; puts the earlier ones back."""
  if threading.current_thread() is not threading.main_thread():
    pytest.fail("signals reach main threads alone; run tests in one")
  before = [signal.getsignal(each) for each in SIGNALS]
  yield
  for each, handler in zip(SIGNALS, before, strict=True):
    signal.signal(each, handler)


def _wait_for(asked):
  deadline = time.monotonic() + 10
  while not asked():
    assert time.monotonic() < deadline, "it went on"
    time.sleep(0.001)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_heard_and_handlers_are_put_back(number, handlers, capfd):
  for each in SIGNALS:
    signal.signal(each, signal.default_int_handler)
  stop = Stop(60.0, owns_process=True)
  with stop.listening(), stop.saving():
    os.kill(os.getpid(), number)
    _wait_for(lambda: stop.requested(1))
    with pytest.raises(StopRequested):
      stop.check()
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
      stop.leave()
  assert "stopping after this step" in capfd.readouterr().err
  assert all(signal.getsignal(each) is signal.default_int_handler for each in SIGNALS)
  assert signal.set_wakeup_fd(-1) == -1


def test_a_shells_background_job_goes_on_ignoring_ctrl_c(handlers):
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  stop = Stop(60.0, owns_process=True)
  with stop.listening(), stop.saving():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)
    assert not stop.requested(1)


def test_outside_a_main_thread_nothing_is_heard():
  """As a notebook's or a server's worker calls it."""
  seen = []

  def work():
    with Stop(1.0).listening():
      seen.append(signal.getsignal(signal.SIGTERM))

  worker = threading.Thread(target=work)
  worker.start()
  worker.join()
  assert seen == [signal.getsignal(signal.SIGTERM)]


DEAF = """
import time
from xmc_jax.distributed.preemption import Stop
with Stop(1.0, owns_process=True).listening():
  print("here", flush=True)
  time.sleep(60)
"""


def test_a_signal_ends_a_process_whose_words_nobody_reads():
  """As after `2>&1 | tee log` whose tee is gone."""
  process = subprocess.Popen([sys.executable, "-c", DEAF], cwd=ROOT, **command_lines.PIPES)
  try:
    assert process.stdout.readline() == "here\n"
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
  finally:
    process.kill()
    process.stdout.close()


@pytest.mark.parametrize("moment", ["outside training", "late", "saved"])
def test_sigterm_raises_in_the_main_thread_of_a_process_not_ours(moment, handlers, capfd, monkeypatch):
  """As `xmc_jax.train` and `XMCClassifier.fit` are called: their callers' clean-up runs."""
  ends = []
  monkeypatch.setattr(preemption, "_end", lambda *_: ends.append(moment))  # or this test would end all tests
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  stop = Stop(0.1 if moment == "late" else 60.0)
  with pytest.raises(SystemExit) as ended, stop.listening():
    stop._can_save = moment != "outside training"
    os.kill(os.getpid(), signal.SIGTERM)
    _wait_for(lambda: moment == "saved" and stop.requested(1))
    os.kill(os.getpid(), signal.SIGTERM)  # some schedulers repeat it
    time.sleep(0.05)
    stop.leave()
  assert ended.value.code == 143 and not ends
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  said = capfd.readouterr().err
  assert ("there was no time to save" in said) == (moment == "late") and "same command" not in said


def test_a_programs_own_handler_of_sigterm_is_called(handlers):
  """With nothing of ours: it decides what happens."""
  calls = []
  signal.signal(signal.SIGTERM, lambda number, _: calls.append(number))
  stop = Stop(60.0)
  with stop.listening(), stop.saving():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.05)
  assert calls == [signal.SIGTERM] and not stop.requested(1)


@pytest.mark.parametrize("presses", [1, 2])
def test_a_notebooks_process_is_interrupted_and_not_ended(presses, handlers):
  """Outside training at the first, in it at the second."""
  signal.signal(signal.SIGINT, signal.default_int_handler)
  stop = Stop(60.0)
  with pytest.raises(KeyboardInterrupt), stop.listening():
    stop._can_save = presses == 2
    for press in range(presses):
      assert press == 0 or stop._raised == 1
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(0.2)
    pytest.fail("it went on")
  assert stop.requested(1) == (presses == 2)
