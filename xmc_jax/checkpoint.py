"""Orbax behind three words: save, restore, latest.

One step commits the device state, what refreshes made, and the host's record, or nothing: Orbax writes
beside and renames, then the step is sealed with the digests of its files. One without a seal is not listed,
and one that is not what it was is set aside.
"""

import contextlib
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from xmc_jax import digests, disk, mesh, runtime
from xmc_jax.contract import PyTree, UserError
from xmc_jax.report import say


class Checkpoints:
  """The checkpoints of one folder.

  Args:
    folder: made if it is not there.
    keep: how many steps stay; older ones are deleted after a newer one is complete.
    read_only: leave the folder as it is: somebody else may be saving into it.
  """

  def __init__(self, folder: pathlib.Path, *, keep: int = 2, read_only: bool = False):
    self.folder, self._keep, self._read_only = folder.absolute(), keep, read_only
    if not read_only:
      self._clean_up()
    options = ocp.CheckpointManagerOptions(
      enable_async_checkpointing=False,
      create=not read_only,
      cleanup_tmp_directories=not read_only,
    )
    handlers = {
      "state": ocp.StandardCheckpointHandler(),
      "fresh": ocp.StandardCheckpointHandler(),
      "host": ocp.JsonCheckpointHandler(),
    }
    try:
      self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)
    except OSError as error:
      raise UserError(f"{self.folder}: cannot keep checkpoints here ({error.strerror or error})") from None

  def latest(self) -> int | None:
    """The newest finished step, or None."""
    return max(self._steps(), default=None)

  def usable(self) -> int | None:
    """The newest finished step whose files are what they were, or None; reads them all.

    Of damaged ones a line is said, and where this process may write they are renamed to `damaged-STEP`.
    """
    found = -1
    if runtime.is_main_process():
      for step in sorted(self._steps(), reverse=True):
        if not (why := digests.why_broken(self._of(step))):
          found = step
          break
        self._set_aside(step, why)
    found = int(runtime.from_main_process(np.int32(found)))
    self._manager.reload()
    return None if found < 0 else found

  def save(self, step: int, state: PyTree, fresh: PyTree, host: dict[str, Any]) -> None:
    """Commits one step; a step that stands already is left as it is."""
    if step in self._steps():
      return
    items = {"state": ocp.args.StandardSave(state), "host": ocp.args.JsonSave(host)}
    if fresh:
      items["fresh"] = ocp.args.StandardSave(fresh)
    try:
      disk.need(self.folder, _num_bytes((state, fresh)), f"the checkpoint of step {step}")
      with _quiet():
        self._manager.save(step, args=ocp.args.Composite(**items))
        self._manager.wait_until_finished()
      if runtime.is_main_process():
        digests.seal(self._of(step))
      runtime.barrier("sealed checkpoint")
      self._delete(sorted(self._steps())[: -self._keep])
    except UserError as error:
      raise UserError(f"{error}; {self.last_good()}") from None
    except (OSError, ValueError) as error:
      self._remove(f"{step}.orbax-checkpoint-tmp*")  # what a full disk cut short
      if not (reason := _refused_by_disk(error)):
        raise
      what = f"step {step} could not be saved ({reason})"
      raise UserError(f"{self.folder}: {what}; {self.last_good()}") from None

  def restore(self, step: int, state: PyTree) -> tuple[PyTree, PyTree, dict[str, Any]]:
    """Reads `(state, fresh, host)` of one step.

    Args:
      step: one that stands.
      state: arrays or ShapeDtypeStructs with the shardings to restore to. An array whose rows are split may
        have more or fewer of them than the one that was saved: another mesh rounds up to another number.
    """
    template = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    strict = not self._differs_in_padding(step, template)
    items = {"state": ocp.args.StandardRestore(template, strict=strict), "host": ocp.args.JsonRestore()}
    if (self._of(step) / "fresh").is_dir():
      items["fresh"] = ocp.args.StandardRestore()
    with self._readable(step):
      found = self._manager.restore(step, args=ocp.args.Composite(**items))
    return found["state"], found.get("fresh") or {}, found["host"]

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
      found = reader.restore(self._of(step) / "state", args=restored)
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
    self._delete(later for later in self._steps() if later > step)

  def close(self) -> None:
    self._manager.close()

  def _of(self, step: int) -> pathlib.Path:
    return self.folder / str(step)

  def _steps(self) -> list[int]:
    """Every finished step."""
    found = [int(path.name) for path in self.folder.glob("[0-9]*") if path.name.isdecimal()]
    return [step for step in found if digests.is_sealed(self._of(step))]

  def _clean_up(self) -> None:
    """Removes what killed processes left: steps half deleted, and steps never sealed."""
    self._remove("deleted-*")
    unsealed = [path for path in self.folder.glob("[0-9]*") if path.name.isdecimal()]
    for path in unsealed:
      if not digests.is_sealed(path):
        self._remove(path.name)
    runtime.barrier("cleaned up checkpoints")

  def _remove(self, pattern: str) -> None:
    if runtime.is_main_process():
      for path in self.folder.glob(pattern):
        shutil.rmtree(path, ignore_errors=True)

  def last_good(self) -> str:
    """The newest finished step, in words."""
    last = self.latest()
    return "no checkpoint was saved yet" if last is None else f"the last good checkpoint is step {last}"

  def _set_aside(self, step: int, why: str) -> None:
    aside = self.folder / f"damaged-{step}"
    if not self._read_only:
      shutil.rmtree(aside, ignore_errors=True)
      self._of(step).rename(aside)
    what = "left out" if self._read_only else f"set aside as {aside.name}"
    say(f"{self._of(step)}: this checkpoint is damaged ({why}); {what}, the one before is used")

  def _delete(self, steps: Iterable[int]) -> None:
    """Deletes under another name: a step that a kill leaves half deleted must not be listed."""
    steps = list(steps)
    if not steps:
      return
    if runtime.is_main_process():
      for step in steps:
        doomed = self._of(step).rename(self.folder / f"deleted-{step}")
        shutil.rmtree(doomed, ignore_errors=True)
    runtime.barrier("deleted checkpoints")
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
        f"{self._of(step)}: this checkpoint cannot be read ({reason}); "
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
