"""Rows of DEXA's claim, 7."""

from xmc_jax.experiments import dexa, ngame
from xmc_jax.experiments.claims.common import BAG, LIGHT, cut

_DEXA = {**cut(dexa.PRESETS["debian"], BAG), "method.head_label_points": 0}
_FASTER = {"train.table_learning_rate": 3 * _DEXA["train.table_learning_rate"]}
_HEADS = {"method.head_label_points": 50}
# A Bi-GRU over MiniLM's token embeddings, as wide as they are.
_GRU = {
  **BAG,
  "encoder.name": "gru",
  "encoder.dropout": 0.1,
  "encoder.width": 384,
  "train.learning_rate": 1e-3,
  "train.num_epochs": 8,
}


def _clusters(count: int, **more) -> dict:
  return {**_DEXA, "method.num_label_clusters": count, **more}


REAL = {
  "auxiliary_vectors": {  # Table 5
    "bag": cut(ngame.PRESETS["debian"], BAG),
    "bag_with_auxiliary": cut(dexa.PRESETS["debian"], BAG),
    "bi_gru": cut(ngame.PRESETS["debian"], _GRU),
    "bi_gru_with_auxiliary": cut(dexa.PRESETS["debian"], _GRU),
    "minilm_3": cut(ngame.PRESETS["debian_minilm3"], LIGHT),
    "minilm_3_with_auxiliary": cut(dexa.PRESETS["debian_minilm3"], LIGHT),
    "minilm_6": cut(ngame.PRESETS["debian_minilm6"], LIGHT),
    "minilm_6_with_auxiliary": cut(dexa.PRESETS["debian_minilm6"], LIGHT),
  },
  "label_clusters": {  # Tables 6 and 7
    "none": _clusters(0),
    **{f"{count}": _clusters(count) for count in (64, 256, 1024, 4096, 16_384)},
    **{f"{count}_and_heads": _clusters(count, **_HEADS) for count in (256, 1024, 4096)},
    # Only rows of labels in the batch move: at this rate about as far as by dense updates.
    **{f"{count}_at_3_times_the_rate": _clusters(count, **_FASTER) for count in (256, 1024, 16_384)},
    "1024_by_kmeans": _clusters(1024, **{"method.label_clustering": "kmeans"}),
    "1024_by_centroids": _clusters(1024, **{"method.label_clustering": "balanced_centroids"}),
  },
}
