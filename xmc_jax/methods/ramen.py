"""RAMEN: metadata graphs as a regulariser of a dual encoder's training (Mittal et al., 2024).

Points and labels are drawn to the anchors that the graphs link them to, beside the base's own loss: that of
NGAME, ANCE or DEXML. Edges are those of the graphs and of random walks over them; every few epochs those
that the encoder does not believe in are pruned, from all of them each time. Inference knows no graph.
The paper prints no weight of its regularisers: λ = 1 / T for T graphs is ours.
"""

import contextlib
import functools

from xmc_jax import refresh
from xmc_jax.batching.graph_anchors import KEPT, is_of_labels
from xmc_jax.console import Progress
from xmc_jax.methods import ance, dexml, ngame
from xmc_jax.methods.components import graph_regularizer
from xmc_jax.refresh.label_centroids import normalize_rows
from xmc_jax.types import Array, DatasetInfo, Method, Refresh

BASES = {"ance": ance, "dexml": dexml, "ngame": ngame}  # by `config.method.base`
FIXED = {"num_fresh_negatives": (0,), "pool_size": (0,), "labels": ("in_batch", "all")}


def make(config, info: DatasetInfo) -> Method:
  """Builds the method: the base, with graphs."""
  settings = config.method
  base = BASES[settings.base].make(config, info)
  sides = tuple(graph_regularizer.weights(config, info))
  pruned = {}
  if settings.graph_pruning:
    pruned = {KEPT + side: _pruning(side, config) for side in sides}
  return base._replace(batch=base.batch._replace(links=sides), refreshes={**base.refreshes, **pruned})


def _pruning(side: str, config) -> Refresh:
  """Returns when a side's edges are judged; by the encoder that a run starts with, before the first step."""
  settings = config.method
  compute = functools.partial(_kept, side, config)
  if settings.pruning_by.startswith("pretrained"):
    return Refresh(every_epochs=0.0, compute=compute)
  return Refresh(settings.pruning_every_epochs, compute, first_epoch=settings.pruning_first_epoch)


def _kept(side: str, config, snapshot: refresh.Snapshot) -> Array | None:
  """`[nnz]` bool, the edges of a side that the encoder of the snapshot believes in; None of no edges."""
  edges = snapshot.sides[side].edges
  if not edges.nnz:  # of points that are held out, all of them
    return None
  rows = snapshot.labels if is_of_labels(side) else snapshot.queries
  anchors = snapshot.anchors(side)
  if not config.encoder.normalize:
    rows, anchors = normalize_rows(rows.copy()), normalize_rows(anchors.copy())
  with contextlib.closing(Progress(f"pruning {side}", edges.nnz, unit="edge")) as bar:
    return refresh.kept_edges(
      edges,
      rows,
      anchors,
      threshold=config.method.pruning_threshold,
      centred=config.method.pruning_by.endswith("centred"),
      progress=bar.update,
    )
