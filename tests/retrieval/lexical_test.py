"""Texts compared by words: against tf-idf counted by hand, in float64."""

import collections
import itertools
import math
import re

import hypothesis
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg
from hypothesis import strategies as st

from xmc_jax.retrieval import lexical
from xmc_jax.retrieval.lexical import Lexicon, TextTable, largest

TEXTS = [
  "a window manager for X11",
  "A WINDOW, manager: for -- x11",
  "window window window",
  "manager window",
  "",
  " \t\n",
  "?! … — «»",
  "Äpfel äpfel ÄPFEL über_all 日本語 日本語",
  "naïve café 7 7th",
  "\ud800 lone \udfff surrogates \x00 \u202e",
]
_ALPHABET = st.sampled_from("aBbc1_é日 ,.-\n\u0301\u00a0")
SOME_TEXTS = st.lists(st.text(_ALPHABET, max_size=12), min_size=1, max_size=6)


def words_of(text: str) -> list[str]:
  """Words, and pairs of words that follow each other."""
  words = re.findall(r"\w+", text.lower())
  return words + [f"{one} {other}" for one, other in itertools.pairwise(words)]


def dense(made_of: list[str], texts: list[str], words: list[str]) -> np.ndarray:
  """`[n, V]` float64 unit vectors; `words` are the columns."""
  known = collections.Counter(word for text in made_of for word in set(words_of(text)))
  idf = {word: 1 + math.log((1 + len(made_of)) / (1 + known[word])) for word in words}
  counts = [collections.Counter(words_of(text)) for text in texts]
  counts = np.array([[count[word] for word in words] for count in counts]).reshape(len(texts), len(words))
  out = np.where(counts, 1 + np.log(np.maximum(counts, 1)), 0) * [idf[word] for word in words]
  lengths = np.linalg.norm(out, axis=1, keepdims=True)
  return out / np.where(lengths > 0, lengths, 1)


def vocabulary(*texts: str) -> list[str]:
  return sorted({word for text in texts for word in words_of(text)})


def assert_as_counted(made_of: list[str], texts: list[str]):
  found = Lexicon(made_of).vectors(texts)
  assert found.dtype == np.float32 and found.shape[0] == len(texts)
  expected = dense(made_of, texts, vocabulary(*made_of, *texts))
  np.testing.assert_allclose((found @ found.T).toarray(), expected @ expected.T, atol=1e-5)
  has_words = [bool(words_of(text)) for text in texts]
  np.testing.assert_allclose(scipy.sparse.linalg.norm(found, axis=1), has_words, atol=1e-6)


def test_vectors_are_tf_idf_of_words_and_pairs():
  assert_as_counted(TEXTS, TEXTS)
  assert_as_counted(TEXTS[:4], ["window unheard of", *TEXTS])  # words that no text had
  assert_as_counted([""], TEXTS)


def test_weights_worked_by_hand():
  """Of three texts two have "b": its weight is 1 + ln(4 / 3); "a" and "a b" have 1 + ln(4 / 2)."""
  lexicon = Lexicon(["a b", "b", ""])
  b, a = 1 + math.log(4 / 3), 1 + math.log(2)
  cosine = (lexicon.vectors(["a b"]) @ lexicon.vectors(["b"]).T).toarray()[0, 0]
  assert cosine == pytest.approx(b / math.sqrt(2 * a * a + b * b), abs=1e-6)
  doubled = (1 + math.log(2)) * b
  pair = 1 + math.log(4)  # "b b" is in no text
  cosine = (lexicon.vectors(["b b"]) @ lexicon.vectors(["b"]).T).toarray()[0, 0]
  assert cosine == pytest.approx(doubled / math.hypot(doubled, pair), abs=1e-6)


@hypothesis.given(SOME_TEXTS, SOME_TEXTS)
def test_any_texts(made_of, texts):
  assert_as_counted(made_of, texts)


def test_no_texts_at_all():
  assert Lexicon([]).vectors([]).shape[0] == 0
  table = TextTable(Lexicon(["a"]).vectors([]))
  ids, cosines = table.nearest(Lexicon(["a"]).vectors(["a", ""]), 3)
  assert (ids == -1).all() and not cosines.any() and ids.shape == (2, 3)


def test_neither_order_nor_parts_of_the_texts_matter(monkeypatch):
  whole = Lexicon(TEXTS).vectors(TEXTS)
  monkeypatch.setattr(lexical, "_TEXTS", 3)
  turned = Lexicon(iter(TEXTS[::-1])).vectors(TEXTS[::-1])
  assert (turned[::-1] != whole).nnz == 0


def test_a_query_changes_nothing():
  lexicon = Lexicon(TEXTS)
  before = lexicon.vectors(TEXTS)
  lexicon.vectors(["window"] * 50)
  assert (lexicon.vectors(TEXTS) != before).nnz == 0


# --- a table of texts ---


def nearest_by_sort(cosines: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
  ids, values = np.full((len(cosines), k), -1), np.zeros((len(cosines), k))
  for row, found in enumerate(cosines):
    best = [column for column in np.lexsort((np.arange(len(found)), -found)) if found[column] > 0][:k]
    ids[row, : len(best)], values[row, : len(best)] = best, found[best]
  return ids, values


@pytest.mark.parametrize("k", [1, 2, 4, 20])
def test_nearest_texts_are_those_of_the_largest_cosines(k):
  queries = ["window", "für X11 manager window", "äpfel", "", "unheard"]
  lexicon = Lexicon(TEXTS)
  table = TextTable(lexicon.vectors(TEXTS))
  words = vocabulary(*TEXTS, *queries)
  expected = dense(TEXTS, queries, words) @ dense(TEXTS, TEXTS, words).T
  cosines = table.cosines(lexicon.vectors(queries))
  np.testing.assert_allclose(cosines.toarray(), expected, atol=1e-6)
  some = np.random.default_rng(0).integers(0, len(TEXTS), (len(queries), 3))
  of_some = table.cosines_of(lexicon.vectors(queries), some)
  np.testing.assert_allclose(of_some, np.take_along_axis(expected, some, axis=1), atol=1e-6)
  ids, values = table.nearest(lexicon.vectors(queries), k)
  assert ids.dtype == np.int32 and values.dtype == np.float32
  expected_ids, expected_values = nearest_by_sort(np.round(expected, 6), k)
  np.testing.assert_array_equal(ids, expected_ids)
  np.testing.assert_allclose(values, expected_values, atol=2e-6)


def test_a_word_of_very_many_texts_finds_none(monkeypatch):
  """It is left out of products alone: lengths of vectors are as with it."""
  monkeypatch.setattr(lexical, "_MOST_TEXTS", 3)
  texts = ["the cat", "the dog", "the cow", "the end", "dog", "cat cow"]
  queries = ["the dog", "the", "cow the cat"]
  lexicon, words = Lexicon(texts), vocabulary(*texts, *queries)
  vectors = dense(texts, texts, words)
  rare = (vectors > 0).sum(axis=0) <= 3
  assert not rare[words.index("the")] and rare.sum() == len(words) - 1
  table = TextTable(lexicon.vectors(texts))
  found = table.cosines(lexicon.vectors(queries))
  np.testing.assert_allclose(found.toarray(), dense(texts, queries, words) * rare @ vectors.T, atol=1e-6)
  assert found[[1]].nnz == 0
  every = np.tile(np.arange(len(texts)), (3, 1))
  np.testing.assert_allclose(table.cosines_of(lexicon.vectors(queries), every), found.toarray(), atol=1e-6)
  assert (table.vectors != lexicon.vectors(texts)).nnz == 0
  assert table.nearest(lexicon.vectors(["the"]), 2)[0].tolist() == [[-1, -1]]


_SCORES = st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0]), min_size=7, max_size=7), max_size=4)


@hypothesis.given(_SCORES, st.integers(0, 9), st.randoms(use_true_random=False))
def test_the_largest_entries_with_ties(scores, k, random):
  """In whatever order a row's entries stand, and with zeros among them."""
  scores = np.array(scores, np.float32).reshape(-1, 7)
  columns = [random.sample(range(7), 7) for _ in scores]
  entries = np.array([row[order] for row, order in zip(scores, columns)], np.float32).ravel()
  indptr = np.arange(len(scores) + 1) * 7
  matrix = sp.csr_matrix((entries, np.array(columns, np.int32).ravel(), indptr), (len(scores), 7))
  ids, values = largest(matrix, k)
  expected = nearest_by_sort(scores, k)
  np.testing.assert_array_equal(ids, expected[0])
  np.testing.assert_array_equal(values, expected[1])
