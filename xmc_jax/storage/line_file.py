"""Writes a file of lines whole or not at all; after a kill the same command continues it."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from xmc_jax.storage import atomic, locks


@contextlib.contextmanager
def written_whole(path: Path, made_of: Mapping, block: int) -> Iterator[tuple[IO[str], int]]:
  """Opens `PATH.part`, which replaces `path` if the block succeeds.

  Args:
    path: the file.
    made_of: the settings that its lines depend on, as JSON. A later process with the same settings goes on.
    block: lines of a block. A later process goes on after a whole number of blocks, so that the same lines
      are computed together as before.

  Yields:
    The file to write to, and how many lines it has already.

  Raises:
    UserError: it cannot be written.
  """
  part, notes = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")
  with atomic.writing(path, f"the same command goes on with {part.name}"):
    part.touch()
    with part.open("r+", encoding="utf-8") as out:
      locks.lock(out)
      done, end = _whole_blocks(part, block) if _read(notes) == made_of else (0, 0)
      out.seek(end)
      out.truncate()  # before the notes: they must never describe lines made with other settings
      notes.write_text(json.dumps(made_of))
      yield out, done
    part.replace(path)
    notes.unlink()


def _read(notes: Path) -> Mapping | None:
  try:
    return json.loads(notes.read_text())
  except (OSError, ValueError):
    return None


def _whole_blocks(part: Path, block: int) -> tuple[int, int]:
  """Returns how many lines a file has, in whole blocks, and where they end."""
  done = end = place = 0
  with contextlib.suppress(FileNotFoundError), part.open("rb") as file:
    for number, line in enumerate(file, 1):
      place += len(line)
      if number % block == 0 and line.endswith(b"\n"):
        done, end = number, place
  return done, end
