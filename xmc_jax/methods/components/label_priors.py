"""Adds to a label's score in training what its text cannot say: how frequent it is, or how often in a pool.

Logit adjustment (Menon et al., ICLR 2021) adds the label's frequency, so that the encoder learns the rest.
The logQ correction (Bengio and Senécal, 2008) takes off the chance that the label is in the batch's pool.
docs/formulas.md, "Label frequency".
"""

from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import ml_collections
import numpy as np

from xmc_jax.batching.builder import num_clusters
from xmc_jax.config import Key, declare
from xmc_jax.config.keys import unused
from xmc_jax.types import Array, BatchSpec, DatasetInfo, Method


def _faults(values: Mapping) -> Iterator[str]:
  for key, uniform in (
    ("train.relevance_weights", False),
    ("method.positive_sampling", "uniform"),
    ("method.num_fresh_negatives", 0),
  ):
    if values["method.log_q"] and values.get(key, uniform) != uniform:
      what = "negatives" if "fresh" in key else "positives"
      yield (
        f"method.log_q = True takes {what} for uniform, and {key} = {values[key]!r}; "
        f"set --config.{key}={uniform}"
      )


LOG_Q = declare(
  checks=(_faults, unused("loss", "margin", log_q=False), unused("labels", "all", log_q=False)),
  log_q=Key(False, "True: subtract the log of the probability that a label is in the pool from its scores"),
)
SETTINGS = declare(
  LOG_Q,
  checks=(unused("loss", "margin", log_prior=0.0),),
  log_prior=Key(
    0.0, "weight of log(1 + training points of a label) in its score, in training and in ranking"
  ),
)


def log_prior(weight: float, label_counts: np.ndarray) -> np.ndarray:
  """Returns `[L]`, weight · log(1 + n_l) for labels with n_l training points."""
  return weight * np.log1p(label_counts)


def bias(config: ml_collections.ConfigDict, info: DatasetInfo, batch: BatchSpec) -> Array | None:
  r"""Returns `[L]` float32, what is added to the training scores of labels; None for nothing.

  .. math::
    c_l = \tau' \log(1 + n_l) - \log q_l

  Label l has :math:`n_l` training points; :math:`\tau'` is `method.log_prior`, and the other term `log_q`.
  """
  settings = config.method
  weight = settings.get("log_prior", 0.0)
  if not weight and not settings.log_q:
    return None
  log_q = log_inclusion(info, batch, config.train.batch_size) if settings.log_q else 0
  return jnp.asarray(log_prior(weight, info.label_counts) - log_q, jnp.float32)


def in_ranking(method: Method, config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Gives label vectors a column more, τ τ' log(1 + n_l): it is added to scores, as in training.

  A label that only its text is known of (`embed_texts`) has the mean there.
  """
  settings = config.method
  if not settings.log_prior:
    return method
  prior = log_prior(settings.temperature * settings.log_prior, info.label_counts)

  def widened(embed, weight=1.0):
    def embed_with_prior(params, extra_state, tokens, ids):
      column = weight * jnp.asarray(prior, jnp.float32)[jnp.maximum(ids, 0)]
      return jnp.column_stack([embed(params, extra_state, tokens, ids), column])

    return embed_with_prior

  by_text = method.embed_texts or method.scorers.get("encoder", method.embed_labels)
  return method._replace(
    embed_labels=widened(method.embed_labels),
    scorers={name: widened(embed, float(name == "encoder")) for name, embed in method.scorers.items()},
    embed_texts=lambda *given: jnp.pad(by_text(*given), ((0, 0), (0, 1)), constant_values=prior.mean()),
  )


def log_inclusion(info: DatasetInfo, batch: BatchSpec, batch_size: int) -> np.ndarray:
  r"""Estimates `[L]` float32 log q_l, where q_l is the probability that label l is in a batch's pool.

  .. math::
    q_l = \min\Bigl(1, d_l + s (a_l - d_l) + \frac{M}{L}\Bigr), \qquad
    a_l = 1 - \Bigl(1 - \frac{n_l}{N}\Bigr)^B, \qquad
    d_l = r \Bigl(1 - \Bigl(1 - p \frac{n_l}{N}\Bigr)^B\Bigr)

  A row of a batch has label l with probability n_l / N and then samples it with probability p, which is
  min(1, β N / Σ_k n_k) for β positives per row, or 1 if all are sampled. So a_l is the probability that some
  row has the label, and d_l that some row samples it; r is 1, or less if a pool holds fewer than are sampled.
  If other positives fill the pool, a fraction s of them fits in; else s is 0. M counts hard and random
  negatives, treated as uniform, and is at most what is left then.

  Three assumptions are approximate: rows are independent (points of a cluster are alike); every row has
  the mean number of labels, Σ_k n_k / N; and every pool has its mean amount of free room. The correction is
  that of Bengio and Senécal (2008) and Yi et al. (RecSys 2019).

  Args:
    info: N points with a label to learn, n_l of each label.
    batch: what a pool holds. A batch that is a cluster has fewer rows, as clusters are a power of two.
    batch_size: B, rows of any other batch.
  """
  counts, num_points = np.asarray(info.label_counts, np.float64), info.num_labelled or info.num_points
  num_rows = num_points / num_clusters(num_points, batch_size) if batch.batch_is_cluster else batch_size
  others = batch.num_random_negatives + batch.num_fresh_negatives + num_rows * batch.num_hard_negatives
  of_row = np.minimum(counts / max(num_points, 1), 1)  # probability that a row has the label
  taken = min(1.0, batch.num_positives / max(of_row.sum(), 1e-9)) if batch.num_positives else 1.0
  probabilities = 1 - (1 - taken * of_row) ** num_rows
  if batch.pool_size:
    probabilities *= min(1.0, batch.pool_size / max(probabilities.sum(), 1e-9))
  if batch.fill_pool:
    unsampled = np.maximum(1 - (1 - of_row) ** num_rows - probabilities, 0)
    room = max(batch.pool_size - probabilities.sum(), 0)
    probabilities += unsampled * min(1.0, room / max(unsampled.sum(), 1e-9))
  if batch.pool_size:
    others = min(others, batch.pool_size - probabilities.sum())
  probabilities = np.clip(probabilities + max(others, 0) / len(counts), 1e-9, 1.0)
  return np.log(probabilities).astype(np.float32)
