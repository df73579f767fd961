"""Saves and restores the arrays of a step by Orbax."""

import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging

from xmc_jax.distributed import sharding as mesh
from xmc_jax.errors import UserError
from xmc_jax.types import PyTree

_EXTRA_STATE = "aux"  # the name of `extra_state` in checkpoints since their first version


class StepArrays:
  """Writes and reads the arrays of the steps of one folder. A private part of `StepFolder`.

  Args:
    folder: made if it does not exist.
    read_only: change nothing in the folder.
  """

  def __init__(self, folder: pathlib.Path, read_only: bool):
    self._folder = folder
    options = ocp.CheckpointManagerOptions(
      enable_async_checkpointing=False,
      create=not read_only,
      cleanup_tmp_directories=not read_only,
    )
    handlers = {"state": ocp.StandardCheckpointHandler(), "fresh": ocp.StandardCheckpointHandler()}
    with _quiet():  # our checksums find damaged steps
      self._manager = ocp.CheckpointManager(folder, options=options, item_handlers=handlers)

  def reload(self) -> None:
    """Reads again which steps the folder has."""
    with _quiet():
      self._manager.reload()

  def save(self, step: int, state: PyTree, refreshed: PyTree) -> None:
    """Writes a step's arrays into a temporary folder, then renames it.

    Raises:
      OSError: the disk cannot write them.
    """
    items = {"state": ocp.args.StandardSave(_to_disk(state))}
    if refreshed:
      items["fresh"] = ocp.args.StandardSave(refreshed)
    try:
      with _quiet():
        self._manager.save(step, args=ocp.args.Composite(**items))
        self._manager.wait_until_finished()
    except ValueError as error:  # tensorstore's form of an OSError
      if found := re.search(r": ([^:]*) \[os_error_code='?(\d+)", str(error)):
        raise OSError(int(found[2]), found[1]) from None
      raise

  def restore(self, step: int, state: PyTree) -> tuple[PyTree, PyTree]:
    """Reads `(state, refreshed)` of one step.

    Args:
      step: a finished step.
      state: arrays or ShapeDtypeStructs with the shardings to restore to. An array whose rows are split may
        have more or fewer rows than the saved one: another mesh rounds up to another number.
    """
    template = jax.tree.map(ocp.utils.to_shape_dtype_struct, _to_disk(state))
    strict = not self._differs_in_padding(step, template)
    items = {"state": ocp.args.StandardRestore(template, strict=strict)}
    if (self._folder / str(step) / "fresh").is_dir():
      items["fresh"] = ocp.args.StandardRestore()
    with self.readable(step):
      found = self._manager.restore(step, args=ocp.args.Composite(**items))
    return _from_disk(found["state"], state), found.get("fresh") or {}

  def restore_state(self, step: int, sharding: jax.sharding.Sharding) -> PyTree:
    """Reads the state of one step as nested dicts, each array laid out by `sharding`."""
    template = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), self._saved(step)
    )
    return self.restore(step, _from_disk(template, {}))[0]

  def restore_trained(
    self, step: int, rules: tuple[tuple[str, tuple], ...], devices: jax.sharding.Mesh
  ) -> tuple[PyTree, PyTree]:
    """Reads only `(params, extra_state)` of one step, laid out by path rules.

    Arrays whose rows are split get zero rows until they divide, because another mesh may have saved them.
    """
    saved = {name: tree for name, tree in self._saved(step).items() if name in ("params", _EXTRA_STATE)}
    saved = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), saved)

    def shaped(leaf, sharding):
      rows = mesh.rounded_up(leaf.shape[0], devices.size) if any(sharding.spec) else None
      shape = leaf.shape if rows is None else (rows, *leaf.shape[1:])
      return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    template = jax.tree.map(shaped, saved, mesh.shard_tree(saved, rules, devices))

    def arguments_of(leaf):
      return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, strict=False)

    arguments = jax.tree.map(arguments_of, template)
    restored = ocp.args.PyTreeRestore(item=template, restore_args=arguments, partial_restore=True)
    with self.readable(step), ocp.PyTreeCheckpointer() as reader:
      found = reader.restore(self._folder / str(step) / "state", args=restored)
    return found["params"], found.get(_EXTRA_STATE) or {}

  @contextlib.contextmanager
  def readable(self, step: int) -> Iterator[None]:
    """Turns errors about damaged files of a step into one line."""
    try:
      with _quiet():
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
      reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
      raise UserError(
        f"{self._folder / str(step)}: this checkpoint cannot be read ({reason}); "
        "delete its folder to go on from the one before"
      ) from None

  def close(self) -> None:
    self._manager.close()

  def _saved(self, step: int) -> PyTree:
    """Returns shapes and types of a step's state, as nested dicts."""
    with self.readable(step):
      found = self._manager.item_metadata(step)["state"]
      tree = found.tree if hasattr(found, "tree") else found
      if tree is None:
        raise ValueError("its metadata are missing")
    return tree

  def _differs_in_padding(self, step: int, template: PyTree) -> bool:
    """Returns whether shapes differ, and only in the number of rows of arrays whose rows are split."""
    saved, wanted = (
      {mesh.path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
      for tree in (self._saved(step), template)
    )
    if saved.keys() != wanted.keys():
      return False
    other = [name for name in wanted if tuple(saved[name].shape) != wanted[name].shape]

    def has_split_rows(leaf: Any) -> bool:
      return any(getattr(leaf.sharding, "spec", None) or ())

    return bool(other) and all(
      has_split_rows(wanted[name]) and saved[name].shape[1:] == wanted[name].shape[1:] for name in other
    )


def _to_disk(state: PyTree) -> dict[str, PyTree]:
  """Returns a state as a dict, with the names that checkpoints use."""
  named = state._asdict() if hasattr(state, "_asdict") else state
  return {_EXTRA_STATE if name == "extra_state" else name: tree for name, tree in named.items()}


def _from_disk(saved: dict[str, PyTree], like: PyTree) -> PyTree:
  """Undoes `_to_disk`; the result is of the type of `like`."""
  named = {"extra_state" if name == _EXTRA_STATE else name: tree for name, tree in saved.items()}
  return type(like)(**named)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Silences Orbax's log of errors that it raises as well; we print them in one line."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.FATAL)
  try:
    yield
  finally:
    logging.set_verbosity(before)
