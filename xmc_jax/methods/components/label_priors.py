"""Adds to a label's score in training what its text cannot say: how frequent it is, or how often in a pool.

Logit adjustment (Menon et al., ICLR 2021) adds the label's frequency, so that the encoder learns the rest.
The logQ correction (Bengio and Senécal, 2008) takes off the chance that the label is in the batch's pool.
docs/formulas.md, "Label frequency".
"""

from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import ml_collections
import numpy as np

from xmc_jax.batching.epochs import num_clusters
from xmc_jax.batching.inclusion_probabilities import log_inclusion_probabilities
from xmc_jax.config import Key, declare
from xmc_jax.types import Array, DatasetInfo, Method

MARGINS = ("margin", "dynamic_margin")  # losses of cosines, which have no temperature


def _faults(values: Mapping) -> Iterator[str]:
  labels, loss = values["method.labels"], values["method.loss"]
  for key, off in (("method.log_prior", 0), ("method.log_q", False)):
    if values.get(key) and loss in MARGINS:
      yield f"{key} = {values[key]} has no effect on method.loss = {loss!r}; set --config.{key}={off}"
  if values["method.log_q"] and labels != "in_batch":
    yield (
      f"method.log_q = True has no effect when method.labels = {labels!r}: every label is in the pool; set "
      "--config.method.log_q=False, or --config.method.labels=in_batch"
    )
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
  checks=(_faults,),
  log_q=Key(False, "True: subtract the log of the probability that a label is in the pool from its scores"),
)
SETTINGS = declare(
  LOG_Q,
  log_prior=Key(
    0.0, "weight of log(1 + training points of a label) in its score, in training and in ranking"
  ),
)


def log_prior(weight: float, label_counts: np.ndarray) -> np.ndarray:
  """Returns `[L]`, weight · log(1 + n_l) for labels with n_l training points."""
  return weight * np.log1p(label_counts)


def bias(config: ml_collections.ConfigDict, info: DatasetInfo) -> Array | None:
  r"""Returns `[L]` float32, what is added to the training scores of labels; None for nothing.

  .. math::
    c_l = \tau' \log(1 + n_l) - \log q_l

  Label l has :math:`n_l` training points; :math:`\tau'` is `method.log_prior`, and the other term `log_q`.
  """
  settings = config.method
  weight = settings.get("log_prior", 0.0)
  if not weight and not settings.log_q:
    return None
  prior = log_prior(weight, info.label_counts)
  return jnp.asarray(prior - (log_inclusion(config, info) if settings.log_q else 0), jnp.float32)


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


def log_inclusion(config: ml_collections.ConfigDict, info: DatasetInfo) -> np.ndarray:
  """Estimates `[L]`, the log of how likely each label is to be in a batch's pool.

  If a batch is a leaf of a tree, it has fewer rows: their number is a power of two.
  """
  settings, num_points = config.method, info.num_labelled or info.num_points
  num_rows = config.train.batch_size
  if "pool_size" in settings:  # UniDEC's batches
    num_rows = num_points / num_clusters(num_points, num_rows)
  hard = settings.get("num_hard_negatives", 0)
  size = settings.get("pool_size", 0)
  return log_inclusion_probabilities(
    info.label_counts,
    num_points,
    num_rows,
    settings.num_positives,
    settings.num_random_negatives + settings.get("num_fresh_negatives", 0) + num_rows * hard,
    size,
    fill_pool=size > 0 and not hard,
  )
