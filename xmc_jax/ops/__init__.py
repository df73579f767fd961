"""Operations on large label tables that never hold all of [B, L] at once."""

from xmc_jax.ops.top_k import top_k

__all__ = ["top_k"]
