"""RAMEN's regularisers: points, and labels, shall be near the anchors that a metadata graph links them to."""

import difflib

import jax.numpy as jnp

from xmc_jax.batching.graph_anchors import is_of_labels, side_name
from xmc_jax.errors import ConfigError
from xmc_jax.methods.components.pool_losses import mean_over_rows, pool_loss
from xmc_jax.models import normalize
from xmc_jax.types import LABEL, QUERY, Array, Batch, DatasetInfo


def weights(config, info: DatasetInfo) -> dict[str, float]:
  """λ of each side of the chosen graphs, by the side's name; sides of weight 0 are left out.

  Args:
    config: `method.graphs`, `method.query_graph_weights` and `method.label_graph_weights` are used: no weight
      is 1 / T for T graphs, which is ours, as the paper prints no λ; one is for every graph, T are of each.
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
  config, info: DatasetInfo, queries: Array, labels: Array, anchors: dict[str, Array], batch: Batch
) -> tuple[Array | float, dict[str, Array]]:
  """`(sum of λ R, R of each side)`: the margin loss of points, or of drawn labels, against a side's anchors.

  A row's positive is the anchor drawn for it; its other linked anchors, of pruned edges too, are no
  negatives. Scores are cosines, whatever the base's. R is the mean over the batch's points, or over
  the different labels that they drew; one without an edge has 0.

  Args:
    config: of it `config.method` is used, `margin*` and `weight_temperature` for R.
    info: of the data.
    queries: `[B, D]` embeddings of the batch's points.
    labels: `[S, D]` of its pool.
    anchors: by side `[S', D]`.
    batch: whose links these are.
  """
  unit = (lambda vectors: vectors) if config.encoder.normalize else normalize
  total, terms = 0.0, {}
  lambdas = weights(config, info) if anchors else {}
  for side, vectors in anchors.items():
    links = batch.links[side]
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
