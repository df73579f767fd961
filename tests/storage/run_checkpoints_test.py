"""Checkpoints beside best parameters: what a new start makes of kills and damage to either."""

import jax.numpy as jnp
import pytest

from xmc_jax.errors import UserError
from xmc_jax.storage.checkpoints import Checkpoints, StepFolder, TrainingRecord
from xmc_jax.types import TrainState


def state(step):
  return TrainState(jnp.int32(step), {"word": jnp.full(3, float(step))}, (jnp.int32(step),), {})


def trained(workdir, *steps, best=()):
  """A run that saved these steps; at some of them validation had never been better."""
  checkpoints = Checkpoints(workdir, keep=3)
  for step in steps:
    if step in best:
      assert checkpoints.record.add_score(step, step / 100, 0)
    checkpoints.save(state(step), {}, {"train": 1.0})
    if step in best:
      checkpoints.keep_best(state(step))
  return checkpoints


def best(workdir):
  return StepFolder(workdir / "best", read_only=True)


def started(workdir, in_background=False):
  """A new start: `(checkpoints, the step that it goes on from)`."""
  checkpoints = Checkpoints(workdir, 3, in_background)
  step = checkpoints.latest_valid()
  found, _ = checkpoints.restore(step, state(0))
  assert int(found.step) == (step or 0)
  return checkpoints, step


def hurt(folder):
  (victim,) = folder.glob("state/manifest.ocdbt")
  victim.write_bytes(victim.read_bytes()[:-1])


def test_all_is_as_it_was(tmp_path):
  trained(tmp_path, 3, 6, 9, best=(6,))
  checkpoints, step = started(tmp_path)
  assert step == 9 and best(tmp_path).latest() == 6
  assert (checkpoints.record.best, checkpoints.record.best_step) == (0.06, 6)


@pytest.mark.parametrize("in_background", [False, True])
def test_a_kill_between_checkpoint_and_best_is_made_up_for(tmp_path, in_background):
  """Before `restore` returns: a run that has ended saves nothing more."""
  checkpoints = trained(tmp_path, 3, best=(3,))
  assert checkpoints.record.add_score(6, 0.06, 0)
  checkpoints.save(state(6), {}, {})
  checkpoints, step = started(tmp_path, in_background)
  assert step == 6 and best(tmp_path).latest() == 6
  assert best(tmp_path).latest_valid() == 6


def test_going_back_over_a_better_step_looks_for_the_best_anew(tmp_path, capfd):
  """The best of step 6 was deleted for that of step 12, which is no more: a record of it would never fall."""
  trained(tmp_path, 6, 9, 12, best=(6, 12))
  hurt(tmp_path / "checkpoints" / "12")
  checkpoints, step = started(tmp_path)
  assert step == 9 and best(tmp_path).latest() is None
  assert checkpoints.record.best is None and checkpoints.record.best_step is None
  assert "the best parameters so far, of step 6, are gone" in capfd.readouterr().err


def test_damaged_best_parameters_are_set_aside(tmp_path, capfd):
  trained(tmp_path, 3, 6, best=(3,))
  hurt(tmp_path / "best" / "3")
  checkpoints, step = started(tmp_path)
  assert step == 6 and checkpoints.record.best is None
  assert (tmp_path / "best" / "damaged-3").is_dir()
  assert "best/3: this checkpoint is damaged" in capfd.readouterr().err


def test_damaged_best_parameters_of_this_very_step_are_saved_again(tmp_path):
  trained(tmp_path, 3, 6, best=(6,))
  hurt(tmp_path / "best" / "6")
  checkpoints, step = started(tmp_path)
  assert step == 6 and best(tmp_path).latest_valid() == 6 and checkpoints.record.best == 0.06


def test_whole_best_parameters_are_not_deleted_to_begin_anew(tmp_path):
  trained(tmp_path, 3, 6, best=(3,))
  for step in (3, 6):
    hurt(tmp_path / "checkpoints" / str(step))
  for _ in range(2):  # nor by the same command given again
    with pytest.raises(UserError, match="every checkpoint is damaged; the best parameters so far are whole"):
      started(tmp_path)
  assert best(tmp_path).latest_valid() == 3


def test_where_nothing_is_left_a_training_begins_anew(tmp_path):
  trained(tmp_path, 3)
  hurt(tmp_path / "checkpoints" / "3")
  checkpoints, step = started(tmp_path)
  assert step is None and checkpoints.record.best is None


# --- the record ---


def test_a_record_says_when_to_stop():
  record = TrainingRecord(unscored=True)
  found = [record.add_score(step, score, patience=2) for step, score in ((1, 0.1), (2, 0.3), (3, 0.3))]
  assert found == [True, True, False] and not record.stopped  # an equal score is no better
  assert not record.unscored
  assert (record.best, record.best_step) == (0.3, 2)
  assert not record.add_score(4, 0.2, patience=0) and not record.stopped
  assert not record.add_score(5, 0.2, patience=2) and record.stopped
