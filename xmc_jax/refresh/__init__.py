"""Work between steps, on the host: embedding whole tables, searching them, shortlists; later clusters."""

from xmc_jax.refresh.embed import embed_table
from xmc_jax.refresh.schedule import due, next_due, renew
from xmc_jax.refresh.search import Ranking, search
from xmc_jax.refresh.shortlists import shortlist
from xmc_jax.refresh.snapshot import Snapshot

__all__ = ["Ranking", "Snapshot", "due", "embed_table", "next_due", "renew", "search", "shortlist"]
