"""Types that the subpackages of xmc_jax share. Types only: no behaviour.

Shapes: N points, L labels, B batch rows, S pool columns, T tokens, D width,
P positives, F excluded columns. Ids are int32, padded with -1.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array | np.ndarray
# What is () where a method does not ask for it, and an array where it does; whoever reads it knows which.
ArrayIfAsked = Array | Any
PyTree = Any

BATCHES, EXTRA_STATE = "batches", "extra_state"  # who gets what a refresh makes
# Names of refreshes for batches: the clusters of points, their shortlists of labels, and, before a side's
# name, which edges of a metadata graph are kept.
CLUSTERS, SHORTLIST, KEPT = "clusters", "shortlist", "kept_"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
  """Holds texts as token ids, padded on the right.

  Attributes:
    ids: `[n, T]` int32 token ids; those beyond a row's length are padding.
    lengths: `[n]` int32 number of real tokens in each row; 0 for an unused row.
    num_real_tokens: the most real tokens that the rows have together, known when a program is compiled, so
      that an encoder may pack them without padding. None means that it is unknown, for instance if rows are
      split over devices.
  """

  ids: Array
  lengths: Array
  num_real_tokens: int | None = dataclasses.field(default=None, metadata={"static": True})


class SampledAnchors(NamedTuple):
  """Holds one side of a metadata graph in a step: the anchors that were sampled for n points or labels.

  Attributes:
    rows: `[n]` int32 row of the batch, or column of its pool, of each point or label; -1 for padding.
    columns: `[S]` int32 anchor id of each column, -1 for padding.
    anchors: texts of the anchors, in groups like a batch's labels.
    positives: `[n, P]` int32 columns of the row's linked anchors, pruned edges included, -1 for padding.
    weights: `[n, P]` float32, 1 for the anchor that was sampled for the row, 0 for others.
  """

  rows: Array
  columns: Array
  anchors: tuple[Tokens, ...]
  positives: Array
  weights: Array


class Batch(NamedTuple):
  """Holds one training step's input: static shapes, a function of (seed, step, order).

  Attributes:
    rows: `[B]` int32 training rows, -1 for padding.
    queries: token groups `[n, T]`, whose rows are the batch's rows (in the order of
      `batching.length_buckets.device_major`). Each group has its own T, so that short texts are not
      padded to the longest. Empty if the encoder is frozen.
    columns: `[S]` int32 label id of each pool column, -1 for padding.
    labels: the pool's texts, in groups like the queries; empty if the method needs no texts.
    positives: `[B, P]` int32 columns of the row's true labels that are in the pool, -1 for padding; label ids
      if the method chooses negatives on the device, until it has chosen.
    weights: `[B, P]` float32 loss weight of each positive; 0 if it was not sampled in this step.
    excluded: `[B, F]` int32 columns, or ids in the same case, that the row's loss must not see (filter
      pairs: the label that is the point itself), -1 for padding.
    every_label: the texts of all L labels, `[L', T]` with L' >= L, in the order of ids, if the method
      chooses negatives on the device.
    vectors: `[B, D]` embeddings of the points, if the encoder is frozen.
    dropped: `[2]` int32 numbers of sampled hard negatives and of sampled positives that did not fit into the
      pool; empty if the pool has room for all.
    sampled_anchors: anchors of the batch's points, or of one sampled label of each, by side of a metadata
      graph.
    shared: `[B, B]` bool, which rows have a true label in common, in the pool or not; a row with labels
      shares them with itself. Empty if the method does not ask for it.
  """

  rows: Array
  queries: tuple[Tokens, ...]
  columns: Array
  labels: tuple[Tokens, ...]
  positives: Array
  weights: Array
  excluded: Array
  every_label: Tokens | tuple[()] = ()
  vectors: ArrayIfAsked = ()
  dropped: ArrayIfAsked = ()
  sampled_anchors: dict[str, SampledAnchors] | Any = ()
  shared: ArrayIfAsked = ()


class BatchSpec(NamedTuple):
  """Describes how a method wants its batches built.

  Attributes:
    labels: 'all' (every label is a column), 'in_batch' (the sampled positives), or 'table' and
      'in_batch_table' (the same without texts).
    num_positives: positives sampled per row and step; 0 means all of them.
    num_random_negatives: labels sampled uniformly and added to an in-batch pool.
    num_hard_negatives: labels sampled per row from its shortlist, `refreshed['shortlist']`, and added
      to an in-batch pool; none before there is a shortlist.
    num_fresh_negatives: labels that the method chooses on the device, from `Batch.every_label`, and adds to
      an in-batch pool.
    frozen: the encoder stays as it is: a batch has `vectors` in place of queries.
    cluster_size: points that share a batch, so many at a time, have similar lengths.
    batch_is_cluster: a batch is one cluster of the refresh 'clusters'; before there are clusters, as large a
      part of the points.
    pool_size: labels that an in-batch pool has room for; 0 is all that may be sampled. Where they are more,
      hard negatives are dropped first.
    fill_pool: what room is left goes to other positives of the batch's points.
    positive_sampling: positives are sampled 'uniform', or by 'inverse_propensity', 1 / p_l.
    graph_sides: sides of metadata graphs, 'NAME_query' or 'NAME_label', of which a batch brings anchors.
    shared: batches say which of their rows have a label in common.
  """

  labels: str = "in_batch"
  num_positives: int = 1
  num_random_negatives: int = 0
  num_hard_negatives: int = 0
  num_fresh_negatives: int = 0
  frozen: bool = False
  cluster_size: int = 1
  batch_is_cluster: bool = False
  pool_size: int = 0
  fill_pool: bool = False
  positive_sampling: str = "uniform"
  graph_sides: tuple[str, ...] = ()
  shared: bool = False


class Refresh(NamedTuple):
  """Describes an array that is recomputed between steps, from the parameters at that time.

  Attributes:
    every_epochs: the interval in epochs, counted from `first_epoch`.
    compute: `snapshot -> array`, the same on every process, or None to keep the previous one; for
      `extra_state` also a table `[n, D]` split over the processes. Missing rows become zeros there. See
      refresh/snapshot.py.
    first_epoch: when the first refresh is due.
    target: who receives the array: BATCHES, for the batch builder, or EXTRA_STATE, to replace
      `extra_state[name]`.
    every_steps: the interval in steps; if not 0, it replaces `every_epochs`.
    at_epoch_start: a refresh due inside an epoch waits for the next epoch, as it sets the order of points.
  """

  every_epochs: float
  compute: Callable[[Any], Any]
  first_epoch: float = 0.0
  target: str = BATCHES
  every_steps: int = 0
  at_epoch_start: bool = False


class DatasetInfo(NamedTuple):
  """Holds what a method may know about the data when it is built.

  Attributes:
    num_points: N, training points.
    num_labels: L.
    max_length: the most tokens per text.
    vocab_size: size of the tokenizer's vocabulary.
    special_ids: ids of the special tokens ([CLS], [SEP], ...).
    mesh: the devices, axes ('data', 'label').
    label_counts: `[L]` number of training points of each label.
    graphs: metadata graphs, by name: which of the sides 'query' and 'label' each has.
    num_labelled: number of points with a label to learn, from which batches are sampled; 0 means all.
  """

  num_points: int
  num_labels: int
  max_length: int
  vocab_size: int
  special_ids: tuple[int, ...]
  mesh: jax.sharding.Mesh
  label_counts: np.ndarray | Any = ()
  graphs: Mapping[str, tuple[str, ...]] = MappingProxyType({})
  num_labelled: int = 0


class RowUpdate(NamedTuple):
  """Holds rows that a step writes into a table of `extra_state`: a loss returns it in place of the table.

  A skipped step then writes no rows, without a second copy of the table to select from.

  Attributes:
    ids: `[R]` int32 indices of the rows in the table, none twice, -1 for padding.
    rows: `[R, D]` new values of these rows.
  """

  ids: Array
  rows: Array


class Method(NamedTuple):
  """Holds a paper's method as pure functions; docs/architecture.md tells how they are called.

  methods/dexml.py is an example.

  Attributes:
    init: `key -> (params, extra_state)`.
    loss: `(params, extra_state, batch, key) -> (loss, metrics, new_extra_state)`; in `new_extra_state` a
      RowUpdate may replace a table.
    embed_queries: `(params, extra_state, tokens) -> [n, D]`.
    embed_labels: `(params, extra_state, tokens, ids) -> [n, D]`, or `[n, D + 1]`: the last column is added to
      scores.
    batch: how batches are built.
    sharding_rules: (path regex, partition axes) pairs; the first match wins, and a path without one is an
      error.
    refreshes: what is made anew between steps, by name. Of those for batches, 'clusters' `[N]` and
      'shortlist' `[N, K]` shape these, and 'kept_SIDE' `[nnz]` says which edges of a graph's side are
      sampled.
    sparse_params: parameters with a row per label or per cluster, by name, of which a step reads and writes
      only some (row-sparse Adam): `(batch, extra_state) -> ids [R]`, padded with -1. In `loss`,
      `params[name]` is these rows `[R, D]`; everywhere else it is the whole table, padded to a multiple of
      the devices.
    scorers: the kinds of label vectors to rank by, if there are several, by name: functions like
      `embed_labels`, for the same queries. `embed_labels` is then their sum.
    embed_texts: like `embed_labels`, but from the texts alone; None if `embed_labels` uses only texts.
    extra_state_to_rank: `Snapshot -> extra_state`, which label embeddings for ranking use; None keeps the
      trained one.
    init_from_run: `Snapshot -> (params, extra_state)`: starts from the finished run that `config.init_from`
      names; None takes over its parameters only.
    load_sides: `(Dataset, points [N], run folder) -> GraphEdges by side`: the sides `batch.graph_sides` of
      metadata graphs, for these training rows; None if there are none.
    training_truth: `(truth [N, L], Dataset, points [N]) -> [N, L]` CSR, adds labels to learn; None is none.
    key_temperature: temperature of the softmax over a memory of training points and labels, which the scores
      'fused' then rank by (retrieval/key_memory.py); 0 means no memory.
  """

  init: Callable[..., tuple[PyTree, PyTree]]
  loss: Callable[..., tuple[Array, dict, PyTree]]
  embed_queries: Callable[..., Array]
  embed_labels: Callable[..., Array]
  batch: BatchSpec
  sharding_rules: tuple[tuple[str, tuple], ...]
  refreshes: Mapping[str, Refresh] = MappingProxyType({})
  sparse_params: Mapping[str, Callable[[Batch, PyTree], Array]] = MappingProxyType({})
  scorers: Mapping[str, Callable[..., Array]] = MappingProxyType({})
  embed_texts: Callable[..., Array] | None = None
  extra_state_to_rank: Callable[[Any], PyTree] | None = None
  init_from_run: Callable[[Any], tuple[PyTree, PyTree]] | None = None
  load_sides: Callable[..., Mapping[str, Any]] | None = None
  training_truth: Callable[..., Any] | None = None
  key_temperature: float = 0.0


class TrainState(NamedTuple):
  """Holds the state that training changes; it is on the devices, sharded and donated.

  Attributes:
    step: int32 scalar, number of steps done.
    params: the method's parameters.
    opt_state: optax state.
    extra_state: state that a method updates without gradients (centroids, memory banks).
  """

  step: Array
  params: PyTree
  opt_state: PyTree
  extra_state: PyTree
