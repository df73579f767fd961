"""Retrieves by several encoders of the same texts."""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import scipy.sparse as sp
from jax.sharding import Mesh

from xmc_jax.retrieval.sources import Block, Corpus, Queries, Retriever


class CombinedRetriever(Retriever):
  """Searches by several encoders; the vectors of queries are those by each encoder, side by side.

  Args:
    corpora: the corpus by each encoder and its name; they differ in vectors and temperature alone, and the
      texts, votes and words of the first are kept for all.
    backend, devices: as for `Retriever`.
  """

  def __init__(
    self, corpora: Iterable[tuple[str, Corpus]], *, backend: str = "exact", devices: Mesh | None = None
  ):
    self._by_encoder: dict[str, Retriever] = {}
    words = None
    for name, corpus in corpora:
      if first := next(iter(self._by_encoder.values()), None):
        words, shared = first.words, first.corpus
        corpus = corpus._replace(
          truth=shared.truth, point_texts=shared.point_texts, label_texts=shared.label_texts
        )
      self._by_encoder[name] = Retriever(corpus, backend=backend, devices=devices, words=words)
    vars(self).update(vars(next(iter(self._by_encoder.values()))))

  @property
  def by_encoder(self) -> Mapping[str, Retriever]:
    """Returns by encoder the retriever that searches by it alone."""
    return self._by_encoder

  def split(self, queries: Queries) -> list[Queries]:
    """Returns the queries with the vectors by each encoder."""
    ends = np.cumsum([retriever.points.shape[1] for retriever in self._by_encoder.values()])
    return [queries._replace(vectors=part) for part in np.split(queries.vectors, ends[:-1], axis=1)]

  def blocks(self, queries: Queries, k: int, size: int, exclude: sp.csr_matrix | None = None) -> list[Block]:
    """Returns the blocks of the first encoder, with those of the others in them; see `Retriever.blocks`."""
    found = [
      [dataclasses.replace(block, encoder=name) for block in retriever.blocks(own, k, size, exclude)]
      for (name, retriever), own in zip(self._by_encoder.items(), self.split(queries))
    ]
    return [
      dataclasses.replace(first, others=[dataclasses.replace(one, of_words=first.of_words) for one in others])
      for first, *others in zip(*found)
    ]
