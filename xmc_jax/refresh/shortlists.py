"""Hard negatives: the labels that the current embeddings confuse with a point's true ones."""

import numpy as np

from xmc_jax.contract import Array, ConfigError
from xmc_jax.refresh.search import search

BACKENDS = ("auto", "exact")


def shortlist(
  queries: np.ndarray, labels: Array, k: int, *, backend: str = "auto", exclude=None, devices=None
) -> np.ndarray:
  """The k nearest labels of each query that are not excluded (ANCE, Xiong et al. 2021; DEXML, section 5.2).

  Args:
    queries: `[N, D]` float32.
    labels: `[L, D]` float32.
    k: labels per query.
    backend: 'exact' is a blocked search on the device; 'auto' is that too, as yet.
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
  if backend not in BACKENDS:
    raise ConfigError(f"shortlist backend {backend!r} is not one of {', '.join(map(repr, BACKENDS))}")
  width = min(k, len(labels))
  found = search(np.asarray(queries, np.float32), labels, width, exclude=exclude, devices=devices).ids
  return np.pad(found, ((0, 0), (0, k - width)), constant_values=-1)
