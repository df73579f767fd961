"""DEPSL: the dual encoder of UniDEC alone, no classifiers (Kharbanda et al., 2024).

  python -m xmc_jax.main --config=experiments/depsl.py                  # bundled data, minutes
  python -m xmc_jax.main --config=experiments/depsl.py:lf_amazontitles_1.3m --config.data.path=DIR

A pool of some thousand labels a batch stands for all of them: compare with `dexml.py`.

The benchmark presets aim at the rows "DEPSL" of UniDEC's Table 1, LF-Wikipedia-500K of its Table 2. By its
Table 4 these rows are queries against labels alone for LF-Amazon-131K, LF-AmazonTitles-1.3M and
LF-WikiTitles-500K (`method.symmetric=False`), and both ways for LF-WikiSeeAlso-320K. It does not have the
three others: sets of titles are taken one way, LF-Wikipedia-500K both ways, as section 4.3 finds best in
P@k for short and for long texts.

Table 2 has DEPSL's own batch and pool of LF-Wikipedia-500K and LF-AmazonTitles-1.3M; the others have
UniDEC's.
"""

from xmc_jax.experiments import unidec
from xmc_jax.experiments.common import config_getter

_DEPSL = {"method.encoder_weight": 1.0, "method.classifier_dim": 0, "method.binary_weight": 0.0}
_ONE_WAY = {"method.symmetric": False}
# The paper's settings (UniDEC, Kharbanda et al. 2024).
_PAPER = {"encoder.projection_dim": 512}
_OWN = {
  "lf_amazontitles_131k": _ONE_WAY,
  "lf_amazon_131k": _ONE_WAY,
  "lf_wikiseealsotitles_320k": _ONE_WAY,
  "lf_wikititles_500k": _ONE_WAY,
  "lf_amazontitles_1.3m": {
    **_ONE_WAY,
    "encoder.projection_dim": 384,
    "method.pool_size": 4000,
    "method.num_random_negatives": 4000,
    "train.batch_size": 2200,
  },
}

PRESETS = {
  name: {**values, **_DEPSL, **(_PAPER if name.startswith("lf_") else {}), **_OWN.get(name, {})}
  for name, values in unidec.PRESETS.items()
}
for key in unidec.TUNED:
  del PRESETS["debian"][key]
PRESETS["debian"]["eval.log_frequency"] = -1.0  # the best is 0 where labels have many points, 1.5 where few
get_config = config_getter("depsl", PRESETS)
