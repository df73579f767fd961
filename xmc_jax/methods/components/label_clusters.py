"""Clusters labels; those of a cluster share an auxiliary vector (DEXA, section 4; its Tables 6 and 7).

`extra_state['label_cluster']` `[L]` int32 holds -1 until the first refresh, which runs before the first step
and clusters the embeddings of the label texts into clusters 0 .. K-1. The clusters of head labels have the
numbers from K on. docs/formulas.md, "Module I".
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from xmc_jax import refresh
from xmc_jax.config import Key, declare
from xmc_jax.config.keys import LARGEST
from xmc_jax.console import say
from xmc_jax.distributed import sharding, split_table
from xmc_jax.types import EXTRA_STATE, Array, DatasetInfo, PyTree, Refresh

NAME = "label_cluster"
RULE = (f"(^|/){NAME}$", ())


def _length_faults(values: Mapping) -> Iterator[str]:
  names = ("num_label_clusters", "num_head_labels", "head_label_points")
  given = [name for name in names if values[f"method.{name}"]]
  if given and not values["encoder.normalize"]:
    yield (
      f"method.{given[0]} = {values[f'method.{given[0]}']}: what auxiliary vectors give has length 1, and "
      "encoder.normalize = False; set --config.encoder.normalize=True"
    )


def _number_faults(values: Mapping) -> Iterator[str]:
  clusters = values["method.num_label_clusters"]
  if clusters & (clusters - 1):
    down = 1 << (clusters.bit_length() - 1)
    nearest = down if clusters - down <= 2 * down - clusters or 2 * down > LARGEST else 2 * down
    yield (
      f"method.num_label_clusters = {clusters} is not a power of two; "
      f"the nearest that is: --config.method.num_label_clusters={nearest}"
    )
  if values["method.num_head_labels"] and values["method.head_label_points"]:
    yield (
      "method.num_head_labels and method.head_label_points both say which labels are frequent; "
      "set one of them: --config.method.head_label_points=0"
    )


SETTINGS = declare(
  checks=(_length_faults, _number_faults),
  num_label_clusters=Key(
    0, "clusters of labels, each with a learnt vector: a power of two; 0 is none", most=2**30
  ),
  label_clustering=Key(
    "balanced", "how labels are clustered", choices=("balanced", "balanced_centroids", "kmeans")
  ),
  label_clusters_every_epochs=Key(
    0.0, "epochs between clusterings of current text embeddings; 0 is once, at the start"
  ),
  num_head_labels=Key(0, "this many of the most frequent labels have a vector each"),
  head_label_points=Key(0, "labels with this many training points have a vector each; 0 is none"),
  unit_texts=Key(True, "False: text embeddings are added without scaling to length 1"),
)


def number(settings: ml_collections.ConfigDict, info: DatasetInfo) -> int:
  """Returns the number of clusters: K and the number of head labels."""
  return settings.num_label_clusters + len(head_labels(settings, info))


def head_labels(settings: ml_collections.ConfigDict, info: DatasetInfo) -> np.ndarray:
  """Returns labels with a cluster of their own, ascending: the most frequent, or those with enough points."""
  counts = np.asarray(info.label_counts)
  if settings.num_head_labels:
    return np.sort(np.argsort(-counts, kind="stable")[: settings.num_head_labels])
  return np.flatnonzero(counts >= settings.head_label_points) if settings.head_label_points else counts[:0]


def init_state(info: DatasetInfo) -> dict[str, Array]:
  """Returns `extra_state` before there are clusters."""
  return {NAME: jnp.full(info.num_labels, -1, jnp.int32)}


def first_vectors(key: Array, number: int, width: int, info: DatasetInfo) -> Array:
  """Makes a random vector for each cluster `[K', D]`, by Xavier's rule; K' is K rounded up to the devices."""
  limit = (6 / (number + width)) ** 0.5
  shape = (sharding.rounded_up(number, info.mesh.size), width)
  return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def lookup(extra_state: PyTree, labels: Array) -> Array:
  """Returns the cluster of each label; -1 for label -1, and for all labels before there are clusters."""
  return jnp.where(labels >= 0, extra_state[NAME][jnp.maximum(labels, 0)], -1)


def refreshes(config: ml_collections.ConfigDict, info: DatasetInfo) -> Mapping[str, Refresh]:
  """Returns the refresh that clusters labels: once, at the start, or every few epochs (DEXA: dynamic)."""
  settings = config.method

  def compute(snapshot: refresh.Snapshot) -> Array | None:
    before = np.asarray(jax.device_get(snapshot.extra_state[NAME]))
    if np.any(before >= 0) and not snapshot.step:  # copied from the run that this one started from
      return None
    head = head_labels(settings, info)
    rest = np.setdiff1d(np.arange(info.num_labels), head)
    found = np.full(info.num_labels, -1, np.int32)
    found[head] = settings.num_label_clusters + np.arange(len(head))
    if settings.num_label_clusters and len(rest):
      found[rest] = _of_rest(config, snapshot, rest)
    return renumbered(found, before, rest) if np.any(before[rest] >= 0) else found

  every = settings.label_clusters_every_epochs
  return {NAME: Refresh(every_epochs=every, compute=compute, target=EXTRA_STATE)}


def _of_rest(config: ml_collections.ConfigDict, snapshot: refresh.Snapshot, rest: np.ndarray) -> np.ndarray:
  """Clusters the labels that are no head labels."""
  kind, count = config.method.label_clustering, config.method.num_label_clusters
  alone = "; each has a vector of its own: fewer would be shared" if count >= len(rest) else ""
  say(f"refresh: {len(rest):,} labels in {count:,} clusters{alone}")
  key = jax.random.fold_in(jax.random.key(config.train.seed), snapshot.step)
  if kind == "kmeans":
    texts = split_table.whole(split_table.rows_of(snapshot.texts, rest))
    return refresh.spherical_kmeans(texts, min(count, len(rest)), key=key)
  vectors = snapshot.texts
  if kind == "balanced_centroids":
    vectors = refresh.label_centroids(snapshot.queries, snapshot.unfiltered_positives, lambda: snapshot.texts)
  return refresh.balanced_clusters(split_table.rows_of(vectors, rest), count, key=key)


def renumbered(new: np.ndarray, old: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Gives each new cluster the number of the old one that it shares the most labels with.

  So an auxiliary vector stays with most of its labels. Pairs of clusters are matched greedily, largest
  overlap first; clusters without a match take the numbers that are left. Labels that are not in `rows` stay
  as they are in `new` `[L]`.
  """
  pairs, overlap = np.unique(np.stack([new[rows], old[rows]]), axis=1, return_counts=True)
  number_of, taken = {}, set()
  for one, other in pairs[:, np.argsort(-overlap, kind="stable")].T.tolist():
    if one not in number_of and other not in taken:
      number_of[one] = other
      taken.add(other)
  clusters = np.union1d(new[rows], old[rows]).tolist()
  free = iter([cluster for cluster in clusters if cluster not in taken])
  for cluster in np.unique(new[rows]).tolist():
    if cluster not in number_of:
      number_of[cluster] = next(free)
  out = new.copy()
  out[rows] = [number_of[cluster] for cluster in new[rows].tolist()]
  return out
