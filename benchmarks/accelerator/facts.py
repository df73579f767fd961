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

  A kill may cut a line that is being written; the next one begins anew, and `read` leaves the cut one out.

  Args:
    folder: of the file; it exists.
    started: Unix time that `at` of each fact counts from, in seconds.
  """

  def __init__(self, folder: pathlib.Path, started: float):
    self._file, self._started = folder / FILE, started

  def add(self, fact: str, /, **values: Any) -> None:
    """Appends a fact, whose values JSON can hold, and prints it."""
    line = json.dumps({"fact": fact, "at": round(time.time() - self._started, 1), **values})
    with open(self._file, "a+b", buffering=0) as file:
      size = file.seek(0, os.SEEK_END)
      file.seek(max(0, size - 1))
      start = "" if file.read(1) in (b"", b"\n") else "\n"
      file.write(f"{start}{line}\n".encode())
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
  """Returns the whole facts of a file, in order."""
  found = []
  for line in file.read_text(encoding="utf-8").splitlines():
    with contextlib.suppress(json.JSONDecodeError):
      found.append(json.loads(line))
  return found
