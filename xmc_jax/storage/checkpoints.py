"""Orbax behind three words: save, restore, latest.

One step commits the device state, what refreshes made, and the host's record, or nothing: Orbax writes
beside and renames, then the step is sealed (`digests`) with the record and what its files are.
"""

import contextlib
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging

from xmc_jax.distributed import sharding as mesh
from xmc_jax.errors import UserError
from xmc_jax.storage import atomic, checksums
from xmc_jax.storage.checkpoint_steps import Steps
from xmc_jax.types import PyTree


class Checkpoints:
  """The checkpoints of one folder.

  Args:
    folder: made if it is not there.
    keep: how many steps stay; older ones are deleted after a newer one is complete.
    read_only: leave the folder as it is: somebody else may be saving into it.
  """

  def __init__(self, folder: pathlib.Path, *, keep: int = 2, read_only: bool = False):
    self.folder, self._keep = folder.absolute(), keep
    self.steps = Steps(self.folder, read_only)
    options = ocp.CheckpointManagerOptions(
      enable_async_checkpointing=False,
      create=not read_only,
      cleanup_tmp_directories=not read_only,
    )
    handlers = {"state": ocp.StandardCheckpointHandler(), "fresh": ocp.StandardCheckpointHandler()}
    try:
      with _quiet():  # of a damaged step, which our digests name
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)
    except OSError as error:
      raise UserError(f"{self.folder}: cannot keep checkpoints here ({error.strerror or error})") from None

  def latest(self) -> int | None:
    """The newest finished step, or None."""
    return max(self.steps.finished(), default=None)

  def last_good(self) -> str:
    """`latest`, in words."""
    last = self.latest()
    return "no checkpoint was saved yet" if last is None else f"the last good checkpoint is step {last}"

  def usable(self) -> int | None:
    """The newest finished step that is not damaged, or None; see `Steps.usable`."""
    step = self.steps.usable()
    with _quiet():
      self._manager.reload()
    return step

  def save(self, step: int, state: PyTree, fresh: PyTree, host: dict[str, Any]) -> None:
    """Commits one step; of one that stands already only the host's record is renewed."""
    if self.steps.stands(step):
      self.steps.amend(step, host)
      return
    items = {"state": ocp.args.StandardSave(state)}
    if fresh:
      items["fresh"] = ocp.args.StandardSave(fresh)
    try:
      atomic.check_room(self.folder, _num_bytes((state, fresh)), f"the checkpoint of step {step}")
      with _quiet():
        self._manager.save(step, args=ocp.args.Composite(**items))
        self._manager.wait_until_finished()
      self.steps.seal(step, host)
    except UserError as error:
      raise UserError(f"{error}; {self.last_good()}") from None
    except (OSError, ValueError) as error:
      self.steps.remove(f"{step}.orbax-checkpoint-tmp*")  # what a full disk cut short
      if not (reason := _refused_by_disk(error)):
        raise
      what = f"step {step} could not be saved ({reason})"
      raise UserError(f"{self.folder}: {what}; {self.last_good()}") from None
    self._delete(lambda steps: steps[: -self._keep])

  def restore(self, step: int, state: PyTree) -> tuple[PyTree, PyTree, dict[str, Any]]:
    """Reads `(state, fresh, host)` of one step.

    Args:
      step: one that stands.
      state: arrays or ShapeDtypeStructs with the shardings to restore to. An array whose rows are split may
        have more or fewer of them than the one that was saved: another mesh rounds up to another number.
    """
    template = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    strict = not self._differs_in_padding(step, template)
    items = {"state": ocp.args.StandardRestore(template, strict=strict)}
    if (self.steps.of(step) / "fresh").is_dir():
      items["fresh"] = ocp.args.StandardRestore()
    with self._readable(step):
      found = self._manager.restore(step, args=ocp.args.Composite(**items))
      host = checksums.record(self.steps.of(step))
    return found["state"], found.get("fresh") or {}, host

  def restore_state(self, step: int, sharding: jax.sharding.Sharding) -> PyTree:
    """Reads the state of one step as nested dicts, each array laid out by `sharding`."""
    template = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), self._saved(step)
    )
    return self.restore(step, template)[0]

  def restore_trained(
    self, step: int, rules: tuple[tuple[str, tuple], ...], devices: jax.sharding.Mesh
  ) -> tuple[PyTree, PyTree]:
    """Reads `(params, aux)` of one step and nothing else, laid out by path rules.

    Arrays whose rows are split get zero rows until they divide: another mesh may have saved them.
    """
    saved = {name: tree for name, tree in self._saved(step).items() if name in ("params", "aux")}
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
    with self._readable(step), ocp.PyTreeCheckpointer() as reader:
      found = reader.restore(self.steps.of(step) / "state", args=restored)
    return found["params"], found.get("aux") or {}

  def _saved(self, step: int) -> PyTree:
    """Shapes and types of a step's state, as nested dicts."""
    with self._readable(step):
      found = self._manager.item_metadata(step)["state"]
    return found.tree if hasattr(found, "tree") else found

  def _differs_in_padding(self, step: int, template: PyTree) -> bool:
    """Whether shapes differ, and only in the number of rows of arrays whose rows are split."""
    saved, wanted = (
      {mesh.path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
      for tree in (self._saved(step), template)
    )
    if saved.keys() != wanted.keys():
      return False
    other = [name for name in wanted if tuple(saved[name].shape) != wanted[name].shape]

    def has_split_rows(leaf) -> bool:
      return any(getattr(leaf.sharding, "spec", None) or ())

    return bool(other) and all(
      has_split_rows(wanted[name]) and saved[name].shape[1:] == wanted[name].shape[1:] for name in other
    )

  def drop_after(self, step: int) -> None:
    """Deletes later steps: a killed process left them, and the run goes on from before them."""
    self._delete(lambda steps: [later for later in steps if later > step])

  def close(self) -> None:
    self._manager.close()

  def _delete(self, choose: Callable[[list[int]], list[int]]) -> None:
    self.steps.delete(choose)
    self._manager.reload()

  @contextlib.contextmanager
  def _readable(self, step: int) -> Iterator[None]:
    """Turns what Orbax raises for damaged files into one line."""
    try:
      with _quiet():
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
      reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
      raise UserError(
        f"{self.steps.of(step)}: this checkpoint cannot be read ({reason}); "
        "delete its folder to go on from the one before"
      ) from None


def _num_bytes(tree: PyTree) -> int:
  return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(tree))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Orbax logs a traceback of what it raises as well; we say it in one line."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.FATAL)
  try:
    yield
  finally:
    logging.set_verbosity(before)


def _refused_by_disk(error: Exception) -> str:
  """What the disk said; '' where an exception is of something else."""
  if isinstance(error, OSError):
    return error.strerror or str(error)
  return found[1] if (found := re.search(r": ([^:]*) \[os_error_code=", str(error))) else ""
