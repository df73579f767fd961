"""Hard negatives: the labels that the current embeddings confuse with a point's true ones."""

import numpy as np

from xmc_jax.retrieval.index import Index
from xmc_jax.types import Array


def shortlist(
  queries: np.ndarray, labels: Array, k: int, *, backend: str = "auto", exclude=None, devices=None
) -> np.ndarray:
  """The k nearest labels of each query that are not excluded (ANCE, Xiong et al. 2021; DEXML, section 5.4).

  An `Index` is made for them, and searched once. The same input gives the same shortlists; ties stand in any
  order.

  Args:
    queries: `[N, D]` float32.
    labels: `[L, D]` float32.
    k: labels per query.
    backend: 'exact', 'scann' or 'auto', as an `Index` takes them.
    exclude: CSR `[N, L]` pairs to leave out, such as the true labels; None for none.
    devices: the mesh to search on; None is the device that `labels` are on.

  Returns:
    ids `[N, k]` int32, best first, padded with -1 where fewer than k labels are left: never with a label.

  Raises:
    ConfigError: no such backend.

  Example:
    >>> import numpy as np
    >>> shortlist(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 2)
    array([[0, 1],
           [1, 0]], dtype=int32)
  """
  width = min(k, len(labels))
  found = Index(labels, backend=backend, devices=devices, name="shortlist").search(queries, width, exclude)
  return np.pad(found.ids, ((0, 0), (0, k - width)), constant_values=-1)
