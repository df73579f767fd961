"""Joins a run's own scores as its paper does: by a tree over two views, or by a memory of keys."""

from collections.abc import Callable
from typing import cast

import numpy as np

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.retrieval.chosen_weight import ChosenWeight
from xmc_jax.retrieval.fusion import Fusion, Tree
from xmc_jax.retrieval.key_memory import KeyMemory
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs.point_memory import point_vectors
from xmc_jax.runs.run import Run
from xmc_jax.storage import run_folder
from xmc_jax.types import PyTree


def fused_ranker(run: Run, params: PyTree, extra_state: PyTree) -> Callable[..., Ranking] | None:
  """Opens `(vectors [n, D], k, exclude) -> Ranking`; returns None if nothing was fitted that joins scores."""
  fitted = run.ranking_folder / run_folder.FUSION
  if run.method.key_temperature:
    return key_memory(run, params, extra_state).rank
  if not run.method.scorers or not fitted.exists():
    return None
  if run.config.eval.backend == "scann":
    say("ranking: exact, as eval.backend = 'scann' ranks by one inner product, and the tree joins two")
  return fusion(run, params, extra_state, Tree.load(fitted)).rank


def fusion(run: Run, params: PyTree, extra_state: PyTree, tree: Tree | None = None) -> Fusion:
  """Opens a ranker that joins the two views of a run, encoder and classifier."""
  return Fusion(
    run.embedder.split_labels(params, extra_state, "encoder"),
    run.embedder.split_labels(params, extra_state, "classifier"),
    run.data.inverse_propensity,
    num_candidates=run.config.eval.num_candidates,
    devices=run.mesh,
    tree=tree,
  )


def fit_fusion(run: Run, params: PyTree, extra_state: PyTree) -> None:
  """Fits how a run's own scores are joined, and stores it in the run's folder.

  For two views this is a tree, fitted on training rows; for a memory of keys it is the weight of the points,
  chosen on validation rows.
  """
  settings, path = run.config.eval, run.ranking_folder / run_folder.FUSION
  if run.method.key_temperature:
    return _fit_key_memory(run, params, extra_state)
  if not run.method.scorers or settings.scores not in ("fused", "hybrid"):
    return None
  if not settings.fusion_rows or path.exists():
    return None
  rows = np.random.default_rng(run.config.train.seed).permutation(run.batches.rows)[: settings.fusion_rows]
  fused = fusion(run, params, extra_state)
  run.freeze_queries(params, extra_state)
  queries = run.snapshot(params, extra_state, 0).queries[rows]
  fused.fit(
    queries,
    run.data.train.unfiltered_positives[rows],
    run.data.train.filter[rows],
    depth=settings.fusion_depth,
  )
  if runtime.is_main_process():
    cast(Tree, fused.tree).save(path)  # `fit` has set it
  runtime.barrier("fusion")


def key_memory(run: Run, params: PyTree, extra_state: PyTree) -> KeyMemory:
  """Opens the memory of all training points, held-out ones too, with the chosen weight of points.

  Chooses the weight if the run's folder has none.
  """
  path, every = run.ranking_folder / run_folder.KEY_WEIGHT, np.arange(len(run.dataset.train))
  found = ChosenWeight.load(path, most=1.0) if path.exists() else choose_key_weight(run, params, extra_state)
  return _memory_of(run, params, extra_state, every, found.weight)


def choose_key_weight(run: Run, params: PyTree, extra_state: PyTree) -> ChosenWeight:
  """Chooses the weight of points by `config.eval.metric` on validation rows, which this memory lacks."""
  validation, metric = run.data.validation, run.config.eval.metric
  found = _memory_of(run, params, extra_state, run.data.train.row_numbers).choose_weight(
    point_vectors(run, params, extra_state)[validation.row_numbers],
    validation.unfiltered_positives,
    metric,
    exclude=validation.filter,
    inverse_propensity=run.data.inverse_propensity,
  )
  score = (
    f"{100 * max(found.values):.2f} {metric} on {len(validation):,} rows" if found.values else "not chosen"
  )
  say(f"key memory: weight {found.weight:g} for points, {1 - found.weight:g} for label texts; {score}")
  return found


def _memory_of(
  run: Run, params: PyTree, extra_state: PyTree, rows: np.ndarray, weight: float = 0.0
) -> KeyMemory:
  """Builds the memory of some rows of the training data."""
  return KeyMemory(
    point_vectors(run, params, extra_state)[rows],
    run.data.votes(rows),
    run.embedder.labels(params, run.extra_state_to_rank(params, extra_state)),
    temperature=run.method.key_temperature,
    weight=weight,
    num_keys=run.config.eval.num_keys,
    backend=run.config.eval.backend if runtime.is_alone() else "exact",
    devices=run.mesh,
  )


def _fit_key_memory(run: Run, params: PyTree, extra_state: PyTree) -> None:
  path = run.ranking_folder / run_folder.KEY_WEIGHT
  if path.exists():
    return
  found = choose_key_weight(run, params, extra_state)
  if runtime.is_main_process():
    found.save(path)
  runtime.barrier("key memory")
