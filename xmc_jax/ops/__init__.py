"""Computes losses and searches over large label tables without ever holding all of [B, L] at once."""

from xmc_jax.ops.soft_top_k_threshold import find_threshold
from xmc_jax.ops.streaming import streaming_loss
from xmc_jax.ops.top_k import top_k

__all__ = ["find_threshold", "streaming_loss", "top_k"]
