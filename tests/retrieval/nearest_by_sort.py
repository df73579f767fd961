"""Vectors to search in, and what is nearest by a full sort."""

import numpy as np


def clustered(num_queries, num_labels, dim=16, centres=200):
  """`[N, D]` queries and `[L, D]` labels: unit vectors about common centres."""
  rng = np.random.default_rng(0)
  middles = rng.standard_normal((centres, dim))

  def drawn(count):
    vectors = middles[rng.integers(0, centres, count)] + 0.7 * rng.standard_normal((count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

  return drawn(num_queries), drawn(num_labels)


def by_hand(queries, labels, k, exclude=None):
  """Ids by a full sort, padded."""
  scores = queries @ labels.T
  if exclude is not None:
    scores[exclude.toarray()] = -np.inf
  ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
  ids = np.where(np.isfinite(np.take_along_axis(scores, ids, 1)), ids, -1)
  return np.pad(ids, ((0, 0), (0, k - ids.shape[1])), constant_values=-1)


def overlap(found, expected):
  """The part of `expected` that stands in `found`, row by row."""
  both = [np.intersect1d(a[a >= 0], b[b >= 0]).size for a, b in zip(found, expected)]
  return sum(both) / np.sum(expected >= 0)
