"""Checkpoints beside best parameters: what a new start makes of kills and damage to either."""

import jax.numpy as jnp
import numpy as np
import pytest

from xmc_jax.errors import UserError
from xmc_jax.storage.checkpoints import Checkpoints
from xmc_jax.training.saver import Saves
from xmc_jax.types import TrainState


class Folders:
  """As much of a run as Saves looks at."""

  def __init__(self, workdir):
    self._workdir = workdir

  def checkpoints(self):
    return Checkpoints(self._workdir / "checkpoints", keep=3)

  def best(self):
    return Checkpoints(self._workdir / "best", keep=1)


def state(step):
  return TrainState(jnp.int32(step), {"word": jnp.full(3, float(step))}, (jnp.int32(step),), {})


def trained(workdir, *steps, best=()):
  """A run that saved these steps; at some of them validation had never been better."""
  saves = Saves(Folders(workdir))
  for step in steps:
    if step in best:
      saves.host.update(best=step / 100, best_step=step)
    saves.save(state(step), {}, {"train": 1.0})
    if step in best:
      saves.keep_best(state(step))
  return saves


def started(workdir):
  """A new start: `(saves, the step that it goes on from)`."""
  saves = Saves(Folders(workdir))
  step = saves.checkpoints.usable()
  found, _ = saves.restore(step, state(0))
  assert int(found.step) == (step or 0)
  return saves, step


def hurt(folder):
  (victim,) = folder.glob("state/manifest.ocdbt")
  victim.write_bytes(victim.read_bytes()[:-1])


def test_all_is_as_it_was(tmp_path):
  trained(tmp_path, 3, 6, 9, best=(6,))
  saves, step = started(tmp_path)
  assert step == 9 and saves.best.latest() == 6
  assert (saves.host["best"], saves.host["best_step"]) == (0.06, 6)


def test_refreshed_arrays_of_an_earlier_version_come_under_their_names_of_now(tmp_path):
  clusters, shortlist = np.array([1, 0, 2]), np.array([[4], [5], [6]])
  saves = Saves(Folders(tmp_path))
  saves.save(state(3), {"leaves": clusters, "shortlist": shortlist}, {})
  _, refreshed = Saves(Folders(tmp_path)).restore(3, state(0))
  assert set(refreshed) == {"clusters", "shortlist"}
  np.testing.assert_array_equal(refreshed["clusters"], clusters)
  np.testing.assert_array_equal(refreshed["shortlist"], shortlist)


def test_a_kill_between_checkpoint_and_best_is_made_up_for(tmp_path):
  saves = trained(tmp_path, 3, best=(3,))
  saves.host.update(best=0.06, best_step=6)
  saves.save(state(6), {}, {})
  saves, step = started(tmp_path)
  assert step == 6 and saves.best.latest() == 6
  assert saves.best.usable() == 6


def test_going_back_over_a_better_step_looks_for_the_best_anew(tmp_path, capfd):
  """The best of step 6 was deleted for that of step 12, which is no more: a record of it would never fall."""
  trained(tmp_path, 6, 9, 12, best=(6, 12))
  hurt(tmp_path / "checkpoints" / "12")
  saves, step = started(tmp_path)
  assert step == 9 and saves.best.latest() is None
  assert saves.host["best"] is None and saves.host["best_step"] is None
  assert "the best parameters so far, of step 6, are gone" in capfd.readouterr().err


def test_damaged_best_parameters_are_set_aside(tmp_path, capfd):
  trained(tmp_path, 3, 6, best=(3,))
  hurt(tmp_path / "best" / "3")
  saves, step = started(tmp_path)
  assert step == 6 and saves.host["best"] is None
  assert (tmp_path / "best" / "damaged-3").is_dir()
  assert "best/3: this checkpoint is damaged" in capfd.readouterr().err


def test_damaged_best_parameters_of_this_very_step_are_saved_again(tmp_path):
  trained(tmp_path, 3, 6, best=(6,))
  hurt(tmp_path / "best" / "6")
  saves, step = started(tmp_path)
  assert step == 6 and saves.best.usable() == 6 and saves.host["best"] == 0.06


def test_whole_best_parameters_are_not_deleted_to_begin_anew(tmp_path):
  trained(tmp_path, 3, 6, best=(3,))
  for step in (3, 6):
    hurt(tmp_path / "checkpoints" / str(step))
  for _ in range(2):  # nor by the same command given again
    with pytest.raises(UserError, match="every checkpoint is damaged; the best parameters so far are whole"):
      started(tmp_path)
  assert Checkpoints(tmp_path / "best", read_only=True).usable() == 3


def test_where_nothing_is_left_a_training_begins_anew(tmp_path):
  trained(tmp_path, 3)
  hurt(tmp_path / "checkpoints" / "3")
  saves, step = started(tmp_path)
  assert step is None and saves.host["best"] is None
