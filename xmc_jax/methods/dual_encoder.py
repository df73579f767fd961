"""What DEXML, DPR and ANCE share: one encoder for points and labels, a loss over a pool of labels."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from xmc_jax import models, ops, refresh
from xmc_jax.contract import Array, Batch, BatchSpec, DatasetInfo, Method, Refresh
from xmc_jax.ops.grad_cache import embed_groups


def make(config, info: DatasetInfo, *, loss: str, batch: BatchSpec, **loss_options) -> Method:
  """A dual encoder.

  Args:
    config: `config.encoder` and what `config.method` says of temperature, chunks and dropout are used.
    info: of the data.
    loss: a kind of `ops.streaming_loss`; `loss_options` go there.
    batch: how batches are built; hard negatives bring their refresh with them.
  """
  encoder = models.build(config.encoder, vocab_size=info.vocab_size, special_ids=info.special_ids)
  settings = config.method

  def init(key):
    return encoder.init(key), {}

  def total_loss(params, aux, fresh, batch, key):
    query_key, label_key = jax.random.split(key)
    queries = embed_groups(
      encoder.embed, params, batch.queries, query_key, chunk=settings.query_chunk, devices=info.mesh
    )
    labels = embed_groups(
      encoder.embed,
      params,
      batch.labels,
      label_key if settings.dropout_on_labels else None,
      chunk=settings.label_chunk,
      devices=info.mesh,
      axes=("label", "data"),
    )
    per_row = pool_loss(config, info, loss, queries, labels, batch, **loss_options)
    return mean_over_rows(per_row, batch), {}, aux

  return Method(
    init=init,
    loss=total_loss,
    embed_queries=lambda params, aux, tokens: encoder.embed(params, tokens),
    embed_labels=lambda params, aux, tokens, ids: encoder.embed(params, tokens),
    batch=batch,
    rules=((".*", ()),),
    refreshes=shortlists(config) if batch.num_hard_negatives else {},
  )


def pool_loss(
  config, info: DatasetInfo, loss: str, queries: Array, labels: Array, batch: Batch, **options
) -> Array:
  """`[B]` losses of queries `[B, D]` against the pool's labels `[S, D]`; padding rows have 0."""
  settings = config.method
  excluded, where = batch.excluded, batch.columns >= 0
  if loss == "softmax":  # METHODS: what was not drawn is left out of the denominator
    undrawn = jnp.where(batch.weights > 0, -1, batch.positives)
    excluded = jnp.concatenate([excluded, undrawn], axis=1)
  per_row = ops.streaming_loss(
    loss,
    queries,
    labels,
    batch.positives,
    chunk=settings.score_chunk,
    temperature=settings.temperature,
    weights=None if loss == "binary" else batch.weights,
    excluded=excluded,
    where=where,
    mesh=info.mesh if info.mesh.size > 1 else None,
    **options,
  )
  return jnp.where(batch.rows >= 0, per_row, 0.0)


def mean_over_rows(per_row: Array, batch: Batch) -> Array:
  """The mean over the batch's rows, padding apart."""
  return jnp.sum(per_row) / jnp.maximum(jnp.sum(batch.rows >= 0), 1)


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
    )
  }
