"""Exports trained runs for sentence-transformers, FAISS, ScaNN and StableHLO; exports accept new labels."""

from xmc_jax.export.exported import Exported, add_labels
from xmc_jax.export.make import export

__all__ = ["Exported", "add_labels", "export"]
