"""Damaged files: 400, or as many as $XMC_JAX_FUZZ_FILES says."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import fuzzing
import hypothesis.strategies as st
import pytest
import sample_folders as samples
from hypothesis import given

from xmc_jax.data.formats.label_cells import CellFormat
from xmc_jax.data.formats.lines import text_lines
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
