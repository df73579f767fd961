"""Opens the rankers of a run: by vectors, by its own scores joined, or by all sources together."""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax import data, methods
from xmc_jax.console import say
from xmc_jax.distributed import runtime, split_table
from xmc_jax.errors import UserError
from xmc_jax.retrieval import boosted_trees
from xmc_jax.retrieval.explanations import as_dict, line
from xmc_jax.retrieval.features import feature_names
from xmc_jax.retrieval.hybrid import HybridRanker, fit_model
from xmc_jax.retrieval.hybrid_model import FEWEST_ROWS, HybridModel, fixed
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.search import Ranking, with_bias_column
from xmc_jax.retrieval.sources import Corpus, Queries, Retriever, source_names
from xmc_jax.runs import label_frequency
from xmc_jax.runs.fused import fused_ranker
from xmc_jax.runs.point_memory import point_vectors
from xmc_jax.runs.run import Run
from xmc_jax.storage import run_folder
from xmc_jax.types import PyTree

_PATIENCE = 50  # queries that are ranked exactly before an index is built for more

Rank = Callable[..., Ranking]  # (Queries, k, exclude=CSR [n, L] or None) -> Ranking


def ranker(run: Run, params: PyTree, extra_state: PyTree, scores: str = "") -> Rank:
  """Opens a ranker of all labels of a run.

  Args:
    run: the run.
    params, extra_state: as trained.
    scores: 'hybrid', 'fused', one of the method's views, or a source; '' is `config.eval.scores`. If nothing
      was fitted to join views, 'fused' is their plain sum. A method without views has one kind of scores.

  Raises:
    UserError: the method has no such scores.
  """
  chosen = scores or run.config.eval.scores
  methods.check_scores(chosen, run.config, run.method)
  if chosen == "hybrid":
    return hybrid(run, params, extra_state).rank
  if chosen in configs.SOURCES:
    return functools.partial(sources(run, params, extra_state).rank_by, chosen)
  return paper_ranker(run, params, extra_state, chosen)


def paper_ranker(run: Run, params: PyTree, extra_state: PyTree, scores: str = "fused") -> Rank:
  """Opens a ranker that ranks labels as the method's paper does.

  Args:
    run: the run.
    params, extra_state: as trained.
    scores: 'fused', or one of the method's views.
  """
  fused = fused_ranker(run, params, extra_state) if scores == "fused" else None
  if fused is None:
    return plain_ranker(run, params, extra_state, scores if scores in run.method.scorers else "")
  return lambda queries, k, exclude=None: fused(queries.vectors, k, exclude)


def plain_ranker(run: Run, params: PyTree, extra_state: PyTree, view: str = "") -> Rank:
  """Opens a ranker by the inner products of one view; by default by the sum of all views.

  Searches with `config.eval.backend`; an index is built once, for all calls and every k. With several
  processes the search is exact: each of them stops training by its own metrics, which must not differ, and
  they share the exact search. With `config.eval.log_frequency`, the encoder's scores include label frequency.
  """
  backend = run.config.eval.backend
  if backend == "scann" and not runtime.is_alone():
    say("ranking: exact, as eval.backend = 'scann' works only with a single process")
    backend = "exact"
  vectors = label_frequency.add_label_column(
    run, run.embedder.split_labels(params, run.extra_state_to_rank(params, extra_state), view), view
  )
  used = split_table.used_columns(vectors)  # a view may use only some of the columns
  name = f"{view} ranking" if view else "ranking"
  vectors = vectors if used.all() else split_table.columns(vectors, used)
  index = Index(vectors, backend=backend, devices=run.mesh, name=name, patience=_PATIENCE)

  def rank(queries: Queries, k: int, exclude: sp.csr_matrix | None = None) -> Ranking:
    vectors = with_bias_column(queries.vectors, len(used))
    vectors = vectors if used.all() else vectors[:, used]
    return index.search(vectors, k, exclude=exclude)

  return rank


def check_installed(run: Run) -> None:
  """Raises UserError before the first step if a package is missing that the training needs at its end."""
  if run.config.eval.scores == "hybrid" and len(run.data.validation) >= FEWEST_ROWS:
    boosted_trees.check_installed()


def fit_hybrid(run: Run, params: PyTree, extra_state: PyTree) -> None:
  """Fits how all sources are joined, on the validation rows, and stores it in the run's folder.

  The memory lacks these rows during the fit. Does nothing if the model exists, or if the run does not rank
  by it.
  """
  if run.config.eval.scores == "hybrid" and not (run.ranking_folder / run_folder.HYBRID).exists():
    say("hybrid: learning on the held-out texts how to combine encoder, memory and words")
    _fitted(run, *_embedded(run, params, extra_state))


def hybrid(run: Run, params: PyTree, extra_state: PyTree) -> HybridRanker:
  """Opens the hybrid ranker of a run, with all labelled training rows in its memory; fits it if needed.

  Raises:
    UserError: its file is damaged, or it cannot be fitted again.
  """
  vectors, labels = _embedded(run, params, extra_state)
  model = hybrid_model(run, params, extra_state, labels)
  return HybridRanker(_retriever(run, vectors, labels), model)


def sources(run: Run, params: PyTree, extra_state: PyTree) -> HybridRanker:
  """Opens the sources of a run, to rank by one of them or to explain rankings; fits nothing."""
  retriever = _retriever(run, *_embedded(run, params, extra_state))
  return HybridRanker(retriever, fixed(feature_names(retriever.names)))


def hybrid_model(
  run: Run, params: PyTree, extra_state: PyTree, labels: dict[str, np.ndarray] | None = None
) -> HybridModel:
  """Opens the model that joins the sources of a run; fits it if needed.

  Args:
    run: the run.
    params, extra_state: as trained.
    labels: the result of `label_vectors`, if it was computed already.

  Raises:
    UserError: its file is damaged, or it cannot be fitted again.
  """
  path = run.ranking_folder / run_folder.HYBRID
  if path.exists():
    model = HybridModel.load(path)
  elif run.is_refitted:  # no row is left that the encoder has not seen
    raise UserError(
      f"{path} is missing, and cannot be fitted after train.refit, which trained on the validation rows; "
      "give --scores=encoder, or train anew"
    )
  else:
    labels = label_vectors(run, params, extra_state) if labels is None else labels
    model = _fitted(run, point_vectors(run, params, extra_state), labels)
  if model.features != feature_names(source_names(run.method.scorers)):
    raise UserError(f"{path}: was fitted on other features; delete it, and it is fitted anew")
  return model


class TestRankings(NamedTuple):
  """Holds rankings of the test rows by several kinds of scores.

  Attributes:
    by: the rankings by name; the chosen one is first.
    why: explains for rows `[n]` why labels `[n, k]` (padded with -1) were ranked: for each row, a line by
      label; None if the ranking gives no reasons.
  """

  by: dict[str, Ranking]
  why: Callable[[np.ndarray, np.ndarray], list[dict[int, str]]] | None


def gives_probabilities(scores: str) -> bool:
  """Returns whether scores of this name are probabilities that a label is right."""
  return scores == "hybrid"


def rank_test(
  run: Run, params: PyTree, extra_state: PyTree, vectors: np.ndarray, chosen: str
) -> TestRankings:
  """Ranks the embedded test rows by the chosen scores, and by each of their parts alone.

  The parts of 'hybrid' are the paper's own ranking and each source; the parts of 'fused' are the views.
  """
  test, k = run.dataset.test, run.config.eval.k
  queries = Queries(vectors, test.texts)
  if chosen == "hybrid":
    opened = hybrid(run, params, extra_state)
    joined, alone = opened.rank_with_sources(queries, k, test.filter)
    by = {"hybrid": joined}
    if run.method.scorers:
      by["fused"] = paper_ranker(run, params, extra_state)(queries, k, test.filter)
    return TestRankings({**by, **alone}, functools.partial(_why, opened, vectors, test))
  kinds = dict.fromkeys([chosen, *run.method.scorers])
  by = {kind: ranker(run, params, extra_state, kind)(queries, k, test.filter) for kind in kinds}
  return TestRankings(by, None)


def _why(
  opened: HybridRanker, vectors: np.ndarray, test: data.Split, rows: np.ndarray, ids: np.ndarray
) -> list[dict[int, str]]:
  reasons = opened.explain(Queries(vectors[rows], test.texts[rows]), ids, test.filter[rows])
  lines = [[line(as_dict(reason, opened.point_texts)) for reason in of_row] for of_row in reasons]
  return [dict(zip(labels[labels >= 0].tolist(), of_row)) for labels, of_row in zip(ids, lines)]


def _fitted(run: Run, vectors: np.ndarray, labels: dict[str, np.ndarray]) -> HybridModel:
  held_out = run.data.validation
  queries = Queries(np.asarray(vectors[held_out.row_numbers]), held_out.texts)
  retriever = _retriever(run, vectors, labels, run.data.train.row_numbers)
  model = fit_model(retriever, queries, held_out.unfiltered_positives, held_out.filter)
  if not model.has_trees:
    few = (
      f"only {model.num_rows:,} held-out texts have labels that other texts have, too (under {FEWEST_ROWS})"
    )
    why = few if model.num_rows < FEWEST_ROWS else "held-out texts are too much alike"
    adapted = ", slightly adjusted" if model.num_rows else ""
    say(f"note: hybrid: {why}, so the combination learned on other data is used{adapted}")
  if runtime.is_main_process():
    with contextlib.suppress(UserError):  # in a read-only folder, it is fitted each time
      model.save(run.ranking_folder / run_folder.HYBRID)
  runtime.barrier("hybrid")
  return model


def retrievers(run: Run, params: PyTree, extra_state: PyTree) -> tuple[Retriever, Retriever]:
  """Opens the sources of a run: without its validation rows in the memory, and with all training rows."""
  embedded = _embedded(run, params, extra_state)
  return _retriever(run, *embedded, run.data.train.row_numbers), _retriever(run, *embedded)


def _embedded(run: Run, params: PyTree, extra_state: PyTree) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Returns `[N, D]` embeddings of all training rows, and `[L, D]` label vectors by view."""
  return point_vectors(run, params, extra_state), label_vectors(run, params, extra_state)


def _retriever(
  run: Run, vectors: np.ndarray, labels: dict[str, np.ndarray], rows: np.ndarray | None = None
) -> Retriever:
  """Builds the sources' indexes; their memory holds those of the training rows `rows` that have labels."""
  shape = (labels["encoder"].shape[1] - label_frequency.has_column(run),)
  if vectors.dtype != np.float32 or vectors.shape[1:] != shape:
    held = f"{vectors.dtype} {vectors.shape[1:]}, not float32 {shape}"
    path = run.ranking_folder / run_folder.MEMORY
    raise UserError(f"{path}: not readable (it holds {held}); delete it, and it is made again")
  rows, known = labelled(run, np.arange(len(vectors)) if rows is None else rows)
  corpus = Corpus(
    labels,
    vectors[rows],
    known,
    run.dataset.train.texts[rows],
    run.dataset.labels.texts,
    run.config.method.temperature,
  )
  backend = run.config.eval.backend if runtime.is_alone() else "exact"
  return Retriever(corpus, backend=backend, devices=run.mesh)


def labelled(run: Run, rows: np.ndarray) -> tuple[np.ndarray, sp.csr_matrix]:
  """Returns those of these training rows that have labels, `[n]`, and their votes, CSR `[n, L]` float32."""
  truth = run.dataset.train.unfiltered_positives
  rows = rows[np.diff(truth.indptr)[rows] > 0]
  return rows, run.data.votes(rows)


def label_vectors(run: Run, params: PyTree, extra_state: PyTree) -> dict[str, np.ndarray]:
  """Returns `[L, D]` label vectors by view; a method without views has only 'encoder'."""
  extra_state = run.extra_state_to_rank(params, extra_state)
  of_views = {view: run.embedder.labels(params, extra_state, view) for view in run.method.scorers} or {
    "encoder": run.embedder.labels(params, extra_state)
  }
  return {view: label_frequency.add_label_column(run, labels, view) for view, labels in of_views.items()}
