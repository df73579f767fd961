"""Rows of PRIME's claim, 8: PRIME-lite, cut short as NGAME and DEXA, where nothing else is said."""

from xmc_jax.experiments import dexa, ngame, prime
from xmc_jax.experiments.claims.common import BAG, DEXML, LIGHT, cut

PRIME, PRIME_LITE = (cut(prime.PRESETS[preset], BAG) for preset in ("debian", "debian_lite"))
_FIXED_MARGIN = {"method.loss": "margin"}
_WITHOUT_TEXTS = {"method.text_weight": 0.0}
_WITHOUT_REVERSE = {"method.reverse_weight": 0.0, "method.regulariser_weight": 0.0}
_WITHOUT_VECTORS = {"method.num_label_clusters": 0}
_WITHOUT_CENTROIDS = {"method.centroids": "none"}
_FASTER = {**PRIME_LITE, "method.centroid_momentum": 0.7}  # of 15 epochs what 0.95 is of 100 and more

_UNIFORM = {"method.positive_sampling": "uniform"}
_RELEASED = {"method.triplet_positives": "released"}
# T compares the sampled labels, or as released one of the point's labels in the pool, uniformly.
_POSITIVES = {
  "inverse_propensity": PRIME_LITE,
  "uniform": {**PRIME_LITE, **_UNIFORM},
  "inverse_propensity_released": {**PRIME_LITE, **_RELEASED},
  "uniform_released": {**PRIME_LITE, **_UNIFORM, **_RELEASED},
}


def _factorial() -> dict:
  """Returns {no, 256} free vectors x {fixed, dynamic} margin x {prototypes, texts, all terms}; no centroids.

  Two more rows rank with label frequency. They tell whether frequency is what free vectors bring.
  """
  of_terms = {
    "prototypes_alone": {**_WITHOUT_REVERSE, **_WITHOUT_TEXTS},
    "and_texts": _WITHOUT_REVERSE,
    "all_terms": {},
  }
  rows = {}
  for vectors, count in (("no_vectors", 0), ("256_vectors", 256)):
    for margin, loss in (("fixed_margin", _FIXED_MARGIN), ("dynamic_margin", {})):
      for terms, weights in of_terms.items():
        values = {**PRIME_LITE, **_WITHOUT_CENTROIDS, **loss, **weights, "method.num_label_clusters": count}
        rows[f"{vectors}_{margin}_{terms}"] = values
  for vectors in ("no_vectors", "256_vectors"):
    row = f"{vectors}_fixed_margin_prototypes_alone"
    rows[f"{row}_with_frequency"] = {**rows[row], "eval.log_frequency": -1.0}
  return rows


REAL = {
  "prime_loss": {  # Table 6
    "prototypes_alone": {**PRIME_LITE, **_FIXED_MARGIN, **_WITHOUT_REVERSE, **_WITHOUT_TEXTS},
    "and_texts": {**PRIME_LITE, **_FIXED_MARGIN, **_WITHOUT_REVERSE},
    "and_dynamic_margin": {**PRIME_LITE, **_WITHOUT_REVERSE},
    "and_texts_against_points": {**PRIME_LITE, "method.regulariser_weight": 0.0},
    "and_regulariser_prime_lite": PRIME_LITE,
    "prime": PRIME,
  },
  "prime_parts": {  # Figure 3, Tables 9 and 11
    "without_centroids_and_vectors": {**PRIME_LITE, **_WITHOUT_CENTROIDS, **_WITHOUT_VECTORS},
    "without_free_vectors": {**PRIME_LITE, **_WITHOUT_VECTORS},
    **{f"{row}_positives": values for row, values in _POSITIVES.items() if values != PRIME_LITE},
    **{
      f"{count}_free_vectors": {**PRIME_LITE, "method.num_label_clusters": count}
      for count in (64, 1024, 16_384)
    },
  },
  "prime_factorial": _factorial(),
  "prime_and_others": {  # at equal epochs, beside auxiliary_vectors' MiniLM; the last two in PRIME's minutes
    "ngame": cut(ngame.PRESETS["debian"], BAG),
    "dexa": cut(dexa.PRESETS["debian"], BAG),
    "dexml": DEXML,
    "minilm_3_prime": cut(prime.PRESETS["debian_minilm3"], LIGHT),
    "minilm_3_prime_lite": cut(prime.PRESETS["debian_minilm3_lite"], LIGHT),
    "dexa_longer": {**cut(dexa.PRESETS["debian"], BAG), "train.num_epochs": 75},
    "dexml_longer": {**DEXML, "train.num_epochs": 45},
  },
  "prime_centroids": {  # Figure 3
    "without_centroids": {**PRIME_LITE, **_WITHOUT_CENTROIDS},
    "momentum": PRIME_LITE,
    "momentum_0.7": _FASTER,
    "momentum_0.7_left_out": {**_FASTER, "method.leave_batch_out": True},
    "momentum_exact_at_the_end": {**PRIME_LITE, "method.exact_centroids": True},
    "momentum_0.7_exact_at_the_end": {**_FASTER, "method.exact_centroids": True},
    "exact": {**PRIME_LITE, "method.centroids": "exact"},
    "exact_left_out": {**PRIME_LITE, "method.centroids": "exact", "method.leave_batch_out": True},
    "frozen": {**PRIME_LITE, "method.centroids": "frozen"},
  },
}
# Its appendix J, on a set with five times as many points a label.
_TATE = {"data.path": "data/LF-TateArtworks-Subjects", "train.num_epochs": 6}
TATE = {"prime_positives_tate": {row: {**values, **_TATE} for row, values in _POSITIVES.items()}}
