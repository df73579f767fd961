"""RAMEN: metadata graphs as a regulariser of NGAME, ANCE or DEXML (Mittal et al., 2024).

  python -m xmc_jax.main --config=experiments/ramen.py                  # bundled data and graphs, minutes
  python -m xmc_jax.main --config=experiments/ramen.py:debian_ance
  python -m xmc_jax.main --config=experiments/ramen.py:lf_wikiseealsotitles_320k --config.data.path=DIR

Graphs are files beside the data: NAME_trn_X_Y.txt (training points by anchors), NAME_lbl_X_Y.txt (labels by
anchors), NAME_anchors.txt (a text a line). `ramen_classifier.py` trains classifiers on what this gives.
No preset sets λ: 1 / T for T graphs is ours, as the paper prints none.
"""

from experiments import dexml, ngame
from experiments.common import choose

_RAMEN = {"method.name": "ramen", "plan.num_graphs": 2}
_NGAME, _ANCE, _DEXML = ({**_RAMEN, "method.base": base} for base in ("ngame", "ance", "dexml"))
_ANCE["method.num_hard_negatives"] = 1  # with NGAME's loss
# The bundled set is seen for 30 epochs in place of 300.
_DEBIAN = {"method.pruning_first_epoch": 3.0, "method.pruning_every_epochs": 2.0}
_PAPER = {  # the paper's; what it leaves open is OAK's, of the same group, but for λ, which is ours
  **ngame.PRESETS["lf_amazontitles_131k"],
  "dataset": "lf_wikiseealsotitles_320k",
  "encoder.name": "sentence-transformers/msmarco-distilbert-cos-v5",
  "train.batch_size": 1024,
  "train.warmup_steps": 500,
}

PRESETS = {
  "debian": {**ngame.PRESETS["debian"], **_NGAME, **_DEBIAN},
  "debian_ance": {
    **ngame.PRESETS["debian"],
    **_ANCE,
    **_DEBIAN,
    "method.shortlist_first_epoch": 2.0,
    "method.shortlist_every_epochs": 2.0,
  },
  "debian_dexml": {**dexml.PRESETS["debian"], **_DEXML, **_DEBIAN},
  "debian_minilm3": {**ngame.PRESETS["debian_minilm3"], **_NGAME, **_DEBIAN},
  "lf_wikiseealsotitles_320k": {
    **_PAPER,
    **_NGAME,
    "method.leaf_size": 2,
    "method.leaf_doubling_epochs": tuple(range(25, 250, 25)),
  },
  "lf_wikiseealsotitles_320k_ance": {**_PAPER, **_ANCE},
}


def get_config(preset: str = ""):
  """The config of one of PRESETS."""
  return dexml.make("ramen", preset or next(iter(PRESETS)), choose(preset, PRESETS))
