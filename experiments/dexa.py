"""DEXA, Module I: NGAME with auxiliary vectors for clusters of labels (Dahiya et al., KDD 2023).

  python -m xmc_jax.main --config=experiments/dexa.py                   # bundled data, minutes
  python -m xmc_jax.main --config=experiments/dexa.py:lf_amazontitles_131k --config.data.path=DIR

`dexa_classifier.py` trains classifiers on what this gives. `:..._released` is what the authors' code does
where it differs from the paper. `--config.method.num_label_clusters=0` is NGAME.

The benchmark presets aim at the rows of DEXA in its Tables 2 and 3: 65,536 clusters, and a vector for each
label with 50 training points (section 4; Table 6 has the same P@1 for both titles sets in its rows "65,536,
HLP"). The paper's table of settings, its Table 11, is in a supplement that we do not have.
LF-AmazonTitles-131K has those of the released config; other sets have the lengths, batches and epochs of
ngame.py, and the 131K config's clusters of points, but for LF-Wikipedia-500K, whose 40 epochs want NGAME's.
The number of clusters is known of the titles sets only.
"""

from xmc_jax.experiments import ngame
from xmc_jax.experiments.common import config_getter

_DEXA = {"method.name": "dexa"}
# Chosen on validation rows: docs/claims.md.
OF_VECTORS = {
  "method.num_label_clusters": 256,
  "train.table_learning_rate": 5e-3,
  "eval.log_frequency": 0.0,  # free vectors learn how frequent labels are
}
_DEBIAN = {**_DEXA, **OF_VECTORS}
_HEADS = {"method.head_label_points": 50}
_CLUSTERS = {"method.num_label_clusters": 65_536, "train.table_learning_rate": 2e-4}
_OF_POINTS = {ngame.LF_WIKIPEDIA: ngame.CLUSTERS[ngame.LF_WIKIPEDIA]}

PRESETS = {
  **{
    name: {**values, **_DEBIAN, **_HEADS}
    for name, values in ngame.PRESETS.items()
    if name.startswith("debian")
  },
  **{
    name: {**ngame.released(name, **texts), **_OF_POINTS.get(name, {}), **_DEXA, **_HEADS, **_CLUSTERS}
    for name, texts in ngame.OF_TEXTS.items()
  },
}
PRESETS["lf_amazontitles_131k_released"] = {
  **PRESETS["lf_amazontitles_131k"],
  "method.head_label_points": 0,
  "method.num_head_labels": 1000,
  "method.unit_texts": False,
  "method.differentiable_weights": True,
}
get_config = config_getter("dexa", PRESETS)
