"""Computes the margin loss of NGAME: a row's positives should lead its hardest negatives by a margin."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from xmc_jax.losses import _inputs as row_forms
from xmc_jax.losses._hard_negatives import hardest_negatives
from xmc_jax.types import Array


def margin(
  scores: Array,
  labels: Array,
  *,
  margin: float = 0.3,
  num_negatives: int = 10,
  weight_temperature: float = 0.1,
  weights: Array | None = None,
  where: Array | None = None,
  num_positives: int = 0,
  differentiable_weights: bool = False,
  margin_mean: str = "existing",
) -> Array:
  r"""Computes the weighted hinge of each positive against the row's hardest negatives.

  .. math::
    \ell(s, y) = \sum_{p \in P} \frac{w_p}{\eta'} \sum_{j \in V_p} \omega_{pj} (s_j - s_p + \gamma),
    \qquad \omega_{pj} = \frac{e^{s_j / T}}{\sum_{l \in V_p} e^{s_l / T}},
    \qquad V_p = \{j \in N : s_j - s_p + \gamma > 0\}

  N are the η highest scores off the positives, or fewer where the row has fewer, :math:`\eta'` of them. Every
  true label is left out of N, also one of weight 0. The weights ω are constants for the gradient, unless
  `differentiable_weights`. The loss jumps where a negative joins V_p or leaves it, since that changes the
  weights of the others. Memory is O(L) a row for any η: see `margin_from_positives`.

  Args:
    scores: `[..., L]` scores, any float type; computed in float32 at least.
    labels: `[..., L]` in {0, 1}, 1 for a true label.
    margin: γ, by how much a positive should lead.
    num_negatives: η, at least 1; may exceed L.
    weight_temperature: T; the lower, the more the hardest violator counts. 0: every ω is 1, as printed.
    weights: `[..., L]` weight of each positive; by default labels / max(1, number of positives in the row).
    where: `[..., L]` bool, True for a real entry, by default all; others are as if not there.
    num_positives: n counts only the n lowest scores of positives of positive weight, with
      their weights scaled to add up to 1 (DEXA's module II: 3); 0 counts all, as they are.
    differentiable_weights: lets the gradient through ω, as NGAME's released code does.
    margin_mean: 'all' divides by n η whatever the row has, as DEXA's released code does: each positive of n
      counts 1 / n, and η' is η. n is then at least 1.

  Returns:
    `[...]` loss of each row; 0, with gradient 0, for a row without positives or without negatives.

  Example:
    >>> from xmc_jax import losses
    >>> losses.margin([[0.5, 0.45, 0.0]], [[1, 0, 0]])  # one of 2 violates the margin, by 0.45 - 0.5 + 0.3
    Array([0.125], dtype=float32)

  References:
    Dahiya et al., `NGAME: Negative Mining-aware Mini-batching for Extreme Classification
    <https://arxiv.org/abs/2207.04452>`_, WSDM 2023; for several positives Dahiya et al., `DEXA
    <https://doi.org/10.1145/3580305.3599301>`_, KDD 2023, eq. 5 and 6, which are sums of hinges: ω and the
    mean are the released code's. docs/formulas.md, "Margin loss".
  """
  rows = row_forms.as_rows(scores, labels, where)
  weights = row_forms.positive_weights(rows, weights)
  options: dict[str, Any] = {"margin": margin, "margin_mean": margin_mean, "num_negatives": num_negatives}
  options |= {"weight_temperature": weight_temperature, "differentiable_weights": differentiable_weights}
  negative, options["num_positives"] = rows.real & ~rows.positive, num_positives
  return margin_from_positives(rows.scores, weights, rows.scores, negative, **options)


_STATIC = ("num_negatives", "num_positives", "differentiable_weights", "margin_mean")


@functools.partial(jax.jit, static_argnames=_STATIC)
def margin_from_positives(
  positive_scores: Array,
  positive_weights: Array,
  scores: Array,
  negative: Array,
  *,
  margin: float = 0.3,
  num_negatives: int = 10,
  weight_temperature: float = 0.1,
  num_positives: int = 0,
  differentiable_weights: bool = False,
  margin_mean: str = "existing",
) -> Array:
  """Computes `margin` of rows whose positives are given separately from the pool.

  Memory is O(P + S) a row, for the gradient too: see `HardNegatives`.

  Args:
    positive_scores: `[..., P]` scores of the positives.
    positive_weights: `[..., P]` their weights; an entry of weight 0 is as if not there, whatever its score.
    scores: `[..., S]` scores of the pool.
    negative: `[..., S]` bool, the entries that are real and no true label; others are as if not there.
    margin: as for `margin`, and so are the others.
    num_negatives: may exceed S.
    weight_temperature: as there.
    num_positives: may exceed P.
    differentiable_weights: lets the gradient through ω.
    margin_mean: 'existing' or 'all'.

  Returns:
    `[...]` loss of each row, float32 (float64 if a score is); 0 with gradient 0 as there.
  """
  if num_negatives < 1 or num_positives < 0:
    raise ValueError(f"num_negatives must be >= 1, num_positives >= 0: {num_negatives}, {num_positives}")
  if margin_mean == "all" and not num_positives:
    raise ValueError("margin_mean = 'all' needs num_positives >= 1: how many pairs are all")
  positive_scores, scores = jnp.asarray(positive_scores), jnp.asarray(scores)
  dtype = jnp.result_type(positive_scores, scores, jnp.float32)
  if not scores.shape[-1]:
    return jnp.zeros(scores.shape[:-1], dtype)
  positive_scores, weights = positive_scores.astype(dtype), jnp.asarray(positive_weights, dtype)
  if num_positives:
    positive_scores, weights = _lowest(positive_scores, weights, num_positives)
  hardest = hardest_negatives(
    scores.astype(dtype), negative, num_negatives, weight_temperature, differentiable_weights
  )

  counted = weights > 0
  positive_scores = jnp.where(counted, positive_scores, 0)
  violators = hardest.count_above(positive_scores - margin)
  lead = hardest.highest - positive_scores + hardest.mean_of_first(violators)
  excess = jnp.where(counted & (violators > 0), lead + margin, 0)
  excess *= jnp.where(weight_temperature > 0, 1, violators)
  num_hardest = jnp.maximum(jnp.sum(hardest.scores > -jnp.inf, axis=-1), 1)
  total = jnp.sum(jnp.where(counted, weights, 0) * excess, axis=-1)
  if margin_mean == "all":
    return total * (jnp.sum(counted, axis=-1) / (num_positives * num_negatives))
  return total / num_hardest


def _lowest(scores: Array, weights: Array, num: int) -> tuple[jax.Array, jax.Array]:
  """Returns the `num` lowest scores `[..., P]` of positive weight, and their weights scaled to sum to 1."""
  places = jax.lax.top_k(jnp.where(weights > 0, -scores, -jnp.inf), min(num, scores.shape[-1]))[1]
  scores, weights = (jnp.take_along_axis(x, places, axis=-1) for x in (scores, weights))
  total = jnp.sum(weights, axis=-1, keepdims=True, where=weights > 0)
  return scores, weights / jnp.where(total > 0, total, 1)
