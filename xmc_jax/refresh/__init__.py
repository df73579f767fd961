"""Work between steps, on the host: embedding and searching whole tables, shortlists, clusters, graphs."""

from xmc_jax.refresh.centroids import label_centroids
from xmc_jax.refresh.clusters import balanced_clusters, spherical_kmeans
from xmc_jax.refresh.embed import embed_table, texts_at_a_time
from xmc_jax.refresh.index import Index
from xmc_jax.refresh.pruning import kept_edges
from xmc_jax.refresh.schedule import due, next_due, renew, shares
from xmc_jax.refresh.search import Ranking, place, search
from xmc_jax.refresh.shortlists import shortlist
from xmc_jax.refresh.snapshot import Snapshot
from xmc_jax.refresh.walks import with_visits, with_walks

__all__ = [
  "Index",
  "Ranking",
  "Snapshot",
  "balanced_clusters",
  "due",
  "embed_table",
  "kept_edges",
  "label_centroids",
  "next_due",
  "place",
  "renew",
  "search",
  "shares",
  "shortlist",
  "spherical_kmeans",
  "texts_at_a_time",
  "with_visits",
  "with_walks",
]
