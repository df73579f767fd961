"""PRIME, Module I: queries against label prototypes, with a dynamic margin (Dahiya et al., NAACL 2025).

  python -m xmc_jax.main --config=experiments/prime.py                  # bundled data, minutes
  python -m xmc_jax.main --config=experiments/prime.py:lf_amazontitles_1.3m --config.data.path=DIR

`:..._lite` is PRIME-lite: one positive a point and half the batch. `:..._released` is what the authors' code
does where it differs from the paper. `prime_classifier.py` trains classifiers on what this gives. The
benchmark presets carry the paper's Table 10, and aim at its Tables 2 and 3; those with `_lite` are section
4.5's, and aim at Tables 6, 9 and 11, which are of LF-AmazonTitles-1.3M.
"""

from xmc_jax.experiments import dexa, ngame
from xmc_jax.experiments.common import config_getter

_PRIME = {
  "method.name": "prime",
  "method.loss": "dynamic_margin",
  "method.num_positives": 2,
  "method.positive_sampling": "inverse_propensity",
  "method.triplet_positives": "released",  # eq. 1 sums over all positives, and only R's are sampled
  "method.margin_negatives": 100,
  "method.unit_texts": False,
  "method.centroids": "momentum",
  "method.prototype_width": 1024,
}
_DEBIAN = {**_PRIME, **dexa.OF_VECTORS}


def _paper(dataset: str, batch_size: int, num_epochs: int, learning_rate: float, **values) -> dict:
  """Makes a preset of the paper's settings; encoder and clusters of points are the released config's."""
  return {
    **ngame.released(dataset),
    **_PRIME,
    "method.num_label_clusters": 65_536,
    "train.batch_size": batch_size,
    "train.num_epochs": num_epochs,
    "train.learning_rate": learning_rate,
    "train.table_learning_rate": learning_rate,
    **values,
  }


PRESETS = {
  **{name: {**values, **_DEBIAN} for name, values in ngame.PRESETS.items() if name.startswith("debian")},
  "lf_amazontitles_131k": _paper("lf_amazontitles_131k", 3200, 300, 3e-4),
  "lf_amazon_131k": _paper("lf_amazon_131k", 512, 300, 3e-4),
  "lf_amazontitles_1.3m": _paper(
    "lf_amazontitles_1.3m", 3200, 300, 3e-4, **{"method.num_label_clusters": 131_072}
  ),
  "lf_wikititles_500k": _paper("lf_wikititles_500k", 3200, 300, 2e-4),
  "lf_wikipedia_500k": _paper("lf_wikipedia_500k", 512, 50, 1e-4, **{"data.max_length": 256}),
  "lf_wikiseealso_320k": _paper("lf_wikiseealso_320k", 1024, 200, 1e-4),
}
PRESETS |= {
  f"{name}_lite": {**values, "method.num_positives": 1, "train.batch_size": values["train.batch_size"] // 2}
  for name, values in PRESETS.items()
}
# The authors' code and its only config, which is PRIME-lite's, where they differ from the paper.
PRESETS["lf_amazontitles_131k_released"] = {
  **PRESETS["lf_amazontitles_131k_lite"],
  "method.centroids": "frozen",
  "method.differentiable_weights": True,
  "train.learning_rate": 2e-4,
  "train.table_learning_rate": 2e-4,
}
get_config = config_getter("prime", PRESETS)
