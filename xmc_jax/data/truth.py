"""The true labels of points, without the pairs that count neither as a hit nor as a miss."""


def unfiltered(truth, filter_pairs):
  """Returns CSR `[N, L]`, true labels without the filter pairs: those to learn, and those that are hits.

  Args:
    truth: CSR `[N, L]` relevance of each true label.
    filter_pairs: CSR `[N, L]` bool.
  """
  left = truth - truth.multiply(filter_pairs)
  left.eliminate_zeros()
  left.sort_indices()
  return left.tocsr()
