"""Measures how fast tables are embedded, searched and clustered."""

import time
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from benchmarks.accelerator.phases.timing import peak_gigabytes, seconds_of
from xmc_jax import models
from xmc_jax.refresh import balanced_clusters
from xmc_jax.retrieval.search import search, shard_table
from xmc_jax.types import Tokens

_TEXTS = {"full": 4096, "tiny": 8}
SEARCH = {"full": (20_000, 1_000_000, 768), "tiny": (20, 300, 16)}  # queries, labels, dimensions
CLUSTERS = {"full": (1_000_000, 768, 2**15), "tiny": (200, 16, 8)}  # vectors, dimensions, clusters
ENCODERS = {"full": ("all-MiniLM-L6-v2", "distilbert-base-uncased"), "tiny": ("paraphrase-MiniLM-L3-v2",)}


def search_and_embedding(size: str) -> dict[str, Any]:
  """Returns queries a second of an exact search for the best 100, and texts of 16 tokens a second."""
  num_queries, num_labels, dim = SEARCH[size]
  labels = jax.random.normal(jax.random.key(0), (num_labels, dim))
  queries = np.random.default_rng(0).standard_normal((num_queries, dim), np.float32)
  table = shard_table(labels)
  found: dict[str, Any] = {}
  for block in (512, 4096):
    searched = lambda part, block=block: search(part, table, min(100, num_labels), block=block)
    searched(queries[: 2 * block])
    start = time.perf_counter()
    searched(queries)
    found[f"queries_a_second_block_{block}"] = round(num_queries / (time.perf_counter() - start), 1)
  for name in ENCODERS[size]:
    found[f"texts_a_second_{name}"] = _embedded(name, _TEXTS[size])
  return found | {"gigabytes_at_most": peak_gigabytes()}


def _embedded(name: str, number: int) -> float:
  settings = {"name": name, "pretrained": False, "pooling": "mean", "normalize": True, "dtype": "auto"}
  embedder = models.build(SimpleNamespace(**settings))
  params = jax.device_put(embedder.init(jax.random.key(0)))
  ids = np.random.default_rng(0).integers(1000, 30_000, (number, 16), np.int32)
  tokens = jax.device_put(Tokens(ids, np.full(number, 16, np.int32)))
  return round(number / seconds_of(jax.jit(embedder.embed), params, tokens), 1)


def clusters(size: str) -> dict[str, Any]:
  """Returns seconds of balanced clustering, the first time with compilation."""
  num_vectors, dim, num_clusters = CLUSTERS[size]
  vectors = jax.device_get(jax.random.normal(jax.random.key(0), (num_vectors, dim)))
  seconds = []
  for seed in range(2):
    start = time.perf_counter()
    found = balanced_clusters(vectors, num_clusters, key=jax.random.key(seed))
    seconds.append(round(time.perf_counter() - start, 2))
  counts = np.bincount(found, minlength=num_clusters)
  if counts.max() - counts.min() > 1:
    return {"failed": f"clusters of {counts.min()} to {counts.max()} vectors"}
  return {"later_seconds": seconds[1], "first_seconds": seconds[0], "gigabytes_at_most": peak_gigabytes()}
