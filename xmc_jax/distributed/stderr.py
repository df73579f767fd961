"""Writes to standard error from threads and signal handlers. Loads no jax."""

import contextlib
import os


def write_line(line: str) -> None:
  """Writes a line at once, without Python's buffers; does nothing if standard error is closed."""
  with contextlib.suppress(OSError):
    os.write(2, f"{line}\n".encode())
