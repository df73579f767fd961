"""A synthetic data set of any size, written as a prepared folder, without raw files or tokenizing.

Texts have 4 to 16 tokens, most of them from the 32 words of one of 256 topics. A point's labels are of its
topic: 5 on average, 30 at most (log-normal), some labels far more frequent than others. One point in ten has
a filtered pair. A metadata graph, `meta`, links points and labels to L / 10 anchors of their topic.
"""

import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from xmc_jax.data import prepared
from xmc_jax.data.arrays import ArrayFolder, CsrFile, RaggedFile

TOPICS, WORDS = 256, 32  # words of each topic
VOCABULARY = TOPICS * WORDS + 1
LONGEST = 16  # tokens
_CHUNK = 200_000


def write(folder: pathlib.Path, num_points: int, num_labels: int, num_test: int = 256) -> pathlib.Path:
  """Writes a prepared folder with these numbers of points and labels; equal arguments give equal data."""
  rng, num_anchors = np.random.default_rng(0), max(TOPICS, num_labels // 10)
  folder.mkdir(parents=True)
  with ArrayFolder(folder) as arrays:
    _texts(arrays, "labels", num_labels, rng)
    _texts(arrays, "graph.meta.anchors", num_anchors, rng)
    for split, count in (("train", num_points), ("test", num_test)):
      _texts(arrays, split, count, rng)
      _pairs(arrays, f"{split}.truth", count, num_labels, rng, _how_many)
      _pairs(arrays, f"{split}.filter", count, num_labels, rng, _few, with_values=False)
    for side, count in (("query_edges", num_points), ("label_edges", num_labels)):
      _pairs(arrays, f"graph.meta.{side}", count, num_anchors, rng, _some)
  _tokenizer().save(str(folder / prepared.TOKENIZER))
  counts = {"train": {"texts": num_points}, "test": {"texts": num_test}, "labels": {"texts": num_labels}}
  edges = {"query_edges": num_points, "label_edges": num_labels}  # or more: each has one
  graphs = {"meta": {"texts": num_anchors, **edges}}
  files = {path.name: {"size": path.stat().st_size, "sha256": ""} for path in sorted(folder.iterdir())}
  said = {
    "name": "made up",
    "layout": "",
    "options": {},
    "tokenizer": {"name": "words", "sha256": "", "max_length": LONGEST, "dtype": "uint16"},
    "sources": [],
    "counts": {**counts, "graphs": graphs},
    "notices": [],
    "read_by": {},
  }
  prepared.write_manifest(folder, {**said, "files": files})
  return folder


def _topics(first: int, count: int) -> np.ndarray:
  """Returns the topics of the texts `first`, `first + 1`, ...: text i has topic i mod 256."""
  return np.arange(first, first + count) % TOPICS


def _chunks(count: int) -> Iterator[tuple[int, int]]:
  for start in range(0, count, _CHUNK):
    yield start, min(_CHUNK, count - start)


def _texts(arrays: ArrayFolder, name: str, count: int, rng: np.random.Generator) -> None:
  """Writes texts of one letter, and random tokens that are unrelated to it."""
  texts = RaggedFile(arrays, f"{name}.texts", np.uint8)
  tokens = RaggedFile(arrays, f"{name}.tokens", np.uint16)
  for start, size in _chunks(count):
    texts.append(np.full(size, ord("x"), np.uint8), np.ones(size, np.int64))
    lengths = rng.integers(4, LONGEST + 1, size)
    topics = np.repeat(_topics(start, size), lengths)
    own = topics * WORDS + rng.integers(0, WORDS, len(topics))
    ids = np.where(rng.random(len(topics)) < 0.7, own, rng.integers(0, TOPICS * WORDS, len(topics)))
    tokens.append(1 + ids, lengths)


def _how_many(count: int, rng: np.random.Generator) -> np.ndarray:
  return np.clip(np.round(np.exp(rng.normal(np.log(4.3), 0.6, count))), 1, 30).astype(np.int64)


def _few(count: int, rng: np.random.Generator) -> np.ndarray:
  return (rng.random(count) < 0.1).astype(np.int64)


def _some(count: int, rng: np.random.Generator) -> np.ndarray:
  return rng.integers(1, 4, count)


def _pairs(
  arrays: ArrayFolder,
  name: str,
  num_rows: int,
  num_columns: int,
  rng: np.random.Generator,
  how_many: Callable[[int, np.random.Generator], np.ndarray],
  with_values: bool = True,
) -> None:
  """Writes a sparse matrix that pairs rows with columns of their topic; low columns are more frequent."""
  file = CsrFile(arrays, name, with_values)
  for start, size in _chunks(num_rows):
    rows = np.repeat(np.arange(size), how_many(size, rng))
    topics = _topics(start, size)[rows]
    places = ((num_columns - 1 - topics) // TOPICS + 1) * rng.random(len(rows)) ** 2
    pairs = np.unique(rows * num_columns + topics + TOPICS * places.astype(np.int64))
    values = np.ones(len(pairs), np.float32) if with_values else None
    file.append(np.bincount(pairs // num_columns, minlength=size), pairs % num_columns, values)


def _tokenizer():
  from tokenizers import Tokenizer, models

  words = {"[UNK]": 0, **{f"w{number}": number for number in range(1, VOCABULARY)}}
  return Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
