"""Computes pick-some-labels: a multi-class loss averaged over the positives in a batch's pool (UniDEC)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from xmc_jax.types import Array


def pick_some_labels(
  scores: Array, labels: Array, loss: Callable[..., Array], *, where: Array | None = None
) -> Array:
  r"""Computes the mean of a loss over the rows of a batch that have a positive in its pool.

  .. math::
    \mathcal{L}_\mathrm{PSL} = \frac{1}{|\{i : P_i^B \neq \emptyset\}|} \sum_{i : P_i^B \neq \emptyset}
      \frac{1}{|P_i^B|} \sum_{p \in P_i^B} \ell(s_i, p)

  :math:`P_i^B` are all true labels of row i in the pool, also those that came there as samples or as hard
  negatives of another row. The rows are queries and the columns labels. With `scores.T`, `labels.T` and
  `where.T` it is the other way round: the rows are the pool's labels, the positives are the batch's queries
  that have them, and labels that no query has add nothing.

  Args:
    scores: `[B, S]` scores of every row of the batch for every label of the pool.
    labels: `[B, S]` in {0, 1}, 1 for a true label.
    loss: of one row, `(scores [S], labels [S], where=[S]) -> scalar`, which takes the mean over positives by
      itself; such as `losses.decoupled_softmax`, `losses.softmax` (SupCon), or `losses.binary`, a sum over S.
    where: `[B, S]` bool, True for a real entry; others are as if not there. By default all are real.

  Returns:
    A scalar; 0, with gradient 0, where no row has a positive.

  Example:
    >>> from xmc_jax import losses
    >>> scores, labels = [[0.0, 0.0], [0.0, 0.0]], [[1, 0], [0, 0]]  # the second row has no positive
    >>> losses.pick_some_labels(scores, labels, losses.softmax)  # log 2
    Array(0.6931472, dtype=float32)

  References:
    Kharbanda et al., `UniDEC: Unified Dual Encoder and Classifier Training for Extreme Multi-Label
    Classification <https://arxiv.org/abs/2405.03714>`_, section 3.1, which has a sum over the rows.
    docs/formulas.md, "Pick-some-labels".
  """
  scores, labels = jnp.asarray(scores), jnp.asarray(labels)
  where = jnp.broadcast_to(True if where is None else jnp.asarray(where), scores.shape)
  per_row = jax.vmap(lambda scores, labels, where: loss(scores, labels, where=where))(scores, labels, where)
  counts = jnp.any((labels > 0) & where, axis=1)
  return jnp.sum(jnp.where(counts, per_row, 0)) / jnp.maximum(jnp.sum(counts), 1)
