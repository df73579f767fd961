"""Computes features of candidate labels: their score and rank in each source, and their frequency."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xmc_jax.retrieval.memory import merged
from xmc_jax.retrieval.search import contained
from xmc_jax.retrieval.sources import SOURCES, Block, Found

_KEPT = 150  # candidates of a query, at least
_FLOOR = 1e-4  # added to scores before their logarithm
_SMOOTH = 10  # added to ranks before their reciprocal (Cormack et al., 2009, have 60)
_OF_WORDS = ("lexical_memory", "lexical_labels")  # sources that use no vectors
_TOP = 10  # a source that ranks a label among this many agrees on it
_OF_SOURCE = ("score", "log_score", "log_rank")
_SHARED = ("log_frequency", "num_agreeing", "nearest_cosine", "nearest_word_cosine")


class Candidates(NamedTuple):
  """Holds the candidate labels of a block of queries, to be ranked."""

  ids: np.ndarray  # `[n, C]` int32, each once, labels that may be answers; others are -1
  features: np.ndarray  # `[n, C, F]` float32; with several encoders, the features by each, side by side
  found: dict[str, Found]  # by source; see `name_of`


def feature_names(sources: Sequence[str]) -> list[str]:
  """Returns the names of the F features of these sources, in the order of `Candidates.features`."""
  return [f"{source}.{what}" for source in sources for what in _OF_SOURCE] + list(_SHARED)


def name_of(source: str, encoder: str) -> str:
  """Returns the name of a source among those of several encoders; a source of words has no encoder."""
  return f"{source} of {encoder}" if encoder and source not in _OF_WORDS else source


def candidates(block: Block, sources: Sequence[str], k: int, times: int = 1) -> Candidates:
  """Collects the best labels of all sources, and keeps those with the best ranks.

  These have the largest sum of 1 / (10 + rank) over sources (reciprocal rank fusion; Cormack et al., 2009).

  Args:
    block: n queries.
    sources: names of SOURCES; other encoders of the block add theirs.
    k: labels to rank per query; the candidates are 1.5 times as many, and at least 150.
    times: multiplies the number of candidates.
  """
  parts = [(block, sources), *((other, other.retriever.names) for other in block.others)]
  found: dict[str, Found] = {}
  for part, names in parts:
    found |= {
      name: SOURCES[source](part) for source in names if (name := name_of(source, part.encoder)) not in found
    }
  ids = np.zeros((len(block.unit), 0), np.int32)
  for one in found.values():
    ids = merged(ids, one.ids)
    ids = ids if one.some_ids is None else merged(ids, one.some_ids)
  if block.exclude is not None:
    ids = np.where(contained(ids, block.exclude), -1, ids)
  scores = np.stack([one.scores_of(ids) for one in found.values()], axis=-1)
  ranks = _ranks(ids, scores)
  by_ranks = np.where(ids >= 0, (1 / (_SMOOTH + ranks)).sum(axis=-1), -np.inf)
  num_kept, where = times * max(_KEPT, k + k // 2), block.queries.where
  best = np.argsort(-by_ranks, axis=1, kind="stable")[:, :num_kept]
  if where is not None:  # others stay while ranks are counted: a filter hardly changes probabilities
    by_ranks = np.where(where[ids], by_ranks, -np.inf)
    best = np.concatenate([best, np.argsort(-by_ranks, axis=1, kind="stable")[:, :num_kept]], axis=1)
  best = np.sort(best, axis=1)
  ids = np.take_along_axis(ids, best, axis=1)
  ids[:, 1:][best[:, 1:] == best[:, :-1]] = -1
  scores, ranks = (np.take_along_axis(array, best[..., None], axis=1) for array in (scores, ranks))
  column = {name: place for place, name in enumerate(found)}
  own = [(part, [column[name_of(source, part.encoder)] for source in names]) for part, names in parts]
  features = [_features(part, ids, scores[..., columns], ranks[..., columns]) for part, columns in own]
  answers = ids if where is None else np.where(where[ids], ids, -1)
  return Candidates(answers, np.concatenate(features, axis=-1), found)


def _features(block: Block, ids: np.ndarray, scores: np.ndarray, ranks: np.ndarray) -> np.ndarray:
  of_sources = np.stack([scores, np.log(np.maximum(scores, 0) + _FLOOR), np.log1p(ranks)], axis=-1)
  agreeing = ((ranks < _TOP) & (scores > 0)).sum(axis=-1)
  of_query = [near.scores.max(axis=1, initial=0) for near in (block.near, block.of_words.near)]
  shared = [
    block.retriever.log_frequency[np.maximum(ids, 0)],
    agreeing,
    *(np.broadcast_to(cosine[:, None], ids.shape) for cosine in of_query),
  ]
  flat = of_sources.reshape(*ids.shape, -1)
  return np.concatenate([flat, np.stack(shared, axis=-1)], axis=-1).astype(np.float32)


def _ranks(ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
  """Returns the rank `[n, C, S]` from 0 of each candidate by each source's scores; ties by rising id."""
  order = np.argsort(np.where(ids[..., None] >= 0, -scores, np.inf), axis=1, kind="stable")
  ranks = np.empty(order.shape, np.float32)
  places = np.broadcast_to(np.arange(order.shape[1], dtype=np.float32)[None, :, None], order.shape)
  np.put_along_axis(ranks, order, places, axis=1)
  return ranks
