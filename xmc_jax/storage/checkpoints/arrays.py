"""Writes and reads the arrays of a step by Orbax."""

import contextlib
import functools
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging

from xmc_jax.distributed import sharding as mesh
from xmc_jax.errors import UserError
from xmc_jax.types import PyTree

_STATE, _REFRESHED = "state", "refreshed"  # subfolders of a step
_PATIENCE = 5.0  # seconds: a thread may wait for a folder that another failed to make


def write(folder: Path, state: PyTree, refreshed: PyTree) -> None:
  """Writes a step's arrays into a new folder; collective.

  Raises:
    OSError: the disk cannot write them.
  """
  items = {_STATE: ocp.args.StandardSave(_as_dict(state))}
  if refreshed:
    items[_REFRESHED] = ocp.args.StandardSave(refreshed)
  try:
    with _quiet(), ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as writer:
      try:
        writer.save(folder, args=ocp.args.Composite(**items), force=True)
      except (OSError, ValueError):
        _end_threads()
        raise
  except ValueError as error:  # tensorstore's form of an OSError
    if found := re.search(r": ([^:]*) \[os_error_code='?(\d+)", str(error)):
      raise OSError(int(found[2]), found[1]) from None
    raise


def restore(folder: Path, state: PyTree) -> tuple[PyTree, PyTree]:
  """Reads `(state, refreshed)` of a step; collective.

  `state` has arrays or ShapeDtypeStructs with the shardings to restore to. An array whose rows are split may
  have more or fewer rows than the saved one: another mesh rounds up to another number.
  """
  template = jax.tree.map(ocp.utils.to_shape_dtype_struct, _as_dict(state))
  strict = _differs_in_more_than_padding(_saved(folder), template)
  with readable(folder), ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader:
    restored = reader.restore(folder / _STATE, args=ocp.args.StandardRestore(template, strict=strict))
    refreshed = {}
    if (folder / _REFRESHED).is_dir():
      refreshed = reader.restore(folder / _REFRESHED, args=ocp.args.StandardRestore())
  return type(state)(**restored), refreshed


def restore_trained(
  folder: Path, rules: tuple[tuple[str, tuple], ...], devices: jax.sharding.Mesh
) -> tuple[PyTree, PyTree]:
  """Reads only `(params, extra_state)` of a step, laid out by path rules; collective.

  Arrays whose rows are split get zero rows until they divide, because another mesh may have saved them.
  """
  saved = {name: tree for name, tree in _saved(folder).items() if name in ("params", "extra_state")}
  saved = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), saved)

  def arguments_of(leaf, sharding):
    rows = (mesh.rounded_up(leaf.shape[0], devices.size),) if any(sharding.spec) else leaf.shape[:1]
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=(*rows, *leaf.shape[1:]), strict=False)

  arguments = jax.tree.map(arguments_of, saved, mesh.shard_tree(saved, rules, devices))
  with readable(folder), ocp.PyTreeCheckpointer() as reader:
    arguments_of_all = ocp.args.PyTreeRestore(item=saved, restore_args=arguments, partial_restore=True)
    trained = reader.restore(folder / _STATE, args=arguments_of_all)
  return trained["params"], trained.get("extra_state") or {}


@contextlib.contextmanager
def readable(folder: Path) -> Iterator[None]:
  """Turns errors about damaged files of a step into one line."""
  try:
    with _quiet():
      yield
  except (OSError, ValueError, KeyError, TypeError) as error:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    raise UserError(
      f"{folder}: this checkpoint cannot be read ({reason}); delete its folder to go on from the one before"
    ) from None


def _saved(folder: Path) -> PyTree:
  """Returns shapes and types of a step's state, as nested dicts."""
  with readable(folder):
    return ocp.StandardCheckpointHandler().metadata(folder / _STATE).tree


def _differs_in_more_than_padding(saved: PyTree, template: PyTree) -> bool:
  """Returns whether shapes differ in more than the number of rows of arrays whose rows are split."""
  leaves = mesh.by_path(saved)

  def differs(name: str, expected: jax.ShapeDtypeStruct) -> bool:
    shape = tuple(leaves[name].shape) if name in leaves else ()
    first = 1 if any(getattr(expected.sharding, "spec", None) or ()) else 0  # rows may be padded
    return shape[first:] != expected.shape[first:]

  return any(differs(name, leaf) for name, leaf in mesh.by_path(template).items())


def _as_dict(state: PyTree) -> dict[str, PyTree]:
  return state._asdict() if hasattr(state, "_asdict") else state


def _end_threads() -> None:
  """Waits for Orbax's threads, which go on writing after one of them has failed."""
  for thread in threading.enumerate():
    if type(thread).__module__.startswith("orbax."):
      threading.Thread.join(thread, _PATIENCE)  # their own `join` raises their errors


@functools.cache
def _ignore_closed_loops() -> None:
  """Prints nothing where tensorstore's threads report to an event loop that Orbax has closed."""
  before = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    if "Event loop is closed" not in str(unraisable.exc_value):
      before(unraisable)

  sys.unraisablehook = hook


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Silences Orbax's log of errors that it raises as well; we print them in one line."""
  _ignore_closed_loops()
  before = logging.get_verbosity()
  logging.set_verbosity(logging.FATAL)
  try:
    yield
  finally:
    logging.set_verbosity(before)
