"""What streaming losses are compared with: cases, and the losses' definitions in float64."""

import functools
from typing import NamedTuple

import loss_references
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


ROWS = {
  "softmax": loss_references.softmax_row,
  "decoupled_softmax": loss_references.decoupled_softmax_row,
  "binary": loss_references.binary_row,
  "soft_top_k": functools.partial(loss_references.soft_top_k_row, **OPTIONS["soft_top_k"]),
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
