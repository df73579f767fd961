"""Computes PRIME's loss: triplets of queries with prototypes and texts, both ways, and a regulariser.

The loss of a batch is T(q, z) + T(q, h) + T(h, q) + λR (Dahiya et al., NAACL 2025, eq. 5), where q are its
points, h the texts and z the prototypes of its pool's labels, all of length 1. As in the released code, R
takes the positives and the hardest negatives of T(q, z), and has a hinge; eq. 6 and 7 take all negatives of
the batch, and have no hinge. docs/formulas.md, "PRIME".
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import PartitionSpec as P

from xmc_jax import losses
from xmc_jax.config import Key, declare
from xmc_jax.config.keys import unused
from xmc_jax.distributed import sharding
from xmc_jax.methods.components import triplet_pairs
from xmc_jax.methods.components.pool_losses import TRIPLETS, known_columns, mean_over_rows, products
from xmc_jax.types import Array, Batch, DatasetInfo


def _faults(values: Mapping) -> Iterator[str]:
  terms = [f"method.{name}_weight" for name in ("prototype", "text", "reverse")]
  if not any(values[term] for term in terms):
    yield f"{', '.join(terms)} = 0: nothing is learnt from pairs; set --config.{terms[0]}=1"
  if not values[terms[0]] and not values["method.regulariser_weight"]:
    yield (
      "method.prototype_weight and method.regulariser_weight = 0: prototypes, by which labels are ranked, "
      "would not be trained; set --config.method.prototype_weight=1"
    )
  least, most = values["method.margin_minimum"], values["method.margin_maximum"]
  if values["method.loss"] == "dynamic_margin" and least > most:
    yield (
      f"method.margin_minimum = {least} is more than method.margin_maximum = {most}; "
      f"set --config.method.margin_minimum={most} or less"
    )


SETTINGS = declare(
  TRIPLETS,
  triplet_pairs.SETTINGS,
  checks=(
    _faults,
    unused("loss", "dynamic_margin", margin=0.3),
    unused("loss", "margin", margin_minimum=0.1, margin_maximum=0.3),
    unused("regulariser_weight", 0, regulariser_margin=0.1, regulariser_hinge=True),
  ),
  margin_minimum=Key(
    0.1, "loss = dynamic_margin: smallest margin; it is the distance of two scores, clipped"
  ),
  margin_maximum=Key(0.3, "loss = dynamic_margin: largest margin"),
  prototype_weight=Key(1.0, "weight of queries against prototypes in the loss"),
  text_weight=Key(1.0, "weight of queries against label texts"),
  reverse_weight=Key(1.0, "weight of label texts against queries"),
  regulariser_weight=Key(0.1, "λ: weight of R, which asks that prototypes are better than texts"),
  regulariser_margin=Key(0.1, "m': margin of R"),
  regulariser_hinge=Key(True, "False: R has no hinge (paper)"),
)


def total(
  config: ml_collections.ConfigDict,
  info: DatasetInfo,
  queries: Array,
  texts: Array,
  prototypes: Array,
  batch: Batch,
  key: Array,
) -> tuple[Array, dict[str, Array]]:
  """Returns `(loss, its parts)` of queries `[B, D]`, and of the pool's texts and prototypes `[S, D]`.

  Parts of weight 0 are not computed. The key is for the samples of `triplet_positives = 'released'`.
  """
  settings = config.method
  weights = {
    "prototype_loss": settings.prototype_weight,
    "text_loss": settings.text_weight,
    "reverse_loss": settings.reverse_weight,
    "regulariser": settings.regulariser_weight,
  }
  pairs = triplet_pairs.of_batch(settings, batch, key)
  by_query = _by_query(settings, info, queries, texts, prototypes, batch, pairs)
  parts = {
    name: mean_over_rows(by_query[name], batch) for name in ("prototype_loss", "text_loss") if weights[name]
  }
  if weights["reverse_loss"]:
    parts["reverse_loss"] = _by_label(settings, info, queries, texts, batch, pairs)
  if weights["regulariser"]:
    gaps = (by_query["positive_gaps"], by_query["negative_gaps"])
    parts["regulariser"] = jnp.asarray(sum(_mean_gap(settings, *gap) for gap in gaps) / len(gaps))
  return sum(weights[name] * part for name, part in parts.items()), parts


def _triplets(
  settings: ml_collections.ConfigDict, scores: Array, weights: Array, hardest: losses.HardNegatives
) -> Array:
  """Calls `losses.dynamic_margin_from_positives`; margins are equal if `config.method.loss = 'margin'`."""
  fixed = settings.loss == "margin"
  minimum = settings.margin if fixed else settings.margin_minimum
  maximum = settings.margin if fixed else settings.margin_maximum
  return losses.dynamic_margin_from_positives(
    scores, weights, hardest, minimum=minimum, maximum=maximum, weighted=settings.weight_temperature > 0
  )


def _hardest(settings: ml_collections.ConfigDict, scores: Array, negative: Array) -> losses.HardNegatives:
  options = settings.margin_negatives, settings.weight_temperature, settings.differentiable_weights
  return losses.hardest_negatives(scores, negative, *options)


def _by_query(
  settings: ml_collections.ConfigDict,
  info: DatasetInfo,
  queries: Array,
  texts: Array,
  prototypes: Array,
  batch: Batch,
  pairs: triplet_pairs.Pairs,
) -> dict[str, Any]:
  """Returns both losses of each query `[B]`, and the gaps of R: how much better texts are than prototypes.

  R takes the pairs of T(q, z): its positives, and the hardest negatives by the prototypes.
  """

  def of_rows(queries, texts, prototypes, labels, rows, pairs):
    negative = ~known_columns(pairs.known, len(labels)) & (labels >= 0) & (rows >= 0)[:, None]
    by_prototype, by_text = products(queries, prototypes), products(queries, texts)
    hardest = _hardest(settings, by_prototype, negative)
    at = lambda scores, columns: jnp.take_along_axis(scores, jnp.maximum(columns, 0), axis=1)
    (columns, weights), (text_columns, text_weights) = pairs.of_prototypes, pairs.of_texts
    positives = at(by_prototype, columns)
    of_prototypes = _triplets(settings, positives, weights, hardest)
    hardest_texts = _hardest(settings, by_text, negative)
    of_texts = _triplets(settings, at(by_text, text_columns), text_weights, hardest_texts)
    some = hardest.scores > -jnp.inf
    texts_there = at(by_text, hardest.places)
    return {
      "prototype_loss": of_prototypes.sum(axis=1),
      "text_loss": of_texts.sum(axis=1),
      "positive_gaps": (at(by_text, columns) - positives, weights > 0),
      "negative_gaps": (jnp.where(some, hardest.scores, 0) - texts_there, some),
    }

  rows, whole = P("data"), P()
  if info.mesh.size > 1:  # without this, top_k would gather all scores on every device
    specs = (rows, whole, whole, whole, rows, rows)
    of_rows = jax.shard_map(of_rows, mesh=info.mesh, in_specs=specs, out_specs=rows)
  return of_rows(queries, texts, prototypes, batch.columns, batch.rows, pairs)


def _by_label(
  settings: ml_collections.ConfigDict,
  info: DatasetInfo,
  queries: Array,
  texts: Array,
  batch: Batch,
  pairs: triplet_pairs.Pairs,
) -> Array:
  """Returns T(h, q): each text's own queries, which sampled or carry its label, against its hardest others.

  It is the mean over the labels that have own queries; a label's value is the mean over these.
  """

  def of_labels(texts, labels, queries, rows, pairs, *, first=0):
    own = lambda places: jnp.where((places >= first) & (places < first + len(texts)), places - first, -1)
    negative = ~known_columns(own(pairs.known), len(texts)).T & (labels >= 0)[:, None] & (rows >= 0)
    scores = products(texts, queries)  # [S, B]
    hardest = _hardest(settings, scores, negative)
    columns = jnp.where(pairs.of_labels[1] > 0, own(pairs.of_labels[0]), -1)
    if settings.triplet_positives == "released":  # many queries may carry a label: by scores, not by pairs
      carried = known_columns(columns, len(texts)).T
      shares = carried / jnp.maximum(jnp.sum(carried, axis=1, keepdims=True), 1)
      return _triplets(settings, scores, shares, hardest).sum(), jnp.sum(jnp.any(carried, axis=1))
    counted, columns = columns >= 0, jnp.maximum(columns, 0)
    shares = jnp.zeros(len(texts)).at[columns].add(counted)
    of_pairs = jax.tree.map(lambda leaf: leaf[columns], hardest)  # [B, n, η]
    pair_scores = scores[columns, jnp.arange(len(queries))[:, None]]
    pair_weights = counted / jnp.maximum(shares[columns], 1)
    losses_of_pairs = _triplets(settings, pair_scores[..., None], pair_weights[..., None], of_pairs)
    return losses_of_pairs.sum(), jnp.sum(shares > 0)

  given = (texts, batch.columns, queries, batch.rows, pairs)
  if info.mesh.size == 1:
    summed, number = of_labels(*given)
  else:
    split, whole = P(sharding.LABEL_ROWS), P()
    specs = {"in_specs": (split, split, whole, whole, whole), "out_specs": (whole, whole)}

    @functools.partial(jax.shard_map, mesh=info.mesh, **specs)
    def of_shards(texts, labels, *given):
      first = jax.lax.axis_index(sharding.LABEL_ROWS) * len(texts)
      return jax.lax.psum(of_labels(texts, labels, *given, first=first), sharding.LABEL_ROWS)

    summed, number = of_shards(*given)
  return summed / jnp.maximum(number, 1)


def _mean_gap(settings: ml_collections.ConfigDict, gaps: Array, where: Array) -> Array:
  """Returns R_p or R_n, of which R is the average: the mean of the [gap + m']_+ that are not 0 (as released).

  Without a hinge it is the mean over all gaps (the paper's eq. 6 and 7). Without any gap it is 0.
  """
  excess = gaps + settings.regulariser_margin
  if settings.regulariser_hinge:
    where &= excess > 0
  return jnp.sum(jnp.where(where, excess, 0)) / jnp.maximum(jnp.sum(where), 1)
