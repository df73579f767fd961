"""Puts two heads on an encoder: one for points and label texts, one for points that classifiers score.

UniDEC, sections 3 and 4.3; the initial weights of the heads are ours. docs/formulas.md, "UniDEC and DEPSL".
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from xmc_jax import models
from xmc_jax.methods.components import embedding
from xmc_jax.types import Array, DatasetInfo, PyTree

TEXTS, CLASSIFIERS = "text_head", "classifier_head"


class TwoHeads(NamedTuple):
  """Holds the embeddings by the heads Φ_D = n(tanh(W₁E + b₁)) and Φ_C = W₂E + b₂ of one encoder E.

  Attributes:
    init: `key -> params`: the encoder's, and those of each head under its name.
    of_points: `(params, tokens, key=None) -> [n, D + D']`, Φ_D beside Φ_C; dropout only with a key.
    of_texts: the same, but `[n, D]`, Φ_D alone.
    width: D.
  """

  init: Callable[..., PyTree]
  of_points: Callable[..., Array]
  of_texts: Callable[..., Array]
  width: int


def build(config: ml_collections.ConfigDict, info: DatasetInfo, classifier_dim: int) -> TwoHeads:
  """Builds the heads that `config.encoder` describes; both have its `embedding_dropout`.

  Its `projection_dim` is D, 0 for no layer and no tanh; `classifier_dim` is D', 0 for no second head.
  """
  settings = config.encoder
  bare = {"projection_dim": 0, "projection_tanh": False, "embedding_dropout": 0.0, "normalize": False}
  encoder = embedding.encoder(config, info, **bare)
  dim, rate, dtype = settings.projection_dim, settings.embedding_dropout, models.choose_dtype(settings.dtype)
  heads = {TEXTS: models.Head(dim, dim > 0, rate, settings.normalize, dtype)}
  if classifier_dim:
    heads[CLASSIFIERS] = models.Head(classifier_dim, False, rate, False, dtype)

  def init(key):
    encoder_key, *keys = jax.random.split(key, 1 + len(heads))
    params = encoder.init(encoder_key)
    for (name, head), head_key in zip(heads.items(), keys):
      made = head.init(head_key, jnp.zeros((1, encoder.width)))
      params |= {name: made["params"]} if made else {}
    return params

  def embed(names, params, tokens, key=None):
    keys = [None] * (1 + len(names)) if key is None else jax.random.split(key, 1 + len(names))
    pooled = encoder.embed(params, tokens, keys[0])
    given = zip(names, keys[1:])
    parts: list[Any] = [
      heads[name].apply({"params": params.get(name, {})}, pooled, key) for name, key in given
    ]
    return jnp.concatenate(parts, axis=1)

  return TwoHeads(
    init=init,
    of_points=functools.partial(embed, tuple(heads)),
    of_texts=functools.partial(embed, (TEXTS,)),
    width=dim or encoder.width,
  )
