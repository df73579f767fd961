"""A trained run for other tools: sentence-transformers, FAISS, ScaNN, StableHLO; it takes new labels."""

from xmc_jax.export.exported import Exported, add_labels
from xmc_jax.export.make import export

__all__ = ["Exported", "add_labels", "export"]
