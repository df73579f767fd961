"""What a run tells: progress, stage times, metrics.jsonl, TensorBoard, tables."""

import errno
import json
import sys
import threading
import time
import types

import pytest

from xmc_jax import console
from xmc_jax.cli import error_lines
from xmc_jax.console import Progress
from xmc_jax.errors import UserError
from xmc_jax.runs import metric_writer
from xmc_jax.runs.metric_writer import MetricWriter


@pytest.fixture
def clock(monkeypatch):
  """A clock that stands still until it is moved."""
  clock = types.SimpleNamespace(now=100.0)
  monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
  return clock


def test_progress_without_a_terminal_is_a_plain_line_now_and_then(clock, capsys):
  bar = Progress("train", 100, unit="step")
  for done in range(1, 41):
    clock.now += 1.0
    bar.update(done, f"loss {done}")
  bar.close()
  out, err = capsys.readouterr()
  assert out == ""
  assert err.splitlines() == [
    "train 15/100 steps, 1.00/s, 1:25 left  loss 15",
    "train 30/100 steps, 1.00/s, 1:10 left  loss 30",
  ]


def test_progress_after_a_resume_counts_its_own_rate(clock, capsys):
  bar = Progress("train", 10_000, first=9_000)
  clock.now += 20.0
  bar.update(9_010)
  assert capsys.readouterr().err == "train 9,010/10,000 steps, 0.50/s, 33:00 left\n"


def test_compiling_is_no_part_of_the_rate(clock, capsys):
  bar = Progress("train", 100)
  bar.wait("compiling")
  clock.now += 60.0
  bar.update(1)
  for done in range(2, 17):
    clock.now += 1.0
    bar.update(done)
  assert capsys.readouterr().err.splitlines() == [
    "train: compiling",
    "train 1/100 steps",
    "train 16/100 steps, 1.00/s, 1:24 left",
  ]


def test_progress_of_unknown_length_and_without_any_step(clock, capsys):
  bar = Progress("prepare: read", None, unit="row")
  clock.now += 20.0
  bar.update(1234)
  stuck = Progress("train", 5)
  clock.now += 20.0
  stuck.update(0)
  assert capsys.readouterr().err == "prepare: read 1,234 rows\ntrain 0/5 steps, 0.00/s, ? left\n"


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0:00"), (59.6, "1:00"), (3661, "1:01:01")])
def test_clock(seconds, shown):
  assert console._clock(seconds) == shown


def test_progress_at_a_terminal_is_one_moving_line(monkeypatch, capsys):
  monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
  bar = Progress("train", 3)
  bar.wait("compiling")
  time.sleep(0.2)
  bar.update(1)
  started = capsys.readouterr().err.split("\r")
  assert "compiling]" in started[-2] and "1/3 [00:00<?, ?step/s]" in started[-1]  # not 0.2 s for each
  bar.update(3, "loss 1.0")
  bar.close()
  assert "\n" not in capsys.readouterr().err.strip("\n")


def test_stages_add_up_and_leave_out_what_is_counted_apart(tmp_path, clock):
  voice = MetricWriter(tmp_path)
  for compiling in (5.0, 0.0):
    with voice.stage("train", less="compile"):
      clock.now += 1.0
      with voice.stage("compile"):
        clock.now += compiling
      clock.now += 2.0
  assert voice.seconds["train"] == 6.0 and voice.seconds["compile"] == 5.0
  with pytest.raises(KeyError), voice.stage("save"):
    clock.now += 4.0
    raise KeyError
  assert voice.seconds["save"] == 4.0
  summary = voice.stage_summary()
  assert "train 6.0 s · save 4.0 s" in summary.replace("compile 5.0 s · ", "") and "peak memory" in summary


def test_a_resumed_run_goes_on_with_its_times(tmp_path):
  voice = MetricWriter(tmp_path)
  voice.seconds["prepare"] = 2.0
  voice.resume(3, {"prepare": 10.0, "train": 5.0})
  voice.close()
  assert dict(voice.seconds) == {"prepare": 12.0, "train": 5.0}


def _steps(path):
  return [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_metrics_are_lines_of_json(tmp_path):
  voice = MetricWriter(tmp_path)
  voice.scalars(1, {"train/loss": 0.5})
  voice.scalars(2, {"train/loss": 0.25, "eval/P@1": 1.0})
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert [line.pop("time") > 0 for line in lines] == [True, True]
  assert lines == [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": 0.25, "eval/P@1": 1.0}]


@pytest.mark.parametrize("cut", ["", '{"step": 4, "ti', '{"step": 2', "{", "\n"])
def test_later_lines_and_a_line_cut_short_are_dropped(cut, tmp_path):
  voice = MetricWriter(tmp_path)
  for step in (1, 2, 2, 3, 4):
    voice.scalars(step, {})
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write(cut)
  voice = MetricWriter(tmp_path)
  voice.resume(2, {})
  assert _steps(tmp_path) == [1, 2, 2]
  voice.scalars(3, {})
  voice.close()
  assert _steps(tmp_path) == [1, 2, 2, 3]
  assert not list(tmp_path.glob("*.tmp"))


def _written(folder, *steps) -> MetricWriter:
  """A writer that has written a loss for each of the steps, and is closed."""
  voice = MetricWriter(folder)
  voice.resume(0, {})
  for step in steps:
    voice.scalars(step, {"train/loss": 0.5})
  voice.close()
  return voice


def test_tensorboard_gets_the_same_numbers_where_it_is_installed(tmp_path):
  pytest.importorskip("tensorboard")
  from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

  _written(tmp_path, 3)
  (file,) = (tmp_path / "tensorboard").iterdir()
  events = [(e.step, v.tag) for e in LegacyEventFileLoader(str(file)).Load() for v in e.summary.value]
  assert events == [(3, "train/loss")]


def test_without_tensorboard_there_is_none(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
  _written(tmp_path, 1)
  assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize("from_the_start", [False, True])
def test_a_full_disk_leaves_tensorboard_and_names_the_metrics(from_the_start, tmp_path, monkeypatch, capsys):
  def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

  writer = types.SimpleNamespace(add_scalar=full, close=full)
  monkeypatch.setattr(metric_writer, "_tensorboard_writer", full if from_the_start else lambda _: writer)
  voice = _written(tmp_path, 1, 2)
  assert _steps(tmp_path) == [1, 2]
  assert capsys.readouterr().err.count("stopped writing TensorBoard files (No space left on device)") == 1
  (tmp_path / "metrics.jsonl").unlink()
  (tmp_path / "metrics.jsonl").mkdir()
  with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written .*; the same command goes on"):
    voice.scalars(3, {"train/loss": 0.5})


@pytest.mark.parametrize(
  ("error", "said"),
  [
    (OSError(errno.ENOSPC, "No space left on device", "events"), "give the same command again\n"),
    (ValueError("ours"), "ValueError: ours\n"),
  ],
)
def test_a_thread_that_the_machine_refuses_something_says_one_line(error, said, capfd):
  def fail():
    raise error

  with error_lines.in_one_line():
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
  err = capfd.readouterr().err
  assert err.endswith(said) and ("Traceback" in err) == isinstance(error, ValueError)
  assert threading.excepthook is threading.__excepthook__


def test_table():
  one = {"P@1": 0.41234, "nDCG@10": 1.0}
  assert console.table({"hybrid": one}) == "P@1      41.23\nnDCG@10 100.00"
  several = console.table({"hybrid": one, "lexical_labels": {"P@1": 0.5, "nDCG@10": 0.25}})
  assert several.splitlines() == [
    "        hybrid lexical labels",
    "P@1      41.23          50.00",
    "nDCG@10 100.00          25.00",
  ]


def test_other_processes_say_nothing(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr("xmc_jax.distributed.runtime.is_main_process", lambda: False)
  console.say("x")
  MetricWriter(tmp_path).scalars(1, {})
  assert capsys.readouterr().err == "" and not list(tmp_path.iterdir())
