"""Recomputes clusters, centroids and graph edges between steps: refreshes, and their schedule."""

from xmc_jax.refresh.clusters import balanced_clusters, spherical_kmeans
from xmc_jax.refresh.graph_pruning import kept_edges
from xmc_jax.refresh.graph_walks import with_visits, with_walks
from xmc_jax.refresh.label_centroids import label_centroids
from xmc_jax.refresh.schedule import due, next_due, renew, shares
from xmc_jax.refresh.snapshot import Snapshot
from xmc_jax.retrieval import shortlist

__all__ = [
  "Snapshot",
  "balanced_clusters",
  "due",
  "kept_edges",
  "label_centroids",
  "next_due",
  "renew",
  "shares",
  "shortlist",
  "spherical_kmeans",
  "with_visits",
  "with_walks",
]
