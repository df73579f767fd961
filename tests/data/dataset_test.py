"""Datasets, splits, tokens and tokenizers as the rest of the house uses them."""

import functools
import subprocess
import sys
import timeit
from pathlib import Path

import jax
import numpy as np
import pytest
import sample_folders as samples
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from xmc_jax import data
from xmc_jax.errors import ConfigError, DataError

TEXTS = ["the apple", "", "a green apple on a tree", "boat", "apple " * 50]


@pytest.fixture(scope="module")
def tokenizer():
  return data.train_tokenizer(TEXTS, 60)


@pytest.fixture(scope="module")
def dataset(tokenizer, tmp_path_factory):
  folder = samples.raw_json(tmp_path_factory.mktemp("raw"))
  return data.load(folder, tokenizer=tokenizer, max_length=6, cache_dir=folder / "cache")


def test_tokens_on_disk_are_those_of_encode_texts(dataset, tokenizer):
  for part in (dataset.train, dataset.test, dataset.labels, dataset.graphs["kind"].anchors):
    expected = data.encode_texts(tokenizer, part.texts, 6)
    rows = np.arange(len(part.texts))
    jax.tree.map(np.testing.assert_array_equal, part.tokens.gather(rows, 6), expected.gather(rows, 6))
  assert dataset.tokenizer().to_str() == data.load_tokenizer(dataset.folder).to_str()
  assert dataset.manifest["tokenizer"]["dtype"] == "uint16"


def test_truncation_keeps_the_special_tokens(tokenizer):
  table = data.encode_texts(tokenizer, TEXTS, 5)
  ends = [tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")]
  tokens = table.gather(np.arange(5), 5)
  assert tokens.lengths[1] == 2 and tokens.lengths[4] == 5
  for row, length in zip(tokens.ids, tokens.lengths):
    assert [row[0], row[length - 1]] == ends
  assert tokenizer.truncation is None


def test_encode_texts_takes_iterators_and_nothing(tokenizer):
  assert len(data.encode_texts(tokenizer, iter(TEXTS), 8)) == 5
  empty = data.encode_texts(tokenizer, [], 8)
  assert len(empty) == 0
  assert empty.gather(np.array([-1, -1]), 3).ids.tolist() == [[0] * 3] * 2
  assert len(data.encode_texts(tokenizer, ["a \ud800 lone surrogate"], 8)) == 1


def naive_gather(rows_of_ids, rows, width):
  ids, lengths = np.zeros((len(rows), width), np.int32), np.zeros(len(rows), np.int32)
  for at, row in enumerate(rows):
    kept = [] if row < 0 else rows_of_ids[row][:width]
    ids[at, : len(kept)], lengths[at] = kept, len(kept)
  return ids, lengths


@given(st.data())
def test_gather_is_the_naive_loop(drawn):
  rows_of_ids = drawn.draw(st.lists(st.lists(st.integers(0, 65535), max_size=6), min_size=1, max_size=6))
  rows = drawn.draw(st.lists(st.integers(-1, len(rows_of_ids) - 1), max_size=8))
  width = drawn.draw(st.integers(0, 8))
  flat = np.array([token for row in rows_of_ids for token in row], np.uint16)
  offsets = np.cumsum([0, *map(len, rows_of_ids)])
  table = data.TokenTable.of_offsets(flat, offsets)
  got = table.gather(np.array(rows, np.int64), width)
  assert got.ids.dtype == got.lengths.dtype == np.int32
  for array, expected in zip((got.ids, got.lengths), naive_gather(rows_of_ids, rows, width)):
    np.testing.assert_array_equal(array, expected)
  chosen = np.array([row for row in rows if row >= 0], np.int64)
  np.testing.assert_array_equal(table.rows(chosen).lengths, table.lengths[chosen])


def test_gather_refuses_rows_outside(dataset):
  with pytest.raises(IndexError):
    dataset.train.tokens.gather(np.array([5]), 4)


def test_gather_is_fast():
  table = data.TokenTable.of_offsets(np.zeros(3_200_000, np.uint16), np.arange(0, 3_200_001, 32))
  rows = np.random.default_rng(0).integers(0, 100_000, 4096)
  best = min(timeit.repeat(lambda: table.gather(rows, 32), number=1, repeat=20))
  assert best < 0.01  # about 1 ms; the rest is room for a busy machine


def test_rows_of_a_split(dataset):
  part = dataset.train.rows([3, 0])
  assert list(part.texts) == ["boat ±", "apple on a tree"] and len(part) == 2
  assert part.row_numbers.tolist() == [3, 0]
  assert part.truth.indices.tolist() == [3, 0] and part.filter.indices.tolist() == [3, 0]
  np.testing.assert_array_equal(part.tokens.lengths, dataset.train.tokens.lengths[[3, 0]])
  assert part.rows([1]).row_numbers.tolist() == [0]
  assert len(dataset.train.rows([])) == 0


def test_texts_is_a_sequence(dataset):
  texts = dataset.train.texts
  assert texts[-1] == "plain" and list(texts[1:3]) == ["", "a green, apple"]
  assert list(texts[np.array([4, 0])]) == ["plain", "apple on a tree"]
  assert "boat ±" in texts and len(texts) == 5
  assert repr(texts).startswith("Texts(5: 'apple on a tree'")
  with pytest.raises(IndexError):
    texts[5]


def test_without_a_tokenizer(tmp_path):
  dataset = data.load(samples.index(tmp_path))
  assert dataset.train.tokens is dataset.labels.tokens is None
  assert dataset.train.rows([0]).tokens is None
  with pytest.raises(DataError, match=r"tokenizer\.json: no such file"):
    dataset.tokenizer()


def test_truth_and_repr(dataset):
  assert dataset.truth.train is dataset.train.truth and dataset.truth.test is dataset.test.truth
  assert repr(dataset).endswith("5 train, 3 test, 5 labels)")
  assert repr(dataset.train) == "Split(5 points, 4 label pairs)"


bundled = functools.cache(data.load)


@given(num=st.integers(0, 9), seed=st.integers(0, 5))
def test_hold_out(num, seed):
  whole = bundled().train
  split = whole.rows(np.arange(40))
  labelled = split.rows(np.arange(0, 40, 4))
  bare = labelled.truth.tolil()
  bare[0] = 0
  labelled.truth = bare.tocsr()
  if num >= 9:
    with pytest.raises(ConfigError, match="num_validation=9: expected 0 to 8, as 9 rows have labels"):
      data.hold_out(labelled, num, seed)
    return
  train, validation = data.hold_out(labelled, num, seed)
  assert len(validation) == num and len(train) == 10 - num
  assert 0 in train.row_numbers
  assert sorted([*train.row_numbers, *validation.row_numbers]) == labelled.row_numbers.tolist()
  for part in (train, validation):
    assert (np.diff(part.row_numbers) > 0).all()
    assert list(part.texts) == [whole.texts[row] for row in part.row_numbers]
  again = data.hold_out(labelled, num, seed)[1]
  assert again.row_numbers.tolist() == validation.row_numbers.tolist()


@pytest.mark.parametrize("num, num_known", [(3, 0), (4, 0), (5, 1)])
def test_hold_out_takes_known_rows_last(num, num_known):
  split = bundled().train.rows(np.arange(40))
  known = ~np.isin(np.arange(40), [3, 9, 20, 31])
  train, validation = data.hold_out(split, num, 0, known=known)
  assert known[validation.row_numbers].sum() == num_known and len(train) == 40 - num
  assert list(data.hold_out(split, num, 0, known=known)[1].texts) == list(validation.texts)


def test_bundled_set():
  dataset = data.load("bundled")
  assert data.load().folder == dataset.folder
  assert (len(dataset.train), len(dataset.test), dataset.num_labels) == (9914, 2304, 11438)
  anchors = {name: len(graph.anchors) for name, graph in dataset.graphs.items()}
  assert anchors == {"debtags": 594, "depends": 7319}
  assert dataset.test.filter.nnz == 756
  assert dataset.graphs["depends"].query_edges.nnz == 47986
  assert dataset.graphs["depends"].label_edges.nnz == 54623
  assert dataset.manifest["notices"] == []
  assert dataset.train.texts[0] == "0ad-data: Real-time strategy game of ancient warfare (data files)"
  assert (data.bundled_path() / "NOTICE").is_file()
  assert sum(path.stat().st_size for path in data.bundled_path().iterdir()) < 1.3e6


def test_trained_tokenizer(tokenizer):
  assert tokenizer.token_to_id("[PAD]") == 0
  assert tokenizer.encode("Green APPLE").tokens == ["[CLS]", "green", "apple", "[SEP]"]
  assert tokenizer.decode(tokenizer.encode("on a tree").ids) == "on a tree"
  assert tokenizer.encode("qqq").tokens[1] == "[UNK]"
  assert tokenizer.encode("##a").tokens != ["[CLS]", "##a", "[SEP]"]
  assert tokenizer.encode("a [SEP] b").tokens.count("[SEP]") == 2
  assert tokenizer.get_vocab_size() <= 60
  with pytest.raises(ConfigError, match="vocab_size=10: expected at least"):
    data.train_tokenizer(TEXTS, 10)


def test_training_a_tokenizer_is_deterministic_across_processes():
  code = """
import hashlib
from xmc_jax import data
texts = data.load("bundled").train.texts[:2000]
print(hashlib.sha256(data.train_tokenizer(texts, 2000).to_str().encode()).hexdigest())
"""
  root = Path(__file__).resolve().parents[2]
  command = [sys.executable, "-c", code]
  runs = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)]
  digests = {run.communicate()[0].strip() for run in runs}
  assert len(digests) == 1 and len(digests.pop()) == 64


def test_load_tokenizer(tmp_path, tokenizer):
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  for path in (tmp_path, tmp_path / "tokenizer.json"):
    assert data.load_tokenizer(path).get_vocab() == tokenizer.get_vocab()
  with pytest.raises(DataError, match=r"none/tokenizer\.json: no such file|none: no such file"):
    data.load_tokenizer(tmp_path / "none")
  samples.write(tmp_path / "tokenizer.json", "{}")
  with pytest.raises(DataError, match=r"tokenizer\.json: expected a tokenizer\.json"):
    data.load_tokenizer(tmp_path)
  without_unknown = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="[UNK]"))
  without_unknown.save(str(tmp_path / "tokenizer.json"))
  with pytest.raises(DataError, match=r"tokenizer\.json: unusable .*Missing .UNK. token"):
    data.load_tokenizer(tmp_path)
