"""Whether two runs' folders hold the same, bit by bit: times aside, which no two runs share."""

import pathlib

import jax
import numpy as np
import orbax.checkpoint as ocp
import scipy.sparse as sp
import tiny_runs

from xmc_jax.storage import checksums, run_folder


def saved_state(folder: pathlib.Path, step: int) -> dict:
  """Reads the state of a step as nested dicts of arrays, whichever devices have written it."""
  path = folder / str(step) / "state"
  shapes = ocp.PyTreeCheckpointHandler().metadata(path).tree
  with ocp.PyTreeCheckpointer() as reader:
    arrays = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), shapes)
    state = reader.restore(path, args=ocp.args.PyTreeRestore(restore_args=arrays))
  state["extra_state"] = state.get("extra_state") or {}
  return state


def _arrays(tree):
  return [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in jax.tree.leaves_with_path(tree)]


def _assert_same_checkpoints(one: pathlib.Path, other: pathlib.Path, newest: bool):
  steps = [sorted(path.name for path in folder.iterdir()) for folder in (one, other)]
  if newest:
    steps = [[max((name for name in names if name.isdecimal()), key=int)] for names in steps]
  assert steps[0] == steps[1]  # no leftovers either
  for step in map(int, steps[0]):
    found = [saved_state(folder, step) for folder in (one, other)]
    for (name, left), (_, right) in zip(*map(_arrays, found), strict=True):
      assert left.dtype == right.dtype and left.tobytes() == right.tobytes(), f"{one.name} {step} {name}"
    hosts = [checksums.read_record(folder / str(step)) for folder in (one, other)]
    for host in hosts:
      host.pop("seconds", None)
    assert hosts[0] == hosts[1]


def _assert_same_files(one: pathlib.Path, other: pathlib.Path):
  """Of what is made when a training has ended."""
  content = lambda path: path.read_bytes() if path.is_file() else None
  for name in run_folder.RANKING_FILES:
    assert content(one / name) == content(other / name), name


def assert_same_runs(one: pathlib.Path, other: pathlib.Path, newest: bool = False):
  """Asserts that all but times is the same; `newest` looks at no checkpoint but the last."""
  for folder in ("checkpoints", "best"):
    _assert_same_checkpoints(one / folder, other / folder, newest)
  assert tiny_runs.metric_lines(one) == tiny_runs.metric_lines(other)
  assert (one / "config.json").read_text() == (other / "config.json").read_text()
  reports = [(folder / "report" / "metrics.json").read_text() for folder in (one, other)]
  assert reports[0] == reports[1]
  left, right = (sp.load_npz(folder / "predictions" / "test.npz") for folder in (one, other))
  for name in ("data", "indices", "indptr"):
    np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
  _assert_same_files(one, other)
  if (one / run_folder.REFIT).exists():
    _assert_same_checkpoints(one / run_folder.REFIT / "best", other / run_folder.REFIT / "best", newest)
    _assert_same_files(one / run_folder.REFIT, other / run_folder.REFIT)
