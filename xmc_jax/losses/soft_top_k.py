"""Computes SoftTop-k, a differentiable filter for the k best scores of a row, and a loss on it (DEXML)."""

import functools

import jax
import jax.numpy as jnp

from xmc_jax.losses._inputs import as_rows, positive_weights
from xmc_jax.ops.soft_top_k_threshold import locate, log_odds, reduce_rows, shifted, tally
from xmc_jax.types import Array


def soft_top_k(
  scores: Array, k: float | Array, *, alpha: float | Array = 1.0, where: Array | None = None
) -> Array:
  r"""Computes a weight in (0, 1) for each score, near 1 for the k best; the weights of a row sum to k.

  .. math::
    z_i = \sigma(\alpha (s_i + t)), \qquad t \text{ such that } \sum_i z_i = k

  The gradient is that of the definition, not of the search for t: with
  :math:`v_i = \alpha z_i (1 - z_i)`, the Jacobian is
  :math:`\mathrm{diag}(v) - v v^\top / \sum_i v_i`. It can be differentiated again, forwards and backwards.

  Args:
    scores: `[..., L]` scores, any float type; computed in float32 at least.
    k: how many, a number or `[...]`, one per row; it need not be whole. Where it reaches the number of real
      entries, t would be infinite and is 10 / alpha beyond the lowest score; where it is 0, as far below the
      highest. A constant for the gradient, as is alpha.
    alpha: sharpness, a positive number or `[...]`.
    where: `[..., L]` bool, True for a real entry; others are as if not there,
      whatever their score. By default all are real.

  Returns:
    `[..., L]` weights, 0 outside `where`.

  Example:
    >>> from xmc_jax import losses
    >>> losses.soft_top_k([9.0, 1.0, 1.0, -99.0], 2, alpha=4.0)  # the second place is shared
    Array([1. , 0.5, 0.5, 0. ], dtype=float32)

  References:
    Gupta et al., `Dual-Encoders for Extreme Multi-Label Classification
    <https://arxiv.org/abs/2310.10636>`_, ICLR 2024, section 4.3 and eq. 7. docs/formulas.md, "SoftTop-k".
  """
  return jax.nn.sigmoid(_logits(scores, k, alpha, where))


def log_soft_top_k(
  scores: Array, k: float | Array, *, alpha: float | Array = 1.0, where: Array | None = None
) -> Array:
  r"""Computes the logarithm of `soft_top_k`, accurate even where the weight itself rounds to 0.

  .. math::
    \log z_i = -\log\bigl(1 + e^{-\alpha (s_i + t)}\bigr)

  Args:
    scores: `[..., L]` scores, as for `soft_top_k`.
    k: a number or `[...]`, as there.
    alpha: a positive number or `[...]`, as there.
    where: `[..., L]` bool, as there.

  Returns:
    `[..., L]` logarithms, -inf (with gradient 0) outside `where`.

  Example:
    >>> from xmc_jax import losses
    >>> losses.log_soft_top_k([300.0, 100.0, -100.0], 1)[1:]  # t is -200
    Array([-100., -300.], dtype=float32)

  References:
    Gupta et al., `Dual-Encoders for Extreme Multi-Label Classification
    <https://arxiv.org/abs/2310.10636>`_, ICLR 2024, section 4.3.
  """
  logits = _logits(scores, k, alpha, where)
  real = logits > -jnp.inf
  return jnp.where(real, jax.nn.log_sigmoid(jnp.where(real, logits, 0)), -jnp.inf)


def soft_top_k_loss(
  scores: Array,
  labels: Array,
  k: float | Array,
  *,
  alpha: float | Array = 1.0,
  weights: Array | None = None,
  where: Array | None = None,
) -> Array:
  r"""Computes the log-loss of a row's positives under SoftTop-k: near 0 when all are among the k best.

  .. math::
    \ell(s, y) = -\sum_{j \in P} w_j \log z_j, \qquad z = \mathrm{SoftTop}_k(s)

  A row with more than k positives makes them compete for its k places. The paper's eq. 6 has 1 / L in place
  of the weights.

  Args:
    scores: `[..., L]` scores, any float type; computed in float32 at least.
    labels: `[..., L]` in {0, 1}, 1 for a true label.
    k: how many, a number or `[...]`, as for `soft_top_k`.
    alpha: sharpness, a positive number or `[...]`.
    weights: `[..., L]` weight of each positive, ignored elsewhere; by default
      labels / max(1, number of positives in the row).
    where: `[..., L]` bool, True for a real entry; others are as if not there,
      whatever their score. By default all are real.

  Returns:
    `[...]` loss of each row; 0, with gradient 0, for a row without positives.

  Example:
    >>> from xmc_jax import losses
    >>> losses.soft_top_k_loss([[0.0, 0.0, 0.0, 0.0]], [[1, 0, 0, 0]], k=2)  # log 2: half of the places
    Array([0.6931472], dtype=float32)

  References:
    Gupta et al., `Dual-Encoders for Extreme Multi-Label Classification
    <https://arxiv.org/abs/2310.10636>`_, ICLR 2024, eq. 6. docs/formulas.md, "SoftTop-k".
  """
  rows = as_rows(scores, labels, where)
  log_z = log_soft_top_k(rows.scores, k, alpha=alpha, where=where)
  surprise = jnp.where(rows.positive, -log_z, 0)
  return jnp.sum(positive_weights(rows, weights) * surprise, axis=-1)


def _logits(scores: Array, k: float | Array, alpha: float | Array, where: Array | None) -> Array:
  """Computes α (s + t) `[..., L]`, -inf where there is no entry."""
  scores = jnp.asarray(scores)
  scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
  if where is not None:
    scores = jnp.where(where, scores, -jnp.inf)
  k, alpha = (jax.lax.stop_gradient(jnp.asarray(value, scores.dtype)) for value in (k, alpha))
  k, alpha = (jnp.broadcast_to(value, scores.shape[:-1]) for value in (k, alpha))
  center, offset = _threshold(scores, k, alpha)
  return shifted(scores, center, offset, alpha)


@jax.custom_jvp
@jax.jit
def _threshold(scores: Array, k: Array, alpha: Array) -> tuple[Array, Array]:
  """Finds each row's threshold as `(center, offset)` for `shifted`, `[...]` each; -inf means no entry."""
  real = lambda block: block > -jnp.inf
  peak, bottom = reduce_rows(
    lambda block: (block, jnp.where(real(block), -block, -jnp.inf)), scores, by="max"
  )
  (count,) = reduce_rows(lambda block: (real(block).astype(block.dtype),), scores)
  peak, floor = jnp.where(count > 0, peak, 0), jnp.where(count > 0, -bottom, 0)

  def measure_around(center):
    to_logits = lambda offset: lambda block: shifted(block, center, offset, alpha)
    return lambda offset: log_odds(tally(scores, to_logits(offset)), k, count)

  center, offset, unfelt = locate(measure_around, k, count, peak, floor, alpha)
  in_gap = functools.partial(_center_in_gap, scores, center, alpha)
  return center, jax.lax.cond(jnp.any(unfelt), in_gap, lambda offset, _: offset, offset, unfelt)


def _center_in_gap(scores: Array, center: Array, alpha: Array, offset: Array, unfelt: Array) -> Array:
  """Moves the offset of the rows `unfelt`: there the threshold is so far from all entries that z is 0 or 1.

  The threshold is where Σ (1 - z) over the entries above it equals Σ z over those below it: near the middle
  of the gap, closer to the side that has fewer entries at the border.
  """
  to_logits = lambda block: shifted(block, center, offset, alpha)

  def borders(block):
    logits = to_logits(block)
    return jnp.where(logits > 0, -logits, -jnp.inf), jnp.where(logits > 0, -jnp.inf, logits)

  minus_lowest, highest = reduce_rows(borders, scores, by="max")
  middle, half = (highest - minus_lowest) / 2, -(highest + minus_lowest) / 2

  def decays(block):
    logits = to_logits(block)
    decay = jnp.exp(half[..., None] - jnp.abs(logits - middle[..., None]))
    return jnp.where(logits > 0, decay, 0), jnp.where(logits > 0, 0, decay)

  above, below = reduce_rows(decays, scores)
  return jnp.where(unfelt, offset - middle + (jnp.log(above) - jnp.log(below)) / 2, offset)


@_threshold.defjvp
def _threshold_jvp(primals, tangents):
  """Differentiates the threshold: Σ z stays k, so dt = -Σ v ds / Σ v. The center counts as a constant."""
  scores, _, alpha = primals
  center, offset = _threshold(*primals)
  share = _share_of_slope(scores, center, offset, alpha)
  d_offset = -alpha * jnp.sum(share * tangents[0], axis=-1)
  return (center, offset), (jnp.zeros_like(center), d_offset)


@jax.jit
def _share_of_slope(scores: Array, center: Array, offset: Array, alpha: Array) -> Array:
  """Computes v / Σ v `[..., L]` for v = σ(x) σ(-x), as a softmax: never 0 / 0, even for extreme logits x."""
  distance = lambda block: jnp.abs(shifted(block, center, offset, alpha))
  # It scales numerator and denominator equally, so no gradient has to flow through it.
  (nearest,) = reduce_rows(lambda block: (jax.lax.stop_gradient(-distance(block)),), scores, by="max")
  nearest = jnp.where(jnp.isfinite(nearest), -nearest, 0)[..., None]

  def relative(block):
    # log v = -|x| - 2 log(1 + e^-|x|); the largest -|x| is subtracted before any term can become 0.
    decay = jnp.exp(nearest - distance(block))
    return decay / (1 + decay * jnp.exp(-nearest)) ** 2

  (total,) = reduce_rows(lambda block: (relative(block),), scores)
  return relative(scores) / jnp.where(total > 0, total, 1)[..., None]
