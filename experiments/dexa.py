"""DEXA, Module I: NGAME with auxiliary vectors for clusters of labels (Dahiya et al., KDD 2023).

  python -m xmc_jax.main --config=experiments/dexa.py                   # bundled data, minutes
  python -m xmc_jax.main --config=experiments/dexa.py:lf_amazontitles_131k --config.data.path=DIR

`dexa_classifier.py` trains classifiers on what this gives. `:..._released` is what the authors' code does
where it differs from the paper. `--config.method.num_label_clusters=0` is NGAME.
"""

from experiments import dexml, ngame
from experiments.common import choose

_DEXA = {"method.name": "dexa"}
# Chosen on validation rows: docs/claims.md, 7.
_DEBIAN = {**_DEXA, "method.num_label_clusters": 256, "train.table_learning_rate": 5e-3}
# Clusters as in the paper; labels with 50 training points have a vector each.
_K = {"lf_amazontitles_1.3m": 131_072}
_HEADS = {"method.head_label_points": 50}

PRESETS = {
  **{
    name: {**values, **_DEBIAN, **_HEADS}
    for name, values in ngame.PRESETS.items()
    if name.startswith("debian")
  },
  **{
    name: {
      **values,
      **_DEXA,
      **_HEADS,
      "method.num_label_clusters": _K.get(name, 65_536),
      "train.table_learning_rate": 2e-4,
    }
    for name, values in ngame.PRESETS.items()
    if name.startswith("lf_")
  },
}
PRESETS["lf_amazontitles_131k_released"] = {
  **PRESETS["lf_amazontitles_131k"],
  "method.head_label_points": 0,
  "method.num_head_labels": 1000,
  "method.unit_texts": False,
  "method.differentiable_weights": True,
}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("dexa", preset or next(iter(PRESETS)), choose(preset, PRESETS))
