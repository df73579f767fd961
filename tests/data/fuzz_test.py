"""Damaged files: 400, or as many as $XMC_JAX_FUZZ_FILES says."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import fuzzing
import hypothesis.strategies as st
import numpy as np
import pytest
import sample_folders as samples
from hypothesis import given

from xmc_jax import data
from xmc_jax.data.formats import filters_and_graphs
from xmc_jax.data.formats.label_cells import CellFormat
from xmc_jax.data.formats.lines import text_lines
from xmc_jax.data.formats.matrices import parse_pairs
from xmc_jax.data.formats.source import Place
from xmc_jax.errors import DataError

FILES_OF_A_SEED = int(os.environ.get("XMC_JAX_FUZZ_FILES", 400)) // 4


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_load_or_end_in_one_line(seed, tmp_path, monkeypatch):
  monkeypatch.setattr("os.fsync", lambda handle: None)
  cases = fuzzing.Cases(tmp_path, seed)
  outcomes = [cases.run(number) for number in range(FILES_OF_A_SEED)]
  assert [outcome for outcome in outcomes if outcome.kind == "failed"] == []
  kinds = Counter(outcome.kind for outcome in outcomes)
  print(kinds)
  assert kinds["loaded"] > 10 and kinds["refused"] > 40, "too little damage, or too much, to say anything"


# Line parsers, held to slow ones.
WORD = st.text("0123459:.-+eE_naif\x00x", max_size=6)
LINES = st.lists(st.lists(WORD, max_size=4), min_size=1, max_size=6)
BLANK = st.sampled_from([" ", "\t", "  ", "\v", "\f", " \r "])


def number(kind, word: bytes):
  """A number as these files have them; None for what is none."""
  try:
    return None if b"_" in word or b"\0" in word else kind(word)
  except ValueError:
    return None


def slow_pairs(line: bytes) -> list | None:
  fields = [word.split(b":") for word in line.split()]
  pairs = [[number(int, pair[0]), number(float, pair[1])] for pair in fields if len(pair) == 2]
  whole = len(pairs) == len(fields) and all(None not in pair and abs(pair[0]) < 2**63 for pair in pairs)
  return pairs if whole else None


@given(LINES, BLANK)
def test_targets_are_parsed_as_one_by_one(words, blank):
  lines = [blank.join(line).encode() for line in words]
  expected = [slow_pairs(line) for line in lines]
  place = Place(Path("t.txt"), range(2, 2 + len(lines)))
  if None in expected:
    with pytest.raises(DataError, match=rf"^t\.txt, line {2 + expected.index(None)}: expected entries"):
      parse_pairs(lines, place)
    return
  found = parse_pairs(lines, place)
  assert found.counts.tolist() == [len(line) for line in expected]
  assert found.ids.tolist() == [pair[0] for line in expected for pair in line]
  with np.errstate(over="ignore"):
    values = np.array([pair[1] for line in expected for pair in line], np.float64).astype(np.float32)
  np.testing.assert_array_equal(found.values, values)


@given(st.lists(st.lists(st.tuples(st.integers(0, 2**62), st.floats(width=32)), max_size=4), max_size=5))
def test_targets_survive_text(rows):
  lines = [" ".join(f"{column}:{value!r}" for column, value in row).encode() for row in rows]
  found = parse_pairs(lines, Place(Path("t.txt"), range(len(lines))))
  assert found.ids.tolist() == [column for row in rows for column, _ in row]
  np.testing.assert_array_equal(found.values, np.array([v for row in rows for _, v in row], np.float32))


@given(st.lists(st.lists(st.text("0123-+x_\x00", max_size=3), max_size=3), max_size=6))
def test_filter_pairs_are_parsed_as_one_by_one(tmp_path_factory, words):
  lines = [" ".join(line).encode() for line in words]
  path = samples.write(tmp_path_factory.mktemp("filter") / "f.txt", b"\n".join(lines))
  numbers = [[number(int, word) for word in line.split()] for line in lines]
  pairs = [tuple(pair) for pair in numbers if pair]
  tally = Counter()
  if not all(len(pair) == 2 and all(n is not None and 0 <= n < 100 for n in pair) for pair in pairs):
    with pytest.raises(DataError, match=r"f\.txt, line \d+: expected (two whole numbers|a row|a label)"):
      filters_and_graphs.read_filter(path, (100, 100), tally, [])
    return
  rows, labels = filters_and_graphs.read_filter(path, (100, 100), tally, [])
  assert list(zip(rows.tolist(), labels.tolist())) == sorted(set(pairs))
  assert tally["filter_duplicates"] == len(pairs) - len(set(pairs))


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


ROW = st.fixed_dictionaries({}, optional=dict.fromkeys(("title", "target_ind", "target_rel"), JSON))
GOOD_ROW = st.fixed_dictionaries({"title": st.text(max_size=3), "target_ind": st.just([0])})


@given(st.lists(ROW | GOOD_ROW | JSON, min_size=1, max_size=3))
def test_any_json_loads_or_ends_in_one_line(tmp_path_factory, rows):
  folder = samples.raw_json(tmp_path_factory.mktemp("json"))
  for name in ("filter_labels_test.txt", "filter_labels_train.txt"):
    (folder / name).unlink()
  samples.write(folder / "tst.json", samples.lines(map(json.dumps, rows)))
  try:
    prepared = data.prepare(folder, folder / "out")
  except DataError as error:
    assert re.match(r"tst\.json, line [123]: expected", str(error).removeprefix(f"{folder}/"))
    assert "\n" not in str(error)
    return
  assert prepared.manifest["counts"]["test"]["texts"] == len(rows)
