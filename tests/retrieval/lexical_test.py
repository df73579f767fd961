"""Texts compared by words: against tf-idf counted by hand, in float64."""

import collections
import itertools
import math
import unicodedata
from collections.abc import Callable

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
  text = unicodedata.normalize("NFKC", text).casefold()
  in_words = [char.isalnum() or char == "_" or unicodedata.category(char)[0] == "M" for char in text]
  return "".join(char if inside else " " for char, inside in zip(text, in_words)).split()


def with_pairs(text: str) -> list[str]:
  """Words, and pairs of words that follow each other."""
  words = words_of(text)
  return words + [f"{one} {other}" for one, other in itertools.pairwise(words)]


def ngrams(text: str) -> list[str]:
  """4 characters of a word between spaces; 1 and 2 where a script has no spaces."""
  words = words_of(text)
  found = [f" {word} "[start : start + 4] for word in words for start in range(len(word) - 1)]
  unspaced = lambda part: all(
    unicodedata.name(char, "").startswith(("CJK", "HIRAGANA", "THAI")) for char in part
  )
  short = [word[start : start + n] for word in words for n in (1, 2) for start in range(len(word) - n + 1)]
  return found + [part for part in short if unspaced(part)]


def share_of_ngrams(texts: list[str]) -> float:
  counts = collections.Counter(word for text in texts for word in words_of(text))
  unknown = sum(count == 1 for count in counts.values()) / counts.total() if counts else 1
  return 0 if 3 * unknown < 0.1 else min(3 * unknown, 0.5)


def dense(made_of: list[str], texts: list[str]) -> np.ndarray:
  """`[n, V]` float64 unit vectors of `texts`."""
  share = share_of_ngrams(made_of)
  words, parts = (unit_tf_idf(made_of, texts, parts_of) for parts_of in (with_pairs, ngrams))
  return unit(np.concatenate([words * math.sqrt(1 - share), parts * math.sqrt(share)], axis=1))


def unit_tf_idf(made_of: list[str], texts: list[str], parts_of: Callable[[str], list[str]]) -> np.ndarray:
  known = collections.Counter(part for text in made_of for part in set(parts_of(text)))
  columns = sorted({part for text in (*made_of, *texts, *TEXTS) for part in parts_of(text)})
  idf = {part: 1 + math.log((1 + len(made_of)) / (1 + known[part])) for part in columns}
  counts = [collections.Counter(parts_of(text)) for text in texts]
  counts = np.array([[count[part] for part in columns] for count in counts]).reshape(len(texts), len(columns))
  return unit(np.where(counts, 1 + np.log(np.maximum(counts, 1)), 0) * [idf[part] for part in columns])


def unit(rows: np.ndarray) -> np.ndarray:
  lengths = np.linalg.norm(rows, axis=1, keepdims=True)
  return rows / np.where(lengths > 0, lengths, 1)


def assert_as_counted(made_of: list[str], texts: list[str]):
  found = Lexicon(made_of).vectors(texts)
  assert found.dtype == np.float32 and found.shape[0] == len(texts)
  expected = dense(made_of, texts)
  np.testing.assert_allclose((found @ found.T).toarray(), expected @ expected.T, atol=1e-5)
  has_words = [bool(words_of(text)) for text in texts]
  np.testing.assert_allclose(scipy.sparse.linalg.norm(found, axis=1), has_words, atol=1e-6)


def test_vectors_are_tf_idf_of_words_pairs_and_ngrams():
  assert_as_counted(TEXTS, TEXTS)
  assert_as_counted(TEXTS[:4], ["window unheard of", *TEXTS])  # words that no text had
  assert_as_counted([""], TEXTS)


@pytest.mark.parametrize(
  ("text", "same"),
  [
    ("Stra\u00dfe", "STRASSE"),
    ("\u0130stanbul", "ISTANBUL"),
    ("\u0131l\u0131k", "ILIK"),  # Turkish, in small and in capital letters
    ("e\u0301t\u00e9", "\u00c9TE\u0301"),  # composed and decomposed
    ("\ufb01n", "fin"),
    ("\uff21\uff11", "a1"),
    ("7-bit, 3.14", "7 bit 3 14"),
    ("std::vector<int>", "std vector int"),
    ("snake_case", "Snake_Case"),
    ("\u0939\u093f\u0928\u094d\u0926\u0940 x", "\u0939\u093f\u0928\u094d\u0926\u0940-x"),  # vowels are marks
  ],
)
def test_texts_of_the_same_words_have_the_same_vector(text, same):
  lexicon = Lexicon([text, "other"])
  assert (lexicon.vectors([text]) != lexicon.vectors([same])).nnz == 0
  assert lexicon.vectors([text]).nnz


@pytest.mark.parametrize(
  ("query", "related", "unrelated"),
  [
    ("kirjastoissa", "kirjastot", "kissat"),  # Finnish: in libraries, libraries, cats
    ("kirjastonhoitaja", "hoitajat", "kirkot"),  # librarian: carers, churches
    ("CreateFileW", "create file", "delete key"),
    ("\u65e5\u672c\u8a9e\u306e\u672c", "\u65e5\u672c", "\u732b"),  # a book in Japanese: Japan, cat
  ],
)
def test_parts_of_words_find_texts_that_share_no_word(query, related, unrelated):
  assert not set(with_pairs(query)) & set(with_pairs(related))
  lexicon = Lexicon([query, related, unrelated])
  cosines = TextTable(lexicon.vectors([unrelated, related])).cosines(lexicon.vectors([query])).toarray()[0]
  assert cosines[1] > 2 * cosines[0]


@pytest.mark.parametrize(("once", "twice", "share"), [(1, 2, 0.5), (1, 10, 1 / 7), (1, 20, 0.0), (0, 0, 0.5)])
def test_ngrams_count_as_much_as_words_are_unknown(once, twice, share):
  """Of 1 + 20 occurrences one is of a word that occurs once: 3 / 21. Labels do not matter."""
  texts = [f"once{word}" for word in range(once)] + [f"again{word} again{word}" for word in range(twice)]
  assert Lexicon(texts, ["new label"] * 9).share == pytest.approx(share)


def test_ngrams_are_those_of_the_beginning_of_a_text():
  texts = [f"{'seen ' * count}kirjastoissa" for count in (199, 200)]  # from characters 995 and 1,000
  lexicon = Lexicon([*texts, *(f"rare{number}" for number in range(99))])
  cosines = TextTable(lexicon.vectors(texts)).cosines(lexicon.vectors(["kirjastot"])).toarray()[0]
  assert cosines[0] > 0 and cosines[1] == 0


@hypothesis.given(SOME_TEXTS, SOME_TEXTS)
def test_any_texts(made_of, texts):
  assert_as_counted(made_of, texts)


def test_no_texts_at_all():
  assert Lexicon([]).vectors([]).shape[0] == 0
  table = TextTable(Lexicon(["a"]).vectors([]))
  ids, cosines = largest(table.cosines(Lexicon(["a"]).vectors(["a", ""])), 3)
  assert (ids == -1).all() and not cosines.any() and ids.shape == (2, 3)


def test_neither_order_nor_parts_of_the_texts_matter(monkeypatch):
  whole = Lexicon(TEXTS).vectors(TEXTS)
  monkeypatch.setattr(lexical, "_CHARACTERS", 30)
  turned = Lexicon(iter(TEXTS[::-1])).vectors(TEXTS[::-1])
  assert (turned[::-1] != whole).nnz == 0


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
  both = dense(TEXTS, [*queries, *TEXTS])
  expected = both[: len(queries)] @ both[len(queries) :].T
  cosines = table.cosines(lexicon.vectors(queries))
  np.testing.assert_allclose(cosines.toarray(), expected, atol=1e-6)
  some = np.random.default_rng(0).integers(0, len(TEXTS), (len(queries), 3))
  of_some = table.cosines_of(lexicon.vectors(queries), some)
  np.testing.assert_allclose(of_some, np.take_along_axis(expected, some, axis=1), atol=1e-6)
  ids, values = largest(cosines, k)
  assert ids.dtype == np.int32 and values.dtype == np.float32
  expected_ids, expected_values = nearest_by_sort(np.round(expected, 6), k)
  np.testing.assert_array_equal(ids, expected_ids)
  np.testing.assert_allclose(values, expected_values, atol=2e-6)


def test_a_word_of_very_many_texts_finds_none(monkeypatch):
  """It is left out of products alone: lengths of vectors are as with it."""
  monkeypatch.setattr(lexical, "_MOST_TEXTS", 3)
  texts = ["the cat", "the dog", "the cow", "the end", "dog", "cat cow"]
  queries = ["the dog", "the", "cow the cat"]
  lexicon = Lexicon(texts)
  both = dense(texts, [*queries, *texts])
  queried, vectors = both[: len(queries)], both[len(queries) :]
  rare = (vectors > 0).sum(axis=0) <= 3
  assert rare.sum() == rare.size - 3  # "the", " the" and "the "
  table = TextTable(lexicon.vectors(texts))
  found = table.cosines(lexicon.vectors(queries))
  np.testing.assert_allclose(found.toarray(), queried * rare @ vectors.T, atol=1e-6)
  assert found[[1]].nnz == 0
  every = np.tile(np.arange(len(texts)), (3, 1))
  np.testing.assert_allclose(table.cosines_of(lexicon.vectors(queries), every), found.toarray(), atol=1e-6)
  assert (table.vectors != lexicon.vectors(texts)).nnz == 0


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
