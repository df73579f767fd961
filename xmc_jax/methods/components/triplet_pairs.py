"""Chooses the positive pairs that PRIME's triplets compare, in two ways.

The paper's eq. 1 sums over all positives of each query, and a step samples two of them, by inverse propensity
(section 4.2 and appendix J): 'sampled', the default, compares only these. The released code samples in the
same way, but only to build the pool. Then it takes for each T(q, .) one positive, uniformly, of all the
query's labels in the pool, and for T(h, q) one of the batch's queries that carry the label. 'released' does
the same, but for T(h, q) it takes the mean over all these queries, the expectation of that sample.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from xmc_jax.config import Key, declare
from xmc_jax.methods.components.pool_losses import sampled_positives
from xmc_jax.types import Array, Batch

SETTINGS = declare(
  triplet_positives=Key(
    "sampled",
    "positives of triplets: the sampled ones; as released one of all in the pool (T(h, q): all in the batch)",
    choices=("sampled", "released"),
  )
)


class Pairs(NamedTuple):
  """Holds the pairs of a batch, as columns of its pool with a weight each; weight 0 is no pair.

  Attributes:
    of_prototypes: `(columns [B, n], weights [B, n])` of T(q, z), and of R.
    of_texts: of T(q, h).
    of_labels: of T(h, q), which only uses whether a weight is 0.
    known: `[B, K]` columns that are no negatives, -1 for none.
  """

  of_prototypes: tuple[Array, Array]
  of_texts: tuple[Array, Array]
  of_labels: tuple[Array, Array]
  known: Array


def of_batch(settings: ml_collections.ConfigDict, batch: Batch, key: Array) -> Pairs:
  """Returns the pairs that `settings.triplet_positives` selects; 'sampled' does not use the key."""
  known = jnp.concatenate([batch.positives, batch.excluded], axis=1)
  of_labels = points_of_labels(settings, batch)
  if settings.triplet_positives == "sampled":
    return Pairs(of_labels, of_labels, of_labels, known)
  of_prototypes, of_texts = (_one_of_all(batch, each) for each in jax.random.split(key))
  return Pairs(of_prototypes, of_texts, of_labels, known)


def points_of_labels(settings: ml_collections.ConfigDict, batch: Batch) -> tuple[Array, Array]:
  """Returns the pairs of points and labels that a step may compare: `(columns [B, n], weights [B, n])`.

  A point is compared with the labels that were sampled for it, or as released with all of its labels.
  """
  if settings.triplet_positives == "sampled":
    return sampled_positives(batch, settings.num_positives)
  return batch.positives, (batch.positives >= 0).astype(jnp.float32)


def _one_of_all(batch: Batch, key: Array) -> tuple[Array, Array]:
  """Samples one positive of each row, uniformly: `(columns [B, 1], weights [B, 1])`; weight 0 if none."""
  lots = jnp.where(batch.positives >= 0, jax.random.uniform(key, batch.positives.shape), -1.0)
  place = jnp.argmax(lots, axis=1)[:, None]
  columns = jnp.take_along_axis(batch.positives, place, axis=1)
  return columns, (columns >= 0).astype(jnp.float32)
