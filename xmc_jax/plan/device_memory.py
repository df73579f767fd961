"""Estimates bytes on one device, by part, at the three moments that take the most memory."""

import math

import ml_collections

from xmc_jax.plan.activations import dropped_by_network, per_token
from xmc_jax.plan.shapes import (
  anchor_rows,
  batch_rows,
  classifier_dim,
  embedding_width,
  has_prototypes,
  opens_sources,
  papers_width,
  parameters,
  picks_some,
  pool_size,
  prototype_network,
  ranked_width,
  ranks_twice,
  remembers_points,
  row_sparse,
  scored_at_once,
  scores_whole,
  setting,
  trains_encoder,
  vectors_of_label,
  views_width,
)
from xmc_jax.plan.sizes import Sizes
from xmc_jax.plan.texts import label_texts, query_texts
from xmc_jax.retrieval.search import BLOCK, BLOCK_OF_ACCELERATORS

PARTS = (
  "parameters",
  "optimiser state",
  "gradients",
  "label texts",
  "label ids",
  "label cache",
  "label centroids",
  "queries and positives",
  "label embeddings",
  "points in memory",
  "their gradients",
  "chunk scores",
  "activations",
)

_BYTES_PER_NUMBER = 4  # bytes of a float32 or an int32
# Measured with XLA in the backward pass of the scores: copies of [B, chunk], and extra copies of the label
# embeddings (or their table).
_SCORES_AT_ONCE = 2
_MORE_EMBEDDINGS = {"gpu": 1, "cpu": 1, "tpu": 0}
# Copies of the scores [B, S] if `picks_some`: always; per direction (queries to labels, and back); extra per
# direction for classifiers; extra for binary cross-entropy; extra if both 'data' and 'label' split the scores
# and devices exchange the classifiers'. Measured on a CPU, used for all.
_PICKED, _PER_WAY, _PER_WAY_OF_TABLE, _OF_BINARY, _EXCHANGED = 1.0, 3.6, 2.0, 2.3, 3.0
# Copies of the scores [B, S] of a margin loss, for each kind of scores that it holds at once.
_OF_MARGINS = 2.1
_OF_ALL_POSITIVES = 19.0  # extra if all points with a label are its positives (PRIME's released code)
# Copies of the scores [B, S + B] of labels and points; the second if 'data' and 'label' both split them.
_OF_KEYS, _OF_SPLIT_KEYS = 4.5, 6.0
_ROWS_AT_ONCE = 2  # copies of a pool's classifiers on every device, and as many of their gradients
_LONGEST_ROW = 10  # times the average row of positives: assumed for the longest, which a batch has room for
_SEARCH_CHUNK = 8192  # of ops.top_k


def moments(config: ml_collections.ConfigDict, sizes: Sizes, kind: str) -> dict[str, dict[str, float]]:
  """Returns bytes on one device by moment ('scoring' and 'encoding' of a step, 'evaluation') and by PARTS.

  Args:
    config: the run's config.
    sizes: of data and encoder.
    kind: kind of the chip.
  """
  fixed = _fixed(config, sizes)
  return {
    "scoring": fixed | _scoring(config, sizes, kind),
    "encoding": fixed | _encoding(config, sizes, kind, fixed),
    "evaluation": fixed | _evaluation(config, sizes, kind),
  }


def peak_of_steps(config: ml_collections.ConfigDict, sizes: Sizes, kind: str) -> float:
  """Returns the most bytes that a step takes on one device; chunk sizes change no other moment."""
  every = moments(config, sizes, kind)
  return max(sum(every[moment].values()) for moment in ("scoring", "encoding"))


def peak(config: ml_collections.ConfigDict, sizes: Sizes, kind: str) -> float:
  """Returns the bytes on one device at the moment that takes the most."""
  return max(sum(parts.values()) for parts in moments(config, sizes, kind).values())


def _fixed(config: ml_collections.ConfigDict, sizes: Sizes) -> dict[str, float]:
  """Returns the bytes, by part, that are on the device all the time."""
  width, batch = embedding_width(config, sizes), batch_rows(config, sizes) / config.mesh.data
  table = 0
  if config.method.labels == "table":
    table = math.ceil(sizes.num_labels / config.mesh.label) * (width + 1)
  dense, sparse = parameters(config, sizes) + table, row_sparse(config, sizes)
  frozen = sparse + dense if not trains_encoder(sizes) else 0  # the encoder and its label vectors
  trained = sparse + (dense if trains_encoder(sizes) else 0)
  positives = _LONGEST_ROW * sizes.labels_per_point
  texts, cache, devices = label_texts(config, sizes).size, 0.0, config.mesh.data * config.mesh.label
  has_centroids = config.method.get("centroids", "none") != "none"
  if setting(config, "num_fresh_negatives"):  # then the texts of all labels are there too
    texts += _BYTES_PER_NUMBER * math.ceil(sizes.num_labels / devices) * (config.data.max_length + 1)
    cache = _embeddings(config, sizes, sizes.num_labels, devices)
  return {
    **dict.fromkeys(PARTS, 0.0),
    "parameters": _BYTES_PER_NUMBER * (trained + frozen),
    "optimiser state": 2 * _BYTES_PER_NUMBER * trained,
    "label texts": texts,
    "label ids": 5 * pool_size(config, sizes),  # int32 and a mask, copied to every device
    "label cache": cache,
    "label centroids": has_centroids * _embeddings(config, sizes, sizes.num_labels, devices),
    "queries and positives": query_texts(config, sizes).size
    + batch * (positives * 6 * _BYTES_PER_NUMBER + remembers_points(sizes) * batch_rows(config, sizes)),
  }


def _embeddings(
  config: ml_collections.ConfigDict, sizes: Sizes, num_labels: int, shards: int, width: int = 0
) -> float:
  """Returns the bytes of one shard of `num_labels` label embeddings; the default width is that of texts."""
  return _BYTES_PER_NUMBER * math.ceil(num_labels / shards) * (width or embedding_width(config, sizes))


def _classifiers(config: ml_collections.ConfigDict, sizes: Sizes) -> float:
  """Returns the bytes of the pool's classifiers that are trained with the encoder, or of their gradients."""
  return _ROWS_AT_ONCE * _BYTES_PER_NUMBER * pool_size(config, sizes) * classifier_dim(config, sizes)


def _scoring(config: ml_collections.ConfigDict, sizes: Sizes, kind: str) -> dict[str, float]:
  """Returns the bytes, by part, in the backward pass from scores to queries and labels."""
  label, devices = config.mesh.label, config.mesh.data * config.mesh.label
  labels, rows = scored_at_once(config, sizes), batch_rows(config, sizes) / config.mesh.data
  label = 1 if scores_whole(config) else label
  scored = _embeddings(config, sizes, labels, label)
  if config.method.labels == "table":
    embeddings = _MORE_EMBEDDINGS[kind] * scored
  elif setting(config, "num_fresh_negatives"):  # the cache as it lies on one device, gathered over several
    embeddings = 2 * scored if config.mesh.data > 1 else 0
  else:  # computed in shards on all devices, then gathered over 'data'
    embeddings = scored + _MORE_EMBEDDINGS[kind] * _embeddings(config, sizes, labels, devices)
  texts = query_texts(config, sizes), label_texts(config, sizes)
  anchors = _embeddings(config, sizes, anchor_rows(config, sizes), 1)
  if remembers_points(sizes):
    copies = _OF_SPLIT_KEYS if config.mesh.data > 1 and label > 1 else _OF_KEYS
    scores = copies * math.ceil((labels + batch_rows(config, sizes)) / label)
  else:
    scores = _scores_per_row(config, sizes, math.ceil(labels / label))
  # Each side scores the batch's points, or one label of each, against as many anchors.
  scores += _OF_MARGINS * anchor_rows(config, sizes)
  return {
    "label embeddings": embeddings + anchors + _classifiers(config, sizes),
    "their gradients": scored + anchors + _classifiers(config, sizes),
    "chunk scores": _BYTES_PER_NUMBER * rows * scores,
    "activations": sum(group.activations(config, sizes, kind).waiting for group in texts)
    + _prototypes(config, sizes, kind),
  }


def _prototypes(config: ml_collections.ConfigDict, sizes: Sizes, kind: str) -> float:
  """Returns the activations' bytes of a prototype network in its backward pass; 0 if there is none."""
  network, tokens = prototype_network(config, sizes), vectors_of_label(config)
  if not network:
    return 0.0
  rows = math.ceil(pool_size(config, sizes) / (config.mesh.data * config.mesh.label))
  dropped = dropped_by_network(config.method)
  return rows * tokens * sum(per_token(config, network, tokens, kind, dropped))


def _scores_per_row(config: ml_collections.ConfigDict, sizes: Sizes, columns: int) -> float:
  """Returns how many scores of a row a device with this many columns holds at once, copies included."""
  if scores_whole(config):
    released = setting(config, "triplet_positives") == "released"
    all_positive = released and setting(config, "reverse_weight") > 0
    return (_OF_MARGINS * _num_margin_scores(config) + _OF_ALL_POSITIVES * all_positive) * columns
  if not picks_some(config, sizes):
    chunk = min(setting(config, "score_chunk") or columns, columns)  # a method without it scores all at once
    keeps = setting(config, "keep_scores") > 0
    kept = columns if keeps else columns % chunk  # or the last chunk, which has scores of its own
    return _SCORES_AT_ONCE * chunk + kept
  ways = 1 + setting(config, "symmetric")
  copies = _PICKED + _PER_WAY * ways
  if classifier_dim(config, sizes):
    copies += _PER_WAY_OF_TABLE * ways * (setting(config, "classifier_loss") != "binary")
    copies += _OF_BINARY * (setting(config, "binary_weight") > 0)
    copies += _EXCHANGED * (config.mesh.data > 1 and config.mesh.label > 1)
  return copies * columns


def kept_scores(config: ml_collections.ConfigDict, sizes: Sizes) -> float:
  """Returns how many scores a device keeps through a step (`method.keep_scores`)."""
  if setting(config, "keep_scores") <= 0 or scores_whole(config) or picks_some(config, sizes):
    return 0
  rows, columns = batch_rows(config, sizes) / config.mesh.data, scored_at_once(config, sizes)
  return rows * math.ceil(columns / config.mesh.label)


def _num_margin_scores(config: ml_collections.ConfigDict) -> float:
  """Returns how many kinds of scores a margin loss holds at once; PRIME scores prototypes and texts."""
  if not has_prototypes(config):
    return 1.0
  if config.mesh.data * config.mesh.label > 1:  # of texts, a device has its own
    return 2 + (setting(config, "reverse_weight") > 0) / config.mesh.label
  return 2.0 if setting(config, "reverse_weight") or setting(config, "regulariser_weight") else 1.0


def _encoding(config: ml_collections.ConfigDict, sizes: Sizes, kind: str, fixed: dict) -> dict[str, float]:
  """Returns the bytes, by part, in the encoder's backward pass for queries or labels; the others wait."""
  texts = [query_texts(config, sizes), label_texts(config, sizes)]
  kept = [group.activations(config, sizes, kind) for group in texts]
  cached = any(group.cached for group in texts)
  shards = config.mesh.label * (1 if config.method.labels == "table" else config.mesh.data)
  return {
    # The gradient cache needs the sum over chunks and the gradients of the current chunk.
    "gradients": (2 if cached else 1) * _BYTES_PER_NUMBER * parameters(config, sizes) * trains_encoder(sizes),
    "label texts": fixed["label texts"] + (texts[1].size if texts[1].cached else 0),
    "their gradients": _embeddings(config, sizes, pool_size(config, sizes), shards)
    + _classifiers(config, sizes),
    "activations": sum(one.waiting for one in kept) + max(one.working for one in kept),
  }


def _evaluation(config: ml_collections.ConfigDict, sizes: Sizes, kind: str) -> dict[str, float]:
  """Returns the bytes, by part, while queries are ranked against all labels and, if used, training points."""
  queries = BLOCK if kind == "cpu" else BLOCK_OF_ACCELERATORS
  block = math.ceil(queries / config.mesh.data) * min(_SEARCH_CHUNK, sizes.num_labels)
  sources = opens_sources(config)
  by_paper = not sources or ranks_twice(config, sizes)
  width = sources * views_width(config, sizes) + by_paper * papers_width(config, sizes)
  of_points = (sources + by_paper * remembers_points(sizes)) * ranked_width(config, sizes)
  return {
    "label embeddings": _embeddings(config, sizes, sizes.num_labels, config.mesh.label, width),
    "points in memory": of_points
    and _embeddings(config, sizes, sizes.num_points, config.mesh.label, of_points),
    "chunk scores": 2 * _BYTES_PER_NUMBER * block,
  }
