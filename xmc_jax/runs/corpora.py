"""Builds what the hybrid ranker of a run searches: its vectors, texts and votes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmc_jax.distributed import runtime, split_table
from xmc_jax.errors import UserError
from xmc_jax.retrieval.combined import CombinedRetriever
from xmc_jax.retrieval.sources import Corpus, Retriever
from xmc_jax.runs import label_frequency
from xmc_jax.storage import run_folder

if TYPE_CHECKING:
  from xmc_jax.runs.run import Run
  from xmc_jax.runs.trained import Trained


def retriever(trained: "Trained", rows: np.ndarray | None = None) -> Retriever:
  """Builds the sources' indexes; their memory holds those of the training rows `rows` that have labels."""
  if trained.run.members:
    return combined(trained, rows)
  return Retriever(_corpus(trained, rows), backend=backend(trained.run), devices=trained.run.mesh)


def combined(trained: "Trained", rows: np.ndarray | None = None) -> CombinedRetriever:
  """Builds the sources' indexes of combined runs, as `retriever` does; they share words, texts and votes."""
  corpora = ((name, _corpus(member, rows)) for name, member in trained.members.items())
  return CombinedRetriever(corpora, backend=backend(trained.run), devices=trained.run.mesh)


def _corpus(trained: "Trained", rows: np.ndarray | None) -> Corpus:
  run, vectors, labels = trained.run, trained.points, label_vectors(trained)
  shape = (labels["encoder"].shape[1] - label_frequency.has_column(run),)
  if vectors.dtype != np.float32 or vectors.shape[1:] != shape:
    held = f"{vectors.dtype} {vectors.shape[1:]}, not float32 {shape}"
    path = run.ranking_folder / run_folder.MEMORY
    raise UserError(f"{path}: not readable (it holds {held}); delete it, and it is made again")
  rows, known = labelled(run, np.arange(len(vectors)) if rows is None else rows)
  return Corpus(
    labels,
    vectors[rows],
    known,
    run.dataset.train.texts[rows],
    run.dataset.labels.texts,
    run.config.method.temperature,
  )


def labelled(run: "Run", rows: np.ndarray) -> tuple[np.ndarray, sp.csr_matrix]:
  """Returns those of these training rows that have labels, `[n]`, and their votes, CSR `[n, L]` float32."""
  truth = run.dataset.train.unfiltered_positives
  rows = rows[np.diff(truth.indptr)[rows] > 0]
  return rows, run.data.votes(rows)


def label_vectors(trained: "Trained") -> dict[str, np.ndarray]:
  """Returns `[L, D]` label vectors by scorer; a method without scorers has only 'encoder'."""
  run = trained.run
  names = {name: name for name in run.method.scorers} or {"encoder": ""}
  return {
    name: label_frequency.add_label_column(run, split_table.whole(trained.labels(scorer)), scorer)
    for name, scorer in names.items()
  }


def new_label_vectors(trained: "Trained", texts: Sequence[str]) -> dict[str, np.ndarray | None]:
  """Returns by member `[n, D]` vectors of labels that it was not trained with, by the source 'encoder'.

  None if the method ranks labels by more than their texts.
  """
  by_member: dict[str, np.ndarray | None] = {}
  for name, member in trained.members.items():
    run, function = member.run, member.embed_by_text
    by_member[name] = None
    if function:
      tokens = member.tokens.table(texts)
      vectors = run.embedder.texts(member.params, member.extra_state, tokens, function)
      with_column = label_frequency.by_text(run, lambda rows: rows)
      by_member[name] = np.asarray(with_column(split_table.whole(vectors)), np.float32)
  return by_member


def backend(run: "Run") -> str:
  return run.config.eval.backend if runtime.is_alone() else "exact"
