"""Computes losses of a batch's queries against a pool of labels; columns of the pool are their positives.

docs/formulas.md, "From rows to a batch" and docs/formulas.md, "Temperature".
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import PartitionSpec as P

from xmc_jax import ops
from xmc_jax.batching.positives import num_sampled
from xmc_jax.config import Key, declare
from xmc_jax.losses.margin import margin_from_positives
from xmc_jax.ops import precision
from xmc_jax.types import Array, Batch, DatasetInfo

_MARGINS = ("margin", "dynamic_margin")  # losses of cosines, which have no temperature


def _temperature_faults(values: Mapping) -> Iterator[str]:
  """Yields faults: unit vectors need a small τ, raw products one near 1; a bag's short means take any."""
  unit, temperature = values["encoder.normalize"], values["method.temperature"]
  if values["method.allow_any_temperature"] or values["method.loss"] in _MARGINS:
    return
  override = "or --config.method.allow_any_temperature=True if you mean it"
  if unit and temperature > 0.5:
    yield (
      f"method.temperature = {temperature} is too flat for unit vectors (encoder.normalize = True; at most "
      f"0.5): set --config.method.temperature=0.05, or --config.encoder.normalize=False, {override}"
    )
  if not unit and temperature < 0.5 and values["encoder.name"] != "bag":
    yield (
      f"method.temperature = {temperature} saturates raw dot products (encoder.normalize = False; at least "
      f"0.5): set --config.method.temperature=1, or --config.encoder.normalize=True, {override}"
    )


def cosine_faults(values: Mapping) -> Iterator[str]:
  """Yields a fault if the loss compares cosines and embeddings are not of length 1."""
  if values["method.loss"] in _MARGINS and not values["encoder.normalize"]:
    yield (
      f"method.loss = {values['method.loss']!r} compares cosines, and encoder.normalize = False; "
      "set --config.encoder.normalize=True"
    )


def _margin_faults(values: Mapping) -> Iterator[str]:
  counts = values["method.margin_positives"], values["method.num_positives"]
  if values["method.loss"] == "margin" and values["method.margin_mean"] == "all" and not any(counts):
    yield (
      "method.margin_mean = 'all' needs to know how many positives a row's mean is over, and "
      "method.margin_positives and method.num_positives = 0; set --config.method.margin_mean=existing, or "
      "--config.method.margin_positives=3"
    )


# For methods whose loss has no temperature.
TEMPERATURE_OF_RANKING = Key(0.05, "τ of eval.log_frequency's cos/τ; the loss has none", above=0)
SCORES = declare(
  checks=(_temperature_faults,),
  temperature=Key(0.05, "τ: scores are divided by it", above=0),
  allow_any_temperature=Key(False, "True: any temperature, unit vectors or not"),
)
SCORES_IN_CHUNKS = declare(
  SCORES,
  score_chunk=Key(0, "labels scored at a time, on each device: memory is O(batch * score_chunk)"),
  keep_scores=Key(
    -1,
    "1: a step keeps its scores, batch * labels numbers on each device; 0: every pass over labels computes "
    "them again, in less memory and more time; -1: 1 where they fit",
    least=-1,
    most=1,
  ),
  score_precision=Key(
    precision.AUTO,
    "how float32 scores are multiplied on an accelerator: in 6, 3 or 1 products of bfloat16 parts; auto: 3",
    choices=precision.NAMES,
  ),
)
TRIPLETS = declare(
  checks=(cosine_faults,),
  margin=Key(0.3, "loss = margin: how far a negative should stay below a positive, in cosine"),
  margin_negatives=Key(10, "how many of the hardest negatives of the pool count", least=1),
  weight_temperature=Key(
    0.1, "temperature of the softmax that weights negatives in the margin; 0: all count 1, as printed"
  ),
  differentiable_weights=Key(False, "True: the gradient goes through these weights (NGAME's released code)"),
)
MARGIN = declare(
  TRIPLETS,
  checks=(_margin_faults,),
  margin_positives=Key(0, "how many of the lowest-scoring sampled positives of a row count; 0 is all"),
  margin_mean=Key(
    "existing",
    "the mean is over the pairs that a row has, or over margin_positives * margin_negatives ('all')",
    choices=("existing", "all"),
  ),
)


def mean_over_rows(per_row: Array, batch: Batch) -> Array:
  """Returns the mean over the batch's rows, without padding."""
  return jnp.sum(per_row) / jnp.maximum(jnp.sum(batch.rows >= 0), 1)


def sampled_positives(batch: Batch, most: int) -> tuple[Array, Array]:
  """Returns `(columns [B, n], weights [B, n])` of at most `most` sampled positives of a row; 0 is all.

  Weight 0 is no positive. A batch's pool may hold far more positives of a row than the row sampled.
  """
  weights = jnp.where(batch.positives >= 0, batch.weights, 0.0)
  if not 0 < most < weights.shape[1]:
    return batch.positives, weights
  weights, places = jax.lax.top_k(weights, most)
  return jnp.take_along_axis(batch.positives, places, axis=1), weights


def known_columns(columns: Array, num_columns: int, values: Array | bool = True) -> Array:
  """Returns `[B, S]` with True, or `values` `[B, P]`, at each row's columns `[B, P]`; -1 is no column."""
  rows = jnp.arange(len(columns))[:, None]
  places = jnp.where(columns >= 0, columns, num_columns)
  nothing = jnp.zeros((len(columns), num_columns), jnp.result_type(values))
  return nothing.at[rows, places].set(values, mode="drop")


def products(queries: Array, labels: Array) -> Array:
  """Returns `[B, S]` inner products of `[B, D]` and `[S, D]`, in float32 on any device."""
  return jnp.einsum("bd,sd->bs", queries, labels, precision="highest")


def log_negatives_per_positive(batch: Batch) -> Array:
  """Returns log(S / P) for a pool of S labels with P true ones a row, the prior of binary cross-entropy.

  Less this prior, scores of 0 expect as many true labels as there are. It has no parameter.
  """
  labels, rows = jnp.sum(batch.columns >= 0), jnp.sum(batch.rows >= 0)
  return jnp.log(labels * rows / jnp.maximum(jnp.sum(batch.positives >= 0), 1))


def pool_loss(
  config: ml_collections.ConfigDict,
  info: DatasetInfo,
  loss: str,
  queries: Array,
  labels: Array,
  batch: Batch,
  bias: Array | None = None,
  **options: Any,
) -> Array:
  """Returns losses `[B]` of queries `[B, D]` against the pool's labels `[S, D]`; 0 for padding rows.

  Positives that were not sampled stay in softmax's denominator (DEXML, eq. 4). Decoupled softmax (eq. 5) and
  the margin leave them out, and so does SoftTop-k, as its authors' code does (eq. 6 takes all): they are not
  pushed below the threshold. Binary cross-entropy takes all positives, sampled or not.

  Args:
    config, info: of the run, and of its data.
    loss: 'margin', or a kind of `ops.streaming_loss`, which gets `options`. 'margin' has one option,
      `num_positives`: how many of a row's lowest-scoring positives count, at most.
    queries, labels: embeddings; for 'margin' of length 1.
    batch: says which columns are the positives of each row.
    bias: `[L]` that is added to the scores of labels, or None; 'margin' has none.
  """
  if loss == "margin":
    return jnp.where(batch.rows >= 0, _margin(config.method, info, queries, labels, batch, **options), 0.0)
  settings = config.method
  positives, weights = batch.positives, batch.weights
  if loss in ("softmax", "soft_top_k"):  # only sampled positives have a term
    positives, weights = sampled_positives(batch, num_sampled(settings))
    positives = jnp.where(weights > 0, positives, -1)
  if loss == "binary" and settings.get("binary_prior"):
    options["prior"] = log_negatives_per_positive(batch)
  unsampled = jnp.where(batch.weights > 0, -1, batch.positives) if loss == "soft_top_k" else None
  per_row = ops.streaming_loss(
    loss,
    queries,
    labels,
    positives,
    chunk=settings.score_chunk or len(labels),
    precision=settings.score_precision,
    keeps_scores=settings.keep_scores > 0,
    temperature=settings.temperature,
    weights=None if loss == "binary" else weights,
    excluded=batch.excluded,
    unsampled=unsampled,
    bias=None if bias is None else bias[jnp.maximum(batch.columns, 0)],
    where=batch.columns >= 0,
    mesh=info.mesh if info.mesh.size > 1 else None,
    **options,
  )
  return jnp.where(batch.rows >= 0, per_row, 0.0)


def _margin(
  settings: ml_collections.ConfigDict,
  info: DatasetInfo,
  queries: Array,
  labels: Array,
  batch: Batch,
  num_positives: int | None = None,
) -> Array:
  """Computes NGAME's loss of each row, by cosine; the pool is small enough to score at once."""

  most = (settings.margin_positives or settings.num_positives) if num_positives is None else num_positives

  def of_rows(queries, labels, columns, positives, weights, excluded):
    scores = jnp.matmul(queries, labels.T, precision="highest")  # in float32 on any device
    known = jnp.concatenate([positives, excluded], axis=1)
    return margin_from_positives(
      jnp.take_along_axis(scores, jnp.maximum(positives, 0), axis=1),
      jnp.where(positives >= 0, weights, 0.0),
      scores,
      ~known_columns(known, len(labels)) & (columns >= 0),
      margin=settings.margin,
      num_negatives=settings.margin_negatives,
      weight_temperature=settings.weight_temperature,
      differentiable_weights=settings.differentiable_weights,
      num_positives=most,
      margin_mean=settings.margin_mean,
    )

  rows, whole = P("data"), P()
  if info.mesh.size > 1:  # without this, top_k would gather all scores on every device
    specs = (rows, whole, whole, rows, rows, rows)
    of_rows = jax.shard_map(of_rows, mesh=info.mesh, in_specs=specs, out_specs=rows)
  return of_rows(queries, labels, batch.columns, batch.positives, batch.weights, batch.excluded)
