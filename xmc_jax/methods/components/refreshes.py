"""Makes the refreshes that several methods share: shortlists of labels, and clusters of points.

docs/formulas.md, "Shortlists" and docs/formulas.md, "NGAME batches".
"""

from collections.abc import Iterator, Mapping

import jax
import ml_collections
import numpy as np

from xmc_jax import refresh
from xmc_jax.batching.builder import num_clusters
from xmc_jax.config import Key, declare
from xmc_jax.config.keys import LARGEST
from xmc_jax.distributed import split_table
from xmc_jax.types import Array, BatchSpec, Refresh


def _doubling_faults(values: Mapping) -> Iterator[str]:
  epochs = values["method.cluster_doubling_epochs"]
  if not all(type(epoch) is int and 0 <= epoch <= LARGEST for epoch in epochs):
    yield (
      f"method.cluster_doubling_epochs = {epochs!r:.60} must hold whole numbers of epochs; "
      'for instance --config.method.cluster_doubling_epochs="(10,25)"'
    )


CLUSTER_TIMES = declare(
  clusters_first_epoch=Key(10.0, "random batches before this epoch"),
  clusters_every_epochs=Key(5.0, "epochs between clusterings of the points; 0 clusters them once"),
  clusters_every_steps=Key(0, "instead of clusters_every_epochs, if not 0; takes effect at the next epoch"),
)
CLUSTERS = declare(
  CLUSTER_TIMES,
  checks=(_doubling_faults,),
  cluster_size=Key(4, "points of a cluster, at most, which are in one batch; 0: a cluster is a batch"),
  cluster_doubling_epochs=Key(
    (10, 25, 50, 75, 100, 125, 150, 200), "epochs at which clusters double in size"
  ),
)


def shortlists(config: ml_collections.ConfigDict, columns: slice = slice(None)) -> Mapping[str, Refresh]:
  """Returns the refresh for hard negatives: each point's nearest labels but its own, by some columns."""
  settings = config.method
  if not settings.get("num_hard_negatives"):
    return {}

  def compute(snapshot: refresh.Snapshot) -> Array:
    return refresh.shortlist(
      split_table.columns(snapshot.queries, columns),
      split_table.columns(snapshot.labels_to_rank, columns),
      settings.shortlist_size,
      backend=settings.shortlist_backend,
      exclude=snapshot.known,
      devices=snapshot.devices,
    )

  return {
    "shortlist": Refresh(
      every_epochs=settings.shortlist_every_epochs,
      compute=compute,
      first_epoch=settings.shortlist_first_epoch,
      every_steps=settings.shortlist_every_steps,
    )
  }


def clusters(config: ml_collections.ConfigDict, columns: slice = slice(None)) -> Mapping[str, Refresh]:
  """Returns the refresh for NGAME's batches: balanced clusters of the points, by some of their columns.

  Without a `config.method.cluster_size`, or with 0, there are as many clusters as batches.
  """
  settings = config.method

  def compute(snapshot: refresh.Snapshot) -> Array:
    number = snapshot.steps_per_epoch
    if settings.get("cluster_size"):
      number = num_clusters(
        len(snapshot.rows), cluster_size(settings, snapshot.step // snapshot.steps_per_epoch)
      )
    found = np.full(snapshot.truth.shape[0], -1, np.int32)
    key = jax.random.fold_in(jax.random.key(config.train.seed), snapshot.step)
    queries = split_table.columns(snapshot.queries, columns)
    queries = queries if len(snapshot.rows) == len(found) else split_table.rows_of(queries, snapshot.rows)
    found[snapshot.rows] = refresh.balanced_clusters(queries, number, key=key)
    return found

  return {
    "clusters": Refresh(
      every_epochs=settings.clusters_every_epochs,
      compute=compute,
      first_epoch=settings.clusters_first_epoch,
      every_steps=settings.clusters_every_steps,
      at_epoch_start=True,
    )
  }


def in_clusters(batch: BatchSpec, settings: ml_collections.ConfigDict) -> BatchSpec:
  """Returns the BatchSpec for batches made of `clusters`."""
  if not settings.get("cluster_size"):
    return batch._replace(batch_is_cluster=True)
  return batch._replace(cluster_size=cluster_size(settings, int(settings.clusters_first_epoch)))


def cluster_size(settings: ml_collections.ConfigDict, epoch: int) -> int:
  """Returns the most points of a cluster in an epoch, counted from 0; see `cluster_doubling_epochs`."""
  return settings.cluster_size << sum(epoch >= doubling for doubling in settings.cluster_doubling_epochs)
