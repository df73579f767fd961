"""Adds label frequency to an encoder's scores: cos/τ + α log(1 + n_l), for n_l training points of label l.

Vectors of length 1 cannot say how frequent a label is; `config.eval.log_frequency` is α. One more column of
the label vectors holds the term, against a 1 in the queries, so that a search stays one of inner products.
"""

import numpy as np

from xmc_jax import metrics
from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.retrieval.chosen_weight import ChosenWeight
from xmc_jax.retrieval.index import Index
from xmc_jax.runs.run import Run
from xmc_jax.storage import run_folder
from xmc_jax.types import PyTree

GRID = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # α's to choose from


def weight_of(run: Run, view: str = "") -> float:
  """Returns α for rankings by a view; '' is the method's only one, or the sum of several.

  It is 0 where more than the encoder ranks, and where it is not chosen yet.
  """
  wanted = run.config.eval.log_frequency
  if not wanted or view not in ("", "encoder") or (run.method.scorers and not view):
    return 0.0
  path = run.ranking_folder / run_folder.FREQUENCY
  if wanted < 0:
    return ChosenWeight.load(path, GRID[-1]).weight if path.exists() else 0.0
  return wanted


def tell(run: Run, scores: str) -> None:
  """Logs which rankings label frequency is for, where a run has it and is ranked by other scores.

  Args:
    run: the run.
    scores: what ranks, as `ranking.ranker` takes them: a tree or a sum of views, a memory of keys and all
      sources joined leave `config.eval.log_frequency` out.
  """
  joined = scores == "fused" and (run.method.scorers or run.method.key_temperature)
  if run.config.eval.log_frequency and (joined or scores not in ("fused", "encoder")):
    say(f"eval.log_frequency: not in {scores!r} scores; rankings by the encoder have it (--scores=encoder)")


def labels_with(run: Run, labels: np.ndarray, weight: float) -> np.ndarray:
  """Returns label vectors `[L, D]` with a column τ α log(1 + n_l), `[L, D + 1]`; as they are where α is 0."""
  if not weight:
    return labels
  counts = np.bincount(run.data.train.unfiltered_positives.indices, minlength=len(labels))
  column = run.config.method.temperature * weight * np.log1p(counts)
  return np.concatenate([labels, column[:, None].astype(labels.dtype)], axis=1)


def queries_with(queries: np.ndarray, weight: float) -> np.ndarray:
  """Returns query vectors `[n, D]` with a column of ones, `[n, D + 1]`; as they are where α is 0."""
  return np.concatenate([queries, np.ones_like(queries[:, :1])], axis=1) if weight else queries


def fit(run: Run, params: PyTree, extra_state: PyTree) -> None:
  """Chooses α by `config.eval.metric` on the rows held out, and keeps it in the run's folder.

  Nothing is done where the config gives it, or it was chosen before.
  """
  path, validation = run.ranking_folder / run_folder.FREQUENCY, run.data.validation
  if run.config.eval.log_frequency >= 0 or path.exists():
    return
  if not len(validation):
    return say("eval.log_frequency: label frequency weighs 0, as there are no validation rows to choose by")
  metric = run.config.eval.metric
  view = "encoder" if run.method.scorers else ""
  labels = run.embedder.labels(params, run.extra_state_to_rank(params, extra_state), view)
  queries = run.embedder.queries(params, extra_state, validation.tokens)
  earned = tuple(_earned(run, queries, labels, weight) for weight in GRID)
  found = ChosenWeight(GRID[int(np.argmax(earned))], metric, earned)
  say(
    f"label frequency weighs {found.weight:g}: {100 * max(earned):.2f} {metric} on {len(validation):,} rows"
  )
  if runtime.is_main_process():
    found.save(path)
  runtime.barrier("frequency")


def _earned(run: Run, queries: np.ndarray, labels: np.ndarray, weight: float) -> float:
  """Returns the metric of the held-out rows under one α."""
  validation, metric = run.data.validation, run.config.eval.metric
  index = Index(labels_with(run, labels, weight), backend="exact", devices=run.mesh, name="label frequency")
  depth = int(metric.partition("@")[2])
  ranking = index.search(queries_with(queries, weight), depth, exclude=validation.filter)
  found = metrics.evaluate(
    ranking.ids, validation.unfiltered_positives, ks=(depth,), inverse_propensity=run.data.inverse_propensity
  )
  return float(found[metric])
