"""Finds the nearest labels by inner product, block by block, on one device or a mesh."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from xmc_jax.types import Array

_BLOCK = 16  # columns that are searched together
_FEW = (32, 96)  # numbers of blocks that are searched, if no row needs more


def top_k(
  queries: Array,
  labels: Array,
  k: int,
  *,
  chunk: int = 8192,
  mesh: Mesh | None = None,
  num_valid: int | Array | None = None,
  recall: float = 1.0,
) -> tuple[Array, Array]:
  r"""Finds the k labels of largest inner product with each query; exactly, unless `recall` is below 1.

  .. math::
    \mathrm{ids}_b = \operatorname{argtop}_k \, \{ \langle q_b, z_l \rangle : l < \mathrm{num\_valid} \}

  Labels are scored `chunk` at a time and merged into a running best k, so that
  memory beside the inputs is O(B · (chunk + k)), never O(B · L); a caller with
  very many queries passes them in blocks. Products and sums are float32 for
  inputs of any type. Equal scores are returned in the order of their label ids.

  Over a mesh with axes ('data', 'label'), queries are split over 'data' and
  labels over 'label': every device searches its own labels, and the devices' best
  k are gathered and merged. B and L need not divide by the mesh. Ids and ties are
  those of one device.

  Args:
    queries: `[B, D]`, finite.
    labels: `[L, D]`, finite up to `num_valid`.
    k: labels to return; may exceed L.
    chunk: labels scored at once, on each device.
    mesh: devices to use; by default the device of the inputs.
    num_valid: labels from here on are padding and never returned; by default L.
      Its value may change without a new compilation.
    recall: the share of the k labels that are found, at least, on average. Below 1 a TPU selects in one pass
      (`jax.lax.approx_max_k`): any of them may be missing, ties come in any order. Other devices find all.

  Returns:
    `(scores, ids)`, float32 `[B, k]` and int32 `[B, k]`, best first. Where there
    are fewer than k labels, the rest is -inf and -1.

  Example:
    >>> import jax.numpy as jnp
    >>> scores, ids = top_k(jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 5.0], [3.0, 0.0], [1.0, 0.0]]), k=2)
    >>> ids
    Array([[1, 0]], dtype=int32)
  """
  queries, labels = jnp.asarray(queries), jnp.asarray(labels)
  if queries.ndim != 2 or labels.ndim != 2 or queries.shape[1] != labels.shape[1]:
    raise ValueError(f"queries [B, D] and labels [L, D] do not match: {queries.shape}, {labels.shape}")
  if k < 1 or chunk < 1:
    raise ValueError(f"k and chunk must be at least 1, got k={k}, chunk={chunk}")
  if not 0 < recall <= 1:
    raise ValueError(f"recall={recall} must be above 0 and at most 1")
  num_valid = jnp.asarray(labels.shape[0] if num_valid is None else num_valid, jnp.int32)
  if mesh is None:
    return _search(queries, labels, num_valid, k=k, chunk=chunk, recall=recall)
  return _search_mesh(queries, labels, num_valid, k=k, chunk=chunk, recall=recall, mesh=mesh)


@functools.partial(jax.jit, static_argnames=("k", "chunk", "recall"))
def _search(
  queries: Array, labels: Array, num_valid: Array, *, k: int, chunk: int, recall: float
) -> tuple[Array, Array]:
  """Runs `top_k` on one device."""
  num_labels = labels.shape[0]
  num_chunks = -(-num_labels // chunk)
  chunk = min(chunk, num_labels)
  queries = queries.astype(jnp.float32)

  def merge_chunk(i, best):
    best_scores, best_ids = best
    # The last chunk is moved back to end with the table, so that the table needs no
    # padded copy; the columns that it shares with the chunk before do not count.
    start = jnp.minimum(i * chunk, num_labels - chunk)
    ids = start + jnp.arange(chunk, dtype=jnp.int32)
    block = jax.lax.dynamic_slice_in_dim(labels, start, chunk).astype(jnp.float32)
    scores = jnp.einsum("bd,ld->bl", queries, block, precision=jax.lax.Precision.HIGHEST)
    # lax.top_k ranks -0.0 below 0.0, although they are equal.
    scores = jnp.where(scores == 0, 0, scores)
    scores = jnp.where((ids >= i * chunk) & (ids < num_valid), scores, -jnp.inf)
    merge = _merge if recall == 1 or chunk <= k else functools.partial(_merge_nearly, recall=recall)
    return merge(best_scores, best_ids, scores, start)

  nothing = jnp.full((queries.shape[0], k), -jnp.inf), jnp.full((queries.shape[0], k), -1, jnp.int32)
  return jax.lax.fori_loop(0, num_chunks, merge_chunk, nothing)


def _merge(best_scores: Array, best_ids: Array, scores: Array, start: Array) -> tuple[Array, Array]:
  """Merges the best k found before `[B, k]` with a chunk's scores `[B, n]`, whose ids begin at `start`.

  Selecting among all n costs more than scoring them, and few labels of a later chunk are better than the k-th
  found before. If no row has more than a few blocks with such a label, only these blocks are searched.
  """
  k, num_blocks = best_scores.shape[1], scores.shape[1] // _BLOCK

  def select(candidates, column):
    # The labels found before have lower ids: they come first, and win ties. They fill
    # k places, some with -inf, so a column that does not count is never chosen.
    found, places = jax.lax.top_k(jnp.concatenate([best_scores, candidates], axis=1), k)
    kept = jnp.take_along_axis(best_ids, jnp.minimum(places, k - 1), axis=1)
    return found, jnp.where(places < k, kept, start + column(jnp.maximum(places - k, 0)))

  def among_all():
    return select(scores, lambda places: places)

  if scores.shape[1] % _BLOCK or num_blocks <= max(_FEW):
    return among_all()
  rises = scores.reshape(-1, num_blocks, _BLOCK).max(axis=2) > best_scores[:, -1:]

  def among(count):
    # Blocks with a better label come first, in their order, so that ties stay in the order of ids.
    keys = jnp.where(rises, jnp.arange(num_blocks, 0, -1, dtype=jnp.float32), 0)
    blocks = jax.lax.top_k(keys, count)[1]
    columns = (blocks[:, :, None] * _BLOCK + jnp.arange(_BLOCK)).reshape(-1, count * _BLOCK)
    candidates = jnp.take_along_axis(scores, columns, axis=1)
    return select(candidates, lambda places: jnp.take_along_axis(columns, places, axis=1))

  most = jnp.max(jnp.sum(rises, axis=1), initial=0)
  branches = [functools.partial(among, count) for count in _FEW]
  return jax.lax.switch(sum(most > count for count in _FEW), [*branches, among_all])


def _merge_nearly(
  best_scores: Array, best_ids: Array, scores: jax.Array, start: Array, *, recall: float
) -> tuple[Array, Array]:
  """Merges as `_merge` does, but finds only a part of a chunk's best k on a TPU (Chern et al., 2022)."""
  k = best_scores.shape[1]
  found, columns = jax.lax.approx_max_k(scores, k, recall_target=recall)
  # Places that are still empty come first, so a column that does not count is never chosen.
  best, places = jax.lax.top_k(jnp.concatenate([best_scores, found], axis=1), k)
  ids = jnp.concatenate([best_ids, start + columns.astype(jnp.int32)], axis=1)
  return best, jnp.take_along_axis(ids, places, axis=1)


@functools.partial(jax.jit, static_argnames=("k", "chunk", "recall", "mesh"))
def _search_mesh(
  queries: Array, labels: Array, num_valid: Array | int, *, k: int, chunk: int, recall: float, mesh: Mesh
) -> tuple[Array, Array]:
  """Runs `top_k` over a mesh."""
  num_queries = queries.shape[0]
  queries = _pad_rows(queries, mesh.shape["data"])
  labels = _pad_rows(labels, mesh.shape["label"])
  num_valid = jnp.minimum(num_valid, labels.shape[0])

  @functools.partial(
    jax.shard_map,
    mesh=mesh,
    in_specs=(P("data", None), P("label", None), P()),
    out_specs=P("data", None),
    check_vma=False,  # the gathered results are equal over 'label', but JAX cannot check that
  )
  def search_shard(queries, labels, num_valid):
    first = jax.lax.axis_index("label") * labels.shape[0]
    scores, ids = _search(queries, labels, num_valid - first, k=k, chunk=chunk, recall=recall)
    ids = jnp.where(ids < 0, -1, ids + first)
    # Shards are gathered in the order of their ids, so ties break as on one device.
    scores, ids = jax.lax.all_gather((scores, ids), "label", axis=1, tiled=True)
    scores, places = jax.lax.top_k(scores, k)
    return scores, jnp.take_along_axis(ids, places, axis=1)

  scores, ids = search_shard(queries, labels, num_valid)
  return scores[:num_queries], ids[:num_queries]


def _pad_rows(table: Array, multiple: int) -> Array:
  """Appends zero rows to `[n, D]` until n divides by `multiple`."""
  return jnp.pad(table, ((0, -table.shape[0] % multiple), (0, 0)))
