"""Disks: room on them, asked for before something large is written; small files, written whole."""

import shutil
from pathlib import Path

from xmc_jax.contract import UserError


def need(folder: Path, num_bytes: float, what: str) -> None:
  """Refuses what would not fit on a folder's disk.

  Args:
    folder: where it will be written; need not be there yet.
    num_bytes: its size, at most.
    what: what it is, for the message.

  Raises:
    UserError: less is free.
  """
  there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
  try:
    free = shutil.disk_usage(there).free
  except OSError:  # a disk that does not tell
    return
  if free < num_bytes:
    raise UserError(
      f"{folder}: {what} takes up to {_shown(num_bytes)}, and this disk has {_shown(free)} left; "
      "free some, or choose a folder on another"
    )


def write_text(path: Path, text: str) -> None:
  """Writes a small file whole or not at all: what was there before stays until then."""
  beside = path.with_name(f"{path.name}.tmp")
  beside.write_text(text, encoding="utf-8")
  beside.replace(path)


def _shown(num_bytes: float) -> str:
  return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
