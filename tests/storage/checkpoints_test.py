"""Orbax behind three words: what goes in comes out, damage is one line, readers leave things alone."""

import shutil
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from xmc_jax.distributed import sharding
from xmc_jax.errors import UserError
from xmc_jax.storage import checksums
from xmc_jax.storage.checkpoints import StepFolder
from xmc_jax.types import TrainState

HOST = {"best": 0.1 + 0.2, "evals_since_best": 3, "stopped": False, "seconds": {"train": 1.5}}
KILLED = mock.Mock(side_effect=KeyboardInterrupt)
REFRESHED = {"clusters": np.arange(5, dtype=np.int32), "shortlist": np.array([[3, -1], [0, 2]], np.int32)}


def _state(scale=1.0):
  params = {"encoder": {"word": scale * jnp.arange(6.0).reshape(2, 3), "half": jnp.ones(2, jnp.bfloat16)}}
  return TrainState(jnp.int32(7), params, (jnp.int32(1), {"mu": params}), {"centroids": jnp.ones(3)})


def _saved(folder, step=3, **options):
  """A folder in which one step has been saved."""
  checkpoints = StepFolder(folder, **options)
  checkpoints.save(step, _state(), {}, {})
  return checkpoints


def _assert_same(found, expected):
  for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert left.dtype == right.dtype
    np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


def test_state_refreshed_data_and_record_come_back(tmp_path):
  checkpoints = StepFolder(tmp_path / "c")
  assert checkpoints.latest() is None
  checkpoints.save(7, _state(), REFRESHED, HOST)
  checkpoints = StepFolder(tmp_path / "c")
  state, refreshed, host = checkpoints.restore(checkpoints.latest(), _state(0.0))
  assert isinstance(state, TrainState) and host == HOST
  _assert_same(state, _state())
  _assert_same(refreshed, REFRESHED)


def test_a_state_is_restored_where_its_template_lies(tmp_path):
  checkpoints = _saved(tmp_path, 1)
  places = sharding.shard_tree(_state(), (("word", ("data",)), (".*", ())), sharding.make(2, 1))
  template = jax.device_put(_state(0.0), places)
  state, refreshed, _ = checkpoints.restore(1, template)
  assert refreshed == {}
  _assert_same(state, _state())
  for found, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(template), strict=True):
    assert found.sharding.is_equivalent_to(wanted.sharding, found.ndim)


def test_parameters_alone_need_no_template(tmp_path):
  checkpoints = StepFolder(tmp_path)
  checkpoints.save(1, _state(), REFRESHED, HOST)
  found = checkpoints.restore_trained(1, ((".*", ()),), sharding.make(2, 1))
  _assert_same(found, (_state().params, _state().extra_state))
  assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(found))


def test_only_the_newest_stay(tmp_path):
  checkpoints = StepFolder(tmp_path, keep=2)
  for step in (3, 6, 9):
    checkpoints.save(step, _state(step), {}, {"step": step})
  assert checkpoints.latest() == 9
  assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [6, 9]


def test_a_step_half_deleted_is_not_listed(tmp_path, monkeypatch):
  checkpoints = _saved(tmp_path, keep=1)
  with monkeypatch.context() as patch:
    patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before it got far
    checkpoints.save(6, _state(), {}, {})
  assert len(list(tmp_path.iterdir())) == 2
  assert StepFolder(tmp_path, read_only=True).latest() == 6
  shutil.rmtree(tmp_path / "6")
  assert StepFolder(tmp_path, read_only=True).latest() is None
  assert StepFolder(tmp_path).latest() is None and not list(tmp_path.iterdir())


def test_a_finished_step_saved_again_gets_a_new_record_alone(tmp_path):
  checkpoints = StepFolder(tmp_path)
  checkpoints.save(3, _state(1.0), {}, {"best": 1})
  checkpoints.save(3, _state(2.0), {}, {"best": 2})
  state, _, host = checkpoints.restore(3, _state())
  _assert_same(state, _state(1.0))
  assert host == {"best": 2} and checkpoints.latest_valid() == 3


# Orbax finishes a step by renaming its folder; then come its checksums.
@pytest.mark.parametrize(
  "where",
  [("pathlib.Path.rename", "os.rename", "os.replace"), ("xmc_jax.storage.checksums.write_manifest",)],
  ids=["arrays", "manifest"],
)
def test_an_unfinished_step_is_not_listed_and_is_cleaned_up_by_the_next_saver(where, tmp_path, monkeypatch):
  checkpoints = _saved(tmp_path)
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    for name in where:
      patch.setattr(name, KILLED)
    checkpoints.save(6, _state(2.0), {}, {})
  leftovers = [path.name for path in tmp_path.iterdir() if path.name != "3"]
  assert leftovers
  reader = StepFolder(tmp_path, read_only=True)
  assert reader.latest() == 3
  assert [path.name for path in tmp_path.iterdir() if path.name != "3"] == leftovers  # may be somebody's
  writer = StepFolder(tmp_path)
  assert writer.latest() == 3 and [path.name for path in tmp_path.iterdir()] == ["3"]
  writer.save(6, _state(3.0), {}, {})
  assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "6"]
  _assert_same(writer.restore(6, _state())[0], _state(3.0))


def test_reading_makes_no_folder(tmp_path):
  assert StepFolder(tmp_path / "none", read_only=True).latest() is None
  assert not (tmp_path / "none").exists()


def test_a_checkpoint_of_other_shapes_is_refused(tmp_path):
  checkpoints = _saved(tmp_path, 1)
  other = _state()._replace(params={"encoder": {"word": jnp.zeros((2, 3)), "more": jnp.zeros(2)}})
  wanted = r"1: this checkpoint cannot be read \(.*\); delete its folder to go on from the one before$"
  with pytest.raises(UserError, match=wanted):
    checkpoints.restore(1, other)


def test_a_place_that_cannot_be_written(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match=r"file/c: cannot be written \("):
    StepFolder(tmp_path / "file" / "c")


# --- damage ---


def _hurt(path, how):
  content = bytearray(path.read_bytes())
  if how == "truncated":
    path.write_bytes(content[: len(content) // 2])
  elif how == "gone":
    path.unlink()
  elif content:
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)
  else:
    path.write_bytes(b"x")


@pytest.mark.parametrize(
  "how", ["flipped", *(pytest.param(how, marks=pytest.mark.slow) for how in ("truncated", "gone"))]
)
def test_damage_to_any_file_is_named_and_set_aside_and_the_one_before_is_used(how, tmp_path, capfd):
  source = StepFolder(tmp_path / "whole")
  for step in (3, 6):
    source.save(step, _state(step), REFRESHED, HOST)
  whole = tmp_path / "whole" / "6"
  names = sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file())
  assert len(names) > 6 and checksums.FILE_NAME in names
  for number, name in enumerate(names):
    folder = tmp_path / str(number)
    shutil.copytree(tmp_path / "whole", folder)
    _hurt(folder / "6" / name, how)
    reader = StepFolder(folder, read_only=True)
    assert reader.latest_valid() == 3, name
    assert (folder / "6").is_dir()
    writer = StepFolder(folder)
    assert writer.latest_valid() == writer.latest() == 3
    assert sorted(path.name for path in folder.iterdir()) == ["3", "damaged-6"]
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and said[0].endswith("; left out, step 3 is next")
    assert said[1].endswith("; set aside as damaged-6, step 3 is next")
    for line in said:
      assert line.startswith(f"{folder}/6: this checkpoint is damaged (") and name in line, line
    _assert_same(writer.restore(3, _state())[0], _state(3))


def test_a_step_saved_again_takes_the_place_of_a_damaged_one(tmp_path, capfd):
  checkpoints = _saved(tmp_path)
  for _ in range(2):
    _hurt(tmp_path / "3" / checksums.FILE_NAME, "flipped")
    assert checkpoints.latest_valid() is None
    assert "manifest.json has changed); set aside as damaged-3, there is no other" in capfd.readouterr().err
    checkpoints.save(3, _state(2.0), {}, {})
    assert checkpoints.latest_valid() == 3
  _assert_same(checkpoints.restore(3, _state())[0], _state(2.0))


# --- full disks ---


def test_what_cannot_fit_is_not_begun(tmp_path, monkeypatch):
  checkpoints = _saved(tmp_path)
  free = shutil.disk_usage(tmp_path)._replace(free=10)
  monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
  wanted = r"the checkpoint of step 6 takes up to .*MB, and this disk has 0.0 MB"
  with pytest.raises(UserError, match=wanted) as caught:
    checkpoints.save(6, _state(), {}, {})
  assert str(caught.value).endswith("the last good checkpoint is step 3")
  assert [path.name for path in tmp_path.iterdir()] == ["3"]


@pytest.mark.parametrize(
  "error",
  [
    OSError(28, "No space left on device"),
    ValueError("RESOURCE_EXHAUSTED: Failed to write: No space left on device [os_error_code='28']"),
  ],
)
def test_a_disk_that_fills_up_meanwhile(error, tmp_path, monkeypatch):
  """The second is of tensorstore."""
  checkpoints = _saved(tmp_path)

  def full(_, folder, **__):
    folder.with_name(f"{folder.name}.orbax-checkpoint-tmp").mkdir()
    raise error

  monkeypatch.setattr(ocp.Checkpointer, "save", full)
  wanted = r"6: cannot be written \(No space left on device\); free .*; the last good"
  with pytest.raises(UserError, match=wanted) as caught:
    checkpoints.save(6, _state(), {}, {})
  assert "\n" not in str(caught.value)
  assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_a_bug_is_no_full_disk(tmp_path, monkeypatch):
  checkpoints, error = StepFolder(tmp_path), ValueError("shapes do not match")
  monkeypatch.setattr(ocp.Checkpointer, "save", mock.Mock(side_effect=error))
  with pytest.raises(ValueError, match="shapes do not match"):
    checkpoints.save(6, _state(), {}, {})


def test_a_reader_beside_a_training_that_deletes_takes_what_is_left(tmp_path, monkeypatch, capfd):
  writer = _saved(tmp_path, keep=1)
  reader, why_broken = StepFolder(tmp_path, read_only=True), checksums.why_damaged

  def slow(folder):
    if folder.name == "3":
      writer.save(6, _state(6), {}, {})  # which deletes step 3 while it is looked at
    return why_broken(folder)

  monkeypatch.setattr(checksums, "why_damaged", slow)
  assert reader.latest_valid() == 6
  assert capfd.readouterr().err == ""
