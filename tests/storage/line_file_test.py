"""Files of lines: whole or not there, and gone on with where what they are made of is the same."""

import os
import pathlib

import pytest

from xmc_jax.errors import UserError
from xmc_jax.storage.line_file import written_whole

MADE_OF = {"run": "r", "settings": [5, ""]}


def write(path, count, made_of=MADE_OF, fail_at=None, block=4):
  """Writes lines 0 to count; returns how many were there already."""
  with written_whole(path, made_of, block) as (out, done):
    for number in range(done, count):
      if number == fail_at:
        out.write(f"{number}")  # a line cut short
        out.flush()
        raise KeyboardInterrupt
      out.write(f"{number}\n")
  return done


@pytest.fixture
def killed(tmp_path):
  """A file whose writer was killed before its last line."""
  with pytest.raises(KeyboardInterrupt):
    write(tmp_path / "out.jsonl", 10, fail_at=9)
  return tmp_path / "out.jsonl"


def content(path):
  return [int(line) for line in path.read_text().split("\n")[:-1]]


def test_a_file_is_written_and_nothing_is_left_beside(tmp_path):
  path = tmp_path / "out.jsonl"
  assert write(path, 10) == 0
  assert content(path) == list(range(10))
  assert [found.name for found in tmp_path.iterdir()] == ["out.jsonl"]
  assert write(path, 3) == 0  # anew: the command was given again
  assert content(path) == [0, 1, 2]


@pytest.mark.parametrize(("killed_at", "kept"), [(0, 0), (3, 0), (4, 4), (7, 4), (9, 8)])
def test_a_killed_writer_is_gone_on_with_in_whole_blocks(killed_at, kept, tmp_path):
  path = tmp_path / "out.jsonl"
  path.write_text("of before\n")
  with pytest.raises(KeyboardInterrupt):
    write(path, 10, fail_at=killed_at)
  assert path.read_text() == "of before\n"
  assert write(path, 10) == kept
  assert content(path) == list(range(10))


def test_a_kill_while_it_begins_anew_does_not_pass_old_lines_off_as_new(killed, monkeypatch):
  path, write_text = killed, pathlib.Path.write_text
  path.with_name("out.jsonl.part").write_text("old\n" * 9)

  def killed_again(self, *args, **kwargs):
    write_text(self, *args, **kwargs)
    raise KeyboardInterrupt

  other = {**MADE_OF, "settings": [6, ""]}
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(pathlib.Path, "write_text", killed_again)
    write(path, 10, made_of=other)
  assert write(path, 10, made_of=other) == 0
  assert content(path) == list(range(10))


def test_damaged_notes_begin_anew(killed):
  killed.with_name("out.jsonl.part.json").write_text("{")
  assert write(killed, 10) == 0
  assert content(killed) == list(range(10))


def test_a_place_that_cannot_be_written(tmp_path):
  with pytest.raises(UserError, match=r"out\.jsonl: cannot be written \(there is no folder .*no/such\)"):
    write(tmp_path / "no" / "such" / "out.jsonl", 1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
  path = tmp_path / "out.jsonl"
  path.write_text("of before\n")
  opened = pathlib.Path.open

  def full(self, *args, **kwargs):
    return opened(pathlib.Path("/dev/full") if args[:1] == ("r+",) else self, *args, **kwargs)

  monkeypatch.setattr(pathlib.Path, "open", full)
  with pytest.raises(UserError, match=r"cannot be written \(.*\); the same command goes on with out\.json"):
    write(path, 100_000)
  assert path.read_text() == "of before\n"
