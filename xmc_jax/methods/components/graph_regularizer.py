"""Computes RAMEN's regularisers, which pull points and labels towards the anchors linked to them by a graph.

Section 3.1 of the paper has sums of hinges. As in OAK's code, we take NGAME's loss: its hardest negatives,
their weights and its mean. docs/formulas.md, "RAMEN".
"""

import difflib
from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import ml_collections

from xmc_jax.batching.graph_anchors import is_of_labels, side_name
from xmc_jax.config import Key, Settings, declare
from xmc_jax.config.keys import unused
from xmc_jax.data.dataset import LABEL, QUERY
from xmc_jax.errors import ConfigError
from xmc_jax.methods.components.pool_losses import MARGIN, mean_over_rows, pool_loss
from xmc_jax.models import normalize
from xmc_jax.types import Array, Batch, DatasetInfo


def _faults(values: Mapping) -> Iterator[str]:
  names = values["method.graphs"]
  if len(set(map(str, names))) < len(names):
    yield f'method.graphs = {names!r:.60} names a graph twice; set --config.method.graphs="()" for all'
  if not all(isinstance(name, str) for name in names):
    yield f"method.graphs = {names!r:.60} must hold names; for instance --config.method.graphs=\"('links',)\""
  for key in ("method.query_graph_weights", "method.label_graph_weights"):
    if not all(type(weight) in (int, float) and 0 <= weight <= 1e6 for weight in values[key]):
      yield (
        f"{key} = {values[key]!r:.60} must hold numbers from 0 to 1,000,000; "
        f'for instance --config.{key}="(0.5,)"'
      )


_EDGES = declare(
  checks=(
    unused("walk_hops", 0, walk_restart=0.8, walk_kept=10, walk_sides="both", anchor_sampling="uniform"),
  ),
  walk_hops=Key(400, "hops of a random walk from each anchor, which adds edges; 0 adds none"),
  walk_restart=Key(0.8, "probability of a return to the start at each hop", below=1),
  walk_kept=Key(10, "anchors that are kept of each walk, by visits; the start usually is one", least=1),
  walk_sides=Key("both", "add edges of walks to points, labels, or both", choices=("both", "query", "label")),
  anchor_sampling=Key(
    "uniform",
    "how a row's anchor is sampled; 'visits' weights edges of walks by their visits",
    choices=("uniform", "visits"),
  ),
  label_like_anchors=Key(
    "keep",
    "'drop' leaves out a point's links to anchors that have the words of a label that is not the point's",
    choices=("keep", "drop"),
  ),
  random_edges=Key(
    0.0, "random edges to add, as a share of a graph's own: tests the effect of noise", most=100
  ),
)
_PRUNING = declare(
  checks=(unused("graph_pruning", False, pruning_threshold=0.0, pruning_by="encoder"),),
  graph_pruning=Key(True, "False: edges are never pruned"),
  pruning_by=Key(
    "encoder",
    "vectors of the test: by the current encoder, or once by the initial one; centred: minus their mean",
    choices=("encoder", "centred", "pretrained", "pretrained_centred"),
  ),
  pruning_threshold=Key(0.0, "edges are kept if the cosine of their ends is above this", most=1),
  pruning_first_epoch=Key(10.0, "no edges are pruned before this epoch"),
  pruning_every_epochs=Key(5.0, "epochs between prunings, each of all edges; 0 prunes once"),
)
_OF_MARGIN = "margin", "margin_negatives", "margin_mean", "weight_temperature", "differentiable_weights"
SETTINGS = declare(
  _EDGES,
  _PRUNING,
  Settings({name: MARGIN.keys[name] for name in _OF_MARGIN}),  # of R, whatever the base's loss is
  checks=(_faults,),
  graphs=Key((), "metadata graphs of the data, by name; () is all"),
  query_graph_weights=Key(
    (), "λ of edges to points: of each graph, or one for all; () is 1 / T: ours, the paper prints none"
  ),
  label_graph_weights=Key((), "λ of edges to labels, as query_graph_weights"),
  augment_truth=Key(False, "True: labels that share an anchor with a point are its labels, too (AugGT)"),
  max_augmented_pairs=Key(200_000_000, "pairs that augment_truth may add: 16 bytes each"),
)


def weights(config: ml_collections.ConfigDict, info: DatasetInfo) -> dict[str, float]:
  """Returns λ of each side of the chosen graphs, by the side's name; leaves out sides of weight 0.

  Args:
    config: `method.graphs`, `method.query_graph_weights` and `method.label_graph_weights` are used. For T
      graphs: no weight is 1 / T each (ours: the paper prints no λ); one is for all; T are one for each.
    info: of the data.

  Raises:
    ConfigError: a graph that the data do not have, or another number of weights.
  """
  chosen = config.method.graphs or tuple(info.graphs)
  if not info.graphs:
    raise ConfigError(
      "method.name = 'ramen' learns from metadata graphs, and the data have none with a link: put "
      "NAME_trn_X_Y.txt or NAME_lbl_X_Y.txt and NAME_anchors.txt beside them, or set "
      "--config.method.name=ngame"
    )
  if missing := [graph for graph in chosen if graph not in info.graphs]:
    near = difflib.get_close_matches(missing[0], info.graphs, n=1)
    hint = (
      f"did you mean --config.method.graphs=\"('{near[0]}',)\"?" if near else "leave it out for all of them"
    )
    there = ", ".join(info.graphs)
    raise ConfigError(
      f"method.graphs names {missing[0]!r}, and the data's metadata graphs are {there}; {hint}"
    )
  by_kind = {}
  for kind in (QUERY, LABEL):
    key = f"{kind}_graph_weights"
    given = config.method[key] or (1 / len(chosen),)
    if len(given) not in (1, len(chosen)):
      raise ConfigError(
        f"method.{key} has {len(given)} weights, and graphs are {', '.join(chosen)}; "
        f'give one of each, or one for all: --config.method.{key}="({1 / len(chosen):.3g},)"'
      )
    by_kind[kind] = given * (len(chosen) if len(given) == 1 else 1)
  return {
    side_name(graph, kind): float(by_kind[kind][number])
    for number, graph in enumerate(chosen)
    for kind in info.graphs[graph]
    if by_kind[kind][number]
  }


def add_up(
  config: ml_collections.ConfigDict,
  info: DatasetInfo,
  queries: Array,
  labels: Array,
  anchors: dict[str, Array],
  batch: Batch,
) -> tuple[Array | float, dict[str, Array]]:
  """Returns `(sum of λ R, R of each side)`: the margin loss of points, or sampled labels, against anchors.

  A row's positive is the anchor sampled for it. Its other linked anchors are no negatives, nor are those of
  pruned edges. Scores are cosines, whatever scores the base has. R is the mean over the batch's points, or
  over the different labels that they sampled; a row without an edge counts as 0.

  Args:
    config: `margin*` and `weight_temperature` of `config.method` are used for R.
    info: of the data.
    queries, labels: `[B, D]` and `[S, D]` embeddings of the batch's points and of its pool.
    anchors: by side `[S', D]`.
    batch: its `sampled_anchors` are the links.
  """
  unit = (lambda vectors: vectors) if config.encoder.normalize else normalize
  total: Array | float = 0.0
  terms: dict[str, Array] = {}
  lambdas = weights(config, info) if anchors else {}
  for side, vectors in anchors.items():
    links = batch.sampled_anchors[side]
    rows = labels if is_of_labels(side) else queries
    linked = batch._replace(
      rows=links.rows,
      columns=links.columns,
      positives=links.positives,
      weights=links.weights,
      excluded=jnp.full((len(links.rows), 1), -1, jnp.int32),
    )
    rows = unit(rows[jnp.maximum(links.rows, 0)])
    per_row = pool_loss(config, info, "margin", rows, unit(vectors), linked, num_positives=1)
    terms[f"graph/{side}"] = mean_over_rows(per_row, linked)
    total = total + lambdas[side] * terms[f"graph/{side}"]
  return total, terms
