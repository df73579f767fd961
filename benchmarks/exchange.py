"""Files exchanged between a benchmark and a peer that runs in its own environment.

A peer's worker is called as `PYTHON WORKER --folder=FOLDER --depth=K --seed=SEED`. It reads from the folder

  train.txt, test.txt, labels.txt   one text per line, as a JSON string
  truth.npz                         CSR [N, L], 1 for each true label of a training point, less filtered pairs

and writes to it

  scores.npz   CSR [n, L], scores of each test point's K best labels; filtered pairs may be among them
  about.json   {"seconds": {"train": s, "test": s}, "settings": {...}}
"""

import json
import pathlib

import numpy as np
import scipy.sparse as sp

from xmc_jax import data
from xmc_jax.retrieval.search import Ranking


def write(dataset: data.Dataset, folder: pathlib.Path) -> None:
  """Writes the files that a worker reads."""
  for name, texts in (
    ("train", dataset.train.texts),
    ("test", dataset.test.texts),
    ("labels", dataset.labels.texts),
  ):
    (folder / f"{name}.txt").write_text("".join(json.dumps(text) + "\n" for text in texts))
  sp.save_npz(folder / "truth.npz", sp.csr_matrix(dataset.train.unfiltered_positives > 0, dtype=np.float32))


def depth_for(split: data.Split, k: int) -> int:
  """Returns how many labels a worker must rank, so that k are left after filtered ones are removed."""
  most_filtered = int(np.diff(split.filter.indptr).max(initial=0))
  return min(k + most_filtered, split.filter.shape[1])


def read(split: data.Split, folder: pathlib.Path, k: int) -> tuple[Ranking, dict]:
  """Reads a worker's results: `(ranking k deep, about)`."""
  scores = sp.csr_matrix(sp.load_npz(folder / "scores.npz"))
  return ranked(scores, split.filter, k), json.loads((folder / "about.json").read_text())


def ranked(scores: sp.csr_matrix, filtered, k: int) -> Ranking:
  """Ranks the k best entries of each row of CSR `[n, L]`, best first, ties by ascending id.

  Entries of any sign count, stored zeros included; pairs in `filtered` are left out.
  """
  num_rows, num_labels = scores.shape
  rows = np.repeat(np.arange(num_rows), np.diff(scores.indptr))
  pairs = rows * num_labels + scores.indices
  out = np.repeat(np.arange(num_rows), np.diff(filtered.indptr)) * num_labels + filtered.indices
  kept = np.flatnonzero(~np.isin(pairs, out))
  rows, columns, values = rows[kept], scores.indices[kept], scores.data[kept]
  order = np.lexsort((columns, -values, rows))
  rows, columns, values = rows[order], columns[order], values[order]
  place = np.arange(len(rows)) - np.searchsorted(rows, rows)
  best = place < k
  ids = np.full((num_rows, k), -1, np.int32)
  found = np.full((num_rows, k), -np.inf, np.float32)
  ids[rows[best], place[best]] = columns[best]
  found[rows[best], place[best]] = values[best]
  return Ranking(ids, found)
