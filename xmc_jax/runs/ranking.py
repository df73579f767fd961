"""Opens the rankers of a run: by vectors, by two kinds of scores fused, or by all sources together."""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xmc_jax import config as configs
from xmc_jax import methods, run_folder, runtime
from xmc_jax.contract import PyTree, UserError
from xmc_jax.fusion import Fusion, Tree
from xmc_jax.refresh.index import Index
from xmc_jax.refresh.search import Ranking
from xmc_jax.report import say
from xmc_jax.retrieval.explanations import in_words
from xmc_jax.retrieval.features import feature_names
from xmc_jax.retrieval.hybrid import HybridRanker, fit_model
from xmc_jax.retrieval.hybrid_model import FEWEST_ROWS, HybridModel
from xmc_jax.retrieval.sources import Corpus, Queries, Retriever
from xmc_jax.run import Run

_PATIENCE = 50  # queries that are ranked exactly before an index is built for more

Rank = Callable[..., Ranking]  # (Queries, k, exclude=CSR [n, L] or None) -> Ranking


def ranker(run: Run, params: PyTree, aux: PyTree, scores: str = "") -> Rank:
  """Opens what ranks all labels of a run.

  Args:
    run: the run.
    params, aux: as trained.
    scores: 'hybrid', 'fused', or one of the method's views; '' is `config.eval.scores`. Where nothing was
      fitted to fuse by, 'fused' is the plain sum. A method without views has one kind of these.

  Raises:
    UserError: the method has no such scores.
  """
  chosen = scores or run.config.eval.scores
  methods.check_scores(chosen, run.config, run.method)
  if chosen == "hybrid":
    return hybrid(run, params, aux).rank
  if chosen in configs.SOURCES:
    ranked = hybrid(run, params, aux).rank_with_sources
    return lambda queries, k, exclude=None: ranked(queries, k, exclude)[1][chosen]
  return paper_ranker(run, params, aux, chosen)


def paper_ranker(run: Run, params: PyTree, aux: PyTree, scores: str = "fused") -> Rank:
  """Opens what ranks labels as the method's paper does.

  Args:
    run: the run.
    params, aux: as trained.
    scores: 'fused', or one of the method's views.
  """
  fitted = run.workdir / run_folder.FUSION
  if run.method.views and scores == "fused" and fitted.exists():
    if run.config.eval.backend == "scann":
      say("ranking: exact, as eval.backend = 'scann' ranks by one inner product, and a tree fuses two")
    rank = fusion(run, params, aux, Tree.load(fitted)).rank
    return lambda queries, k, exclude=None: rank(queries.vectors, k, exclude)
  return plain_ranker(run, params, aux, scores if scores in run.method.views else "")


def plain_ranker(run: Run, params: PyTree, aux: PyTree, view: str = "") -> Rank:
  """Opens what ranks by one view's inner products; by default by the sum of all views.

  `config.eval.backend` says how. What is built for it is built once, and kept for all calls and every k. With
  several processes it is exact: each of them stops training by its own metrics, which must not differ, and
  they share the exact search.
  """
  backend = run.config.eval.backend
  if backend == "scann" and not runtime.is_alone():
    say("ranking: exact, as eval.backend = 'scann' is for one process")
    backend = "exact"
  vectors = run.embed_labels(params, run.aux_to_rank(params, aux), view)
  used = vectors.any(axis=0)  # a view may have no more than a part of the columns
  name = f"{view} ranking" if view else "ranking"
  vectors = vectors if used.all() else vectors[:, used]
  index = Index(vectors, backend=backend, devices=run.mesh, name=name, patience=_PATIENCE)

  def rank(queries: Queries, k: int, exclude=None) -> Ranking:
    looked_at = queries.vectors if used.all() else queries.vectors[:, used]
    return index.search(looked_at, k, exclude=exclude)

  return rank


def fusion(run: Run, params: PyTree, aux: PyTree, tree: Tree | None = None) -> Fusion:
  """Opens the two views of a run, to be ranked by both."""
  return Fusion(
    run.embed_labels(params, aux, "encoder"),
    run.embed_labels(params, aux, "classifier"),
    run.inverse_propensity,
    num_candidates=run.config.eval.num_candidates,
    devices=run.mesh,
    tree=tree,
  )


def fit_fusion(run: Run, params: PyTree, aux: PyTree) -> None:
  """Fits how the scores of a run's views are fused, on training rows, and keeps it in the run's folder."""
  settings, path = run.config.eval, run.workdir / run_folder.FUSION
  if not run.method.views or settings.scores not in ("fused", "hybrid"):
    return
  if not settings.fusion_rows or path.exists():
    return
  rows = np.random.default_rng(run.config.train.seed).permutation(run.batches.rows)[: settings.fusion_rows]
  fused = fusion(run, params, aux)
  run.freeze_queries(params, aux)
  queries = run.snapshot(params, aux, 0).queries[rows]
  fused.fit(queries, run.train.counted[rows], run.train.filter[rows], depth=settings.fusion_depth)
  if runtime.is_main_process():
    fused.tree.save(path)
  runtime.barrier("fusion")


def fit_hybrid(run: Run, params: PyTree, aux: PyTree) -> None:
  """Fits how all sources are joined, on the validation rows, and keeps it in the run's folder.

  These rows are in no memory meanwhile. Nothing is done where it was fitted before, or is not what ranks.
  """
  if run.config.eval.scores == "hybrid" and not (run.workdir / run_folder.HYBRID).exists():
    _fitted(run, params, aux, _point_vectors(run, params, aux), _label_vectors(run, params, aux))


def hybrid(run: Run, params: PyTree, aux: PyTree) -> HybridRanker:
  """Opens the hybrid ranker of a run, all labelled training rows in its memory; fits it where it was not yet.

  Raises:
    UserError: its file is damaged.
  """
  path = run.workdir / run_folder.HYBRID
  vectors, labels = _point_vectors(run, params, aux), _label_vectors(run, params, aux)
  model = HybridModel.load(path) if path.exists() else _fitted(run, params, aux, vectors, labels)
  retriever = _retriever(run, vectors, labels, np.arange(len(vectors)))
  if model.features != feature_names(retriever.names):
    raise UserError(f"{path}: was fitted on other sources; delete it, and it is fitted anew")
  return HybridRanker(retriever, model)


class TestRankings(NamedTuple):
  """The test rows ranked in several ways.

  Attributes:
    by: the rankings by name, first the one that was chosen.
    why: says in a line why labels `[n, 1]` were ranked for rows `[n]`; None where the ranking tells nothing.
  """

  by: dict[str, Ranking]
  why: Callable[[np.ndarray, np.ndarray], list[str]] | None


def rank_test(run: Run, params: PyTree, aux: PyTree, vectors: np.ndarray, chosen: str) -> TestRankings:
  """Ranks the embedded test rows as chosen, and by each of its parts alone.

  Beside the hybrid ranking stand the paper's own and each source, beside 'fused' each view.
  """
  test, k = run.dataset.test, run.config.eval.k
  queries = Queries(vectors, test.texts)
  if chosen == "hybrid":
    opened = hybrid(run, params, aux)
    joined, alone = opened.rank_with_sources(queries, k, test.filter)
    by = {"hybrid": joined}
    if run.method.views:
      by["fused"] = paper_ranker(run, params, aux)(queries, k, test.filter)
    return TestRankings({**by, **alone}, functools.partial(_why, run, opened, queries))
  kinds = dict.fromkeys([chosen, *run.method.views])
  by = {kind: ranker(run, params, aux, kind)(queries, k, test.filter) for kind in kinds}
  return TestRankings(by, None)


def _why(run: Run, opened: HybridRanker, queries: Queries, rows: np.ndarray, ids: np.ndarray) -> list[str]:
  looked_at = Queries(queries.vectors[rows], queries.texts[rows])
  reasons = opened.explain(looked_at, ids)
  return [in_words(of_row[0], opened.point_texts) if of_row else "" for of_row in reasons]


def _fitted(run: Run, params: PyTree, aux: PyTree, vectors: np.ndarray, labels: dict) -> HybridModel:
  held_out = run.validation
  queries = Queries(run.embed_queries(params, aux, held_out.tokens), held_out.texts)
  retriever = _retriever(run, vectors, labels, run.train.row_numbers)
  model = fit_model(retriever, queries, held_out.counted, held_out.filter)
  if not model.num_rows:
    few = "too few" if len(held_out) < FEWEST_ROWS else "too much alike"
    say(f"hybrid: fixed weights, as {len(held_out):,} validation rows are {few} to fit on ({FEWEST_ROWS})")
  if runtime.is_main_process():
    with contextlib.suppress(OSError):  # of a folder that may only be read it is fitted each time
      model.save(run.workdir / run_folder.HYBRID)
  runtime.barrier("hybrid")
  return model


def _retriever(run: Run, vectors: np.ndarray, labels: dict, rows: np.ndarray) -> Retriever:
  """Indexes with these rows of the training data in their memory, as far as they have labels."""
  shape = labels["encoder"].shape[1:]
  if vectors.dtype != np.float32 or vectors.shape[1:] != shape:
    raise UserError(
      f"{run.workdir / run_folder.MEMORY}: not readable (it holds {vectors.dtype} {vectors.shape[1:]}, not "
      f"float32 {shape}); delete it, and it is made again"
    )
  truth = run.dataset.train.counted
  rows = rows[np.diff(truth.indptr)[rows] > 0]
  known = truth[rows]
  known.data = np.ones_like(known.data)
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


def _label_vectors(run: Run, params: PyTree, aux: PyTree) -> dict[str, np.ndarray]:
  aux = run.aux_to_rank(params, aux)
  return {view: run.embed_labels(params, aux, view) for view in run.method.views} or {
    "encoder": run.embed_labels(params, aux)
  }


def _point_vectors(run: Run, params: PyTree, aux: PyTree) -> np.ndarray:
  """`[N, D]` embeddings of all training rows, made once and kept in the run's folder."""
  path, tokens = run.workdir / run_folder.MEMORY, run.dataset.train.tokens
  if not path.exists():
    vectors = run.embed_queries(params, aux, tokens)
    if runtime.is_main_process():
      with contextlib.suppress(OSError, UserError):  # of a folder without room, too, they are made each time
        run_folder.write_array(path, vectors)
    runtime.barrier(path.name)
    return vectors
  return run_folder.open_array(path, len(tokens))
