"""The true labels of points, less the pairs that are neither hit nor miss."""


def unfiltered(truth, filter_pairs):
  """Returns CSR `[N, L]` true labels less the filter pairs: what can be learnt, and what counts as a hit.

  Args:
    truth: CSR `[N, L]` relevance of each true label.
    filter_pairs: CSR `[N, L]` bool.
  """
  left = truth - truth.multiply(filter_pairs)
  left.eliminate_zeros()
  left.sort_indices()
  return left.tocsr()
