"""Adds label frequency to an encoder's scores: cos/τ + α log(1 + n_l), for n_l training points of label l.

`config.eval.log_frequency` is α, on top of `method.log_prior`, which the method trained with. The term is one
more column of the label vectors, and queries have a 1 there: labels are still ranked by inner products, in
the hybrid ranking and in exports too.
"""

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from xmc_jax.console import say
from xmc_jax.distributed import runtime, split_table
from xmc_jax.distributed.split_table import AnyTable, SplitTable, Table
from xmc_jax.methods.components.label_priors import log_prior
from xmc_jax.metrics.hits import as_truth
from xmc_jax.metrics.ranking import by_row, ratio
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.key_memory import ChosenWeight
from xmc_jax.runs.label_functions import Function
from xmc_jax.storage import run_folder

if TYPE_CHECKING:
  from xmc_jax.runs.run import Run
  from xmc_jax.runs.trained import Trained

GRID = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # candidate values of α


def weight_of(run: "Run") -> float:
  """Returns α; 0 if it has not been chosen yet."""
  path = run.ranking_folder / run_folder.FREQUENCY
  if run.config.eval.log_frequency != -1:
    return run.config.eval.log_frequency
  return ChosenWeight.load(path, GRID[-1]).weight if path.exists() else 0.0


def log_scope(run: "Run", scores: str) -> None:
  """Logs a note if the config sets label frequency, but the run is ranked by scores that do not use it.

  Args:
    run: the run.
    scores: the scores that rank, as for `Trained.ranker`. A tree that joins two scorers, a memory of keys,
      classifiers, and sources other than the encoder do not use `config.eval.log_frequency`.
  """
  joined = scores == "fused" and (_has_tree(run) or run.method.key_temperature)
  if run.config.eval.log_frequency and (joined or scores not in ("hybrid", "fused", "encoder")):
    say(f"eval.log_frequency: {scores!r} scores do not use it; rankings by the encoder do (--scores=encoder)")


def _has_tree(run: "Run") -> bool:
  return bool(run.method.scorers and run.config.eval.fusion_rows)


def add_label_column(
  run: "Run",
  labels: AnyTable,
  scorer: str = "",
  ids: np.ndarray | None = None,
  weight: float | None = None,
) -> AnyTable:
  """Adds τ α log(1 + n_l) to the scores of label vectors, as a column that queries have a 1 for.

  Args:
    run: the run.
    labels: `[L, D]`, or `[n, D]` of the labels `ids`.
    scorer: the scorer that they are of; classifiers have 0 in the column.
    ids: `[n]` label ids; None is all labels.
    weight: α; None is `weight_of`.
  """
  weight = weight_of(run) if weight is None else weight
  if not weight:
    return labels
  column = _column(run, weight * (scorer in ("", "encoder")))
  if isinstance(labels, SplitTable):
    column = column[labels.own_rows]
  column = column if ids is None else column[ids]
  if run.config.method.get("log_prior"):  # the last column is the frequency that the method trained with
    return split_table.map_rows(labels, lambda rows: np.column_stack([rows[:, :-1], rows[:, -1] + column]))
  return split_table.map_rows(labels, lambda rows: np.column_stack([rows, column]))


def _column(run: "Run", weight: float) -> np.ndarray:
  """Returns `[L]` float32; labels added since the training have the mean of the others."""
  column = log_prior(run.config.method.temperature * weight, run.label_counts).astype(np.float32)
  num_trained = run.dataset.manifest["counts"]["labels"]["texts"]
  column[num_trained:] = column[:num_trained].mean()
  return column


def by_text(run: "Run", embed: Function) -> Function:
  """Returns `embed`, which embeds unseen labels by their texts, with the mean label's column."""
  weight = weight_of(run)
  if not weight:
    return embed
  mean = float(_column(run, weight).mean())
  if run.config.method.get("log_prior"):
    return lambda *inputs: jnp.asarray(embed(*inputs)).at[:, -1].add(mean)
  return lambda *inputs: jnp.pad(embed(*inputs), ((0, 0), (0, 1)), constant_values=mean)


def has_column(run: "Run") -> bool:
  """Returns whether the encoder's label vectors end with a column of label frequency."""
  return bool(run.config.method.get("log_prior") or weight_of(run))


def fit(trained: "Trained") -> None:
  """Chooses α on the validation rows, and stores it in the run's folder.

  It is the smallest whose `config.eval.metric` is within one standard error of the best, over the same rows:
  rare labels pay for a larger one. Does nothing if the config gives α, or if it was chosen before.
  """
  run = trained.run
  path, validation = run.ranking_folder / run_folder.FREQUENCY, run.data.validation
  if run.config.eval.log_frequency != -1 or path.exists():
    return
  if not len(validation):
    return say("eval.log_frequency: label frequency has weight 0, as there are no validation rows")
  metric = run.config.eval.metric
  labels = trained.labels("encoder" if _has_tree(run) else "")
  queries = trained.queries(validation.tokens)
  earned = np.stack([_earned_with(run, queries, labels, weight) for weight in GRID])
  best, values = first_as_good(earned), earned.mean(axis=1)
  chosen = ChosenWeight(GRID[best], metric, tuple(values.tolist()))
  say(
    f"label frequency has weight {chosen.weight:g}: {100 * values[best]:.2f} {metric} on {len(validation):,} "
    f"rows, within one standard error of the best"
  )
  runtime.on_main_process(lambda: chosen.save(path), "frequency")


def first_as_good(earned: np.ndarray) -> int:
  """Returns the first of several rankings whose mean is within one standard error of the best's.

  Args:
    earned: `[rankings, N]`, what each row adds; the standard error is that of its differences to the best.
  """
  lost = earned[earned.mean(axis=1).argmax()] - earned
  return int(np.argmax(lost.mean(axis=1) <= lost.std(axis=1) / earned.shape[1] ** 0.5))


def _earned_with(run: "Run", queries: np.ndarray, labels: Table, weight: float) -> np.ndarray:
  """Returns `[N]` float64 of the validation rows for one α, whose mean is `config.eval.metric`."""
  validation, metric = run.data.validation, run.config.eval.metric
  vectors = add_label_column(run, labels, weight=weight)
  index = Index(vectors, backend="exact", devices=run.mesh, name="label frequency")
  depth = int(metric.partition("@")[2])
  ranking = index.search(queries, depth, exclude=validation.filter)
  names, gained, best = by_row(
    ranking.ids, as_truth(validation.unfiltered_positives), (depth,), run.data.inverse_propensity
  )
  column = names.index(metric)
  return ratio(gained[:, column], best[:, column].mean())
