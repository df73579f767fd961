"""What streaming losses are compared with: cases, and the losses' definitions in float64."""

from typing import NamedTuple

import numpy as np

OPTIONS = {"softmax": {}, "decoupled_softmax": {}, "binary": {}, "soft_top_k": {"k": 3, "alpha": 2.0}}
KINDS = list(OPTIONS)


class Case(NamedTuple):
  """Arguments of `streaming_loss`, and what multiplies each row's loss."""

  queries: np.ndarray
  labels: np.ndarray
  positives: np.ndarray
  weights: np.ndarray | None
  excluded: np.ndarray | None
  bias: np.ndarray | None
  where: np.ndarray | None
  temperature: float
  scale: np.ndarray

  @property
  def options(self):
    return {"weights": self.weights, "excluded": self.excluded, "bias": self.bias, "where": self.where}


def draw_columns(rng, num_rows, num_labels, width, counts):
  """`[num_rows, width]` distinct columns a row, `counts` of them, -1 anywhere between."""
  columns = np.full((num_rows, width), -1, np.int32)
  for row, count in zip(columns, counts):
    count = min(count, num_labels, width)
    row[rng.choice(width, count, replace=False)] = rng.choice(num_labels, count, replace=False)
  return columns


def make_case(kind, size=(5, 37, 6), *, width=4, weighted=False, masked=False, seed=0, temperature=0.5):
  num_rows, num_labels, dim = size
  rng = np.random.default_rng(seed)
  tables = [rng.normal(size=(rows, dim)).astype(np.float32) for rows in (num_rows, num_labels)]
  positives = draw_columns(rng, num_rows, num_labels, width, rng.integers(0, width + 1, num_rows))
  weights = excluded = bias = where = None
  if weighted and kind != "binary":  # some of weight 0, and numbers on padding, which nothing may read
    weights = (rng.random(positives.shape) * rng.integers(0, 2, positives.shape)).astype(np.float32)
  if masked:
    excluded = draw_columns(rng, num_rows, num_labels, 3, rng.integers(0, 4, num_rows))
    excluded[0, 0] = positives[0, 0]  # excluded wins
    where = rng.random(num_labels) < 0.8
    bias = rng.normal(size=num_labels).astype(np.float32)
  return Case(
    *tables, positives, weights, excluded, bias, where, temperature, rng.random(num_rows).astype(np.float32)
  )


def spread(columns, values, num_labels):
  """`[B, n]` columns and their values as `[B, L]`."""
  dense = np.zeros((len(columns), num_labels), np.asarray(values).dtype)
  values = np.broadcast_to(values, columns.shape)
  for row, (at, of_row) in enumerate(zip(columns, values)):
    dense[row, at[at >= 0]] = of_row[at >= 0]
  return dense


def spread_all(case):
  """labels, weights (or None) and where, each `[B, L]`."""
  num_labels = len(case.labels)
  labels = spread(case.positives, True, num_labels)
  where = np.ones(labels.shape, bool) if case.where is None else np.tile(case.where, (len(labels), 1))
  if case.excluded is not None:
    where &= ~spread(case.excluded, True, num_labels)
  weights = None if case.weights is None else spread(case.positives, case.weights, num_labels)
  return labels, weights, where


# The definitions in float64, a row's real entries at a time: loss and its derivative by each score.


def softmax_row(s, y, w):
  share = np.exp(s - s.max())
  log_total = np.log(share.sum()) + s.max()
  return w @ (log_total - s), w.sum() * share / share.sum() - w


def decoupled_softmax_row(s, y, w):
  if y.all():
    return 0.0, np.zeros_like(s)
  log_total = np.logaddexp.reduce(s[~y])
  pull = w * np.exp(-np.logaddexp(0, s - log_total))
  share = np.where(y, 0, np.exp(np.where(y, -np.inf, s - log_total)))
  return w @ np.logaddexp(0, log_total - s), pull.sum() * share - pull


def binary_row(s, y, w):
  signed = np.where(y, -s, s)
  return np.logaddexp(0, signed).sum(), np.where(y, -1, 1) * np.exp(-np.logaddexp(0, -signed))


def log_sum_exp(x):
  return np.logaddexp.reduce(x, initial=-np.inf)


def soft_top_k_row(s, y, w):
  k, alpha = OPTIONS["soft_top_k"].values()
  x = alpha * s
  if k >= len(s):
    x = x - x.min() + 10  # what stands for an infinite threshold
  else:
    top = np.argsort(np.argsort(-s, kind="stable")) < k
    low, high = -x.max() - 1e3, -x.min() + 1e3
    for _ in range(100):  # Σ σ = k, as: what the k highest miss, the others have
      t = (low + high) / 2
      missing, surplus = (
        log_sum_exp(-np.logaddexp(0, x[top] + t)),
        log_sum_exp(-np.logaddexp(0, -x[~top] - t)),
      )
      low, high = (t, high) if surplus < missing else (low, t)
    x = x + t
  log_pull = -np.logaddexp(0, x) - np.logaddexp(0, -x)
  push = w * alpha * np.exp(-np.logaddexp(0, x))
  return w @ np.logaddexp(0, -x), push.sum() * np.exp(log_pull - log_sum_exp(log_pull)) - push


ROWS = {
  "softmax": softmax_row,
  "decoupled_softmax": decoupled_softmax_row,
  "binary": binary_row,
  "soft_top_k": soft_top_k_row,
}


def reference(kind, case):
  """The same from the definitions, in float64."""
  labels, weights, where = spread_all(case)
  queries, table = case.queries.astype(np.float64), case.labels.astype(np.float64)
  products = queries @ table.T / case.temperature
  scores = products + (0 if case.bias is None else case.bias)
  per_row, slopes = np.zeros(len(scores)), np.zeros(scores.shape)
  for row, (s, y, real) in enumerate(zip(scores, labels, where)):
    s, y = s[real], y[real]
    w = y / max(1, y.sum()) if weights is None else weights[row][real] * y
    if len(s):
      per_row[row], slopes[row, real] = ROWS[kind](s, y, w.astype(np.float64))
  slopes *= case.scale[:, None]
  d_temperature = -np.sum(slopes * products) / case.temperature
  return per_row, slopes @ table / case.temperature, slopes.T @ queries / case.temperature, d_temperature
