"""Ranks labels for queries: embeds and searches tables, and combines several sources of candidates."""

from xmc_jax.retrieval.embed_table import embed_table, texts_at_a_time
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.search import Ranking, place, search
from xmc_jax.retrieval.shortlists import shortlist

__all__ = ["Index", "Ranking", "embed_table", "place", "search", "shortlist", "texts_at_a_time"]
