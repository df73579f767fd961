"""Where a label's training points lie: its centroid, moved in each step with the encoder (PRIME, eq. 4).

`aux['centroids']` `[L', D]` is zero until the first refresh, before the first step, has set each row to the
scaled mean of the label's points, as the encoder embeds them at the start; labels without points get their
text's embedding.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax import mesh, refresh
from xmc_jax.contract import Array, Batch, DatasetInfo, PyTree, Refresh
from xmc_jax.methods.pool_losses import drawn_positives
from xmc_jax.ops import sparse_rows

NAME = "centroids"


def none_yet(info: DatasetInfo, width: int) -> dict[str, Array]:
  """`aux` before there are centroids; L' is L rounded up to the devices."""
  return {NAME: jnp.zeros((mesh.rounded_up(info.num_labels, info.mesh.size), width))}


def refreshes() -> Mapping[str, Refresh]:
  """The centroids of the start, once."""

  def compute(snapshot: refresh.Snapshot) -> Array:
    before = mesh.fetch(snapshot.aux[NAME])
    return before if np.any(before) else exact(snapshot)  # those of the run that this one began from

  return {NAME: Refresh(every_epochs=0.0, compute=compute, into_aux=True)}


def exact(snapshot: refresh.Snapshot) -> np.ndarray:
  """`[L', D]` by the encoder of the moment, each of length 1."""
  means = refresh.label_centroids(snapshot.queries, snapshot.truth, snapshot.texts)
  means /= np.maximum(np.sqrt(np.einsum("ld,ld->l", means, means)), 1e-12)[:, None]
  return np.pad(means, ((0, len(snapshot.aux[NAME]) - len(means)), (0, 0)))


def of(aux: PyTree, labels: Array, info: DatasetInfo) -> Array:
  """`[R, D]` the centroids of labels `[R]`; zeros for label -1."""
  return sparse_rows.take(aux[NAME], labels, mesh=_devices(info))


def with_exact(snapshot: refresh.Snapshot) -> PyTree:
  """`aux` with the centroids as the trained encoder has them, in place of those that followed it."""
  before = snapshot.aux[NAME]
  return {**snapshot.aux, NAME: mesh.place(exact(snapshot), before.sharding)}


def moved(aux: PyTree, queries: Array, batch: Batch, settings, info: DatasetInfo) -> Array:
  r"""The centroids `[L', D]` after a step: :math:`c_p \gets \alpha c_p + (1 - \alpha) \bar{h}_p`.

  Args:
    aux: with those before it.
    queries: `[B, D]` embeddings h of the batch's points; no gradient goes through them.
    batch: :math:`\bar{h}_p` is the mean over the points for which label p was drawn. Other labels stay.
    settings: `config.method`, of it `centroid_momentum`, α, and `num_positives`.
    info: of the data.
  """
  num_columns, devices = len(batch.columns), _devices(info)
  columns, weights = drawn_positives(batch, settings.num_positives)
  columns = jnp.where(weights > 0, columns, num_columns)
  shares = jnp.zeros(num_columns).at[columns].add(1.0, mode="drop")
  queries = jnp.broadcast_to(jax.lax.stop_gradient(queries)[:, None], (*columns.shape, queries.shape[1]))
  means = jnp.zeros((num_columns, queries.shape[-1])).at[columns].add(queries, mode="drop")
  means /= jnp.maximum(shares, 1)[:, None]
  labels = jnp.where(shares > 0, batch.columns, -1)
  momentum, before = settings.centroid_momentum, of(aux, labels, info)
  return sparse_rows.put(aux[NAME], labels, momentum * before + (1 - momentum) * means, mesh=devices)


def _devices(info: DatasetInfo):
  return info.mesh if info.mesh.size > 1 else None
