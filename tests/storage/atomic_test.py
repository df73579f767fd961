"""Files written whole or not at all, locks, and the one wording of what a disk refuses."""

import errno
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

from xmc_jax.errors import UserError
from xmc_jax.storage import atomic, locks, npy

WRITES = {
  "text": lambda path: atomic.write_text(path, "later"),
  "array": lambda path: npy.write(path, np.arange(3)),
  "durable": lambda path: atomic.write_text(path, "later", durable=True),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_fails_leaves_the_earlier_file_alone(write, tmp_path, monkeypatch):
  path = tmp_path / "file"
  path.write_text("earlier")
  refuse = mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
  with monkeypatch.context() as patch:
    patch.setattr(os, "rename", refuse)
    patch.setattr(os, "replace", refuse)
    patch.setattr(type(path), "replace", refuse)
    with pytest.raises(UserError) as caught:
      write(path)
  said = "(No space left on device); free some space, and give the same command again"
  assert str(caught.value) == f"{path}: cannot be written {said}"
  assert path.read_text() == "earlier" and [entry.name for entry in tmp_path.iterdir()] == ["file"]
  write(path)
  assert path.read_bytes() != b"earlier" and [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
  ("error", "remedy", "said"),
  [
    (PermissionError(errno.EACCES, "Permission denied", "x.tmp"), "", "(Permission denied)"),
    (OSError(errno.EROFS, "Read-only file system"), "go away", "(Read-only file system); go away"),
    (OSError(errno.ENOSPC, "No space left on device"), "go on", "(No space left on device); go on"),
    (BlockingIOError("busy"), "", "(another process writes here); wait for it, or give another place"),
    (OSError("of a library"), "", "(of a library)"),
  ],
)
def test_one_wording_for_a_refused_write(error, remedy, said):
  with pytest.raises(UserError) as caught, atomic.writing("a/x", remedy):
    raise error
  assert str(caught.value) == f"a/x: cannot be written {said}"


HOLDER = """
import sys
from xmc_jax.storage import locks
with open(sys.argv[1], "w") as file:
  print(locks.lock(file), flush=True)
  sys.stdin.read()
"""


def test_a_lock_keeps_another_process_out_until_it_is_killed(tmp_path):
  command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
  holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  with holder, (tmp_path / "lock").open("a") as file:
    assert holder.stdout.readline() == "True\n"
    with pytest.raises(BlockingIOError):
      locks.lock(file)
    holder.kill()
    holder.wait()
    assert locks.lock(file)


def test_a_refused_second_process_leaves_the_lock_file_of_the_first(tmp_path):
  with locks.in_use(tmp_path / "run"):
    message = rf"process {os.getpid()} on .* trains in this folder"
    with pytest.raises(UserError, match=message), locks.in_use(tmp_path / "run"):
      pass
    assert (tmp_path / "run" / ".lock").exists()
  assert not (tmp_path / "run").exists()  # nothing came of it


# --- files that a user has named ---


def test_a_file_is_there_when_it_is_whole(tmp_path):
  path = tmp_path / "out.txt"
  path.write_text("earlier")
  with pytest.raises(ZeroDivisionError), atomic.open_output(str(path)) as out:
    out.write("half")
    raise ZeroDivisionError
  assert path.read_text() == "earlier"
  with atomic.open_output(str(path)) as out:
    out.write("later")
  assert path.read_text() == "later" and [entry.name for entry in tmp_path.iterdir()] == ["out.txt"]


def test_what_is_no_plain_file_is_written_into(tmp_path):
  target = tmp_path / "target"
  (tmp_path / "link").symlink_to(target)
  atomic.check_output(str(tmp_path / "link"))
  with atomic.open_output(str(tmp_path / "link")) as out:
    out.write("text")
  assert (tmp_path / "link").is_symlink() and target.read_text() == "text"


@pytest.mark.parametrize("place", ["", "no/such/out", "file/out"])
@pytest.mark.parametrize("write", [atomic.check_output, lambda path: atomic.open_output(path).__enter__()])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, place, write):
  (tmp_path / "file").touch()
  with pytest.raises(UserError, match=r"cannot be written \("):
    write(str(tmp_path / place))
  assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
