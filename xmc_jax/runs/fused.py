"""Opens what joins a run's own scores, as its paper does: a tree of two views, or a memory of keys."""

from collections.abc import Callable
from typing import cast

import numpy as np

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.retrieval.chosen_weight import ChosenWeight
from xmc_jax.retrieval.fusion import Fusion, Tree
from xmc_jax.retrieval.key_memory import KeyMemory
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs.memory import point_vectors
from xmc_jax.runs.run import Run
from xmc_jax.storage import run_folder
from xmc_jax.types import PyTree


def fused_ranker(run: Run, params: PyTree, extra_state: PyTree) -> Callable[..., Ranking] | None:
  """Opens `(vectors [n, D], k, exclude) -> Ranking`; None where nothing was fitted to join scores by."""
  fitted = run.ranking_folder / run_folder.FUSION
  if run.method.key_temperature:
    return key_memory(run, params, extra_state).rank
  if not run.method.scorers or not fitted.exists():
    return None
  if run.config.eval.backend == "scann":
    say("ranking: exact, as eval.backend = 'scann' ranks by one inner product, and a tree fuses two")
  return fusion(run, params, extra_state, Tree.load(fitted)).rank


def fusion(run: Run, params: PyTree, extra_state: PyTree, tree: Tree | None = None) -> Fusion:
  """Opens the two views of a run, to be ranked by both."""
  return Fusion(
    run.embedder.labels(params, extra_state, "encoder"),
    run.embedder.labels(params, extra_state, "classifier"),
    run.data.inverse_propensity,
    num_candidates=run.config.eval.num_candidates,
    devices=run.mesh,
    tree=tree,
  )


def fit_fusion(run: Run, params: PyTree, extra_state: PyTree) -> None:
  """Fits how a run's own scores are joined, and keeps it in the run's folder.

  Of two views it is a tree, fitted on training rows; of a memory of keys the weight of its points, chosen on
  validation rows.
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
    cast(Tree, fused.tree).save(path)  # as it is fitted now
  runtime.barrier("fusion")


def key_memory(run: Run, params: PyTree, extra_state: PyTree) -> KeyMemory:
  """Opens the memory of all training points, held-out ones too, with the weight that was chosen for it.

  Where none was kept in the run's folder, it is chosen.
  """
  path, every = run.ranking_folder / run_folder.KEY_WEIGHT, np.arange(len(run.dataset.train))
  found = ChosenWeight.load(path, most=1.0) if path.exists() else choose_key_weight(run, params, extra_state)
  return _memory_of(run, params, extra_state, every, found.weight)


def choose_key_weight(run: Run, params: PyTree, extra_state: PyTree) -> ChosenWeight:
  """Chooses how much points weigh, by `config.eval.metric` on the rows held out, which are in no memory."""
  validation, metric = run.data.validation, run.config.eval.metric
  found = _memory_of(run, params, extra_state, run.data.train.row_numbers).choose_weight(
    point_vectors(run, params, extra_state)[validation.row_numbers],
    validation.unfiltered_positives,
    metric,
    exclude=validation.filter,
    inverse_propensity=run.data.inverse_propensity,
  )
  earned = (
    f"{100 * max(found.values):.2f} {metric} on {len(validation):,} rows" if found.values else "not chosen"
  )
  say(f"key memory: points weigh {found.weight:g}, label texts {1 - found.weight:g}; {earned}")
  return found


def _memory_of(
  run: Run, params: PyTree, extra_state: PyTree, rows: np.ndarray, weight: float = 0.0
) -> KeyMemory:
  """The memory of these rows of the training data."""
  return KeyMemory(
    point_vectors(run, params, extra_state)[rows],
    run.dataset.train.unfiltered_positives[rows],
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
