"""Writes and reads an exported hybrid ranker: training points with labels and texts, and the joining model.

| file | what |
|---|---|
| `points.npy` | `[N, D]` float32 embeddings of the training rows that have labels |
| `points.jsonl` | their numbers, 0 to N - 1, and texts, one per line |
| `point_labels.npy` | their label ids, row after row, int32 |
| `point_labels_offsets.npy` | `[N + 1]` int64: the ids of row i are those from offset i to offset i + 1 |
| `point_votes.npy` | their votes, float32; missing if all are 1 |
| `hybrid.json` | the model that combines the sources |
| `seal.json` | checksums of these files, and the temperature |
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax.errors import DataError
from xmc_jax.export import label_files
from xmc_jax.retrieval.features import feature_names
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.hybrid_model import HybridModel
from xmc_jax.retrieval.sources import Corpus, Retriever, source_names
from xmc_jax.storage import checksums

POINTS, TEXTS, MODEL = "points.npy", "points.jsonl", "hybrid.json"
COLUMNS, OFFSETS, VOTES = "point_labels.npy", "point_labels_offsets.npy", "point_votes.npy"


class Memory(NamedTuple):
  """Holds what the hybrid ranker knows besides label vectors.

  Attributes:
    points: `[N, D]` float32.
    truth: CSR `[N, L]` float32, the votes of points for their labels.
    texts: N texts.
    temperature: scores of label vectors are divided by it.
    model: combines the scores of the sources.
  """

  points: np.ndarray
  truth: sp.csr_matrix
  texts: Sequence[str]
  temperature: float
  model: HybridModel


def num_bytes(num_points: int, width: int, num_pairs: int, text_bytes: int) -> int:
  """Returns the most bytes that a memory takes on disk, without the model."""
  return num_points * (4 * width + 8 + 64) + 8 * num_pairs + 2 * text_bytes


def write(folder: Path, memory: Memory, blocks: Iterable[np.ndarray]) -> np.ndarray:
  """Writes a memory.

  Args:
    folder: created if missing.
    memory: what to write; its `points` are ignored.
    blocks: the points, `[n, D]` each, N rows in all; they need not fit in memory together.

  Returns:
    The written points, memory-mapped.
  """
  folder.mkdir(parents=True, exist_ok=True)
  label_files.write_vectors(folder / POINTS, len(memory.texts), blocks)
  label_files.write_texts(folder / TEXTS, memory.texts)
  np.save(folder / COLUMNS, memory.truth.indices.astype(np.int32))
  np.save(folder / OFFSETS, memory.truth.indptr.astype(np.int64))
  if np.any(memory.truth.data != 1):
    np.save(folder / VOTES, memory.truth.data)
  memory.model.save(folder / MODEL)
  checksums.write_manifest(folder, {"temperature": memory.temperature})
  return label_files.open_array(folder / POINTS)


def read(folder: Path, shape: tuple[int, int], views: Iterable[str]) -> Memory:
  """Reads what `write` wrote and verifies its checksums; the points stay memory-mapped.

  Args:
    folder: the folder.
    shape: `(L, D)`, the number of labels and the width of points; labels may have been added since.
    views: names of the kinds of label vectors.

  Raises:
    DataError: a file is missing or damaged, or does not fit the others.
  """
  _check_manifest(folder)
  temperature = _temperature(folder)
  texts, _ = label_files.read_texts(folder / TEXTS)
  points = label_files.open_array(folder / POINTS)
  wanted = len(texts), shape[1]
  if points.shape != wanted or points.dtype != np.float32:
    expected = f"expected float32 {wanted}, as {TEXTS} has {len(texts):,} texts"
    raise DataError(f"{folder / POINTS}: {expected}, found {points.dtype} {points.shape}; export again")
  truth = _read_truth(folder, (len(texts), shape[0]))
  model = HybridModel.load(folder / MODEL, remedy="export again")
  if model.features != feature_names(source_names(views)):
    raise DataError(f"{folder / MODEL}: was fitted on other features; export again")
  return Memory(points, truth, texts, temperature, model)


def ranker(memory: Memory, vectors: Mapping[str, np.ndarray], texts: Sequence[str]) -> HybridRanker:
  """Builds the hybrid ranker.

  Args:
    memory: as `read` returns it.
    vectors: `[L, D]` label vectors by view.
    texts: L label texts; labels that were added after the memory was written belong to no point.
  """
  known = memory.truth
  truth = sp.csr_matrix((known.data, known.indices, known.indptr), (known.shape[0], len(texts)))
  corpus = Corpus(vectors, memory.points, truth, memory.texts, texts, memory.temperature)
  return HybridRanker(Retriever(corpus), memory.model)


def _check_manifest(folder: Path) -> None:
  try:
    why = checksums.why_damaged(folder)
  except (TypeError, KeyError, AttributeError):  # forged: its own checksum matches, but not its content
    why = f"{checksums.FILE_NAME} is damaged"
  if why:
    raise DataError(f"{folder}: {why}; export again")


def _temperature(folder: Path) -> float:
  try:
    found = checksums.read_record(folder)["temperature"]
    if type(found) in (int, float) and math.isfinite(found) and found > 0:
      return float(found)
  except (ValueError, OSError, TypeError, KeyError):
    pass
  raise DataError(f"{folder / checksums.FILE_NAME}: expected a temperature above 0; export again")


def _read_truth(folder: Path, shape: tuple[int, int]) -> sp.csr_matrix:
  columns, offsets = (label_files.open_array(folder / name) for name in (COLUMNS, OFFSETS))
  if columns.ndim != 1 or columns.dtype != np.int32 or np.any((columns < 0) | (columns >= shape[1])):
    raise DataError(f"{folder / COLUMNS}: expected int32 ids of {shape[1]:,} labels; export again")
  if offsets.shape != (shape[0] + 1,) or offsets.dtype != np.int64:
    found = f"{offsets.dtype} {offsets.shape}"
    raise DataError(f"{folder / OFFSETS}: expected int64 ({shape[0] + 1},), found {found}; export again")
  if offsets[0] or np.any(offsets[1:] < offsets[:-1]):
    raise DataError(f"{folder / OFFSETS}: expected offsets that grow from 0; export again")
  if offsets[-1] != len(columns):
    raise DataError(f"{folder / COLUMNS}: expected {offsets[-1]:,} ids, found {len(columns):,}; export again")
  votes = np.ones(len(columns), np.float32)
  if (folder / VOTES).exists():
    votes = np.asarray(label_files.open_array(folder / VOTES))
    if votes.shape != columns.shape or votes.dtype != np.float32 or not np.all((votes > 0) & (votes <= 1)):
      raise DataError(f"{folder / VOTES}: expected {len(columns):,} float32 from 0 to 1; export again")
  return sp.csr_matrix((votes, np.asarray(columns), np.asarray(offsets)), shape)
