"""Bytes on one device, part by part, at the three moments when a step or an evaluation takes the most."""

import math
from typing import NamedTuple

from xmc_jax.plan.activations import Kept, dropped_by_network, per_token
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

_NUMBER = 4  # bytes of a float32 or an int32
# What XLA was seen to hold while scores are multiplied back: copies of [B, chunk], and of the label
# embeddings (or their table) beside the one that is scored.
_SCORES_AT_ONCE = 2
_MORE_EMBEDDINGS = {"gpu": 1, "cpu": 1, "tpu": 0}
# Copies of the scores [B, S] that a loss picks some labels of: at least; for each way (queries to labels, and
# back); for each way of the classifiers' besides; for binary cross-entropy; and where both 'data' and 'label'
# split them and the classifiers' change hands. Seen on a CPU, taken for all.
_PICKED, _A_WAY, _A_WAY_OF_TABLE, _OF_BINARY, _HANDED_OVER = 1.0, 3.6, 2.0, 2.3, 3.0
# Copies of the scores [B, S] of a margin loss; of two kinds that are scored at once, of each.
_OF_MARGINS = 3.2
_OF_CARRIERS = 19.0  # and where all carriers of a label are its positives: PRIME, as released
# Copies of the scores [B, S + B] of labels and of other points; and where both 'data' and 'label' split them.
_OF_KEYS, _OF_SPLIT_KEYS = 4.5, 6.0
_ROWS_AT_ONCE = 2  # copies of the classifiers of a pool, which every device has; and of their gradients
_LONGEST_ROW = 10  # a batch has room for the longest row of positives: so many times the average
_SEARCH_BLOCK, _SEARCH_CHUNK = 512, 8192  # of retrieval.search and ops.top_k
_PADDING = 4.0  # tokens that a text gets on average in a width that is a multiple of 8


class Texts(NamedTuple):
  """Texts that a step encodes.

  Attributes:
    rows: on one device.
    at_once: of these, rows that are encoded together.
    tokens: of a text, on average, padding included.
    longest: of a text.
    cached: whether they are encoded in chunks, under the gradient cache.
  """

  rows: int
  at_once: int
  tokens: float
  longest: float
  cached: bool

  @property
  def size(self) -> float:
    """Bytes of their token ids and lengths."""
    return _NUMBER * self.rows * (self.tokens + 1)

  def activations(self, config, sizes: Sizes, kind: str) -> Kept:
    """Bytes until the backward pass, and more while it runs; a chunk is taken to be of the longest texts."""
    tokens = self.longest if self.cached else self.tokens
    waiting, working = (
      self.at_once * tokens * kept for kept in per_token(config, sizes.encoder, tokens, kind)
    )
    return Kept(0, waiting + working) if self.cached else Kept(waiting, working)


_NO_TEXTS = Texts(0, 0, 1.0, 1.0, False)


def query_texts(config, sizes: Sizes) -> Texts:
  """Split over 'data', copied over 'label'; none where the encoder is frozen."""
  if not trains_encoder(sizes):
    return _NO_TEXTS
  rows, chunk = batch_rows(config, sizes), setting(config, "query_chunk")
  return _texts(config, rows, config.mesh.data, chunk, sizes.tokens_per_point)


def label_texts(config, sizes: Sizes) -> Texts:
  """Split over all devices, anchors of graphs with them; none where labels have a table."""
  if config.method.labels in ("table", "in_batch_table"):
    return _NO_TEXTS
  shards = config.mesh.data * config.mesh.label
  rows = pool_size(config, sizes) + anchor_rows(config, sizes)
  return _texts(config, rows, shards, setting(config, "label_chunk"), sizes.tokens_per_label)


def _texts(config, rows: int, shards: int, chunk: int, tokens: float) -> Texts:
  """Those of a side, of which `shards` devices have a part each; `chunk` counts rows of one device."""
  longest = float(config.data.max_length)
  cached = 0 < chunk * shards < rows
  num_chunks = math.ceil(rows / (chunk * shards)) if cached else 1
  at_once = math.ceil(rows / (num_chunks * shards))
  return Texts(math.ceil(rows / shards), at_once, min(longest, tokens + _PADDING), longest, cached)


def moments(config, sizes: Sizes, kind: str) -> dict[str, dict[str, float]]:
  """Bytes of each of PARTS on one device: in a step while 'scoring' and 'encoding', and in an 'evaluation'.

  Args:
    config: of the run.
    sizes: of data and encoder.
    kind: of chip.
  """
  fixed = _fixed(config, sizes)
  return {
    "scoring": fixed | _scoring(config, sizes, kind),
    "encoding": fixed | _encoding(config, sizes, kind, fixed),
    "evaluation": fixed | _evaluation(config, sizes),
  }


def peak_of_steps(config, sizes: Sizes, kind: str) -> float:
  """Bytes on one device at the moment of a step that takes the most; chunks change nothing else."""
  every = moments(config, sizes, kind)
  return max(sum(every[moment].values()) for moment in ("scoring", "encoding"))


def peak(config, sizes: Sizes, kind: str) -> float:
  """Bytes on one device at the moment that takes the most."""
  return max(sum(parts.values()) for parts in moments(config, sizes, kind).values())


def _fixed(config, sizes: Sizes) -> dict[str, float]:
  """What is on the device all the time."""
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
    texts += _NUMBER * math.ceil(sizes.num_labels / devices) * (config.data.max_length + 1)
    cache = _embeddings(config, sizes, sizes.num_labels, devices)
  return {
    **dict.fromkeys(PARTS, 0.0),
    "parameters": _NUMBER * (trained + frozen),
    "optimiser state": 2 * _NUMBER * trained,
    "label texts": texts,
    "label ids": 5 * pool_size(config, sizes),  # int32 and a mask, copied to every device
    "label cache": cache,
    "label centroids": has_centroids * _embeddings(config, sizes, sizes.num_labels, devices),
    "queries and positives": query_texts(config, sizes).size
    + batch * (positives * 6 * _NUMBER + remembers_points(sizes) * batch_rows(config, sizes)),
  }


def _embeddings(config, sizes: Sizes, num_labels: int, shards: int, width: int = 0) -> float:
  """Bytes of so many label embeddings on a device that has one of their shards; by default those of texts."""
  return _NUMBER * math.ceil(num_labels / shards) * (width or embedding_width(config, sizes))


def _classifiers(config, sizes: Sizes) -> float:
  """Bytes of the pool's rows of a table that is trained with the encoder, or of their gradients."""
  return _ROWS_AT_ONCE * _NUMBER * pool_size(config, sizes) * classifier_dim(config, sizes)


def _scoring(config, sizes: Sizes, kind: str) -> dict[str, float]:
  """While scores are multiplied back into queries and labels."""
  label, devices = config.mesh.label, config.mesh.data * config.mesh.label
  labels, rows = scored_at_once(config, sizes), batch_rows(config, sizes) / config.mesh.data
  label = 1 if scores_whole(config) else label
  scored = _embeddings(config, sizes, labels, label)
  if config.method.labels == "table":
    embeddings = _MORE_EMBEDDINGS[kind] * scored
  elif setting(config, "num_fresh_negatives"):  # the cache as it lies on one device, gathered over several
    embeddings = 2 * scored if config.mesh.data > 1 else 0
  else:  # embedded split over all devices, and gathered over 'data'
    embeddings = scored + _MORE_EMBEDDINGS[kind] * _embeddings(config, sizes, labels, devices)
  texts = query_texts(config, sizes), label_texts(config, sizes)
  anchors = _embeddings(config, sizes, anchor_rows(config, sizes), 1)
  if remembers_points(sizes):
    copies = _OF_SPLIT_KEYS if config.mesh.data > 1 and label > 1 else _OF_KEYS
    scores = copies * math.ceil((labels + batch_rows(config, sizes)) / label)
  else:
    scores = _scores_a_row(config, sizes, math.ceil(labels / label))
  # Of a side, scores of the batch's points, or of a label of each, against as many anchors.
  scores += _OF_MARGINS * anchor_rows(config, sizes)
  return {
    "label embeddings": embeddings + anchors + _classifiers(config, sizes),
    "their gradients": scored + anchors + _classifiers(config, sizes),
    "chunk scores": _NUMBER * rows * scores,
    "activations": sum(group.activations(config, sizes, kind).waiting for group in texts)
    + _prototypes(config, sizes, kind),
  }


def _prototypes(config, sizes: Sizes, kind: str) -> float:
  """Bytes of the prototype network's activations, where labels have one; its backward pass is under way."""
  network, tokens = prototype_network(config, sizes), vectors_of_label(config)
  if not network:
    return 0.0
  rows = math.ceil(pool_size(config, sizes) / (config.mesh.data * config.mesh.label))
  dropped = dropped_by_network(config.method)
  return rows * tokens * sum(per_token(config, network, tokens, kind, dropped))


def _scores_a_row(config, sizes: Sizes, columns: int) -> float:
  """Scores of a row, copies counted, that are in memory at once where a device has so many columns."""
  if scores_whole(config):
    released = setting(config, "triplet_positives") == "released"
    carriers = released and setting(config, "reverse_weight") > 0
    return (_OF_MARGINS * _margin_ways(config) + _OF_CARRIERS * carriers) * columns
  if not picks_some(config, sizes):
    chunk = min(setting(config, "score_chunk"), columns)
    return _SCORES_AT_ONCE * chunk + columns % chunk  # the last is scored apart, in room of its own
  ways = 1 + setting(config, "symmetric")
  copies = _PICKED + _A_WAY * ways
  if classifier_dim(config, sizes):
    copies += _A_WAY_OF_TABLE * ways * (setting(config, "classifier_loss") != "binary")
    copies += _OF_BINARY * (setting(config, "binary_weight") > 0)
    copies += _HANDED_OVER * (config.mesh.data > 1 and config.mesh.label > 1)
  return copies * columns


def _margin_ways(config) -> float:
  """How often a margin loss has all scores at once; PRIME's are by prototypes, by texts, and of texts."""
  if not has_prototypes(config):
    return 1.0
  if config.mesh.data * config.mesh.label > 1:  # of texts, a device has its own
    return 2 + (setting(config, "reverse_weight") > 0) / config.mesh.label
  return 2.0 if setting(config, "reverse_weight") or setting(config, "regulariser_weight") else 1.0


def _encoding(config, sizes: Sizes, kind: str, fixed: dict) -> dict[str, float]:
  """While the encoder's backward pass runs; that of one kind of texts, while the other's waits."""
  texts = [query_texts(config, sizes), label_texts(config, sizes)]
  kept = [group.activations(config, sizes, kind) for group in texts]
  cached = any(group.cached for group in texts)
  shards = config.mesh.label * (1 if config.method.labels == "table" else config.mesh.data)
  return {
    # Under the gradient cache there is the sum over chunks, and what the present one adds.
    "gradients": (2 if cached else 1) * _NUMBER * parameters(config, sizes) * trains_encoder(sizes),
    "label texts": fixed["label texts"] + (texts[1].size if texts[1].cached else 0),
    "their gradients": _embeddings(config, sizes, pool_size(config, sizes), shards)
    + _classifiers(config, sizes),
    "activations": sum(one.waiting for one in kept) + max(one.working for one in kept),
  }


def _evaluation(config, sizes: Sizes) -> dict[str, float]:
  """While queries are ranked against all labels, and training points, embedded for that."""
  block = math.ceil(_SEARCH_BLOCK / config.mesh.data) * min(_SEARCH_CHUNK, sizes.num_labels)
  sources = opens_sources(config)
  by_paper = not sources or ranks_twice(config, sizes)
  width = sources * views_width(config, sizes) + by_paper * papers_width(config, sizes)
  of_points = (sources + by_paper * remembers_points(sizes)) * ranked_width(config, sizes)
  return {
    "label embeddings": _embeddings(config, sizes, sizes.num_labels, config.mesh.label, width),
    "points in memory": of_points
    and _embeddings(config, sizes, sizes.num_points, config.mesh.label, of_points),
    "chunk scores": 2 * _NUMBER * block,
  }
