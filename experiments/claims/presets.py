"""The papers' claims as configs; `run.py` trains them and writes docs/results/.

python -m xmc_jax.main --config=experiments/claims/presets.py:losses-softmax
"""

from experiments import depsl, dexa, dexml, ngame, prime, ramen, unidec
from experiments.common import choose

# A light transformer: t* is a matter of attention, which a bag of embeddings has none of.
_SYNTHETIC = {
  "dataset": "debian",
  "encoder.num_layers": 1,
  "train.learning_rate": 1e-3,
  "data.num_validation": 0,
  "eval.every_epochs": 0.0,
  "checkpoint.every_epochs": 0.0,
}
# All positives at once: of one drawn positive, with the others left out, both losses are the same.
_T_STAR = {
  **_SYNTHETIC,
  "data.path": "data/claims/t_star",
  "method.num_positives": 0,
  "train.batch_size": 1000,
  "train.num_epochs": 24,
}
_PAIRS = {
  **_SYNTHETIC,
  "data.path": "data/claims/random_pairs_10000",
  "method.labels": "in_batch",
  "train.batch_size": 256,
  "train.num_epochs": 10,
}
_DEBIAN = {**dexml.PRESETS["debian"], "checkpoint.every_epochs": 0.0, "eval.every_epochs": 3.0}
_IN_BATCH = {**_DEBIAN, "method.labels": "in_batch", "method.num_positives": 1}


def _hard(count: int) -> dict:
  return {**_IN_BATCH, "method.num_hard_negatives": count, "method.shortlist_first_epoch": 5.0}


def _fresh(count: int) -> dict:
  """As many labels a batch as `_hard` draws at most."""
  return {**_IN_BATCH, "method.num_fresh_negatives": count * _IN_BATCH["train.batch_size"]}


# NGAME and DEXA, cut short: clusters of points act from the first third on.
_SWEEP = {
  "checkpoint.every_epochs": 0.0,
  "method.leaves_first_epoch": 1.0,
  "method.leaves_every_epochs": 1.0,
  "method.leaf_doubling_epochs": (2, 4, 8),
}
_BAG = {**_SWEEP, "train.num_epochs": 15, "eval.every_epochs": 5.0}
_LIGHT = {**_SWEEP, "train.num_epochs": 4, "eval.every_epochs": 2.0}
_DEXA_BAG = {**dexa.PRESETS["debian"], **_BAG, "method.head_label_points": 0}


def _ngame(preset: str, short: dict) -> dict:
  return {**ngame.PRESETS[preset], **short}


def _dexa(preset: str, short: dict) -> dict:
  return {**dexa.PRESETS[preset], **short}


_UNIDEC = {**unidec.PRESETS["debian"], "checkpoint.every_epochs": 0.0}
_DEPSL = {**depsl.PRESETS["debian"], "checkpoint.every_epochs": 0.0}
# The paper gives no weight; a small one, and 1 below.
_BINARY = {"method.binary_weight": 0.01}
_SOFTMAX = {"method.loss": "softmax"}
# All labels in place of a pool, all else alike: against these, queries' loss is DEXML's.
_EVERY = {
  "method.labels": "all",
  "method.num_positives": 0,
  "method.num_hard_negatives": 0,
  "method.pool_size": 0,
}


def _clusters(count: int, **more) -> dict:
  return {**_DEXA_BAG, "method.num_label_clusters": count, **more}


# Claim by claim, the rows of its table: what stands there, and the settings.
CLAIMS = {
  "t_star": {
    "decoupled_softmax": _T_STAR,
    "softmax": {**_T_STAR, "method.loss": "softmax"},
  },
  "random_pairs": {"in_batch": _PAIRS},
  "losses": {
    "decoupled_softmax": _DEBIAN,
    "softmax": {**_DEBIAN, "method.loss": "softmax"},
    "soft_top_5": {**_DEBIAN, "method.loss": "soft_top_k", "method.k": 5.0, "method.alpha": 1.0},
    "soft_top_100": {**_DEBIAN, "method.loss": "soft_top_k", "method.k": 100.0, "method.alpha": 1.0},
    "binary": {**_DEBIAN, "method.loss": "binary"},
  },
  "negatives": {
    "in_batch": _IN_BATCH,
    **{f"in_batch_and_{count}_hard": _hard(count) for count in (1, 2, 5, 10)},
    **{f"in_batch_and_{count}_fresh": _fresh(count) for count in (1, 5)},
    "all_labels": {**_DEBIAN, "method.num_positives": 1},
  },
}
CLAIMS |= {
  "auxiliary_vectors": {
    "bag": _ngame("debian", _BAG),
    "bag_with_auxiliary": _dexa("debian", _BAG),
    "minilm_3": _ngame("debian_minilm3", _LIGHT),
    "minilm_3_with_auxiliary": _dexa("debian_minilm3", _LIGHT),
    "minilm_6": _ngame("debian_minilm6", _LIGHT),
    "minilm_6_with_auxiliary": _dexa("debian_minilm6", _LIGHT),
  },
  "label_clusters": {
    "none": _clusters(0),
    "64": _clusters(64),
    "256": _clusters(256),
    "1024": _clusters(1024),
    "4096": _clusters(4096),
    "16384": _clusters(16_384),
    "256_and_heads": _clusters(256, **{"method.head_label_points": 50}),
    "1024_and_heads": _clusters(1024, **{"method.head_label_points": 50}),
    "4096_and_heads": _clusters(4096, **{"method.head_label_points": 50}),
    "1024_by_kmeans": _clusters(1024, **{"method.label_clustering": "kmeans"}),
    "1024_by_centroids": _clusters(1024, **{"method.label_clustering": "balanced_centroids"}),
  },
}
CLAIMS |= {
  "both_heads": {  # UniDEC's Table 3
    "supcon": {**_UNIDEC, **_SOFTMAX},
    "supcon_and_binary": {**_UNIDEC, **_SOFTMAX, **_BINARY},
    "decoupled_with_binary_classifiers": {**_UNIDEC, "method.classifier_loss": "binary"},
    "decoupled": _UNIDEC,
    "decoupled_and_binary": {**_UNIDEC, **_BINARY},
    "decoupled_and_binary_of_weight_1": {**_UNIDEC, "method.binary_weight": 1.0},
    "decoupled_without_hard_negatives": {**_UNIDEC, "method.num_hard_negatives": 0},  # its Table 5
  },
  "small_pool": {  # its Tables 2 and 4
    "depsl_supcon_one_way": {**_DEPSL, **_SOFTMAX, "method.symmetric": False},
    "depsl_supcon": {**_DEPSL, **_SOFTMAX},
    "depsl_one_way": {**_DEPSL, "method.symmetric": False},
    "depsl": _DEPSL,
    "depsl_pool_of_400": {**_DEPSL, "method.pool_size": 400},
    "depsl_all_labels": {**_DEPSL, **_EVERY},
    "depsl_all_labels_5_epochs": {**_DEPSL, **_EVERY, "train.num_epochs": 5},  # in the minutes of `depsl`
    "dexml_all_labels": _DEBIAN,
  },
}
# PRIME-lite, cut short as NGAME and DEXA above, and evaluated after every epoch: its claims are of speed too.
_CURVES = {"eval.every_epochs": 1.0}
_PRIME = {**prime.PRESETS["debian"], **_BAG, **_CURVES}
_LITE = {**prime.PRESETS["debian_lite"], **_BAG, **_CURVES}
_WITHOUT_MARGIN = {"method.loss": "margin"}
_WITHOUT_REVERSE = {"method.reverse_weight": 0.0, "method.regulariser_weight": 0.0}
_WITHOUT_VECTORS = {"method.num_label_clusters": 0}
_WITHOUT_CENTROIDS = {"method.centroids": "none"}


def _free_vectors(count: int) -> dict:
  return {**_LITE, "method.num_label_clusters": count}


CLAIMS |= {
  "prime_loss": {  # PRIME's Table 6
    "prototypes_alone": {**_LITE, **_WITHOUT_MARGIN, **_WITHOUT_REVERSE, "method.text_weight": 0.0},
    "and_texts": {**_LITE, **_WITHOUT_MARGIN, **_WITHOUT_REVERSE},
    "and_dynamic_margin": {**_LITE, **_WITHOUT_REVERSE},
    "and_texts_against_points": {**_LITE, "method.regulariser_weight": 0.0},
    "and_regulariser_prime_lite": _LITE,
    "prime": _PRIME,
  },
  "prime_parts": {  # its Figure 3, Tables 9 and 11, and appendix H
    "without_centroids_and_vectors": {**_LITE, **_WITHOUT_CENTROIDS, **_WITHOUT_VECTORS},
    "without_centroids": {**_LITE, **_WITHOUT_CENTROIDS},
    "without_free_vectors": {**_LITE, **_WITHOUT_VECTORS},
    "frozen_centroids": {**_LITE, "method.centroids": "frozen"},
    "exact_centroids": {**_LITE, "method.exact_centroids": True},
    "uniform_positives": {**_LITE, "method.positive_sampling": "uniform"},
    **{f"{count}_free_vectors": _free_vectors(count) for count in (64, 1024, 16_384)},
  },
  "prime_and_others": {  # at equal epochs, beside auxiliary_vectors' MiniLM; the last two in PRIME's minutes
    "ngame": {**_ngame("debian", _BAG), **_CURVES},
    "dexa": {**_dexa("debian", _BAG), **_CURVES},
    "dexml": {**_DEBIAN, **_CURVES, "train.num_epochs": 15},
    "minilm_3_prime": {**prime.PRESETS["debian_minilm3"], **_LIGHT},
    "minilm_3_prime_lite": {**prime.PRESETS["debian_minilm3_lite"], **_LIGHT},
    "dexa_longer": {**_dexa("debian", _BAG), "train.num_epochs": 75},
    "dexml_longer": {**_DEBIAN, "train.num_epochs": 45},
  },
}
# RAMEN, cut short likewise. Of LF-CppDocs-SeeAlso, half as large, batches are half as large.
_CPP = {"data.path": "data/LF-CppDocs-SeeAlso", "data.num_validation": 400, "train.batch_size": 256}
_UNPRUNED = {"method.graph_pruning": False}
_WITH_GRAPHS = {
  base: {**ramen.PRESETS[preset], **_BAG, "method.shortlist_first_epoch": 1.0}
  for base, preset in (("ngame", "debian"), ("ance", "debian_ance"), ("dexml", "debian_dexml"))
}


def _without_graphs(base: str) -> dict:
  of_graphs = ("method.pruning", "method.base")
  values = {key: value for key, value in _WITH_GRAPHS[base].items() if not key.startswith(of_graphs)}
  return {**values, "method.name": base}


_NO_QUERIES, _NO_LABELS = ({f"method.{side}_graph_weights": (0.0,)} for side in ("query", "label"))


def _noisy(percent: int, **more) -> dict:
  return {**_WITH_GRAPHS["ance"], "method.random_edges": percent / 100, **more}


_ON_DEBIAN = {
  "graphs": {  # RAMEN's Table 6, and costs as in its Table 5
    row: values
    for base, with_graphs in _WITH_GRAPHS.items()
    for row, values in ((base, _without_graphs(base)), (f"{base}_with_graphs", with_graphs))
  },
  "graph_parts": {  # its Table 8, beside "ance_with_graphs"
    "without_pruning": {**_WITH_GRAPHS["ance"], **_UNPRUNED},
    "without_graphs_of_points": {**_WITH_GRAPHS["ance"], **_NO_QUERIES},
    "without_graphs_of_labels": {**_WITH_GRAPHS["ance"], **_NO_LABELS},
    "without_walks": {**_WITH_GRAPHS["ance"], "method.walk_hops": 0},
    "augmented_truth": {**_WITH_GRAPHS["ance"], **_NO_QUERIES, **_NO_LABELS, "method.augment_truth": True},
  },
  "graph_noise": {
    f"{percent}_percent_random{suffix}": _noisy(percent, **more)
    for percent in (25, 50, 75)
    for suffix, more in (("", {}), ("_unpruned", _UNPRUNED))
  },
}
CLAIMS |= _ON_DEBIAN
CLAIMS |= {
  f"{claim}_cpp": {row: {**values, **_CPP} for row, values in rows.items()}
  for claim, rows in _ON_DEBIAN.items()
}
PRESETS = {f"{claim}-{row}": values for claim, rows in CLAIMS.items() for row, values in rows.items()}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("claims", preset or next(iter(PRESETS)), choose(preset, PRESETS))
