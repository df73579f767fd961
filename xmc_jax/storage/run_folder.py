"""Keeps a run's folder: refuses to mix runs of different settings, and stores what a run begins with.

Layout of a run's folder, which is all that evaluation and prediction need:

  config.json     the resolved config; chunks.json: chunk sizes that it leaves open
  data/           the prepared data, hard-linked from the cache
  encoder/        the encoder's description (no weights), or the first table of a vocabulary of its own
  graphs/         edges of metadata graphs with those of random walks, if the method learns from them
  known.npy       which training rows the run `init_from` was trained on, if its data are others
  vectors.npy     training points under a frozen encoder, if the method has one
  checkpoints/    the newest steps: parameters, optimiser, refreshed data, host record
  best/           the parameters with the best validation metric
  refit/          the training on all rows, if `train.refit` is set: its own checkpoints, metrics and best
  metrics.jsonl   one line per reading
  hybrid.json     how sources are joined; memory.npy: embedded training points; fusion.npz: joined scorers
  learnt.jsonl    labelled texts that the run learnt after its training
  report/  predictions/
  members/        combined runs alone: a folder like this one for each, beside combined.json, their names
"""

import contextlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import ml_collections
import numpy as np

from xmc_jax import config as configs
from xmc_jax.config import fit_to_size
from xmc_jax.distributed import runtime
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.storage import atomic, npy

# Settings that may differ between the command that began a run and the one that continues it.
MAY_CHANGE = (
  *("data.cache_dir", "eval.num_examples", "eval.report_page", "eval.batch_size"),
  *("checkpoint.keep", "checkpoint.grace_seconds", "checkpoint.in_background"),
  *("train.max_skipped_steps", "train.minutes", "mesh.", "runtime.", "plan."),
)

NEWEST, BEST = "checkpoints", "best"
GRAPHS, REFIT, LAST = "graphs", "refit", "last"
MEMBERS, COMBINED = "members", "combined.json"
KNOWN, VECTORS, FUSION, _CHUNKS = "known.npy", "vectors.npy", "fusion.npz", "chunks.json"
LEARNT = "learnt.jsonl"
MEMORY, HYBRID, KEY_WEIGHT, FREQUENCY = "memory.npy", "hybrid.json", "key_weight.json", "frequency.json"
RANKING_FILES = (FUSION, MEMORY, HYBRID, KEY_WEIGHT, FREQUENCY)  # computed from trained parameters
_TOKENIZER, _ENCODER = "tokenizer.json", "encoder"
_OF_SETTINGS = (_TOKENIZER, _CHUNKS, KNOWN, VECTORS, *RANKING_FILES)  # written for a command's own settings


@contextlib.contextmanager
def claimed(
  config: ml_collections.ConfigDict, begun: ml_collections.ConfigDict | None, workdir: pathlib.Path
) -> Iterator[None]:
  """Claims a folder before the data are known: keys that are fitted to them may change in the block.

  If there was no run yet and the block fails, the files of the claim are deleted.
  """
  claim(config, begun, workdir, leaving_open=fit_to_size.KEYS)
  try:
    yield
  except UserError:
    if not begun:
      for name in ("config.json", *_OF_SETTINGS):
        (workdir / name).unlink(missing_ok=True)
    raise


def claim(
  config: ml_collections.ConfigDict,
  begun: ml_collections.ConfigDict | None,
  workdir: pathlib.Path,
  leaving_open: tuple[str, ...] = (),
) -> None:
  """Writes config.json; refuses a folder where something was trained with other settings.

  `begun` are those that the folder has, if any, from which the keys in `leaving_open` may differ.
  """
  path = workdir / "config.json"
  stays: tuple[str, ...] = ()
  if begun:
    changed = configs.differences(begun.to_dict(), config.to_dict())
    changed = [line for line in changed if not line.startswith((*MAY_CHANGE, *leaving_open))]
    if not changed:
      return
    if all(line.startswith(fit_to_size.KEYS) for line in changed):
      stays = (_TOKENIZER, _ENCODER)  # made from all texts, whichever rows are held out
    if has_checkpoints(workdir):
      more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
      raise ConfigError(
        f"{workdir} holds a run with other settings ({'; '.join(changed[:3])}{more}); give "
        "--workdir=ANOTHER_FOLDER, or delete this one to start anew"
      )
  with atomic.writing(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
    # Deletes the files that an earlier, unfinished command wrote for its own settings.
    for folder in {_ENCODER, GRAPHS, REFIT}.difference(stays):
      shutil.rmtree(workdir / folder, ignore_errors=True)
    for name in set(_OF_SETTINGS).difference(stays):
      (workdir / name).unlink(missing_ok=True)
    atomic.write_text(path, configs.to_json(config))


def has_checkpoints(workdir: pathlib.Path) -> bool:
  """Returns whether anything was trained here."""
  steps = (path for name in (NEWEST, BEST) for path in (workdir / name).glob("[0-9]*"))
  return any(steps) or (workdir / COMBINED).exists()


def combined(workdir: pathlib.Path) -> list[str]:
  """Returns the names of the runs that are combined here, in `MEMBERS`; none in the folder of one run."""
  path, remedy = workdir / COMBINED, "delete the folder, and give its --mode=combine command again"
  names = _read(path, remedy) or []
  if not isinstance(names, list) or any(pathlib.PurePath(str(name)).parts != (name,) for name in names):
    raise UserError(f"{path}: damaged; {remedy}")
  return names


def chunks(workdir: pathlib.Path, choose: Callable[[], dict[str, int]]) -> dict[str, int]:
  """Returns the chunk sizes that a config leaves open; a run keeps its first: dropout depends on them."""
  path = workdir / _CHUNKS
  chosen = _read(path, "delete it, and sizes are chosen anew; dropout may then differ")
  if chosen is None:
    chosen = choose()
    atomic.write_text(path, json.dumps(chosen) + "\n")
  return chosen


def _read(path: pathlib.Path, remedy: str) -> Any:
  """Returns what a JSON file holds; None if there is none."""
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (OSError, ValueError, RecursionError):
    raise UserError(f"{path}: damaged; {remedy}") from None


def save_array(path: pathlib.Path, array: Table) -> None:
  """Writes an .npy file whole or not at all, in the main process; the other processes wait."""
  write_table(path, array)
  runtime.barrier(path.name)


def write_table(path: pathlib.Path, table: Table) -> None:
  """Writes an .npy file as `save_array` does, without waiting; every process must call it.

  Raises:
    UserError: it cannot be written; in the main process alone.
  """
  if not isinstance(table, SplitTable):
    if runtime.is_main_process():
      npy.write(path, table)
    return
  blocks = (rows for _, rows in table.blocks())
  try:
    if runtime.is_main_process():
      npy.write_blocks(path, table.shape, blocks)
  finally:
    for _ in blocks:  # every process takes part in all blocks, whatever fails here
      pass


def is_stored(path: pathlib.Path) -> bool:
  """Returns whether the main process sees a file. Others may see it later, and all must do the same."""
  return bool(runtime.from_main_process(np.array(path.exists())))


def forget(workdir: pathlib.Path, *names: str) -> None:
  """Deletes files that were made with parameters that the run no longer has."""
  if runtime.is_main_process():
    for name in names:
      (workdir / name).unlink(missing_ok=True)
  runtime.barrier("forgotten files")
