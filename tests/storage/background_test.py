"""Checkpoints that are written while the training goes on."""

import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.storage.run_checkpoints_test import state
from xmc_jax.distributed.preemption import StopRequested
from xmc_jax.errors import UserError
from xmc_jax.storage.checkpoints import Checkpoints, StepFolder
from xmc_jax.storage.checkpoints.background import Background


def test_writes_run_in_order_beside_the_caller():
  background, may_go_on, done = Background(in_thread=True), threading.Event(), []

  def slow():
    assert may_go_on.wait(60)
    done.append("slow")

  background.run(slow)
  background.run(lambda: done.append("quick"))
  assert not done  # the caller did not wait
  may_go_on.set()
  background.wait()
  assert done == ["slow", "quick"]
  at_once = Background(in_thread=False)
  at_once.run(lambda: done.append("at once"))
  assert done[-1] == "at once"


def test_an_error_is_raised_once_by_what_waits_and_nothing_is_written_after_it(capfd):
  background, done = Background(in_thread=True), []
  fail = mock.Mock(side_effect=UserError("the disk is full"))
  background.run(fail)
  background.run(lambda: done.append("later"))
  with pytest.raises(UserError, match="the disk is full"):
    background.wait()
  background.wait()
  assert not done
  background.run(fail)
  with pytest.raises(ValueError, match="of the block"), background.finished():  # not that of the write
    raise ValueError("of the block")
  assert "a checkpoint was not written: the disk is full" in capfd.readouterr().err
  for left_by in (None, StopRequested):  # a stop relies on what it saved
    background = Background(in_thread=True)
    background.run(fail)
    with pytest.raises(UserError, match="the disk is full"), background.finished():
      if left_by:
        raise left_by


def test_what_a_step_overwrites_is_saved_as_it_was(tmp_path):
  """The next step has run before anything is written."""
  folders, next_step = {}, jax.jit(lambda now: jax.tree.map(lambda leaf: leaf + 100, now), donate_argnums=0)
  for in_background in (False, True):
    workdir = folders[in_background] = tmp_path / str(in_background)
    checkpoints, has_run = Checkpoints(workdir, 3, in_background), threading.Event()
    if in_background:
      write = checkpoints._newest.save
      checkpoints._newest.save = lambda *args, write=write, has_run=has_run: has_run.wait(60) and write(*args)
    with checkpoints.finished():
      for step in (3, 6):
        checkpoints.latest()  # waits for the step before
        has_run.clear()
        now = jax.tree.map(jnp.copy, state(step))
        assert checkpoints.record.add_score(step, step / 100, 0)
        checkpoints.save(now, {"clusters": np.arange(step)}, {"train": 1.0})
        checkpoints.keep_best(now)
        jax.block_until_ready(next_step(now))
        checkpoints.record.skipped += 1  # belongs to the next save
        has_run.set()
    assert checkpoints.latest() == 6
  for step in (3, 6):
    written = [StepFolder(workdir / "checkpoints", read_only=True) for workdir in folders.values()]
    saved = [checkpoints.restore(step, state(0)) for checkpoints in written]
    jax.tree.map(np.testing.assert_array_equal, saved[0], saved[1])
    assert saved[0][2]["skipped"] == (step == 6)
  for workdir in folders.values():
    best = StepFolder(workdir / "best", read_only=True)
    assert best.finished() == [6] and best.latest_valid() == 6


def test_a_full_disk_is_named_by_the_next_save(tmp_path, monkeypatch):
  checkpoints = Checkpoints(tmp_path, 3, in_background=True)
  checkpoints.save(state(3), {}, {})
  assert checkpoints.latest() == 3

  def full(*_, **__):
    time.sleep(0.05)
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(ocp.Checkpointer, "save", full)
  checkpoints.save(state(6), {}, {})
  assert checkpoints.last_good() == "the last good checkpoint is step 3"  # names it, and prints the error
  checkpoints.save(state(6), {}, {})
  with pytest.raises(UserError, match=r"No space left on device.*; the last good checkpoint is step 3"):
    checkpoints.save(state(9), {}, {})
