"""Computes and stores the embeddings of a run's training points, which rankers look up."""

import contextlib

import numpy as np

from xmc_jax.distributed import runtime, split_table
from xmc_jax.distributed.split_table import SplitTable
from xmc_jax.errors import UserError
from xmc_jax.runs.run import Run
from xmc_jax.storage import npy, run_folder
from xmc_jax.types import PyTree


def point_vectors(run: Run, params: PyTree, extra_state: PyTree) -> np.ndarray:
  """Returns `[N, D]` embeddings of all training rows, held-out ones too; stores them in the run's folder.

  Raises:
    UserError: the file is damaged.
  """
  folder = run.workdir / run_folder.REFIT if run.is_refitted else run.ranking_folder
  path, tokens = folder / run_folder.MEMORY, run.dataset.train.tokens
  if run_folder.is_stored(path):
    return npy.read(path, len(tokens))
  vectors = run.embedder.split_queries(params, extra_state, tokens)
  with contextlib.suppress(UserError):  # they are not stored in a full or read-only folder
    run_folder.write_table(path, vectors)
  runtime.barrier(path.name)
  if isinstance(vectors, SplitTable) and run_folder.is_stored(path):
    return npy.read(path, len(tokens))
  return split_table.whole(vectors)
