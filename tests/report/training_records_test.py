"""What a folder tells of a training, whoever wrote it, and when refreshes were made."""

import json

import numpy as np

from xmc_jax.report import training_records
from xmc_jax.types import Refresh


def _write(folder, *lines):
  (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def _line(step, **values):
  return json.dumps({"step": step, "time": 1.0, **values})


def test_curves_rise_and_the_last_word_counts(tmp_path):
  _write(
    tmp_path,
    _line(4, **{"train/loss": 3.0, "time/train": 1.5}),
    _line(4, **{"eval/P@1": 0.25}),
    _line(8, **{"train/loss": 2.0}),
    _line(4, **{"eval/P@1": 0.5}),  # a resumed run wrote it again
  )
  found = training_records.curves(tmp_path)
  assert sorted(found) == ["eval/P@1", "time/train", "train/loss"]
  np.testing.assert_array_equal(found["train/loss"].steps, [4, 8])
  np.testing.assert_array_equal(found["train/loss"].values, [3.0, 2.0])
  np.testing.assert_array_equal(found["eval/P@1"].values, [0.5])
  assert training_records.steps_per_epoch(found) == 4


def test_lines_that_are_none_of_ours_are_skipped(tmp_path):
  values = (_line(5, **{"train/loss": value}) for value in (float("nan"), float("inf"), "1"))
  lines = ('{"step": 5, "train/loss": 1', "[1, 2]", "", '{"train/loss": 1.0}', *values)
  _write(tmp_path, *lines, _line(6, **{"train/loss": 2.0}))
  found = training_records.curves(tmp_path)
  assert list(found) == ["train/loss"] and found["train/loss"].steps.tolist() == [6]


def test_refreshes_are_where_they_were_due(tmp_path):
  times = {f"time/refresh_{name}": 0.1 for name in ("clusters", "shortlist")}
  _write(tmp_path, *(_line(10 * epoch, **{"train/loss": 1.0, **times}) for epoch in range(1, 7)))
  refreshes = {
    "clusters": Refresh(2.0, print, first_epoch=1.0),
    "shortlist": Refresh(0.0, print, every_steps=25),
    "never_made": Refresh(1.0, print),
  }
  found = training_records.refreshed(refreshes, training_records.curves(tmp_path))
  expected = {"clusters": [10, 30, 50], "shortlist": [0, 25, 50]}
  assert {name: steps.tolist() for name, steps in found.items()} == expected
  assert training_records.refreshed(refreshes, {}) == {}


def test_seconds_of_a_run_that_goes_on_are_those_of_its_last_reading(tmp_path):
  _write(tmp_path, _line(6, **{"time/train": 2.0, "memory/host_bytes": 5e9}))
  assert training_records.seconds(tmp_path) == {"train": 2.0}
  assert training_records.memory(training_records.curves(tmp_path)) == {"host": 5e9}
  (tmp_path / "report").mkdir()
  (tmp_path / "report" / "seconds.json").write_text('{"train": 3.5}')
  assert training_records.seconds(tmp_path) == {"train": 3.5}
