"""Clusters of equal sizes and spherical k-means: sizes, blobs, bounded work, and a plain NumPy reference."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from xmc_jax.refresh import balanced_clusters, halving, spherical_kmeans
from xmc_jax.refresh import clusters as clustering

KEY = jax.random.key(0)
SIZES = (0, 1, 2, 3, 7, 33, 40)  # few, as each compiles


def _vectors(num_vectors, dim=5, seed=0):
  return np.random.default_rng(seed).standard_normal((num_vectors, dim)).astype(np.float32)


def _blobs(num_blobs, size, seed=0):
  """`size` vectors near each axis, in random order and of random length, and the axis of each."""
  rng = np.random.default_rng(seed)
  blobs = rng.permutation(np.repeat(np.arange(num_blobs), size))
  vectors = np.eye(num_blobs)[blobs] + 0.1 * rng.standard_normal((len(blobs), num_blobs))
  return (vectors * rng.uniform(0.1, 10, (len(blobs), 1))).astype(np.float32), blobs


def _similarity(vectors, clusters):
  """The mean cosine of a vector to the centroid of its cluster."""
  units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  sums = np.zeros((clusters.max() + 1, vectors.shape[1]))
  np.add.at(sums, clusters, units)
  return np.linalg.norm(sums, axis=1).sum() / len(vectors)


def _check_balance(clusters, num_vectors, num_clusters):
  assert clusters.shape == (num_vectors,) and clusters.dtype == np.int32
  while num_clusters:  # also of every level above
    sizes = np.bincount(clusters, minlength=num_clusters)
    assert len(sizes) == num_clusters and sizes.max() - sizes.min() <= 1
    clusters, num_clusters = clusters // 2, num_clusters // 2


def _same_partition(clusters, others):
  pairs = set(zip(clusters.tolist(), others.tolist()))
  return len(pairs) == len(set(clusters.tolist())) == len(set(others.tolist()))


@pytest.mark.slow
@hypothesis.given(
  st.sampled_from(SIZES), st.integers(0, 6), st.sampled_from([1, 2, 3, 10**6]), st.integers(0, 9)
)
@hypothesis.settings(max_examples=80)
def test_any_vectors_are_shared_out(num_vectors, depth, values, seed):
  """In clusters whose sizes differ by at most one; few values make many equal vectors, and zero ones."""
  rng = np.random.default_rng(seed)
  vectors = rng.integers(0, values, (num_vectors, 5)).astype(np.float32)
  _check_balance(balanced_clusters(vectors, 1 << depth, key=KEY), num_vectors, 1 << depth)


@pytest.mark.slow
@pytest.mark.parametrize("value", [1e-38, 3e38])
def test_equal_vectors_are_shared_out(value):
  vectors = np.full((13, 5), value, np.float32)
  _check_balance(balanced_clusters(vectors, 8, key=KEY), 13, 8)
  _check_balance(balanced_clusters(vectors, 64, key=KEY), 13, 64)


@pytest.mark.slow
def test_parts_and_samples_keep_the_balance_and_the_blobs(monkeypatch):
  """Groups larger than a part and than the sample, of sizes that do not divide."""
  vectors, blobs = _blobs(4, 50)
  monkeypatch.setattr(halving, "_PART_BYTES", vectors.nbytes // 7)
  monkeypatch.setattr(halving, "SAMPLE", 60)
  jax.clear_caches()
  assert _same_partition(balanced_clusters(vectors, 4, key=KEY), blobs)
  _check_balance(balanced_clusters(vectors[:-9], 8, key=KEY), 191, 8)
  jax.clear_caches()


def test_halves_of_a_group_do_not_depend_on_the_other_groups():
  """As processes halve different groups."""
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(64, 43, 6)) + 0.1 * np.arange(64)[:, None, None]  # some take longer than others
  rows = jnp.asarray(rows / np.linalg.norm(rows, axis=2, keepdims=True), jnp.float32)
  order = jnp.arange(64 * 43, dtype=jnp.int32).reshape(64, 43)
  together = halving.halve([(rows, order)], 1)
  alone = [halving.halve([(rows[group, None], order[group, None])], 1) for group in range(64)]
  np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("seed", range(5))
def test_blobs_are_the_clusters(seed):
  vectors, blobs = _blobs(8, 20, seed)
  assert _same_partition(balanced_clusters(vectors, 8, key=jax.random.key(seed)), blobs)


def test_length_and_a_rotation_do_not_matter():
  vectors, _ = _blobs(8, 20)
  clusters = balanced_clusters(vectors, 8, key=KEY)
  rotation = np.linalg.qr(_vectors(8, 8))[0].astype(np.float32)
  rotated = vectors @ rotation * 1e20
  assert _same_partition(balanced_clusters(rotated, 8, key=KEY), clusters)


def test_the_key_decides():
  vectors = _vectors(160)
  clusters = balanced_clusters(vectors, 8, key=KEY)
  np.testing.assert_array_equal(clusters, balanced_clusters(vectors.copy(), 8, key=jax.random.key(0)))
  np.testing.assert_array_equal(clusters, balanced_clusters(vectors.astype(np.float64), 8, key=KEY))
  assert not _same_partition(clusters, balanced_clusters(vectors, 8, key=jax.random.key(1)))


def test_siblings_have_adjacent_numbers():
  """Blobs within two far groups: the first halving parts the groups, and the numbers tell."""
  vectors, blobs = _blobs(8, 20)
  group = blobs % 2
  vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) + 3 * np.eye(8)[group][:, ::-1]
  clusters = balanced_clusters(vectors, 8, key=KEY)
  assert _same_partition(clusters // 4, group)


def _reference_halves(units, rng):
  """NGAME's balanced 2-means in float64, iterated until nothing changes."""
  order = np.arange(len(units))
  centroids, last = units[rng.choice(len(units), 2, replace=False)], None
  for _ in range(100):
    order = np.argsort(units @ (centroids[1] - centroids[0]), kind="stable")
    if last is not None and set(order[: len(order) // 2]) == last:
      break
    last = set(order[: len(order) // 2])
    sums = [units[half].sum(0) for half in np.array_split(order, 2)]
    centroids = np.array([total / np.linalg.norm(total) for total in sums])
  return np.array_split(order, 2)


def _reference(vectors, num_clusters, seed):
  units = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
  rng, groups = np.random.default_rng(seed), [np.arange(len(units))]
  while len(groups) < num_clusters:
    groups = [group[half] for group in groups for half in _reference_halves(units[group], rng)]
  clusters = np.empty(len(units), np.int32)
  for cluster, group in enumerate(groups):
    clusters[group] = cluster
  return clusters


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_clusters_are_as_close_as_those_of_a_plain_implementation(seed):
  rng = np.random.default_rng(seed)
  centres = rng.standard_normal((30, 16))
  vectors = (centres[rng.integers(0, 30, 800)] + 0.7 * rng.standard_normal((800, 16))).astype(np.float32)
  starts = range(6)  # one run differs from another by more than the margin
  own = [balanced_clusters(vectors, 32, key=jax.random.key(start)) for start in starts]
  references = [_reference(vectors, 32, start) for start in starts]
  means = [np.mean([_similarity(vectors, clusters) for clusters in found]) for found in (own, references)]
  assert means[0] >= means[1] - 0.002


@pytest.mark.parametrize("num_vectors", [160, 161])
def test_halves_are_parted_along_the_difference_of_their_centroids(num_vectors):
  """Where Lloyd's iterations have come to rest, no vector is nearer to the other half than one of that."""
  vectors = _blobs(2, 90)[0][:num_vectors]
  clusters = balanced_clusters(vectors, 2, key=KEY)
  units = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
  first, second = (units[clusters == half] for half in (0, 1))
  centroids = [half.sum(0) / np.linalg.norm(half.sum(0)) for half in (first, second)]
  direction = centroids[0] - centroids[1]
  assert (first @ direction).min() >= (second @ direction).max() - 1e-6


@pytest.mark.parametrize("num_clusters", [12, 0, -4])
def test_another_number_of_clusters_is_an_error(num_clusters):
  with pytest.raises(ValueError, match=f"={num_clusters} is not a power of two"):
    balanced_clusters(_vectors(20), num_clusters, key=KEY)


@pytest.mark.parametrize("cluster", [balanced_clusters, spherical_kmeans])
def test_vectors_that_are_not_finite_are_an_error(cluster):
  vectors = _vectors(20)
  vectors[[7, 9], 2] = np.nan, np.inf
  with pytest.raises(ValueError, match="in 2 rows, first in row 7"):
    cluster(vectors, 2, key=KEY)


@pytest.mark.parametrize("num_clusters", [1, 3, 20])
def test_kmeans_ends_with_each_vector_in_its_nearest_cluster(num_clusters):
  vectors = _vectors(60)
  clusters = spherical_kmeans(vectors, num_clusters, key=KEY, num_iterations=100)
  assert clusters.dtype == np.int32 and set(clusters) == set(range(num_clusters))
  units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  centroids = np.stack([units[clusters == cluster].sum(0) for cluster in range(num_clusters)])
  cosines = units @ (centroids / np.linalg.norm(centroids, axis=1, keepdims=True)).T
  assert (np.take_along_axis(cosines, clusters[:, None], 1)[:, 0] >= cosines.max(1) - 1e-6).all()


@pytest.mark.slow
def test_kmeans_in_blocks_is_the_same_and_the_key_decides(monkeypatch):
  vectors = _vectors(60)
  clusters = spherical_kmeans(vectors, 7, key=KEY)
  assert not _same_partition(clusters, spherical_kmeans(vectors, 7, key=jax.random.key(1)))
  monkeypatch.setattr(clustering, "_SCORE_BYTES", 7 * 4 * 13)
  jax.clear_caches()
  np.testing.assert_array_equal(clusters, spherical_kmeans(vectors, 7, key=KEY))
  jax.clear_caches()


def test_kmeans_refills_clusters_that_lost_all_vectors():
  """Equal vectors as seeds: one cluster takes them all, the others start again where vectors are alone."""
  vectors = np.concatenate([np.tile([[1.0, 0, 0, 0]], (50, 1)), np.eye(4)[1:]])
  clusters = spherical_kmeans(vectors, 4, key=KEY)
  assert _same_partition(clusters, np.argmax(vectors, axis=1))


def test_kmeans_of_equal_vectors_ends():
  assert len(set(spherical_kmeans(np.ones((9, 3)), 4, key=KEY, num_iterations=10**6))) == 1


@pytest.mark.parametrize("num_clusters", [0, 21])
def test_kmeans_of_another_number_of_clusters_is_an_error(num_clusters):
  with pytest.raises(ValueError, match="from 1 to the number of vectors, 20"):
    spherical_kmeans(_vectors(20), num_clusters, key=KEY)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_rounding_does_not_choose(seed):
  """Which of two equal halves comes first does not hang by an error of 1e-6 in the vectors."""
  rng = np.random.default_rng(seed)
  vectors = (1 + rng.normal(size=(180, 16))).astype(np.float32)
  others = vectors * (1 + 1e-6 * rng.normal(size=vectors.shape).astype(np.float32))
  one, two = (balanced_clusters(each, 64, key=jax.random.key(seed)) for each in (vectors, others))
  np.testing.assert_array_equal(one, two)
