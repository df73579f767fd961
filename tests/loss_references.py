"""Losses by their definitions, in float64, a row at a time."""

import numpy as np


def sigmoid(x):
  decay = np.exp(-np.abs(x))
  return np.where(x > 0, 1, decay) / (1 + decay)


def soft_top_k(scores, k, alpha=1.0):
  """z `[L]` of one row by the definition: t halves its bracket until nothing is left of it."""
  scores = np.asarray(scores, np.float64)
  low, high = -scores.max() - 10 / alpha, -scores.min() + 10 / alpha
  for _ in range(200):
    middle = (low + high) / 2
    low, high = (middle, high) if sigmoid(alpha * (scores + middle)).sum() < k else (low, middle)
  return sigmoid(alpha * (scores + low))


# Each takes the scores of a row's real entries, which of them are labels, and their weights, 0 on the others;
# and returns the loss and its derivative by each score.


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


def soft_top_k_row(s, y, w, k, alpha):
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


def pick_some_labels(row, scores, labels, where):
  """Returns the mean of a loss, one of those above, over the rows of `[B, S]` scores that have a label."""
  per_row = []
  for s, y, real in zip(np.asarray(scores, np.float64), labels, where):
    if (y & real).any():
      per_row.append(row(s[real], y[real], y[real] / y[real].sum())[0])
  return np.mean(per_row) if per_row else 0.0


def margin_row(
  scores,
  labels,
  weights,
  *,
  margin=0.3,
  num_negatives=10,
  weight_temperature=0.1,
  num_positives=0,
  weights_from=None,
):
  """Returns the loss of a row, pair by pair; scores for ω may come from elsewhere, which holds it fixed."""
  source = scores if weights_from is None else weights_from
  positives = [j for j in range(len(scores)) if labels[j] and weights[j] > 0]
  weight = dict(zip(positives, (weights[j] for j in positives)))
  if num_positives:
    positives = sorted(positives, key=lambda j: scores[j])[:num_positives]
    total = sum(weight[j] for j in positives)
    weight = {j: weight[j] / total for j in positives}
  hardest = sorted((j for j in range(len(scores)) if not labels[j]), key=lambda j: -scores[j])[:num_negatives]
  loss = 0.0
  for p in positives:
    violators = [j for j in hardest if scores[j] - scores[p] + margin > 0]
    shares = [np.exp((source[j] - max(source)) / weight_temperature) for j in violators]
    for j, share in zip(violators, shares):
      loss += weight[p] * share / sum(shares) * (scores[j] - scores[p] + margin) / len(hardest)
  return loss


def dynamic_margin_row(
  scores, labels, weights, *, minimum=0.1, maximum=0.3, num_negatives=100, weight_temperature=0.1
):
  """`(loss, gradient)` of one row, pair by pair: margins and shares are constants for the gradient."""
  loss, gradient = 0.0, np.zeros(len(scores))
  hardest = sorted((j for j in range(len(scores)) if not labels[j]), key=lambda j: -scores[j])[:num_negatives]
  for p in (p for p in range(len(scores)) if labels[p] and weights[p] > 0):
    terms = {}
    for n in hardest:
      term = scores[n] - scores[p] + min(max(abs(scores[p] - scores[n]), minimum), maximum)
      if scores[p] - scores[n] < minimum:
        terms[n] = term
      else:
        assert term <= 1e-12
    shares = {n: np.exp((scores[n] - scores[hardest[0]]) / weight_temperature) for n in terms}
    for n, term in terms.items():
      share = weights[p] * shares[n] / sum(shares.values())
      loss += share * term
      gradient[n] += share
      gradient[p] -= share
  return loss, gradient
