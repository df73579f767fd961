"""Builders of batches over made-up data, and what their texts must be."""

import numpy as np
import scipy.sparse as sp
import tiny_runs

from xmc_jax.batching.builder import BatchBuilder


def truth_of_counts(counts, num_labels: int, seed: int = 0) -> sp.csr_matrix:
  """Returns `[N, L]` random labels, so many of each point."""
  rng, counts = np.random.default_rng(seed), np.asarray(counts)
  columns = np.concatenate([rng.permutation(num_labels)[:count] for count in counts])
  rows = np.repeat(np.arange(len(counts)), counts)
  return sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), (len(counts), num_labels))


def builder_of(truth, spec, lengths=None, excluded=None, label_lengths=None, **options) -> BatchBuilder:
  """Returns a builder over texts of 3 tokens, or of other lengths."""
  tables = (
    tiny_runs.token_table([3] * truth.shape[0] if lengths is None else lengths),
    tiny_runs.token_table([3] * truth.shape[1] if label_lengths is None else label_lengths, seed=1),
  )
  excluded = sp.csr_matrix(truth.shape, dtype=bool) if excluded is None else excluded
  options = {"batch_size": 8, "max_length": 8, "seed": 0} | options
  return BatchBuilder(*tables, truth, excluded, spec, **options)


def assert_texts(groups, table, rows, num_shards: int = 1, max_length: int = 32) -> None:
  """Asserts that groups hold the texts of these rows, cut at `max_length` alone, as the devices hold them."""
  of_devices, start = np.reshape(rows, (num_shards, -1)), 0
  for group in groups:
    count = len(group.lengths) // num_shards
    own = of_devices[:, start : start + count].ravel()
    np.testing.assert_array_equal(group.ids, table.gather(own, group.ids.shape[1]).ids)
    np.testing.assert_array_equal(group.lengths, table.gather(own, max_length).lengths)
    start += count
  assert start == of_devices.shape[1]
