"""The file of what a run has learnt: batches count wholly or not at all, through kills and damage."""

import os
import random
import re
import subprocess
import sys
import time

import pytest
from kills import killed

from xmc_jax.errors import UserError
from xmc_jax.storage import atomic
from xmc_jax.storage.journal import Batch, Journal

BATCHES = [
  Batch([0, 1], ["å\n\u2028b", ""], [["k"], []]),
  Batch([2], ["c"], [["k", "ł"]], {"ł": "å\n"}),
]


def test_a_line_that_a_kill_cut_short_counts_for_nothing(tmp_path):
  """At every byte; the next batch is written in its place."""
  path = tmp_path / "learnt.jsonl"
  journal = Journal(path)
  ends = [0]
  for batch in BATCHES:
    journal.append(batch)
    ends.append(path.stat().st_size)
  content = path.read_bytes()
  for size in range(len(content) + 1):
    path.write_bytes(content[:size])
    journal, whole = Journal(path), sum(size >= end for end in ends[1:])
    assert journal.batches == BATCHES[:whole]
    assert journal.next_id == [0, 2, 3][whole]
    journal.append(BATCHES[1])
    assert Journal(path).batches == [*BATCHES[:whole], BATCHES[1]]


def test_a_kill_leaves_a_batch_whole_or_not_at_all(tmp_path):
  path = tmp_path / "learnt.jsonl"
  Journal(path).append(BATCHES[0])
  with killed(os, "write"):
    Journal(path).append(BATCHES[1])
  assert Journal(path).batches == BATCHES[:1]
  with killed(os, "fsync"):
    Journal(path).append(BATCHES[1])
  assert Journal(path).batches == BATCHES
  with killed(atomic, "flush"):
    Journal(path).replace(BATCHES[1:])
  assert Journal(path).batches == BATCHES


# Learns three texts at a time, and forgets some or the last; says what it begins, and what is on the disk.
_WRITER = """
import pathlib, random, sys
from xmc_jax.storage.journal import Batch, Journal, without

journal, chosen = Journal(pathlib.Path(sys.argv[1])), random.Random(sys.argv[2])
print(flush=True)
while True:
  how = chosen.choice(["learn", "learn", "unlearn", "undo"])
  known = [batch for batch in journal.batches if batch.ids]
  if how == "learn" or not known:
    ids = list(range(journal.next_id, journal.next_id + 3))
    print(" ".join(map(str, ["learn", *ids])), flush=True)  # at once, as a kill may come between words
    texts = [f"<{number}>" * 500 for number in ids]
    journal.append(Batch(ids, texts, [["a"]] * 3, {"a": "b" * 99}))
  else:
    gone = chosen.choice(known).texts[:1] if how == "unlearn" else known[-1].texts
    print(" ".join(["unlearn", *(text[1 : text.index(">")] for text in gone)]), flush=True)
    journal.replace(without(journal.batches, set(gone)))
  print("done", flush=True)
"""


@pytest.mark.slow
def test_200_kills_at_random_moments(tmp_path):
  """What was acknowledged is there, or gone; what was not is there wholly or not at all."""
  path, chosen, there, highest = tmp_path / "learnt.jsonl", random.Random(5), set(), -1
  cut = 0
  for trial in range(200):
    command, begun = [sys.executable, "-c", _WRITER, path, str(trial)], None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
      assert writer.stdout.readline() == "\n"
      time.sleep(chosen.random() * 0.03)
      writer.kill()
      lines = writer.stdout.read().splitlines()
    for line in lines:
      how, *ids = line.split()
      if how == "done":
        there = there | set(begun[1]) if begun[0] == "learn" else there - set(begun[1])
        begun = None
      else:
        begun = how, list(map(int, ids))
        highest = max(highest, *begun[1])
    found = Journal(path)
    numbers = {number for batch in found.batches for number in batch.ids}
    after = there if not begun else there | set(begun[1]) if begun[0] == "learn" else there - set(begun[1])
    assert numbers in (there, after), (trial, begun, numbers ^ there)
    assert set(map(int, re.findall(r"<(\d+)>", path.read_text()))) >= numbers
    cut += begun is not None
    there = numbers
    assert found.next_id >= max(numbers, default=-1) + 1
    content = path.read_text().rpartition("\n")[0]
    assert set(map(int, re.findall(r"<(\d+)>", content))) == numbers  # of the forgotten nothing is left
  assert cut > 20 and highest > 200


LINES = (
  '{"ids": [1], "texts": ["a"], "labels": [[]], "new_labels": ["k"]}',
  '{"ids": [1], "texts": ["a"], "labels": [["k"]], "new_labels": {"k": 5}}',
  *("{", "null", "[" * 100_000, '{"ids": [1], "texts": [], "labels": []}', '{"ids": 1}'),
  *('{"ids": [1], "texts": [7], "labels": [[]]}', '{"ids": [1], "texts": ["a"], "labels": ["abc"]}'),
  *('{"ids": ["1"], "texts": ["a"], "labels": [[]]}', '{"ids": [1], "texts": ["a"], "labels": [[5]]}'),
)


@pytest.mark.parametrize("line", LINES)
def test_damaged_lines_are_refused_each_time(line, tmp_path):
  path = tmp_path / "learnt.jsonl"
  journal = Journal(path)
  journal.append(BATCHES[0])
  path.write_text(f"{path.read_text()}{line}\n")
  for _ in range(2):
    with pytest.raises(UserError, match=r"learnt\.jsonl, line 2: not readable"):
      journal.reread()
  assert journal.batches == BATCHES[:1] and journal.next_id == 2


def test_what_is_no_plain_file_is_refused(tmp_path):
  path, outside = tmp_path / "learnt.jsonl", tmp_path / "outside"
  journal = Journal(path)
  outside.write_text("precious")
  path.symlink_to(outside)
  for change in (journal.reread, lambda: journal.append(BATCHES[0]), lambda: journal.replace(BATCHES)):
    with pytest.raises(UserError, match=r"learnt\.jsonl"):
      change()
  path.unlink()
  path.mkdir()
  with pytest.raises(UserError, match="expected a plain file"):
    Journal(path)
  assert outside.read_text() == "precious"
