"""Ranks labels by a memory of training points and label texts (RAE-XMC, Wang et al. 2025, arXiv 2502.10615).

Every training point and every label is a key. A query looks up its nearest keys. A softmax over their scores
gives each key a share, which a point passes on to its true labels, and a label to itself. docs/formulas.md,
"RAE-XMC".
"""

import json
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from jax.sharding import Mesh

from xmc_jax import metrics
from xmc_jax.errors import UserError
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.lexical import largest
from xmc_jax.retrieval.memory import Neighbors
from xmc_jax.retrieval.search import Ranking, padding
from xmc_jax.storage import atomic

GRID = (0.0, 0.02, *(round(0.05 * step, 2) for step in range(1, 21)))  # candidate weights of points
UNCHOSEN = 0.5  # the weight if there are no rows to choose it on
_BLOCK = 4096  # queries that are searched together: the search splits them over the cores
_PATIENCE = 50  # queries that are searched exactly before an index is built


class ChosenWeight(NamedTuple):
  """Holds a weight in a ranking, and how it was chosen."""

  weight: float
  metric: str = ""  # that chose it; '' if none did
  values: tuple[float, ...] = ()  # of the metric, for each candidate weight; () if none was tried

  def save(self, path: pathlib.Path) -> None:
    """Writes a JSON file, whole or not at all."""
    atomic.write_text(path, json.dumps(self._asdict()) + "\n")

  @classmethod
  def load(cls, path: pathlib.Path, most: float) -> "ChosenWeight":
    """Reads what `save` wrote.

    Raises:
      UserError: the file cannot be read, or its weight is not from 0 to `most`.
    """
    try:
      content = json.loads(path.read_text(encoding="utf-8"))
      chosen = cls(float(content["weight"]), content["metric"], tuple(content["values"]))
      if not 0 <= chosen.weight <= most:
        raise ValueError(f"weight = {chosen.weight:g} is no number from 0 to {most:g}")
      return chosen
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise UserError(f"{path}: not readable ({error}); delete it, and the weight is chosen anew") from None


class KeyMemory:
  r"""Ranks labels by the nearest keys of a query.

  .. math::
    \hat p(q) = \mathrm{softmax}(q K^\top / \tau) V, \qquad
    K = \begin{bmatrix} X \\ Z \end{bmatrix}, \qquad
    V = \begin{bmatrix} \lambda Y \\ (1 - \lambda) I \end{bmatrix}

  The softmax is over the b keys of largest inner product, points and labels together; Y holds the votes
  of points for their labels. A label that gets no share of any of these keys has probability 0 and is not
  ranked.

  Args:
    points: `[N, D]` float32, X.
    point_labels: CSR `[N, L]`, Y, from 0 to 1.
    labels: `[L, D]` float32, Z.
    temperature: τ.
    weight: λ.
    num_keys: b, at most the number of all keys.
    backend: backend of `retrieval.Index`, which searches the keys.
    devices: the mesh to search on; None is the default device.
  """

  def __init__(
    self,
    points: np.ndarray,
    point_labels: sp.csr_matrix,
    labels: np.ndarray,
    *,
    temperature: float,
    weight: float = UNCHOSEN,
    num_keys: int = 200,
    backend: str = "exact",
    devices: Mesh | None = None,
  ):
    self._num_points, self._num_labels = len(points), len(labels)
    keys = np.concatenate([np.asarray(points, np.float32), np.asarray(labels, np.float32)])
    self._index = Index(keys, backend=backend, devices=devices, name="key memory", patience=_PATIENCE)
    self._num_keys, self._temperature = min(num_keys, len(keys)), temperature
    self._truth = sp.csr_matrix(point_labels, dtype=np.float32)
    self._weight = weight

  def rank(self, queries: np.ndarray, k: int, exclude: sp.csr_matrix | None = None) -> Ranking:
    """Ranks the k most probable labels of each query.

    Args:
      queries: `[n, D]` float32.
      k: labels per query.
      exclude: CSR `[n, L]` pairs that are no candidates, neither as keys nor from points; None for none.

    Returns:
      ids and probabilities, best first, ties by rising id; padded with -1 and -inf if fewer than k labels
      have a probability above 0.
    """
    out = padding(len(queries), k)
    values = self._values(self._weight)
    for rows, shares, left_out in self._lookups(queries, exclude):
      ids, scores = largest(_without(shares @ values, left_out), k)
      out.ids[rows], out.scores[rows] = ids, np.where(ids >= 0, scores, -np.inf)
    return out

  def choose_weight(
    self,
    queries: np.ndarray,
    truth: sp.csr_matrix,
    metric: str,
    *,
    exclude: sp.csr_matrix | None = None,
    inverse_propensity: np.ndarray | None = None,
  ) -> ChosenWeight:
    """Chooses the weight of `GRID` that does best on rows outside the memory; of equal ones the first.

    Args:
      queries: `[n, D]` float32.
      truth: CSR `[n, L]`.
      metric: a metric of `metrics.evaluate`, such as 'P@1'.
      exclude: CSR `[n, L]`, as for `rank`.
      inverse_propensity: `[L]`, which metrics such as 'PSP@1' need.
    """
    if not len(queries):
      return ChosenWeight(UNCHOSEN)
    k, lookups, earned = int(metric.partition("@")[2]), list(self._lookups(queries, exclude)), []
    for weight in GRID:
      values, ids = self._values(weight), np.full((len(queries), k), -1, np.int32)
      for rows, shares, left_out in lookups:
        ids[rows] = largest(_without(shares @ values, left_out), k)[0]
      earned.append(metrics.evaluate(ids, truth, ks=(k,), inverse_propensity=inverse_propensity)[metric])
    return ChosenWeight(GRID[int(np.argmax(earned))], metric, tuple(earned))

  def _lookups(
    self, queries: np.ndarray, exclude: sp.csr_matrix | None
  ) -> Iterator[tuple[slice, sp.csr_matrix, object]]:
    """Yields `(rows, shares of the keys [b, N + L], exclude [b, L])` for each block of queries."""
    for start in range(0, len(queries), _BLOCK):
      rows = slice(start, start + _BLOCK)
      left_out = None if exclude is None or not exclude.nnz else sp.csr_matrix(exclude[rows], dtype=bool)
      yield rows, self._shares(queries[rows], left_out), left_out

  def _shares(self, queries: np.ndarray, exclude: sp.csr_matrix | None) -> sp.csr_matrix:
    """Returns CSR `[b, N + L]`, the softmax over the nearest keys of each query."""
    if exclude is not None:  # of the keys, the points come first
      points = sp.csr_matrix((len(queries), self._num_points), dtype=bool)
      exclude = sp.hstack([points, exclude], format="csr", dtype=bool)
    nearest = self._index.search(queries, self._num_keys, exclude=exclude)
    real = nearest.ids >= 0
    # Subtracts the first score of each row, the largest; rows without keys have none.
    below = np.where(real, nearest.scores - np.where(real, nearest.scores, 0)[:, :1], -np.inf)
    shares = np.exp(below / np.float32(self._temperature))
    return Neighbors(nearest.ids, shares).normalized().matrix(self._num_points + self._num_labels)

  def _values(self, weight: float) -> sp.csr_matrix:
    """Returns V, CSR `[N + L, L]`."""
    labels = sp.identity(self._num_labels, np.float32, format="csr")
    values = sp.vstack([self._truth * np.float32(weight), labels * np.float32(1 - weight)], format="csr")
    values.eliminate_zeros()  # with weight 0 or 1, one kind of keys reaches no label
    return values


def _without(values: sp.csr_matrix, exclude: sp.csr_matrix | None) -> sp.csr_matrix:
  """Returns CSR `[b, L]` values with 0 at the pairs of `exclude`."""
  return values if exclude is None else values - values.multiply(exclude)  # x - x is 0
