r"""Finds the threshold of SoftTop-k, t with Σ σ(x_i + t) = k, in few passes over the logits x.

The paper halves a bracket 32 times (DEXML, sections 4.3 and B.7); Newton's method finds the same root
in fewer passes. docs/formulas.md, "SoftTop-k".

One pass sums a row into a `Tally`. Such sums can be taken in parts: over blocks, over shards, or over scores
while they are computed. `log_odds` turns a tally into a function that rises with t and is 0 at the threshold,
`bracket` bounds the threshold, and `find_threshold` finds it.

Logits are x = α s, and t is measured in logits too, so that step sizes do not depend on α. A small t has a
small rounding error, so the caller first subtracts from the scores a center close to the threshold.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.types import Array

# Scores in a block of `reduce_rows`: a few arrays of that size fit a cache. Blocks are added up one by one,
# and each addition rounds, so there must not be too many.
_BLOCK_SIZE, _SHORTEST_BLOCK, _MOST_BLOCKS = 2**19, 1024, 256
_END = 10.0  # logits from the scores to the end of the bracket where the threshold is infinite
_IN_GAP = 0.01  # a row counts as split in two if its σ on the wrong side sum to less than this


class Tally(NamedTuple):
  """Holds the sums that one pass over a row's logits computes, `[...]` each.

  Σ σ is `above - over + under`. The parts are more exact than their sum would be: entries far above 0 count
  as whole numbers.
  """

  above: Array  # number of logits above 0
  over: Array  # Σ σ(-x) of these: by how much their Σ σ(x) is less than `above`
  under: Array  # Σ σ(x) of the others
  spread: Array  # Σ σ(x) σ(-x), the derivative of Σ σ


def shifted(scores: Array, center: Array, offset: Array, alpha: Array) -> Array:
  """Computes α (s - center) + offset, which stays accurate near the threshold even for large scores."""
  return alpha[..., None] * (scores - center[..., None]) + offset[..., None]


def tally(scores: Array, to_logits: Callable[[Array], Array]) -> Tally:
  """Sums a `Tally` over `[..., L]` scores, after `to_logits` made them logits; one of -inf adds nothing."""

  def terms(block):
    logits = to_logits(block)
    decay = jnp.exp(-jnp.abs(logits))
    minor = decay / (1 + decay)  # σ(-|x|)
    high = logits > 0
    return (
      high.astype(logits.dtype),
      jnp.where(high, minor, 0),
      jnp.where(high, 0, minor),
      minor * (1 - minor),
    )

  return Tally(*reduce_rows(terms, scores))


def reduce_rows(
  terms: Callable[[Array], tuple[Array, ...]], scores: Array, by: Literal["sum", "max"] = "sum"
) -> tuple[Array, ...]:
  """Computes sums, or largest values, of several functions of a row's scores, in one pass.

  Args:
    terms: `[..., n] -> several [..., n]`, entry by entry.
    scores: `[..., L]`.
    by: "sum", or "max", which is -inf for no entries.

  Returns:
    `[...]` for each of the terms.
  """
  combine = jnp.add if by == "sum" else jnp.maximum
  finish = jnp.sum if by == "sum" else functools.partial(jnp.max, initial=-jnp.inf)
  width = scores.shape[-1]
  num_rows = max(1, scores.size // max(1, width))
  block = max(_BLOCK_SIZE // num_rows, _SHORTEST_BLOCK, -(-width // _MOST_BLOCKS))

  def at_once(scores):
    return tuple(finish(term, axis=-1) for term in terms(scores))

  def in_blocks(scores):
    # XLA's CPU code is fast on blocks that fit the cache; given all of `[..., L]`, it stores terms in memory.
    def add(i, totals):
      part = jax.lax.dynamic_slice_in_dim(scores, i * block, block, axis=-1)
      return tuple(map(combine, totals, terms(part)))

    whole = width // block
    totals = jax.lax.fori_loop(1, whole, add, terms(scores[..., :block]))
    totals = tuple(finish(total, axis=-1) for total in totals)
    return tuple(map(combine, totals, at_once(scores[..., whole * block :])))

  if width <= block:
    return at_once(scores)
  return jax.lax.platform_dependent(scores, cpu=in_blocks, default=at_once)


def log_odds(seen: Tally, k: Array, count: Array) -> tuple[Array, Array]:
  """Measures how far a row's mean of σ is from k / count, in log-odds, and the derivative of that by t.

  In log-odds it is linear in t where all σ are small, all are large, or all are equal. If a wide gap splits a
  row in two, with k scores above it, the mean hardly changes with t. Then the errors of the two sides are
  compared instead: the threshold is where they are equal.

  Args:
    seen: the tally at t.
    k: `[...]` in (0, count).
    count: `[...]` number of entries.

  Returns:
    `(value, slope)`, `[...]` each. Both are 0 where the gap is so wide that both errors round to 0.
  """
  beyond, rest = seen.above - k, count - k
  excess = beyond + (seen.under - seen.over)
  none, every = seen.above == 0, seen.above == count
  total = jnp.where(none, seen.under, seen.above - seen.over + seen.under)
  missing = jnp.where(every, seen.over, count - seen.above + seen.over - seen.under)
  value = jnp.where(none, jnp.log(total / k), jnp.log1p(excess / k))
  value -= jnp.where(every, jnp.log(missing / rest), jnp.log1p(-excess / rest))
  slope = seen.spread / total + seen.spread / missing

  up, down = seen.under + jnp.maximum(beyond, 0), seen.over + jnp.maximum(-beyond, 0)
  split = (jnp.abs(beyond) < _IN_GAP) & (seen.under + seen.over < _IN_GAP)
  unfelt = (up == 0) & (down == 0)
  value = jnp.where(split, jnp.log(up) - jnp.log(down), value)
  slope = jnp.where(split, seen.under / up + seen.over / down, slope)
  return jnp.where(unfelt, 0, value), jnp.where(unfelt, 0, slope)


def bracket(k: Array, count: Array, span: Array) -> tuple[Array, Array]:
  """Returns bounds of the threshold, for logits that are at most 0.

  Args:
    k: `[...]`.
    count: `[...]` number of entries.
    span: `[...]` the smallest logit is `-span`.

  Returns:
    `(low, high)`, `[...]` each. They are equal, so that the threshold is known, if all entries are equal, and
    if k <= 0 or k >= count: then the threshold would be infinite, and is set to 10 beyond all entries, or to
    0 if there are none.
  """
  outer = (k <= 0) | (k >= count)
  inner = jnp.where(outer, 1, k)
  odds = jnp.log(inner) - jnp.log(jnp.where(outer, 1, count - inner))
  end = jnp.where(count == 0, 0, jnp.where(k <= 0, -_END, span + _END))
  return jnp.where(outer, end, odds), jnp.where(outer, end, span + odds)


class _Search(NamedTuple):
  """Holds the state of `find_threshold`: `[...]` each, except `calls`, a scalar."""

  t: Array
  low: Array
  high: Array
  at_low: Array
  at_high: Array
  step: Array
  slope: Array
  done: Array
  calls: Array


def find_threshold(
  measure: Callable[[Array], tuple[Array, Array]],
  low: Array,
  high: Array,
  *,
  start: Array | None = None,
  tolerance: float | None = None,
  max_calls: int = 64,
) -> tuple[Array, Array]:
  """Finds the root of a rising function of each row, by Newton's method kept inside a bracket.

  A Newton step is taken if it stays in the bracket and is at most half as long as the last step. Else the
  bracket is cut: by the chord of its ends if Newton's step would leave it, or in half.

  Args:
    measure: `t -> (value, slope)`, `[...]` each: a function that rises with t, and its derivative. Usually
      a full pass over the scores: all rows are measured together until every row has its root.
    low: `[...]` lower end of the bracket.
    high: `[...]` upper end, no less than `low`. Where they are equal, that is the root.
    start: `[...]` where to begin, by default `low`.
    tolerance: a row is done after a Newton step of at most this size; its error is about the square of
      that. By default the square root of the precision.
    max_calls: bound on the number of calls of `measure`.

  Returns:
    `(t, slope)`: the roots `[...]`, and the slope where they were last measured. A slope of 0 means that the
    function was flat there, at 0, and any t near by is as good.
  """
  low, high = jnp.broadcast_arrays(low, high)
  start = low if start is None else start
  precision = jnp.finfo(low.dtype).eps
  longest = precision**0.5 if tolerance is None else tolerance

  def advance(state):
    value, slope = measure(state.t)
    return _advance(state, value, slope, longest)

  unknown = jnp.full_like(low, jnp.nan)
  first = _Search(start, low, high, unknown, unknown, high - low, unknown, low >= high, jnp.int32(0))
  last = jax.lax.while_loop(lambda state: (state.calls < max_calls) & ~jnp.all(state.done), advance, first)
  return last.t, last.slope


def _advance(state: _Search, value: Array, slope: Array, tolerance: float | np.floating) -> _Search:
  """Takes one step, after the function has been measured at `state.t`."""
  below, above = value < 0, value > 0
  low, high = jnp.where(below, state.t, state.low), jnp.where(above, state.t, state.high)
  at_low, at_high = jnp.where(below, value, state.at_low), jnp.where(above, value, state.at_high)

  width = high - low
  newton = state.t - value / slope
  last = jnp.abs(newton - state.t) <= tolerance
  inside = (newton > low) & (newton < high)
  fast = jnp.abs(newton - state.t) <= state.step / 2
  chord = low + width * jnp.clip(at_low / (at_low - at_high), 0.1, 0.9)
  use_chord = ~inside & jnp.isfinite(chord)
  t = jnp.where(use_chord, chord, low + width / 2)
  t = jnp.where((inside & fast) | last, jnp.clip(newton, low, high), t)
  t = jnp.where((value == 0) | state.done, state.t, t)

  narrow = width <= 2 * jnp.finfo(t.dtype).eps * jnp.maximum(jnp.abs(low), jnp.abs(high))
  return _Search(
    t=t,
    low=low,
    high=high,
    at_low=at_low,
    at_high=at_high,
    step=jnp.abs(t - state.t),
    slope=jnp.where(state.done, state.slope, slope),
    done=state.done | last | narrow | (value == 0) | jnp.isnan(value),
    calls=state.calls + 1,
  )


def locate(
  measure_around: Callable[[Array], Callable[[Array], tuple[Array, Array]]],
  k: Array,
  count: Array,
  peak: Array,
  floor: Array,
  alpha: Array,
) -> tuple[Array, Array, Array]:
  """Finds the threshold of rows of scores, as an offset of logits relative to a center close to it.

  Args:
    measure_around: `center -> (offset -> log_odds)` of the logits α (s - center) + offset, `[...]` each.
    k: what Σ σ should be.
    count: entries of each row.
    peak, floor: largest and smallest score of each row.
    alpha: logits per score.

  Returns:
    `(center, offset, unfelt)`, `[...]` each; `unfelt` marks rows whose entries all round to 0 or 1 at the
    threshold, so that any near by is as good.
  """
  low, high = bracket(k, count, alpha * (peak - floor))
  start = jnp.where(k > count / 2, high, low)
  near, _ = find_threshold(measure_around(peak), low, high, start=start, tolerance=1.0)
  # Far from the peak, `near` is not exact. Relative to a center close by, the rest and its error are small.
  center = peak - near / alpha
  moved = alpha * (peak - center)
  slack = jnp.where(low < high, 1, 0)
  offset, slope = find_threshold(
    measure_around(center), low - moved - slack, high - moved + slack, start=near - moved
  )
  return center, offset, (slope == 0) & (low < high)
