"""Adds label frequency to an encoder's scores: cos/τ + α log(1 + n_l), for n_l training points of label l.

`config.eval.log_frequency` is α, on top of `method.log_prior`, which the method trained with. The term is one
more column of the label vectors, and queries have a 1 there: labels are still ranked by inner products.
"""

import numpy as np

from xmc_jax import metrics
from xmc_jax.console import say
from xmc_jax.distributed import runtime, split_table
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.retrieval.chosen_weight import ChosenWeight
from xmc_jax.retrieval.index import Index
from xmc_jax.runs.run import Run
from xmc_jax.storage import run_folder
from xmc_jax.types import PyTree

GRID = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # candidate values of α


def weight_of(run: Run, view: str = "") -> float:
  """Returns α for rankings by a view; '' is the method's only view, or the sum of several.

  α is 0 if more than the encoder ranks, or if it has not been chosen yet.
  """
  wanted = run.config.eval.log_frequency
  if not wanted or view not in ("", "encoder") or (run.method.scorers and not view):
    return 0.0
  path = run.ranking_folder / run_folder.FREQUENCY
  if wanted == -1:
    return ChosenWeight.load(path, GRID[-1]).weight if path.exists() else 0.0
  return wanted


def log_scope(run: Run, scores: str) -> None:
  """Logs a note if the config sets label frequency, but the run is ranked by scores that do not use it.

  Args:
    run: the run.
    scores: the scores that rank, as for `ranking.ranker`. Only the encoder's own scores use
      `config.eval.log_frequency`; a tree or a sum of views, a memory of keys, and other sources do not.
  """
  joined = scores == "fused" and (run.method.scorers or run.method.key_temperature)
  if run.config.eval.log_frequency and (joined or scores not in ("fused", "encoder")):
    say(f"eval.log_frequency: {scores!r} scores do not use it; rankings by the encoder do (--scores=encoder)")


def add_label_column(run: Run, labels: Table, weight: float) -> Table:
  """Adds τ α log(1 + n_l) to the scores of label vectors `[L, D]`, as a column that queries have a 1 for.

  Labels added since the training have the mean of the others.
  """
  if not weight:
    return labels
  counts = np.bincount(run.data.train.unfiltered_positives.indices, minlength=len(labels))
  column = (run.config.method.temperature * weight * np.log1p(counts)).astype(np.float32)
  num_trained = run.dataset.manifest["counts"]["labels"]["texts"]
  column[num_trained:] = column[:num_trained].mean()
  if isinstance(labels, SplitTable):
    column = column[labels.own_rows]
  if run.config.method.get("log_prior"):  # the last column is the frequency that the method trained with
    return split_table.map_rows(labels, lambda rows: np.column_stack([rows[:, :-1], rows[:, -1] + column]))
  return split_table.map_rows(labels, lambda rows: np.column_stack([rows, column]))


def fit(run: Run, params: PyTree, extra_state: PyTree) -> None:
  """Chooses α by `config.eval.metric` on the validation rows, and stores it in the run's folder.

  Does nothing if the config gives α, or if it was chosen before.
  """
  path, validation = run.ranking_folder / run_folder.FREQUENCY, run.data.validation
  if run.config.eval.log_frequency != -1 or path.exists():
    return
  if not len(validation):
    return say("eval.log_frequency: label frequency has weight 0, as there are no validation rows")
  metric = run.config.eval.metric
  view = "encoder" if run.method.scorers else ""
  labels = run.embedder.split_labels(params, run.extra_state_to_rank(params, extra_state), view)
  queries = run.embedder.queries(params, extra_state, validation.tokens)
  values = tuple(_metric_with(run, queries, labels, weight) for weight in GRID)
  found = ChosenWeight(GRID[int(np.argmax(values))], metric, values)
  say(
    f"label frequency has weight {found.weight:g}: {100 * max(values):.2f} {metric} on "
    f"{len(validation):,} rows"
  )
  if runtime.is_main_process():
    found.save(path)
  runtime.barrier("frequency")


def _metric_with(run: Run, queries: np.ndarray, labels: Table, weight: float) -> float:
  """Returns `config.eval.metric` of the validation rows for one α."""
  validation, metric = run.data.validation, run.config.eval.metric
  index = Index(
    add_label_column(run, labels, weight), backend="exact", devices=run.mesh, name="label frequency"
  )
  depth = int(metric.partition("@")[2])
  ranking = index.search(queries, depth, exclude=validation.filter)
  found = metrics.evaluate(
    ranking.ids, validation.unfiltered_positives, ks=(depth,), inverse_propensity=run.data.inverse_propensity
  )
  return float(found[metric])
