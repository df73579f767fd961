"""RAMEN: metadata graphs as a regulariser of a dual encoder's training (Mittal et al., WWW Companion 2025).

Points and labels are pulled towards the anchors that the graphs link them to (section 3.1), beside the base's
own loss: that of NGAME, ANCE or DEXML. Edges are those of the graphs and of random walks over them. Every few
epochs all edges are judged again, and those whose ends have unlike embeddings are pruned. Inference uses no
graph. The paper prints no weight of its regularisers: λ = 1 / T for T graphs is ours. docs/formulas.md,
"RAMEN".
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping

import ml_collections

from xmc_jax import refresh
from xmc_jax.batching.graph_anchors import is_of_labels
from xmc_jax.config import Key, declare
from xmc_jax.config.keys import shown
from xmc_jax.console import Progress
from xmc_jax.distributed import split_table
from xmc_jax.methods import ance, dexml, ngame
from xmc_jax.methods.components import graph_edges, graph_regularizer
from xmc_jax.ops.unit_rows import unit_rows
from xmc_jax.types import KEPT, Array, DatasetInfo, Method, Refresh

_BASES = {"ngame": ngame, "ance": ance, "dexml": dexml}


def _base_faults(values: Mapping) -> Iterator[str]:
  """Yields faults: settings, and values of settings, that only other bases have."""
  base = values["method.base"]
  own = _BASES[base].SETTINGS.keys
  for name, key in _OF_BASES.keys.items():
    value = values[f"method.{name}"]
    if name not in own and name not in graph_regularizer.SETTINGS.keys and value != key.default:
      yield (
        f"method.{name} = {value!r} has no effect when method.base = {base!r}; "
        f"set --config.method.{name}={shown(key.default)}"
      )
    if name in own and own[name].choices and value not in own[name].choices:
      legal = own[name].choices
      yield (
        f"method.{name} = {value!r}: method.base = {base!r} takes {' or '.join(map(repr, legal))}; "
        f"set --config.method.{name}={legal[0]}"
      )


def _joined(name: str, default: str) -> Key:
  """Returns a key with the choices of all bases."""
  keys = [base.SETTINGS.keys[name] for base in _BASES.values()]
  return keys[0]._replace(
    default=default, choices=tuple(dict.fromkeys(choice for key in keys for choice in key.choices))
  )


_OF_BASES = declare(
  *(base.SETTINGS for base in _BASES.values()),
  loss=_joined("loss", "margin"),
  labels=_joined("labels", "in_batch"),
  num_hard_negatives=dexml.SETTINGS.keys["num_hard_negatives"],
  num_fresh_negatives=Key(0, "0: a cache of labels knows no graphs", most=0),
)
SETTINGS = declare(
  graph_regularizer.SETTINGS,
  _OF_BASES,
  checks=(_base_faults,),
  base=Key("ngame", "the method that graphs regularise", choices=tuple(_BASES)),
)


def make(config: ml_collections.ConfigDict, info: DatasetInfo) -> Method:
  """Builds the base method and adds the graphs."""
  settings = config.method
  base = _BASES[settings.base].make(config, info)
  sides = tuple(graph_regularizer.weights(config, info))
  pruned = {KEPT + side: _pruning(side, config) for side in sides if settings.graph_pruning}
  add_shared = functools.partial(graph_edges.augmented, settings=settings)
  return base._replace(
    batch=base.batch._replace(graph_sides=sides),
    refreshes={**base.refreshes, **pruned},
    load_sides=lambda dataset, points, folder: graph_edges.load(sides, dataset, points, config, folder),
    training_truth=add_shared if settings.augment_truth else None,
  )


def _pruning(side: str, config: ml_collections.ConfigDict) -> Refresh:
  """Returns the refresh that prunes a side's edges; if by the pretrained encoder, before the first step."""
  settings = config.method
  compute = functools.partial(_kept, side, config)
  if settings.pruning_by.startswith("pretrained"):
    return Refresh(every_epochs=0.0, compute=compute)
  return Refresh(settings.pruning_every_epochs, compute, first_epoch=settings.pruning_first_epoch)


def _kept(side: str, config: ml_collections.ConfigDict, snapshot: refresh.Snapshot) -> Array | None:
  """Returns `[nnz]` bool, the edges of a side to keep, by the snapshot's encoder; None if it has no edges."""
  edges = snapshot.sides[side].edges
  if not edges.nnz:  # all of them were of held-out points
    return None
  rows = snapshot.labels if is_of_labels(side) else snapshot.queries
  anchors = snapshot.anchors(side)
  if not config.encoder.normalize:
    rows = split_table.map_rows(rows, unit_rows)
    anchors = unit_rows(anchors)
  with contextlib.closing(Progress(f"pruning {side}", edges.nnz, unit="edge")) as bar:
    return refresh.kept_edges(
      edges,
      rows,
      anchors,
      threshold=config.method.pruning_threshold,
      centred=config.method.pruning_by.endswith("centred"),
      progress=bar.update,
    )
