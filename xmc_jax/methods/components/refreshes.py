"""What several methods make anew between steps: shortlists of labels, and clusters of points."""

from collections.abc import Mapping

import jax
import numpy as np

from xmc_jax import refresh
from xmc_jax.batching.builder import num_leaves
from xmc_jax.types import Array, BatchSpec, Refresh


def shortlists(config, columns: slice = slice(None)) -> Mapping[str, Refresh]:
  """The refresh behind hard negatives: each point's nearest labels that are not its own.

  Args:
    config: of it `config.method.shortlist*` are used.
    columns: of the embeddings; these alone are looked at.
  """
  settings = config.method

  def compute(snapshot: refresh.Snapshot) -> Array:
    return refresh.shortlist(
      snapshot.queries[:, columns],
      snapshot.labels[:, columns],
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


def leaves(config, columns: slice = slice(None)) -> Mapping[str, Refresh]:
  """The refresh behind NGAME's batches: balanced clusters of the points (Dahiya et al., WSDM 2023).

  Args:
    config: `config.method.leaf_size = 0` makes as many leaves as there are batches.
    columns: of the embeddings; these alone are looked at.
  """
  settings = config.method

  def compute(snapshot: refresh.Snapshot) -> Array:
    number = snapshot.steps_per_epoch
    if settings.leaf_size:
      number = num_leaves(len(snapshot.rows), leaf_size(settings, snapshot.step // snapshot.steps_per_epoch))
    found = np.full(snapshot.truth.shape[0], -1, np.int32)
    key = jax.random.fold_in(jax.random.key(config.train.seed), snapshot.step)
    queries = snapshot.queries[:, columns]
    queries = queries if len(snapshot.rows) == len(found) else queries[snapshot.rows]
    found[snapshot.rows] = refresh.balanced_clusters(queries, number, key=key)
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


def of_leaves(batch: BatchSpec, settings) -> BatchSpec:
  """Batches as `leaves` shape them."""
  if not settings.leaf_size:
    return batch._replace(whole_leaves=True)
  return batch._replace(clump=leaf_size(settings, int(settings.leaves_first_epoch)))


def leaf_size(settings, epoch: int) -> int:
  """Points in a leaf, at most, in an epoch counted from 0: doubled at each of `leaf_doubling_epochs`."""
  return settings.leaf_size << sum(epoch >= doubling for doubling in settings.leaf_doubling_epochs)
