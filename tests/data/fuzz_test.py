"""Damaged files, 400, or as many as $XMC_JAX_FUZZ_FILES says: each loads, or ends in one line."""

import json
import os
import random
import re
import shutil
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
import sample_folders as samples
from hypothesis import given

from xmc_jax import data
from xmc_jax.data.formats.label_cells import CellFormat
from xmc_jax.data.formats.lines import text_lines
from xmc_jax.data.formats.source import Place
from xmc_jax.errors import DataError, UserError

FILES_OF_A_SEED = int(os.environ.get("XMC_JAX_FUZZ_FILES", 400)) // 4
LONGEST_MESSAGE = 600  # without the folder's name
# What is put between, or in the place of, good pieces.
NUMBERS = f"0 -0 -1 1.5 1_0 +1 1e5 1e300 1e400 0x1 nan NaN -inf Infinity {2**31} {2**32 + 1} {2**63}"
MARKS = r"""" "" ' \ : :: , | ; -> = # [ ] { } [] {} null true [[1]] \ud800 \u0000 "title" "target_ind" """
BYTES = (
  b"\0",
  b"\x1a",
  b"\x85",
  b"\xff",
  b"\xc3",
  b"\xef\xbb\xbf",
  b"\xff\xfe",
  b"\xed\xa0\x80",
  b"\xe2\x80\xa8",
  "\u0663".encode(),
)
BLANKS = (b"", b" ", b"\t", b"\n", b"\n\n", b"\r", b"\r\n", b"\v", b" " * 5000)
LONG = (b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"x" * 70_000, b"0:1 " * 3000, b"1," * 3000)
PUT = (*f"{NUMBERS} {MARKS}".encode().split(), *BYTES, *BLANKS, *LONG)
PIECES = (rb"-?\d+(\.\d+)?", rb"[^\s:,|\[\]{}\"]+", rb"[^\n]*\n?")  # a number, a word, a line


def replaced(content: bytes, rng: random.Random) -> bytes:
  """Replaces, drops, repeats or inserts a piece."""
  pieces = list(re.finditer(rng.choice(PIECES), content))
  first, end = rng.choice(pieces).span() if pieces else (0, 0)
  new = rng.choice((rng.choice(PUT), b"", content[first:end] * rng.choice((2, 3, 500))))
  return content[:first] + new + content[end if rng.random() < 0.8 else first :]


def bytes_changed(content: bytes, rng: random.Random) -> bytes:
  changed = bytearray(content)
  for _ in range(rng.choice((1, 1, 2, 8)) if changed else 0):
    changed[rng.randrange(len(changed))] = rng.choice((0, 9, 10, 13, 32, 128, 255, rng.randrange(256)))
  return bytes(changed)


def cut(content: bytes, rng: random.Random) -> bytes:
  first, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
  return content[:first] + rng.choice((b"", content[end:], content[first:end] + content[first:]))


def recoded(content: bytes, rng: random.Random) -> bytes:
  text = content.decode("latin-1")
  line_ends = content.replace(b"\n", rng.choice((b"\r\n", b"\r")))
  latin = content.decode("utf-8", "replace").encode("latin-1", "replace")
  return rng.choice((line_ends, text.encode("utf-16"), text.encode("utf-16-le"), latin, content.upper()))


def all_replaced(content: bytes, rng: random.Random) -> bytes:
  return rng.choice((b"\0" * 4096, rng.randbytes(500), b"\x1f\x8b", b"PK\x03\x04", *PUT))


CHANGES = (replaced, replaced, replaced, bytes_changed, cut, recoded, all_replaced)


def tree_of_labels(folder: Path, end: str) -> Path:
  """Tables whose labels are described, with parents, in a third."""
  samples.separated(folder, end)
  (folder / "labels.txt").unlink()
  rows = [f'{at},"{text}",more,{at - 1 if at else ""}' for at, text in enumerate(samples.LABELS)]
  samples.write(folder / f"labels.csv{end}", samples.lines(["id,title,description,parent", *rows]))
  return folder


def one_table(folder: Path, end: str) -> Path:
  """One table of everything, labels by name."""
  samples.write(folder / f"all.csv{end}", 'text,tags\na,"x|y"\n"b\nc",x\nd,\n"e ""f""",z|x\n' + "g,y\n" * 5)
  return folder


LAYOUTS = {**samples.LAYOUTS, "tree of labels": tree_of_labels, "one table": one_table}
OPTIONS = {"tree of labels": {"label_text": "title+description", "label_parent": "parent"}}


def outcome(rng: random.Random, folder: Path) -> str:
  """Damages a file of a layout, and returns whether the data were 'loaded' or 'refused'."""
  layout = rng.choice(sorted(LAYOUTS))
  LAYOUTS[layout](folder / "raw", rng.choice(("", "", "", ".gz")))
  damaged = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
  for change in rng.choices(CHANGES, k=rng.choice((1, 1, 1, 2, 3))):
    damaged.write_bytes(change(damaged.read_bytes(), rng))
  try:
    data.prepare(folder / "raw", folder / "out", **OPTIONS.get(layout, {}))
  except UserError as error:
    said = str(error)
    assert "\n" not in said and str(folder) in said and len(said.replace(str(folder), "")) < LONGEST_MESSAGE
    assert [path.name for path in folder.iterdir()] == ["raw"]
    return "refused"
  look_at_all(data.load_prepared(folder / "out"))
  return "loaded"


def look_at_all(dataset: data.Dataset) -> None:
  """What has loaded is sound."""
  for split in (dataset.train, dataset.test):
    split.truth.copy().check_format(full_check=True)
    split.filter.copy().check_format(full_check=True)
    assert len(list(split.texts)) == split.truth.shape[0] == split.filter.shape[0]
    assert (split.truth.data > 0).all()
  assert len(list(dataset.labels.texts)) == dataset.num_labels > 0
  for graph in dataset.graphs.values():
    assert len(list(graph.anchors.texts)) == len(graph.anchors)
  data.summary(dataset.manifest)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_load_or_end_in_one_line(seed, tmp_path, monkeypatch):
  monkeypatch.setattr("os.fsync", lambda handle: None)
  kinds: Counter[str] = Counter()
  for number in range(FILES_OF_A_SEED):  # a failure leaves its folder behind
    kinds[outcome(random.Random(f"{seed} {number}"), tmp_path / str(number))] += 1
    shutil.rmtree(tmp_path / str(number))
  print(kinds)
  assert kinds["loaded"] > 10 and kinds["refused"] > 40, "too little damage, or too much, to say anything"


JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
  max_leaves=6,
)


@given(JSON | st.text('[]",|12 a\\') | JSON.map(json.dumps), st.sampled_from(["", "|", ",", " "]))
def test_cells_give_labels_or_one_line(cell, separator):
  try:
    labels = CellFormat(separator).labels(cell, Place(Path("t.csv"), [7]), 0)
  except DataError as error:
    assert re.match(r"t\.csv, line 7: expected (a JSON list of labels|labels that are texts)", str(error))
    return
  assert all(type(label) in (str, int) for label in labels)
  if isinstance(cell, str) and not cell.lstrip().startswith("[") and separator:
    assert [label.strip() for label in labels] == labels and not any(separator in label for label in labels)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8)


@given(st.lists(TEXT, min_size=1, max_size=6), st.sampled_from(["->", "\t"]))
def test_texts_behind_ids_survive(tmp_path_factory, texts, mark):
  rows = samples.lines(f"{at}{mark}{text}" for at, text in enumerate(texts))
  path = samples.write(tmp_path_factory.mktemp("keyed") / "Yf.txt", rows)
  (chunk,) = text_lines(path, [])
  assert chunk.texts == texts and chunk.keys == [str(at) for at in range(len(texts))]
