"""The true labels of points, without the pairs that count neither as a hit nor as a miss."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
  import scipy.sparse as sp


def unfiltered(truth: "sp.csr_matrix", filter_pairs: "sp.csr_matrix") -> "sp.csr_matrix":
  """Returns CSR `[N, L]`, true labels without the filter pairs: those to learn, and those that are hits.

  Args:
    truth: CSR `[N, L]` relevance of each true label.
    filter_pairs: CSR `[N, L]` bool.
  """
  left = truth - truth.multiply(filter_pairs)
  left.eliminate_zeros()
  left.sort_indices()
  return left.tocsr()
