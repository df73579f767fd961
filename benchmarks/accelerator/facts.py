"""Records what a lease finds: a line of JSON for each fact, as soon as it is known."""

import contextlib
import json
import os
import pathlib
import time
import traceback
from collections.abc import Iterator
from typing import Any

FILE = "facts.jsonl"


class Facts:
  """Appends facts to a file; several processes may append to the same one.

  A line is written by one call, so that a kill leaves whole lines.

  Args:
    folder: of the file; it exists.
    started: Unix time that `at` of each fact counts from, in seconds.
  """

  def __init__(self, folder: pathlib.Path, started: float):
    self._file, self._started = folder / FILE, started

  def add(self, fact: str, /, **values: Any) -> None:
    """Appends a fact, whose values JSON can hold, and prints it."""
    line = json.dumps({"fact": fact, "at": round(time.time() - self._started, 1), **values})
    file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
      os.write(file, f"{line}\n".encode())
    finally:
      os.close(file)
    print(line[:600], flush=True)

  @contextlib.contextmanager
  def of_failure(self, fact: str) -> Iterator[None]:
    """Turns an exception of the block into a fact `failed`, so that what comes after still runs."""
    try:
      yield
    except Exception as error:
      traceback.print_exc()
      self.add(fact, failed=f"{type(error).__name__}: {error}"[:400])


def await_file(file: pathlib.Path, seconds: float = 120.0) -> pathlib.Path:
  """Waits until another process has written a file; raises TimeoutError after so many seconds."""
  ends = time.time() + seconds
  while not file.exists():
    if time.time() > ends:
      raise TimeoutError(f"{file.name} is not there after {seconds:.0f} s")
    time.sleep(0.2)
  return file


def read(file: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the facts of a file, in order."""
  return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
