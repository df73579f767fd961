"""Writes and reads a label index: `labels.npy`, `labels.jsonl`, `labels.faiss`, and ScaNN's own folder.

The index of a hybrid ranker has more files: `labels_SCORER.npy` if there are several kinds of label vectors,
and `both.faiss`, which also holds the training points.
"""

import functools
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from xmc_jax import sanitize
from xmc_jax.errors import DataError
from xmc_jax.ops.unit_rows import unit_rows
from xmc_jax.retrieval import Index
from xmc_jax.retrieval.search import with_bias_column
from xmc_jax.storage import atomic, npy

VECTORS, TEXTS, FAISS, BOTH = "labels.npy", "labels.jsonl", "labels.faiss", "both.faiss"
SCANN, SCANN_SETTINGS, SAMPLE = "scann", "scann.json", "sample.npy"
BLOCK = 1 << 16  # vectors at a time
_NO_FACTS: dict[str, Any] = {}  # one for all labels without any
_SCANN_DEPTH = 100  # number of labels per query that ScaNN's search is tuned for


def write(
  folder: Path,
  parts: Sequence[np.ndarray],
  texts: Sequence[str],
  sample: np.ndarray,
  *,
  keys: Sequence[str],
  names: Sequence[str],
  facts: Sequence[Mapping[str, Any]],
  scorers: Mapping[str, Sequence[np.ndarray]] = MappingProxyType({}),
  points: np.ndarray | None = None,
) -> str:
  """Writes an index of L labels.

  Args:
    folder: created if missing.
    parts: `[n, D]` arrays, L rows in all; may be memory-mapped.
    texts: L label texts.
    sample: `[m, D]` queries that ScaNN's search is tuned with; stored next to its index.
    keys: their L keys.
    names: what is shown of each. If it is not the text, the text is written as 'encoder_text'.
    facts: what else is known of each, by name.
    scorers: label vectors by scorer, like `parts`; written if there are several.
    points: `[N, D]` training points, for an index of both; None for none.

  Returns:
    Why there is no ScaNN index; '' if there is one.
  """
  folder.mkdir(parents=True, exist_ok=True)
  write_vectors(folder / VECTORS, len(texts), _blocks(parts))
  if len(scorers) > 1:
    for scorer, scorer_parts in scorers.items():
      write_vectors(folder / file_of(scorer), len(texts), _blocks(scorer_parts))
  write_lines(folder / TEXTS, map(_entry, texts, keys, names, facts))
  vectors = open_array(folder / VECTORS, len(texts))
  write_faiss(folder / FAISS, vectors.shape, _blocks([vectors]))
  if points is not None:
    shape = len(points) + len(vectors), vectors.shape[1]
    pad = (0, 0), (0, shape[1] - points.shape[1])  # labels may have a column more, which is theirs alone
    unit = (np.pad(unit_rows(block), pad) for block in _blocks([points]))
    write_faiss(folder / BOTH, shape, chain(unit, _blocks([vectors])))
  return _write_scann(folder, vectors, sample)


def write_vectors(path: Path, num_rows: int, blocks: Iterable[np.ndarray]) -> None:
  """Writes blocks `[n, D]` one after the other as float32; `num_rows` >= 1 is their total number of rows."""
  blocks = iter(blocks)
  first = next(blocks)
  npy.write_blocks(path, (num_rows, first.shape[1]), chain([first], blocks))


def write_lines(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
  """Writes each entry, with its number from 0 as 'id', as one line of JSON."""
  with path.open("w", encoding="utf-8") as file:
    for number, entry in enumerate(entries):
      file.write(sanitize.json(json.dumps({"id": number, **entry}, ensure_ascii=False)) + "\n")


def _entry(text: str, key: str, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
  return {"key": key, "text": name, **({} if name == text else {"encoder_text": text}), **facts}


def write_faiss(path: Path, shape: tuple[int, int], blocks: Iterable[np.ndarray]) -> None:
  """Writes `[L, D]` float32 vectors in the format of `faiss.write_index` for an IndexFlatIP, little-endian.

  | bytes | what |
  |---|---|
  | 4 | 'IxFI' |
  | 4 | int32 D |
  | 8 | int64 L |
  | 16 | two int64, 1 << 20, which are not used |
  | 1 | uint8 1: the index is trained |
  | 4 | int32 0: METRIC_INNER_PRODUCT |
  | 8 | uint64 L D: how many numbers follow |
  | 4 L D | the vectors, float32, row by row |

  Args:
    path: the file.
    shape: `(L, D)`.
    blocks: `[n, D]` arrays, L rows in all.
  """
  num, width = shape
  with path.open("wb") as file:
    file.write(struct.pack("<4siqqqBiQ", b"IxFI", width, num, 1 << 20, 1 << 20, 1, 0, num * width))
    for block in blocks:
      file.write(np.ascontiguousarray(block, "<f4").data)


open_array = functools.partial(npy.read, remedy="export again")


def read_texts(path: Path) -> tuple[list[str], list[str], list[str], list[dict[str, Any]]]:
  """Reads texts, keys, names and facts; where a line has no key or text of its own, its name stands for it.

  Raises:
    DataError: the file is missing or damaged.
  """
  texts: list[str] = []
  keys: list[str] = []
  names: list[str] = []
  facts: list[dict[str, Any]] = []
  try:
    with path.open(encoding="utf-8") as file:
      for line in file:
        entry = json.loads(line)
        names.append(name := entry.pop("text"))
        texts.append(entry.pop("encoder_text", name))
        keys.append(entry.pop("key", name))
        entry.pop("id", None)
        facts.append(dict(entry) if entry else _NO_FACTS)
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise DataError(f"{path}, line {len(texts) + 1}: not readable ({error}); export again") from None
  return texts, keys, names, facts


def read_sample(folder: Path) -> np.ndarray:
  """Reads the queries that ScaNN was tuned with; returns none if there is no ScaNN index."""
  path = folder / SAMPLE
  return np.load(path, allow_pickle=False) if path.exists() else np.zeros((0, 0))


def _write_scann(folder: Path, vectors: np.ndarray, sample: np.ndarray) -> str:
  """Writes ScaNN's index, its search settings and sample queries; returns why there is none, or ''."""
  queries = sample if len(sample) else np.asarray(vectors[:200], np.float32)
  index = Index(np.asarray(vectors), backend="scann", name="export")
  queries = with_bias_column(queries, vectors.shape[1])
  index.search(queries, min(_SCANN_DEPTH, len(vectors)))
  settings = index.save(folder / SCANN)
  if settings is None:
    return "no ScaNN index: for fewer than 1,000 labels, or without ScaNN, exact search serves"
  atomic.write_json(folder / SCANN_SETTINGS, settings)
  np.save(folder / SAMPLE, queries)
  return ""


def file_of(scorer: str) -> str:
  """Returns the name of the file of one scorer's label vectors."""
  return f"labels_{scorer}.npy"


def _blocks(parts: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
  """Yields the rows of the parts in order, at most `BLOCK` at a time."""
  for part in parts:
    yield from (part[start : start + BLOCK] for start in range(0, len(part), BLOCK))
