"""Opens the rankers of a run: by vectors, by two kinds of scores fused, or by all sources together."""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax import data, methods
from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.retrieval import tree_text
from xmc_jax.retrieval.explanations import in_words
from xmc_jax.retrieval.features import feature_names
from xmc_jax.retrieval.hybrid import HybridRanker, fit_model
from xmc_jax.retrieval.hybrid_model import FEWEST_ROWS, HybridModel, fixed
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.search import Ranking
from xmc_jax.retrieval.sources import Corpus, Queries, Retriever, source_names
from xmc_jax.runs import frequency
from xmc_jax.runs.fused import fused_ranker
from xmc_jax.runs.memory import is_refitted, point_vectors
from xmc_jax.runs.run import Run
from xmc_jax.storage import run_folder
from xmc_jax.types import PyTree

_PATIENCE = 50  # queries that are ranked exactly before an index is built for more

Rank = Callable[..., Ranking]  # (Queries, k, exclude=CSR [n, L] or None) -> Ranking


def ranker(run: Run, params: PyTree, extra_state: PyTree, scores: str = "") -> Rank:
  """Opens what ranks all labels of a run.

  Args:
    run: the run.
    params, extra_state: as trained.
    scores: 'hybrid', 'fused', or one of the method's views; '' is `config.eval.scores`. Where nothing was
      fitted to fuse by, 'fused' is the plain sum. A method without views has one kind of these.

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
  """Opens what ranks labels as the method's paper does.

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
  """Opens what ranks by one view's inner products; by default by the sum of all views.

  `config.eval.backend` says how. What is built for it is built once, and kept for all calls and every k. With
  several processes it is exact: each of them stops training by its own metrics, which must not differ, and
  they share the exact search. With `config.eval.log_frequency` the encoder's scores know label frequency.
  """
  backend = run.config.eval.backend
  if backend == "scann" and not runtime.is_alone():
    say("ranking: exact, as eval.backend = 'scann' is for one process")
    backend = "exact"
  weight = frequency.weight_of(run, view)
  vectors = frequency.labels_with(
    run, run.embedder.labels(params, run.extra_state_to_rank(params, extra_state), view), weight
  )
  used = vectors.any(axis=0)  # a view may have no more than a part of the columns
  name = f"{view} ranking" if view else "ranking"
  vectors = vectors if used.all() else vectors[:, used]
  index = Index(vectors, backend=backend, devices=run.mesh, name=name, patience=_PATIENCE)

  def rank(queries: Queries, k: int, exclude: sp.csr_matrix | None = None) -> Ranking:
    looked_at = frequency.queries_with(queries.vectors, weight)
    looked_at = looked_at if used.all() else looked_at[:, used]
    return index.search(looked_at, k, exclude=exclude)

  return rank


def check_installed(run: Run) -> None:
  """Raises UserError where what a training fits at its end is not installed: before the first step."""
  if run.config.eval.scores == "hybrid" and len(run.data.validation) >= FEWEST_ROWS:
    tree_text.check_installed()


def fit_hybrid(run: Run, params: PyTree, extra_state: PyTree) -> None:
  """Fits how all sources are joined, on the validation rows, and keeps it in the run's folder.

  These rows are in no memory meanwhile. Nothing is done where it was fitted before, or is not what ranks.
  """
  if run.config.eval.scores == "hybrid" and not (run.ranking_folder / run_folder.HYBRID).exists():
    _fitted(run, *_embedded(run, params, extra_state))


def hybrid(run: Run, params: PyTree, extra_state: PyTree) -> HybridRanker:
  """Opens the hybrid ranker of a run, all labelled training rows in its memory; fits it where it was not yet.

  Raises:
    UserError: its file is damaged, or cannot be made again.
  """
  vectors, labels = _embedded(run, params, extra_state)
  model = hybrid_model(run, params, extra_state, labels)
  return HybridRanker(_retriever(run, vectors, labels), model)


def sources(run: Run, params: PyTree, extra_state: PyTree) -> HybridRanker:
  """Opens the sources of a run, to rank by one of them, or to explain: nothing is fitted for it."""
  retriever = _retriever(run, *_embedded(run, params, extra_state))
  return HybridRanker(retriever, fixed(feature_names(retriever.names)))


def hybrid_model(
  run: Run, params: PyTree, extra_state: PyTree, labels: dict[str, np.ndarray] | None = None
) -> HybridModel:
  """Opens what joins the sources of a run; fits it where it was not yet.

  Args:
    run: the run.
    params, extra_state: as trained.
    labels: what `label_vectors` gives, if it is at hand.

  Raises:
    UserError: its file is damaged, or cannot be made again.
  """
  path = run.ranking_folder / run_folder.HYBRID
  if path.exists():
    model = HybridModel.load(path)
  elif is_refitted(run):  # no row is left that the encoder has not seen
    raise UserError(
      f"{path} is missing, and was fitted before the refit; give --scores=encoder, or train anew"
    )
  else:
    labels = label_vectors(run, params, extra_state) if labels is None else labels
    model = _fitted(run, point_vectors(run, params, extra_state), labels)
  if model.features != feature_names(source_names(run.method.scorers)):
    raise UserError(f"{path}: was fitted on other features; delete it, and it is fitted anew")
  return model


class TestRankings(NamedTuple):
  """The test rows ranked in several ways.

  Attributes:
    by: the rankings by name, first the one that was chosen.
    why: says for rows `[n]` why labels `[n, k]` (padded with -1) were ranked: a line by label, for each row;
      None where the ranking tells nothing.
  """

  by: dict[str, Ranking]
  why: Callable[[np.ndarray, np.ndarray], list[dict[int, str]]] | None


def gives_probabilities(scores: str) -> bool:
  """Returns whether scores of this name are probabilities that a label is right."""
  return scores == "hybrid"


def rank_test(
  run: Run, params: PyTree, extra_state: PyTree, vectors: np.ndarray, chosen: str
) -> TestRankings:
  """Ranks the embedded test rows as chosen, and by each of its parts alone.

  Beside the hybrid ranking stand the paper's own and each source, beside 'fused' each view.
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
  lines = [[in_words(reason, opened.point_texts) for reason in of_row] for of_row in reasons]
  return [dict(zip(labels[labels >= 0].tolist(), of_row)) for labels, of_row in zip(ids, lines)]


def _fitted(run: Run, vectors: np.ndarray, labels: dict[str, np.ndarray]) -> HybridModel:
  held_out = run.data.validation
  queries = Queries(np.asarray(vectors[held_out.row_numbers]), held_out.texts)
  retriever = _retriever(run, vectors, labels, run.data.train.row_numbers)
  model = fit_model(retriever, queries, held_out.unfiltered_positives, held_out.filter)
  if not model.has_trees:
    few = f"fewer than {FEWEST_ROWS} validation rows have labels that other rows have, too"
    why = few if model.num_rows < FEWEST_ROWS else "validation rows are too much alike"
    adapted = f" adapted to {model.num_rows:,} rows" if model.num_rows else ""
    say(f"hybrid: weights of other data{adapted}, as {why}")
  if runtime.is_main_process():
    with contextlib.suppress(UserError):  # of a folder that may only be read it is fitted each time
      model.save(run.ranking_folder / run_folder.HYBRID)
  runtime.barrier("hybrid")
  return model


def retrievers(run: Run, params: PyTree, extra_state: PyTree) -> tuple[Retriever, Retriever]:
  """Opens the sources of a run: without its validation rows in the memory, and with all training rows."""
  embedded = _embedded(run, params, extra_state)
  return _retriever(run, *embedded, run.data.train.row_numbers), _retriever(run, *embedded)


def _embedded(run: Run, params: PyTree, extra_state: PyTree) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Returns `[N, D]` of all training rows, and `[L, D]` of labels by view."""
  return point_vectors(run, params, extra_state), label_vectors(run, params, extra_state)


def _retriever(
  run: Run, vectors: np.ndarray, labels: dict[str, np.ndarray], rows: np.ndarray | None = None
) -> Retriever:
  """Indexes with these rows of the training data in their memory, or all, as far as they have labels."""
  shape = labels["encoder"].shape[1:]
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
  """Returns those of these training rows that have labels, `[n]`, and CSR `[n, L]` float32, 1 for each."""
  truth = run.dataset.train.unfiltered_positives
  rows = rows[np.diff(truth.indptr)[rows] > 0]
  known = truth[rows]
  known.data = np.ones_like(known.data)
  return rows, known


def label_vectors(run: Run, params: PyTree, extra_state: PyTree) -> dict[str, np.ndarray]:
  """Returns `[L, D]` by view; of a method without views, those of its encoder."""
  extra_state = run.extra_state_to_rank(params, extra_state)
  return {view: run.embedder.labels(params, extra_state, view) for view in run.method.scorers} or {
    "encoder": run.embedder.labels(params, extra_state)
  }
