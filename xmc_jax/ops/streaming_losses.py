"""Defines the losses of `streaming_loss`: a summary of a row's scores and a sum over positives each."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from xmc_jax.ops.chunked_scores import Reduction
from xmc_jax.ops.soft_top_k_threshold import Tally, locate, log_odds, shifted, tally
from xmc_jax.types import Array, PyTree


class Summary(NamedTuple):
  """Holds what the passes over a row's labels compute."""

  value: Array  # `[B]` the number that the loss needs, a function of the scores
  # `[B]` the constant that is subtracted from the positives' scores: a difference of large scores stays exact
  # if both are relative to the same number.
  anchor: Array
  rows: PyTree  # other numbers of each row, `[B]` each, that `Kind.slope` needs
  found: Array  # `[B, P]` scores of the positives, -inf where there is none


class Kind(NamedTuple):
  """Describes a loss in two parts."""

  with_positives: bool  # whether a row's positives take part in its summary
  weighted: bool  # whether positives have weights
  options: dict[str, float | None]  # its own keyword arguments, and their defaults (None: it must be given)
  # `(fold, options) -> Summary`, with `fold(reduction) -> (state, found)` a pass over all labels.
  summarise: Callable[..., Summary]
  # `(rows, options, scores [B, n]) -> [B, n]`, the derivative of the summary's value by each score.
  slope: Callable[..., Array]
  # `(value [B], relative [B, P], real [B, P], weights [B, P], options) -> [B]`, the loss, from the positives'
  # scores relative to the anchor; differentiable.
  combine: Callable[..., Array]


def _filled(num_rows: int, value: float) -> Array:
  return jnp.full((num_rows,), value, jnp.float32)


def _peak_of(peak: Array) -> Array:
  """Returns a peak that can be subtracted: 0 instead of -inf, the maximum of no scores."""
  return jnp.where(jnp.isneginf(peak), 0, peak)


def _start_log_sum_exp(num_rows):
  return _filled(num_rows, -jnp.inf), _filled(num_rows, 0)


def _add_log_sum_exp(state, scores):
  peak, total = state
  higher = jnp.maximum(peak, jnp.max(scores, axis=1))
  base = _peak_of(higher)
  return higher, total * jnp.exp(peak - base) + jnp.sum(jnp.exp(scores - base[:, None]), axis=1)


def _merge_log_sum_exp(state, axis):
  peak, total = state
  highest = jax.lax.pmax(peak, axis)
  return highest, jax.lax.psum(total * jnp.exp(peak - _peak_of(highest)), axis)


# State: the largest score, -inf if none, and the sum of exp(score - largest).
LOG_SUM_EXP = Reduction(_start_log_sum_exp, _add_log_sum_exp, _merge_log_sum_exp)


def _summarise_log_sum_exp(fold, options):
  """Computes log Σ exp(s - peak): -inf where there is nothing to sum."""
  (peak, total), found = fold(LOG_SUM_EXP)
  anchor, empty = _peak_of(peak), total == 0
  log_total = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, total)))
  return Summary(log_total, anchor, (anchor, log_total), found)


def _slope_log_sum_exp(rows, options, scores):
  anchor, log_total = rows
  return jnp.exp((scores - anchor[:, None]) - log_total[:, None])


def _combine_softmax(value, relative, real, weights, options):
  return jnp.sum(weights * jnp.where(real, value[:, None] - relative, 0), axis=1)


def _combine_decoupled(value, relative, real, weights, options):
  # softplus(-inf) is 0 with gradient 0: so padding and rows without negatives add nothing.
  return jnp.sum(weights * jax.nn.softplus(jnp.where(real, value[:, None] - relative, -jnp.inf)), axis=1)


def _summarise_softplus(fold, options):
  """Computes Σ softplus(s - prior), the prior `[B]`."""
  prior = options["prior"]
  reduction = Reduction(
    start=lambda num_rows: _filled(num_rows, 0),
    add=lambda total, scores: total + jnp.sum(jax.nn.softplus(scores - prior[:, None]), axis=1),
    merge=jax.lax.psum,
  )
  total, found = fold(reduction)
  return Summary(total, prior, (), found)


def _slope_softplus(rows, options, scores):
  return jax.nn.sigmoid(scores - options["prior"][:, None])


def _combine_binary(value, relative, real, weights, options):
  return value + jnp.sum(jax.nn.softplus(jnp.where(real, -relative, -jnp.inf)), axis=1)


def _start_extremes(num_rows):
  return _filled(num_rows, 0), _filled(num_rows, -jnp.inf), _filled(num_rows, jnp.inf)


def _add_extremes(state, scores):
  count, peak, floor = state
  real = scores > -jnp.inf
  lowest = jnp.min(jnp.where(real, scores, jnp.inf), axis=1)
  return count + jnp.sum(real, axis=1), jnp.maximum(peak, jnp.max(scores, axis=1)), jnp.minimum(floor, lowest)


def _merge_extremes(state, axis):
  count, peak, floor = state
  return jax.lax.psum(count, axis), jax.lax.pmax(peak, axis), jax.lax.pmin(floor, axis)


# State: how many scores there are, the largest and the smallest.
EXTREMES = Reduction(_start_extremes, _add_extremes, _merge_extremes)


def _log_pull(logits):
  """Computes the log of σ(x) σ(-x)."""
  distance = jnp.abs(logits)
  return -distance - 2 * jnp.log1p(jnp.exp(-distance))


def _tallies(to_logits):
  """Returns the reduction that sums up a `Tally` at a threshold."""
  return Reduction(
    start=lambda num_rows: Tally(*(_filled(num_rows, 0) for _ in Tally._fields)),
    add=lambda state, scores: jax.tree.map(jnp.add, state, tally(scores, to_logits)),
    merge=jax.lax.psum,
  )


def _pulls(to_logits):
  """Returns the reduction that computes log Σ σ(x) σ(-x), one for logits above 0 and one for the others."""

  def add(state, scores):
    logits = to_logits(scores)
    pull, above = _log_pull(logits), logits > 0
    sides = jnp.where(above, pull, -jnp.inf), jnp.where(above, -jnp.inf, pull)
    return tuple(_add_log_sum_exp(*side) for side in zip(state, sides))

  def merge(state, axis):
    return tuple(_merge_log_sum_exp(side, axis) for side in state)

  return Reduction(lambda num_rows: (_start_log_sum_exp(num_rows),) * 2, add, merge)


def _summarise_threshold(fold, options):
  """Finds the threshold of soft top-k, as an offset of logits relative to a center near it."""
  k, alpha = options["k"], options["alpha"]
  (count, peak, floor), found = fold(EXTREMES)
  k = jnp.clip(k, 0, count)
  peak, floor = jnp.where(count > 0, peak, 0), jnp.where(count > 0, floor, 0)

  def measure_around(center):
    def measure(offset):
      seen, _ = fold(_tallies(lambda scores: shifted(scores, center, offset, alpha)))
      return log_odds(seen, k, count)

    return measure

  center, offset, unfelt = locate(measure_around, k, count, peak, floor, alpha)
  sides, _ = fold(_pulls(lambda scores: shifted(scores, center, offset, alpha)))
  above, below = (jnp.log(total) + _peak_of(highest) for highest, total in sides)
  log_pull = jnp.logaddexp(above, below)
  # Where all entries round to 0 or 1, the threshold is put where the errors above and below it are equal.
  offset = jnp.where(unfelt, offset + (above - below) / 2, offset)
  log_pull = jnp.where(unfelt, (above + below) / 2 + jnp.log(2.0), log_pull)
  return Summary(offset, center, (center, offset, log_pull), found)


def _slope_threshold(rows, options, scores):
  # Σ σ(α (s + t)) stays k, so dt = -Σ v ds / Σ v. The offset is α t plus a constant.
  center, offset, log_pull = rows
  share = jnp.exp(_log_pull(shifted(scores, center, offset, options["alpha"])) - log_pull[:, None])
  return -options["alpha"][:, None] * share


def _combine_soft_top_k(value, relative, real, weights, options):
  logits = options["alpha"][:, None] * relative + value[:, None]
  return jnp.sum(weights * jax.nn.softplus(jnp.where(real, -logits, -jnp.inf)), axis=1)


KINDS = {
  "softmax": Kind(True, True, {}, _summarise_log_sum_exp, _slope_log_sum_exp, _combine_softmax),
  "decoupled_softmax": Kind(False, True, {}, _summarise_log_sum_exp, _slope_log_sum_exp, _combine_decoupled),
  "binary": Kind(False, False, {"prior": 0.0}, _summarise_softplus, _slope_softplus, _combine_binary),
  "soft_top_k": Kind(
    True, True, {"k": None, "alpha": 1.0}, _summarise_threshold, _slope_threshold, _combine_soft_top_k
  ),
}
