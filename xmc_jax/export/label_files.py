"""An index of labels in files: `labels.npy`, `labels.jsonl`, `labels.faiss`, and ScaNN's own folder."""

import json
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from xmc_jax import plain
from xmc_jax.contract import DataError
from xmc_jax.refresh import Index

VECTORS, TEXTS, FAISS = "labels.npy", "labels.jsonl", "labels.faiss"
SCANN, SCANN_SETTINGS, SAMPLE = "scann", "scann.json", "sample.npy"
_BLOCK = 1 << 16  # labels at a time
_SCANN_DEPTH = 100  # labels for each query that ScaNN's search is tuned for


def num_bytes(num_labels: int, width: int, text_bytes: int) -> int:
  """What an index takes on the disk, at most: vectors three times, ScaNN's codes and lists, texts."""
  return num_labels * (3 * 4 * width + width + 16 + 64) + 2 * text_bytes


def write(folder: Path, parts: Sequence[np.ndarray], texts: Sequence[str], sample: np.ndarray) -> str:
  """Writes an index of L labels.

  Args:
    folder: made if missing.
    parts: `[n, D]` arrays, L rows in all; may be mapped from a disk.
    texts: L label texts.
    sample: `[m, D]` queries, by which ScaNN's search is tuned; they are kept beside it.

  Returns:
    Why there is no ScaNN index; '' where there is one.
  """
  folder.mkdir(parents=True, exist_ok=True)
  shape = sum(map(len, parts)), parts[0].shape[1]
  vectors = np.lib.format.open_memmap(folder / VECTORS, mode="w+", dtype=np.float32, shape=shape)
  for start, block in _blocks(parts):
    vectors[start : start + len(block)] = block
  vectors.flush()
  with (folder / TEXTS).open("w", encoding="utf-8") as file:
    for number, text in enumerate(texts):
      file.write(plain.json(json.dumps({"id": number, "text": text}, ensure_ascii=False)) + "\n")
  write_faiss(folder / FAISS, vectors)
  return _write_scann(folder, vectors, sample)


def write_faiss(path: Path, vectors: np.ndarray) -> None:
  """Writes `[L, D]` float32 vectors as `faiss.write_index` does an IndexFlatIP, numbers little-endian.

  | bytes | what |
  |---|---|
  | 4 | 'IxFI' |
  | 4 | int32 D |
  | 8 | int64 L |
  | 16 | two int64, 1 << 20, which nobody reads |
  | 1 | uint8 1: the index is trained |
  | 4 | int32 0: METRIC_INNER_PRODUCT |
  | 8 | uint64 L D: how many numbers follow |
  | 4 L D | the vectors, float32, row by row |
  """
  num, width = vectors.shape
  with path.open("wb") as file:
    file.write(struct.pack("<4siqqqBiQ", b"IxFI", width, num, 1 << 20, 1 << 20, 1, 0, num * width))
    for _, block in _blocks([vectors]):
      file.write(np.ascontiguousarray(block, "<f4").data)


def read(folder: Path) -> tuple[np.ndarray, list[str]]:
  """`(vectors [L, D] mapped from the disk, L texts)`.

  Raises:
    DataError: a file is missing or damaged.
  """
  texts = list(_read_texts(folder / TEXTS))
  path = folder / VECTORS
  try:
    vectors = np.load(path, mmap_mode="r", allow_pickle=False)
  except Exception as error:  # a header is Python text, and numpy lets its parsers' errors through
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    raise DataError(f"{path}: not readable ({reason}); export again") from None
  shape, dtype = getattr(vectors, "shape", ()), getattr(vectors, "dtype", None)
  if len(shape) != 2 or shape[0] != len(texts) or not len(texts) or dtype != np.float32:
    raise DataError(f"{path}: expected float32 vectors of {len(texts):,} labels, found {dtype} {shape}")
  return vectors, texts


def read_sample(folder: Path, width: int) -> np.ndarray:
  """The queries that ScaNN was tuned by; none where there are none, or not of this width."""
  try:
    found = np.load(folder / SAMPLE, allow_pickle=False)
    if found.ndim == 2 and found.shape[1] == width and found.dtype == np.float32:
      return found
  except Exception:  # not there, or damaged: labels serve as well as they can
    pass
  return np.zeros((0, width), np.float32)


def _read_texts(path: Path) -> Iterator[str]:
  try:
    with path.open(encoding="utf-8") as file:
      for number, line in enumerate(file):
        found = json.loads(line)
        if found["id"] != number or not isinstance(found["text"], str):
          raise ValueError
        yield found["text"]
  except OSError as error:
    raise DataError(f"{path}: cannot be read ({error.strerror})") from None
  except (ValueError, KeyError, TypeError, RecursionError):
    raise DataError(f"{path}, line {number + 1}: expected a label's id and text; export again") from None


def _write_scann(folder: Path, vectors: np.ndarray, sample: np.ndarray) -> str:
  """ScaNN's folder, how to search it, and the queries that say so."""
  queries = sample if len(sample) else np.asarray(vectors[:200], np.float32)
  index = Index(np.asarray(vectors), backend="scann", name="export")
  index.search(queries, min(_SCANN_DEPTH, len(vectors)))
  settings = index.save(folder / SCANN)
  if settings is None:
    return "no ScaNN index: for fewer than 1,000 labels, or without ScaNN, exact search serves"
  (folder / SCANN_SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
  np.save(folder / SAMPLE, queries)
  return ""


def _blocks(parts: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
  """`(first row, rows)`, one part behind the other."""
  start = 0
  for block in chain.from_iterable(
    (part[at : at + _BLOCK] for at in range(0, len(part), _BLOCK)) for part in parts
  ):
    yield start, block
    start += len(block)
