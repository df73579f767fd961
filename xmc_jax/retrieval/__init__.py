"""Ranks labels for queries: embeds and searches tables, and combines several sources of candidates."""

from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.search import Ranking, search, shard_table
from xmc_jax.retrieval.shortlists import shortlist
from xmc_jax.retrieval.table_embedder import TableEmbedder, embed_table, texts_at_a_time

__all__ = [
  "Index",
  "Ranking",
  "TableEmbedder",
  "embed_table",
  "search",
  "shard_table",
  "shortlist",
  "texts_at_a_time",
]
