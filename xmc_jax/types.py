"""The types that the rooms of xmc_jax exchange. Types only: no behaviour, no jax.

Shapes: N points, L labels, B batch rows, S pool columns, T tokens, D width,
P positives, F excluded columns. Ids are int32, padded with -1.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Array = Any  # a numpy or a JAX array
PyTree = Any

QUERY, LABEL = "query", "label"  # what a metadata graph links to its anchors
BATCHES, EXTRA_STATE = "batches", "extra_state"  # who gets what a refresh makes
# Names of refreshes for batches: the clusters of points, their shortlists of labels, and, before a side's
# name, which edges of a metadata graph are kept.
CLUSTERS, SHORTLIST, KEPT = "clusters", "shortlist", "kept_"


class Tokens(NamedTuple):
  """Texts as token ids, padded on the right.

  Attributes:
    ids: `[n, T]` int32 token ids; what stands behind a row's length is padding.
    lengths: `[n]` int32 number of real tokens in each row; 0 for an unused row.
    space: `[P]` int8, of which only the size counts: the rows have P real tokens together at most, and an
      encoder may lay these out without padding; () says nothing of their number, as where rows are split over
      devices.
  """

  ids: Array
  lengths: Array
  space: Array | tuple[()] = ()


class Links(NamedTuple):
  """One side of a metadata graph in a step: the anchors that were drawn for n points, or labels.

  Attributes:
    rows: `[n]` int32 which of the batch's rows, or of its pool's columns, each of n is; -1 for padding.
    columns: `[S]` int32 anchor id of each column, -1 for padding.
    anchors: their texts, in groups as a batch's labels are.
    positives: `[n, P]` int32 columns of the row's linked anchors, pruned edges counted, -1 for padding.
    weights: `[n, P]` float32, 1 for the anchor that was drawn for the row, 0 for others.
  """

  rows: Array
  columns: Array
  anchors: tuple[Tokens, ...]
  positives: Array
  weights: Array


class Batch(NamedTuple):
  """One training step's input: static shapes, a function of (seed, step, order).

  Attributes:
    rows: `[B]` int32 training rows, -1 for padding.
    queries: token groups `[n, T]`, whose rows are the batch's rows (in the order of
      `data.buckets.device_major`). Each group has its own T, so that short texts do not
      pay for long ones. None where the encoder is frozen.
    columns: `[S]` int32 label id of each pool column, -1 for padding.
    labels: the pool's texts, in groups as the queries are; none where the method needs no texts.
    positives: `[B, P]` int32 columns of the row's true labels that are in the pool, -1 for padding.
    weights: `[B, P]` float32 loss weight of each of these; 0 where the positive was not drawn in this step.
    excluded: `[B, F]` int32 columns that the row's loss must not see (filter
      pairs: the label that is the point itself), -1 for padding.
    every_label: the texts of all L labels, `[L', T]` with L' >= L, in their order, where the method
      chooses among them on the device; then `positives` and `excluded` hold label ids, not columns.
    vectors: `[B, D]` embeddings of the points, where the encoder is frozen.
    dropped: `[2]` int32 hard negatives, and positives, that were drawn and found no room; empty where the
      pool has room for all.
    links: of each side of a metadata graph, by name: of the batch's points, or of a drawn label of each.
    shared: `[B, B]` bool, which rows have a true label in common, be it in the pool or not; a row has its own
      with itself. Empty where the method does not ask.
  """

  rows: Array
  queries: tuple[Tokens, ...]
  columns: Array
  labels: tuple[Tokens, ...]
  positives: Array
  weights: Array
  excluded: Array
  every_label: Tokens | tuple[()] = ()
  vectors: Array | tuple[()] = ()
  dropped: Array | tuple[()] = ()
  links: dict[str, Links] | tuple[()] = ()
  shared: Array | tuple[()] = ()


class BatchSpec(NamedTuple):
  """How a method wants its batches built.

  Attributes:
    labels: 'all' (every label is a column), 'in_batch' (the drawn positives), or 'table' and 'in_batch_table'
      (the same without texts).
    num_positives: positives drawn per row and step; 0 means all of them.
    num_random_negatives: labels drawn uniformly and added to an in-batch pool.
    num_hard_negatives: labels drawn per row from its shortlist, `fresh['shortlist']`, and added
      to an in-batch pool; none before there is a shortlist.
    num_fresh_negatives: labels that the method chooses on the device, from `Batch.every_label`, and adds to
      an in-batch pool.
    frozen: the encoder stays as it is: a batch has `vectors` in place of queries.
    cluster_size: points that share a batch, so many at a time, have similar lengths.
    batch_is_cluster: a batch is one cluster of the refresh 'clusters'; before there are clusters, as large a
      part of the points.
    pool_size: labels that an in-batch pool has room for; 0 is all that may be drawn. Where they are more,
      hard negatives are dropped first.
    fill_pool: what room is left goes to other positives of the batch's points.
    positive_sampling: positives are drawn 'uniform', or by 'inverse_propensity', 1 / p_l.
    links: sides of metadata graphs, 'NAME_query' or 'NAME_label', of which a batch brings anchors.
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
  links: tuple[str, ...] = ()
  shared: bool = False


class Refresh(NamedTuple):
  """Something that is made anew between steps, from the parameters as they are then.

  Attributes:
    every_epochs: how often; at a multiple of it after `first_epoch`.
    compute: `snapshot -> array`, the same on every process, or None to leave things as they are; see
      refresh/snapshot.py.
    first_epoch: before this there is none.
    target: who gets what it makes: BATCHES, which are then built by it, or EXTRA_STATE, where it takes the
      place of `aux[name]`.
    every_steps: how often, where it is not 0; `every_epochs` does not count then.
    at_epoch_start: what is due inside an epoch waits for the next one, because it shapes the order of points.
  """

  every_epochs: float
  compute: Callable[[Any], Array]
  first_epoch: float = 0.0
  target: str = BATCHES
  every_steps: int = 0
  at_epoch_start: bool = False


class DatasetInfo(NamedTuple):
  """Holds what a method may know of the data when it is made.

  Attributes:
    num_points: N, training points.
    num_labels: L.
    max_length: tokens per text, at most.
    vocab_size: of the tokenizer.
    special_ids: token ids that stand for no piece of text ([CLS], [SEP], ...).
    mesh: the devices, axes ('data', 'label').
    label_counts: `[L]` training points of each label.
    graphs: metadata graphs, by name: which sides each has, of 'query' and 'label'.
    num_labelled: of the N those with a label to learn, of which batches are drawn; 0 is all.
  """

  num_points: int
  num_labels: int
  max_length: int
  vocab_size: int
  special_ids: tuple[int, ...]
  mesh: Any
  label_counts: Array = ()
  graphs: Mapping[str, tuple[str, ...]] = MappingProxyType({})
  num_labelled: int = 0


class RowUpdate(NamedTuple):
  """Holds rows that a step writes into a table of `aux`: a loss returns it in the table's place.

  So a step that is left out writes none, and needs no second table to choose from.

  Attributes:
    ids: `[R]` int32 the rows' places, no id twice, -1 for none.
    rows: `[R, D]`.
  """

  ids: Array
  rows: Array


class Method(NamedTuple):
  """A paper as pure functions. docs/architecture.md tells how they are called; methods/dexml.py is one.

  Attributes:
    init: `key -> (params, aux)`.
    loss: `(params, aux, batch, key) -> (loss, metrics, new_aux)`; in `new_aux` a RowUpdate may stand for a
      table.
    embed_queries: `(params, aux, tokens) -> [n, D]`.
    embed_labels: `(params, aux, tokens, ids) -> [n, D]`.
    batch: how batches are built.
    rules: (path regex, partition axes) pairs; the first match wins, and every array has one.
    refreshes: what is made anew between steps, by name. Of those for batches, 'clusters' `[N]` and
      'shortlist' `[N, K]` shape these, and 'kept_SIDE' `[nnz]` says which edges of a graph's side are drawn.
    tables: parameters with a row per label or per cluster, by name, of which a step reads and writes only
      some (row-sparse Adam): `(batch, aux) -> ids [R]`, padded with -1. In `loss`, `params[name]` is these
      rows `[R, D]`; everywhere else it is the whole table, its rows rounded up to the devices.
    views: what labels can be ranked by, where there is more than one way, by name: functions like
      `embed_labels`, against the same queries. `embed_labels` is then their sum.
    embed_texts: like `embed_labels`, of the texts alone; None where labels are embedded by nothing else.
    aux_to_rank: `Snapshot -> aux` to embed labels by when they are ranked; None is as trained.
    adopt: `Snapshot -> (params, aux)`: begins from the finished run that `config.init_from` names, where that
      is more than to take its parameters over.
    key_temperature: of the softmax over the keys of a memory of training points and labels, by which 'fused'
      then ranks (retrieval/key_memory.py); 0 is no memory.
  """

  init: Callable[..., tuple[PyTree, PyTree]]
  loss: Callable[..., tuple[Array, dict, PyTree]]
  embed_queries: Callable[..., Array]
  embed_labels: Callable[..., Array]
  batch: BatchSpec
  rules: tuple[tuple[str, tuple], ...]
  refreshes: Mapping[str, Refresh] = MappingProxyType({})
  tables: Mapping[str, Callable[[Batch, PyTree], Array]] = MappingProxyType({})
  views: Mapping[str, Callable[..., Array]] = MappingProxyType({})
  embed_texts: Callable[..., Array] | None = None
  aux_to_rank: Callable[[Any], PyTree] | None = None
  adopt: Callable[[Any], tuple[PyTree, PyTree]] | None = None
  key_temperature: float = 0.0


class TrainState(NamedTuple):
  """Holds what training changes; lives on the devices, sharded and donated.

  Attributes:
    step: int32 scalar, steps done.
    params: the method's parameters.
    opt_state: optax state.
    aux: what a method updates without gradients (centroids, memory banks).
  """

  step: Array
  params: PyTree
  opt_state: PyTree
  aux: PyTree
