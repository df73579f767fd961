"""hybrid.json and memory.npy: kills while they are made, stale ones, damage, folders one may only read."""

import errno
import pathlib
import shutil

import numpy as np
import pytest
import tiny_runs
from kills import killed
from quick_fits import few_rows, quick_fits  # noqa: F401 (a fixture)
from same_runs import assert_same_runs

from xmc_jax.cli import commands
from xmc_jax.errors import UserError
from xmc_jax.retrieval import hybrid_model
from xmc_jax.runs import evaluate, ranking
from xmc_jax.runs.model import Model
from xmc_jax.storage import atomic, npy
from xmc_jax.training import loop

pytestmark = pytest.mark.slow

OVERRIDES = {"eval.scores": "hybrid", "train.num_epochs": 2, "data.num_validation": 60}
OVERRIDES |= {"checkpoint.every_epochs": 1.0, "checkpoint.keep": 2}
MADE = ("hybrid.json", "memory.npy")
TEXTS = ["barn kelt", "", "loma mive nuxo"]


@pytest.fixture(scope="module")
def workdir(data, tmp_path_factory):
  place = tmp_path_factory.mktemp("run")
  with few_rows():
    train(data, place / "run")
  return place / "run"


@pytest.fixture
def copied(workdir, tmp_path):
  return shutil.copytree(workdir, tmp_path / "copied")


def train(data: pathlib.Path, workdir: pathlib.Path) -> None:
  commands.train_and_test(tiny_runs.config(data, **OVERRIDES), workdir)


def predicted(workdir: pathlib.Path) -> tuple:
  return Model.load(workdir).predict(TEXTS, 4)[:2]


def assert_same(found: tuple, expected: tuple):
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_array_equal(one, other)


def assert_same_files(one: pathlib.Path, other: pathlib.Path):
  for name in MADE:
    assert (one / name).read_bytes() == (other / name).read_bytes(), name
  assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in other.iterdir())


# --- kills ---


KILLS = (
  (npy, "write"),
  (pathlib.Path, "replace", lambda _, path: pathlib.Path(path).name == "memory.npy"),
  (ranking, "fit_model"),
  (hybrid_model, "_fitted_models", 3),
  (hybrid_model.HybridModel, "save"),
)


def test_a_run_killed_while_it_is_fitted_ends_like_one_never_stopped(data, workdir, tmp_path):
  for kill in (*KILLS, (evaluate, "rank_test")):
    with killed(*kill):
      train(data, tmp_path / "killed")
    assert not (tmp_path / "killed" / "report").exists(), kill
  train(data, tmp_path / "killed")
  assert_same_runs(workdir, tmp_path / "killed")
  assert_same_files(workdir, tmp_path / "killed")


def test_a_command_killed_while_it_fits_leaves_nothing_half_done(copied, workdir):
  """Prediction makes what is missing; killed, the next one does."""
  for kill in KILLS:
    for name in MADE:
      (copied / name).unlink()
    with killed(*kill):
      predicted(copied)
    assert_same(predicted(copied), predicted(workdir))
    assert_same_files(copied, workdir)


# --- training that goes on ---


def spoil(folder: pathlib.Path) -> None:
  """What another process made of other parameters, whole and of the right shape."""
  np.save(folder / "memory.npy", np.zeros_like(np.load(folder / "memory.npy")))
  model = hybrid_model.HybridModel.load(folder / "hybrid.json")
  hybrid_model.HybridModel(model.features, np.zeros(len(model.features) + 1)).save(folder / "hybrid.json")


def test_training_that_goes_on_forgets_what_was_made_before(data, copied, workdir):
  spoil(copied)
  for folder in ("checkpoints", "best"):
    newest = max(int(path.name) for path in (copied / folder).iterdir())
    if folder == "checkpoints" or newest > 6:
      shutil.rmtree(copied / folder / str(newest))
  train(data, copied)
  assert_same_runs(workdir, copied, newest=True)
  assert_same_files(copied, workdir)


def test_what_others_make_while_it_trains_is_forgotten_too(data, copied, workdir, tmp_path, monkeypatch):
  """Somebody predicts with a run that has not ended: by the best parameters so far."""
  train_on = loop._Loop._steps

  def go(self, *steps):
    train_on(self, *steps)
    for name in MADE:
      shutil.copyfile(copied / name, self._run.workdir / name)

  spoil(copied)
  monkeypatch.setattr(loop._Loop, "_steps", go)
  train(data, tmp_path / "run")
  assert_same_files(tmp_path / "run", workdir)


# --- damage ---


def assert_refused(folder: pathlib.Path, name: str) -> None:
  """In one line that says to delete the file."""
  with pytest.raises(UserError, match=rf"{name}: not readable \(.*\); delete it, and it is ") as caught:
    predicted(folder)
  assert "\n" not in str(caught.value)


def test_a_damaged_model_is_one_line_and_is_made_again(copied, workdir):
  path = copied / "hybrid.json"
  path.write_text(path.read_text()[:1000])
  assert_refused(copied, path.name)
  path.unlink()
  assert_same(predicted(copied), predicted(workdir))


@pytest.mark.parametrize(
  "change",
  [
    lambda points: points[:-1],
    lambda points: points[:, :-1],
    lambda points: points.astype(str),
  ],
)
def test_a_memory_of_another_shape_is_one_line(copied, change):
  np.save(copied / "memory.npy", change(np.load(copied / "memory.npy")))
  assert_refused(copied, "memory.npy")


@pytest.mark.parametrize("length", [0, 60, -1])
def test_a_memory_cut_short_is_one_line(copied, workdir, length):
  path = copied / "memory.npy"
  path.write_bytes(path.read_bytes()[:length])
  assert_refused(copied, path.name)
  path.unlink()
  assert_same(predicted(copied), predicted(workdir))


def test_a_memory_of_no_numbers_still_ranks(copied):
  found = np.load(copied / "memory.npy")
  np.save(copied / "memory.npy", np.full_like(found, np.nan))
  ids, scores = predicted(copied)
  assert (ids >= 0).all() and np.isfinite(scores).all()


# --- folders that may only be read, disks that are full ---


@pytest.mark.parametrize("full", [False, True])
def test_a_folder_that_cannot_be_written_still_answers(copied, workdir, monkeypatch, full):
  """What is missing is made each time."""
  expected = predicted(workdir)
  for name in MADE:
    (copied / name).unlink()

  def refuse(path, *_, **__):
    raise OSError(errno.EROFS, "Read-only file system", str(path))

  def no_room(folder, *_):
    raise UserError(f"{folder}: this disk has 0 B left")

  opened = pathlib.Path.open

  def only_read(path, mode="r", *more, **named):
    return refuse(path) if "w" in mode else opened(path, mode, *more, **named)

  if full:
    monkeypatch.setattr(atomic, "check_room", no_room)
  monkeypatch.setattr(pathlib.Path, "write_text", refuse)
  monkeypatch.setattr(pathlib.Path, "open", only_read)
  assert_same(predicted(copied), expected)
  assert not [name for name in MADE if (copied / name).exists()]
