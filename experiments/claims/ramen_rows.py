"""Rows of RAMEN's claim, 9: cut short as NGAME's."""

from xmc_jax.experiments import ramen
from xmc_jax.experiments.claims.common import BAG, cut
from xmc_jax.experiments.common import beside_method

# On NGAME, without the shortlist's negative that the bag's preset has.
_PLAIN = {key: value for key, value in ramen.PRESETS["debian"].items() if key not in ramen.HARD}
RAMEN = cut(_PLAIN, BAG)
_UNPRUNED = {"method.graph_pruning": False}
_LISTED = {**beside_method(BAG), "method.shortlist_first_epoch": 1.0}
_WITH_GRAPHS = {
  "ngame": RAMEN,
  "ance": cut(ramen.PRESETS["debian_ance"], _LISTED),
  "dexml": {**ramen.PRESETS["debian_dexml"], **_LISTED},
}
_ANCE = _WITH_GRAPHS["ance"]
_NO_WALKS = {"method.walk_hops": 0}
_NO_QUERIES, _NO_LABELS = ({f"method.{side}_graph_weights": (0.0,)} for side in ("query", "label"))
_SMALL_WEIGHTS = {f"method.{side}_graph_weights": (0.1,) for side in ("query", "label")}


def _without_graphs(base: str) -> dict:
  of_graphs = ("method.pruning", "method.base")
  values = {key: value for key, value in _WITH_GRAPHS[base].items() if not key.startswith(of_graphs)}
  return {**values, "method.name": base}


def _noisy(percent: int, **more) -> dict:
  return {**_ANCE, "method.random_edges": percent / 100, **more}


def _pruned_above(threshold: float, first_epoch: float = 3.0) -> dict:
  return {"method.pruning_threshold": threshold, "method.pruning_first_epoch": first_epoch}


# Two remedies against anchors that are named like labels.
_REMEDIES = {
  "ngame_without_label_like_anchors": {**_WITH_GRAPHS["ngame"], "method.label_like_anchors": "drop"},
  "ngame_with_hard_negatives": {**_without_graphs("ngame"), **ramen.HARD},
  "ngame_with_graphs_and_hard_negatives": {**_WITH_GRAPHS["ngame"], **ramen.HARD},
}
REAL = {
  "graphs": {  # Table 6, and costs as in Table 5
    row: values
    for base, with_graphs in _WITH_GRAPHS.items()
    for row, values in ((base, _without_graphs(base)), (f"{base}_with_graphs", with_graphs))
  }
  # λ is 0.5 in the other rows, 1 / the number of graphs.
  | {"ngame_with_graphs_of_weight_0.1": {**_WITH_GRAPHS["ngame"], **_SMALL_WEIGHTS}}
  | _REMEDIES,
  "graph_parts": {  # Table 8
    "ance_with_graphs": _ANCE,
    "without_pruning": {**_ANCE, **_UNPRUNED},
    "without_graphs_of_points": {**_ANCE, **_NO_QUERIES},
    "without_graphs_of_labels": {**_ANCE, **_NO_LABELS},
    "without_walks": {**_ANCE, **_NO_WALKS},
    "walks_of_labels_alone": {**_ANCE, "method.walk_sides": "label"},
    "walks_of_points_alone": {**_ANCE, "method.walk_sides": "query"},
    "anchors_by_visits": {**_ANCE, "method.anchor_sampling": "visits"},
    "without_walks_and_graphs_of_points": {**_ANCE, **_NO_QUERIES, **_NO_WALKS},
    "pruned_by_pretrained": {**_ANCE, "method.pruning_by": "pretrained"},
    "pruned_by_centred": {**_ANCE, "method.pruning_by": "centred"},
    "augmented_truth": {**_ANCE, **_NO_QUERIES, **_NO_LABELS, "method.augment_truth": True},
  },
  "graph_noise": {
    f"{percent}_percent_random{suffix}": _noisy(percent, **more)
    for percent in (25, 50, 75)
    for suffix, more in (("", {}), ("_unpruned", _UNPRUNED))
  },
}
# On LF-TateArtworks-Subjects, in few epochs.
_TATE = {"data.path": "data/LF-TateArtworks-Subjects", "train.num_epochs": 4}
_CLASS_MOVEMENT = {**_WITH_GRAPHS["ngame"], "method.graphs": ("class_movement",)}
TATE = {
  "graphs_tate": {
    "ngame": {**_without_graphs("ngame"), **_TATE},
    "ngame_with_graphs": {**_WITH_GRAPHS["ngame"], **_TATE},
    **{row: {**values, **_TATE} for row, values in _REMEDIES.items()},
    "class_movement_alone": {**_CLASS_MOVEMENT, **_TATE},
    "ance_with_graphs": {**_ANCE, **_TATE},
  }
}
# On LF-CppDocs-SeeAlso alone: each of its two graphs; random edges pruned by other vectors, above higher
# cosines, earlier, and without walks.
CPP = {
  "graph_parts": {f"{graph}_alone": {**_ANCE, "method.graphs": (graph,)} for graph in ("dir", "hyperlink")},
  "graph_noise": {
    f"50_percent_random_by_{vectors}": _noisy(50, **{"method.pruning_by": vectors})
    for vectors in ("pretrained", "centred")
  }
  | {
    "0_percent_random_above_0.3": {**_ANCE, **_pruned_above(0.3)},
    "50_percent_random_above_0.2": _noisy(50, **_pruned_above(0.2)),
    "50_percent_random_above_0.4": _noisy(50, **_pruned_above(0.4)),
    "50_percent_random_above_0.3_from_epoch_1": _noisy(50, **_pruned_above(0.3, first_epoch=1.0)),
    "50_percent_random_without_walks": _noisy(50, **_NO_WALKS),
    "50_percent_random_without_walks_above_0.3": _noisy(50, **_NO_WALKS, **_pruned_above(0.3)),
  },
}
