"""Work between steps, on the host: embedding whole tables; later clusters and shortlists."""

from xmc_jax.refresh.embed import embed_table

__all__ = ["embed_table"]
