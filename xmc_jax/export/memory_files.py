"""Writes and reads an exported hybrid ranker: training points with labels and texts, and the joining model.

docs/export.md, "The memory in files", describes the files.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax.errors import DataError
from xmc_jax.export import label_files
from xmc_jax.retrieval.features import feature_names
from xmc_jax.retrieval.hybrid_model import HybridModel
from xmc_jax.retrieval.sources import Corpus, source_names
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


def num_bytes(memory: Memory, width: int) -> int:
  """Returns the most bytes that a memory takes on disk, without the model."""
  points = len(memory.texts) * (4 * width + 8 + 64)
  return points + 8 * memory.truth.nnz + 2 * label_files.text_bytes(memory.texts)


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
  return label_files.open_array(folder / POINTS, len(memory.texts))


def read(folder: Path, num_labels: int, scorers: Iterable[str]) -> Memory:
  """Reads what `write` wrote and verifies its checksums; the points stay memory-mapped.

  Args:
    folder: the folder.
    num_labels: L; labels may have been added since.
    scorers: names of the method's scorers.

  Raises:
    DataError: a file is missing or damaged, or does not fit the others.
  """
  if why := checksums.why_damaged(folder):
    raise DataError(f"{folder}: {why}; export again")
  texts, _ = label_files.read_texts(folder / TEXTS)
  points = label_files.open_array(folder / POINTS, len(texts))
  truth = _read_truth(folder, (len(texts), num_labels))
  model = HybridModel.load(folder / MODEL, remedy="export again")
  if model.features != feature_names(source_names(scorers)):
    raise DataError(f"{folder / MODEL}: was fitted on other features; export again")
  return Memory(points, truth, texts, checksums.read_record(folder)["temperature"], model)


def corpus(memory: Memory, vectors: Mapping[str, np.ndarray], texts: Sequence[str]) -> Corpus:
  """Returns what the hybrid ranker searches.

  Args:
    memory: as `read` returns it.
    vectors: `[L, D]` label vectors by scorer.
    texts: L label texts; labels that were added after the memory was written belong to no point.
  """
  known = memory.truth
  truth = sp.csr_matrix((known.data, known.indices, known.indptr), (known.shape[0], len(texts)))
  return Corpus(vectors, memory.points, truth, memory.texts, texts, memory.temperature)


def _read_truth(folder: Path, shape: tuple[int, int]) -> sp.csr_matrix:
  offsets = label_files.open_array(folder / OFFSETS, shape[0] + 1)
  columns = label_files.open_array(folder / COLUMNS, int(offsets[-1]))
  votes = np.ones(len(columns), np.float32)
  if (folder / VOTES).exists():
    votes = label_files.open_array(folder / VOTES, len(columns))
  try:
    truth = sp.csr_matrix((np.asarray(votes), np.asarray(columns), np.asarray(offsets)), shape)
    truth.check_format()
  except ValueError as error:
    raise DataError(f"{folder / COLUMNS}: {error}; export again") from None
  return truth
