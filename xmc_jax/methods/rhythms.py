"""What several methods make anew between steps: shortlists of labels, and clusters of points."""

import math
from collections.abc import Mapping

import jax
import numpy as np

from xmc_jax import refresh
from xmc_jax.contract import Array, DatasetInfo, Refresh


def shortlists(config) -> Mapping[str, Refresh]:
  """The refresh behind hard negatives: each point's nearest labels that are not its own."""
  settings = config.method

  def compute(snapshot: refresh.Snapshot) -> Array:
    return refresh.shortlist(
      snapshot.queries,
      snapshot.labels,
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


def leaves(config, info: DatasetInfo) -> Mapping[str, Refresh]:
  """The refresh behind NGAME's batches: balanced clusters of the points (Dahiya et al., WSDM 2023)."""
  settings = config.method

  def compute(snapshot: refresh.Snapshot) -> Array:
    rows = np.flatnonzero(np.diff(snapshot.truth.indptr))
    size = leaf_size(settings, snapshot.step // info.steps_per_epoch)
    found = np.full(snapshot.truth.shape[0], -1, np.int32)
    key = jax.random.fold_in(jax.random.key(config.train.seed), snapshot.step)
    queries = snapshot.queries if len(rows) == len(found) else snapshot.queries[rows]
    found[rows] = refresh.balanced_clusters(queries, num_leaves(len(rows), size), key=key)
    return found

  return {
    "leaves": Refresh(
      every_epochs=settings.leaves_every_epochs,
      compute=compute,
      first_epoch=settings.leaves_first_epoch,
      every_steps=settings.leaves_every_steps,
      at_epoch_start=True,
    )
  }


def clump(settings) -> int:
  """Points that stand together in the first batches made of leaves."""
  return leaf_size(settings, int(settings.leaves_first_epoch))


def leaf_size(settings, epoch: int) -> int:
  """Points in a leaf, at most, in an epoch counted from 0: doubled at each of `leaf_doubling_epochs`."""
  return settings.leaf_size << sum(epoch >= doubling for doubling in settings.leaf_doubling_epochs)


def num_leaves(num_points: int, size: int) -> int:
  """2^⌈log2(N / C)⌉, at least 1."""
  return 1 << max(0, math.ceil(math.log2(max(1, num_points) / size)))
