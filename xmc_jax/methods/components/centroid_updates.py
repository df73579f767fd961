"""Keeps labels' centroids: means of their training points, updated in each step (PRIME, eq. 4).

`extra_state['centroids']` `[L', D]` is zero until the first refresh, before the first step. That sets each
row to the mean of the label's points, as the encoder embeds them at the start, scaled to length 1; a label
without points to learn from gets its text's embedding. Exact centroids are such means, not scaled, computed
again before each epoch (ours). docs/formulas.md, "PRIME".
"""

import functools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from xmc_jax import refresh
from xmc_jax.config import Key, declare
from xmc_jax.config.keys import unused
from xmc_jax.distributed import sharding, split_table
from xmc_jax.distributed.split_table import Table
from xmc_jax.methods.components import triplet_pairs
from xmc_jax.methods.components.pool_losses import sampled_positives
from xmc_jax.ops import lazy_adam
from xmc_jax.ops.unit_rows import unit_rows
from xmc_jax.types import EXTRA_STATE, Array, Batch, DatasetInfo, PyTree, Refresh, RowUpdate

NAME = "centroids"


def _faults(values: Mapping) -> Iterator[str]:
  if values["method.leave_batch_out"] and values["method.centroids"] == "frozen":
    yield (
      "method.leave_batch_out = True cannot take points out as the encoder embedded them once when "
      "method.centroids = 'frozen'; set --config.method.leave_batch_out=False, or "
      "--config.method.centroids=exact"
    )


SETTINGS = declare(
  checks=(
    _faults,
    unused("centroids", "none", exact_centroids=False, leave_batch_out=False),
    unused("centroids", "frozen", centroid_momentum=0.95),
    unused("centroids", "exact", centroid_momentum=0.95, exact_centroids=False),
  ),
  centroids=Key(
    "none",
    "labels' centroids: 'momentum' ones follow the encoder, 'exact' ones are made before each epoch",
    choices=("momentum", "exact", "frozen", "none"),
  ),
  centroid_momentum=Key(0.95, "α: weight of the old centroid in a step that samples its label", below=1),
  leave_batch_out=Key(False, "True: in training a label's centroid is without the batch's own points"),
  exact_centroids=Key(False, "True: rank by centroids recomputed from all training points"),
)


def init_state(info: DatasetInfo, width: int) -> dict[str, Array]:
  """Returns `extra_state` before there are centroids; L' is L rounded up to the devices."""
  shape = (sharding.rounded_up(info.num_labels, info.mesh.size), width)
  return {NAME: np.broadcast_to(np.float32(0), shape)}  # takes no memory in a plan


def refreshes(settings: ml_collections.ConfigDict) -> Mapping[str, Refresh]:
  """Returns the refresh that computes centroids: once, at the start; exact ones before each epoch.

  With `leave_batch_out` they are not scaled: a point can only be taken out of a plain mean.
  """
  exact = settings.centroids == "exact"

  def compute(snapshot: refresh.Snapshot) -> Table | None:
    if not exact and jnp.any(snapshot.extra_state[NAME]):  # copied from the run that this one started from
      return None
    means = _means(snapshot)
    if exact or settings.leave_batch_out:
      return means
    return split_table.map_rows(means, functools.partial(unit_rows, in_place=True))

  return {NAME: Refresh(every_epochs=1.0 if exact else 0.0, compute=compute, target=EXTRA_STATE)}


def with_exact(snapshot: refresh.Snapshot) -> PyTree:
  """Returns `extra_state` with exact centroids by the trained encoder, in place of the running means.

  They are not scaled to any length, as running means are not.
  """
  before = snapshot.extra_state[NAME]
  return {
    **snapshot.extra_state,
    NAME: sharding.place_rows(_means(snapshot), before.sharding, len(before)),
  }


def _means(snapshot: refresh.Snapshot) -> Table:
  return refresh.label_centroids(snapshot.queries, snapshot.unfiltered_positives, lambda: snapshot.texts)


def lookup(extra_state: PyTree, labels: Array, info: DatasetInfo) -> Array:
  """Returns the centroids `[R, D]` of labels `[R]`; zeros for label -1."""
  return lazy_adam.take(extra_state[NAME], labels, mesh=info.mesh)


def without_batch(
  extra_state: PyTree,
  queries: Array,
  texts: Array,
  batch: Batch,
  settings: ml_collections.ConfigDict,
  info: DatasetInfo,
) -> Array:
  r"""Returns the pool's centroids `[S, D]` without the batch's own points (ours).

  .. math::
    c_p^- = \frac{n_p c_p - \sum_{i \in B_p} h_i}{n_p - k_p}

  n_p counts the label's training points, k_p those in :math:`B_p`: the points of the batch that the step may
  compare with the label, which are those that sampled it, or as released all that carry it. A centroid made
  with the query would reveal its label. A label without other points gets its text's embedding, as at the
  start. The batch is taken out fully if c_p is the mean of the points as they are embedded now; exact
  centroids are means of the points as embedded before the epoch. A running mean has other weights than
  1 / n_p, so that the batch is taken out only in part.

  No gradient goes through the embeddings h of points, `queries` `[B, D]`, and `texts` `[S, D]` of labels.
  """
  summed, compared = _summed(queries, batch, triplet_pairs.points_of_labels(settings, batch))
  counts = jnp.asarray(info.label_counts, jnp.float32)[jnp.maximum(batch.columns, 0)]
  left = (counts - compared)[:, None]
  without = (counts[:, None] * lookup(extra_state, batch.columns, info) - summed) / jnp.maximum(left, 1)
  return jnp.where(left > 0, without, jax.lax.stop_gradient(texts))


def updated(
  extra_state: PyTree, queries: Array, batch: Batch, settings: ml_collections.ConfigDict, info: DatasetInfo
) -> RowUpdate:
  r"""Returns the pool's centroids after a step: :math:`c_p \gets \alpha c_p + (1 - \alpha) \bar{h}_p`.

  :math:`\bar{h}_p` is the mean over the points for which label p was sampled; no gradient goes through their
  embeddings, `queries` `[B, D]`. Labels that no point sampled do not change.
  """
  summed, counts = _summed(queries, batch, sampled_positives(batch, settings.num_positives))
  means = summed / jnp.maximum(counts, 1)[:, None]
  # Reads the same rows as the loss did: for another read XLA would keep a copy of the table.
  momentum, before = settings.centroid_momentum, lookup(extra_state, batch.columns, info)
  moved_rows = momentum * before + (1 - momentum) * means
  return RowUpdate(jnp.where(counts > 0, batch.columns, -1), moved_rows)


def _summed(queries: Array, batch: Batch, pairs: tuple[Array, Array]) -> tuple[Array, Array]:
  """Returns `(sums [S, D], counts [S])` of the queries paired with each column; stops their gradient.

  `pairs` are `(columns [B, n], weights [B, n])`; weight 0 is no pair.
  """
  columns, weights = pairs
  columns = jnp.where(weights > 0, columns, len(batch.columns))
  has = jnp.zeros((len(queries), len(batch.columns)))
  has = has.at[jnp.arange(len(queries))[:, None], columns].set(1.0, mode="drop")
  sums = jnp.einsum("bs,bd->sd", has, jax.lax.stop_gradient(queries), precision="highest")
  return sums, has.sum(axis=0)
