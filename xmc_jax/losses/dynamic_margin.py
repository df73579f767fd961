"""Computes PRIME's triplet loss: the further a positive is behind a negative, the larger its margin."""

from typing import Any

import jax
import jax.numpy as jnp

from xmc_jax.losses import _inputs as row_forms
from xmc_jax.losses._hard_negatives import HardNegatives, hardest_negatives
from xmc_jax.types import Array


def dynamic_margin(
  scores: Array,
  labels: Array,
  *,
  minimum: float = 0.1,
  maximum: float = 0.3,
  num_negatives: int = 100,
  weight_temperature: float = 0.1,
  differentiable_weights: bool = False,
  weights: Array | None = None,
  where: Array | None = None,
) -> Array:
  r"""Sums weighted triplets of each positive and the row's hardest negatives, with a margin for each pair.

  .. math::
    \ell(s, y) = \sum_{p \in P} w_p \sum_{n \in V_p} \omega_{pn} (s_n - s_p + m_{pn}), \qquad
    m_{pn} = \operatorname{clip}(|s_p - s_n|, \gamma_{min}, \gamma_{max}), \qquad
    \omega_{pn} = \frac{e^{s_n / T}}{\sum_{l \in V_p} e^{s_l / T}}

  over the violators :math:`V_p`, where :math:`s_p - s_n < \gamma_{min}`; N are the η highest scores off the
  positives, or all. Every true label is left out of N, also one of weight 0. Margins and weights ω are
  constants for the gradient: it is -w_p for s_p and w_p ω for s_n, wherever a term is positive. (The paper's
  eq. 3, 13, 14 turn the sign where a positive leads: a slip.) `minimum = maximum` is a fixed margin.

  Args:
    scores: `[..., L]` scores, any float type; computed in float32 at least.
    labels: `[..., L]` in {0, 1}, 1 for a true label.
    minimum: γ_min, at least 0: the margin of pairs that are nearly level.
    maximum: γ_max, at least `minimum`: the margin of pairs that are far the wrong way round.
    num_negatives: η, at least 1; may exceed L.
    weight_temperature: T; the lower it is, the more the hardest violator counts. 0 sets every ω to 1.
    differentiable_weights: lets the gradient through ω too, as PRIME's released code does.
    weights: `[..., L]` weight of each positive; by default labels / max(1, number of positives in the row).
    where: `[..., L]` bool, True for a real entry, by default all; others are as if not there.

  Returns:
    `[...]` loss of each row; 0, with gradient 0, for a row without positives or without negatives.

  Example:
    >>> from xmc_jax import losses
    >>> losses.dynamic_margin([[0.25, 0.5]], [[1, 0]])  # 0.25 behind, and a margin of 0.25
    Array([0.5], dtype=float32)

  References:
    Dahiya et al., `Prototypical Extreme Multi-label Classification with a Dynamic Margin Loss
    <https://arxiv.org/abs/2410.20401>`_, NAACL 2025, eq. 1 to 3, 13. docs/formulas.md, "Dynamic margin".
  """
  if not 0 <= minimum <= maximum or num_negatives < 1:
    needed = "0 <= minimum <= maximum and num_negatives >= 1 are needed"
    raise ValueError(f"{needed}: {minimum}, {maximum}, {num_negatives}")
  rows = row_forms.as_rows(scores, labels, where)
  weights = row_forms.positive_weights(rows, weights)
  if not rows.scores.shape[-1]:
    return jnp.zeros(rows.scores.shape[:-1], rows.scores.dtype)
  hardest = hardest_negatives(
    rows.scores, rows.real & ~rows.positive, num_negatives, weight_temperature, differentiable_weights
  )
  bounds: dict[str, Any] = {"minimum": minimum, "maximum": maximum, "weighted": weight_temperature > 0}
  return jnp.sum(dynamic_margin_from_positives(rows.scores, weights, hardest, **bounds), axis=-1)


def dynamic_margin_from_positives(
  positive_scores: Array,
  positive_weights: Array,
  hardest: HardNegatives,
  *,
  minimum: float,
  maximum: float,
  weighted: bool | Array = True,
) -> Array:
  """Computes the terms of `dynamic_margin` for positives that are given separately from the pool.

  Args:
    positive_scores: `[..., P]` scores of the positives.
    positive_weights: `[..., P]` their weights; an entry of weight 0 is as if not there, whatever its score.
    hardest: their rows' hardest negatives; memory is O(P + η) a row.
    minimum, maximum: as for `dynamic_margin`.
    weighted: False takes ω = 1.

  Returns:
    `[..., P]` weighted loss of each positive.
  """
  counted = positive_weights > 0
  scores = jnp.where(counted, positive_scores, 0)
  far, behind, violators = (hardest.count_above(scores + gap) for gap in (maximum, minimum, -minimum))
  lead = hardest.highest - scores  # by how much the hardest negative leads

  def up_to(sums, counts):
    return jnp.where(counts > 0, jnp.take_along_axis(sums, jnp.maximum(counts - 1, 0), axis=-1), 0)

  # Σ ω m over the violators, where ω does not yet add up to 1: m is the largest margin for the first `far`,
  # then up to `behind` as much as each leads by, and the smallest one for the rest; a constant for gradients.
  of_far, of_behind, of_all = (up_to(hardest.weights, counts) for counts in (far, behind, violators))
  leads = up_to(hardest.leads, behind) - up_to(hardest.leads, far)
  leads += jax.lax.stop_gradient(lead) * (of_behind - of_far)
  margins = maximum * of_far + leads + minimum * (of_all - of_behind)
  total = jnp.take_along_axis(hardest.weights, jnp.maximum(violators - 1, 0), axis=-1)
  violated = counted & (violators > 0)
  mean_margin = margins / jnp.where(violated, total, 1)
  loss = jnp.where(violated, lead + hardest.mean_of_first(violators) + mean_margin, 0)
  return jnp.where(counted, positive_weights, 0) * loss * jnp.where(weighted, 1, violators)
