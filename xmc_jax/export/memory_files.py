"""Writes and reads an exported hybrid ranker: training points with labels and texts, and the joining model.

docs/export.md, "The memory in files", describes the files.
"""

from collections.abc import Iterable
from pathlib import Path

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


def write(folder: Path, corpus: Corpus, model: HybridModel, blocks: Iterable[np.ndarray]) -> np.ndarray:
  """Writes a memory.

  Args:
    folder: created if missing.
    corpus: the votes and texts of N points, and the temperature; its vectors are ignored.
    model: combines the scores of the sources.
    blocks: the points' vectors, `[n, D]` each, N rows in all; they need not fit in memory together.

  Returns:
    The written points, memory-mapped.
  """
  folder.mkdir(parents=True, exist_ok=True)
  num_points, truth = len(corpus.point_texts), corpus.truth
  label_files.write_vectors(folder / POINTS, num_points, blocks)
  label_files.write_lines(folder / TEXTS, ({"text": text} for text in corpus.point_texts))
  np.save(folder / COLUMNS, truth.indices.astype(np.int32))
  np.save(folder / OFFSETS, truth.indptr.astype(np.int64))
  if np.any(truth.data != 1):
    np.save(folder / VOTES, truth.data)
  model.save(folder / MODEL)
  checksums.write_manifest(folder, {"temperature": corpus.temperature})
  return label_files.open_array(folder / POINTS, num_points)


def read(folder: Path, num_labels: int, scorers: Iterable[str]) -> tuple[Corpus, HybridModel]:
  """Reads what `write` wrote and verifies its checksums; the points stay memory-mapped.

  Returns:
    The corpus, without vectors and texts of the labels, which may have become more since; and the model.

  Raises:
    DataError: a file is missing or damaged, or does not fit the others.
  """
  if why := checksums.why_damaged(folder):
    raise DataError(f"{folder}: {why}; export again")
  texts, *_ = label_files.read_texts(folder / TEXTS)
  points = label_files.open_array(folder / POINTS, len(texts))
  truth = _read_truth(folder, (len(texts), num_labels))
  model = HybridModel.load(folder / MODEL, remedy="export again")
  if model.features != feature_names(source_names(scorers)):
    raise DataError(f"{folder / MODEL}: was fitted on other features; export again")
  return Corpus({}, points, truth, texts, (), checksums.read_record(folder)["temperature"]), model


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
