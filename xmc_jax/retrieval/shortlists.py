"""Finds hard negatives: labels that the current embeddings rank high for a point but that are not true."""

import numpy as np
import scipy.sparse as sp
from jax.sharding import Mesh

from xmc_jax.distributed import runtime, split_table
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.retrieval.index import RECALL, Index
from xmc_jax.retrieval.search import search


def shortlist(
  queries: Table,
  labels: Table,
  k: int,
  *,
  backend: str = "auto",
  exclude: sp.csr_matrix | None = None,
  devices: Mesh | None = None,
) -> np.ndarray:
  """Finds the k nearest labels of each query, without excluded pairs (ANCE; DEXML, section 5.4).

  Searches an `Index`, or on a TPU by `search` alone. The same input gives the same shortlists, except for the
  order of ties. docs/formulas.md, "Shortlists".

  Args:
    queries: `[N, D]` float32; may be split over the processes, as labels may. By ScaNN, each process then
      finds the labels of its own queries, and holds all labels meanwhile.
    labels: `[L, D]` float32.
    k: labels per query.
    backend: 'exact', 'scann' or 'auto', as for `Index`; with 'auto' a TPU finds 95 % of them on average, in
      one pass over the scores: negatives are sampled from a shortlist, so a missing one hardly matters.
    exclude: CSR `[N, L]` pairs to leave out, such as the true labels; None for none.
    devices: the mesh to search on; None is the device that `labels` are on.

  Returns:
    ids `[N, k]` int32, best first, padded with -1 if fewer than k labels are left.

  Raises:
    ConfigError: the backend is unknown.

  Example:
    >>> import numpy as np
    >>> shortlist(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 2)
    array([[0, 1],
           [1, 0]], dtype=int32)
  """
  width, name = min(k, len(labels)), "shortlist"
  if backend == "scann" and isinstance(queries, SplitTable):
    index = Index(split_table.whole(labels), backend=backend, name=name)
    own = exclude if exclude is None else exclude[queries.own_rows]
    ids = queries.gather(index.search(queries.own, width, own).ids)
  elif backend == "auto" and runtime.device()[0] == "tpu":
    ids = search(queries, labels, width, exclude=exclude, devices=devices, recall=RECALL).ids
  else:
    ids = Index(labels, backend=backend, devices=devices, name=name).search(queries, width, exclude).ids
  return np.pad(ids, ((0, 0), (0, k - width)), constant_values=-1)
