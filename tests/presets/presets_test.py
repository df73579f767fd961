"""Every benchmark preset against one table of the values that its paper prints, or that its authors released.

`EXPECTED` is written from the papers and configs, not from the presets. What neither says is ours, and
stands in `OURS`. Between them they hold all that a preset changes of the defaults.
"""

import importlib
import re

import pytest

from tests.golden_test import PRESETS
from xmc_jax import methods
from xmc_jax import plan as plans
from xmc_jax.config import checks
from xmc_jax.config.defaults import keys_of

# Of the data, by set: longest text in tokens (in DEXML's and NGAME's papers alike), propensity's A and B.
AMAZON, WIKIPEDIA, OTHER = (0.6, 2.6), (0.5, 0.4), (0.55, 1.5)
DATA = {
  "eurlex_4k": (128, OTHER),
  "lf_amazontitles_131k": (32, AMAZON),
  "lf_amazon_131k": (128, AMAZON),
  "lf_wikiseealso_320k": (128, OTHER),
  "lf_wikiseealsotitles_320k": (32, OTHER),
  "lf_wikipedia_500k": (128, WIKIPEDIA),
  "lf_wikititles_500k": (32, WIKIPEDIA),
  "lf_amazontitles_1.3m": (32, AMAZON),
}
BENCHMARKS = {name: made for name, made in PRESETS.items() if name.partition("-")[2].startswith(tuple(DATA))}
EXPECTED: dict[str, tuple[str, dict]] = {}  # by preset: where the values stand, and the values
OURS: dict[str, dict] = {}  # by method: what no paper or config says


def row(keys: str, *values) -> dict:
  """Returns the values under keys that are given in one text."""
  return dict(zip(keys.split(), values, strict=True))


# DistilBERT's own, in released code under train mode.
DROPOUT = row("encoder.dropout encoder.attention_dropout", 0.1, 0.1)


# DEXML. Table 7; B.2: 100 epochs, AdamW with decay 0.01 but for gains and biases, linear decay after a
# warm-up (10 %: released); CLS, one sampled positive, no clipping: released. τ = 1 goes with raw products:
# released.
TABLE_7 = "train.learning_rate train.batch_size encoder.embedding_dropout method.alpha method.label_chunk"
TABLE_7 += " method.temperature encoder.normalize"
DEXML = {
  "eurlex_4k": row(TABLE_7, 2e-4, 1024, 0.1, 2.0, 4096, 0.05, True),
  "lf_amazontitles_131k": row(TABLE_7, 4e-4, 4096, 0.0, 2.0, 2048, 0.05, True),
  "lf_wikipedia_500k": row(TABLE_7, 4e-4, 4096, 0.1, 2.0, 2048, 1.0, False),
  "lf_amazontitles_1.3m": row(TABLE_7, 8e-4, 8192, 0.1, 2.0, 1024, 1.0, False),
}
DEXML_ALL = {
  **DROPOUT,
  **row("encoder.name encoder.pooling encoder.projection_dim", "distilbert-base-uncased", "cls", 0),
  **row("method.name method.loss method.labels method.num_positives", "dexml", "decoupled_softmax", "all", 1),
  **row("train.num_epochs train.warmup_fraction train.schedule train.weight_decay", 100, 0.1, "linear", 0.01),
  **row("train.clip_norm train.early_stop_evals method.dropout_on_labels", 0.0, 0, True),
}
SHORTLIST = row("method.labels method.shortlist_size method.shortlist_every_epochs", "in_batch", 100, 5.0)
SOFTMAX = {"method.loss": "softmax"}
BINARY = row("method.loss method.num_positives method.binary_prior", "binary", 0, False)
SOFT_TOP = "method.loss method.k method.num_positives"


def dexml(dataset: str, suffix: str, citation: str, values: dict) -> None:
  name = f"dexml-{dataset}{suffix}"
  EXPECTED[name] = f"DEXML, Table 7; {citation}", {**DEXML_ALL, **DEXML[dataset], **values}


for each in DEXML:
  dexml(each, "", "Tables 1 and 2, DEXML", {})
  dexml(each, "_softmax", "Tables 4 and 11, softmax", SOFTMAX)
  dexml(each, "_soft_top_5", "Tables 1, 2 and 4, SoftTop-5", row(SOFT_TOP, "soft_top_k", 5.0, 5))
for each in ("eurlex_4k", "lf_amazontitles_131k"):
  dexml(each, "_soft_top_100", "Table 4, SoftTop-100", row(SOFT_TOP, "soft_top_k", 100.0, 100))
  dexml(each, "_binary", "Table 4, BCE", BINARY)
  dexml(each, "_hard_1", "Table 13, ANCE; one: released", {**SHORTLIST, "method.num_hard_negatives": 1})
for each, size in {"lf_amazontitles_1.3m": 8192, "lf_wikipedia_500k": 2048}.items():
  for number in (0, 1, 2, 5, 10):
    hard = {**SHORTLIST, "method.num_hard_negatives": number, "train.batch_size": size}
    dexml(each, f"_hard_{number}", "Tables 3, 12 and 13", hard)
for number in (1, 2, 10):
  hard = {**SHORTLIST, **SOFTMAX, "method.num_hard_negatives": number, "train.batch_size": 8192}
  dexml("lf_amazontitles_1.3m", f"_softmax_hard_{number}", "Table 12, softmax", hard)
for each, size in {"eurlex_4k": 1024, "lf_amazontitles_131k": 4096, "lf_wikipedia_500k": 2048}.items():
  fresh = {"method.labels": "in_batch", "method.num_fresh_negatives": size, "train.batch_size": size}
  dexml(each, "_fresh", "Table 13, embedding cache: as many negatives a batch as with m = 1", fresh)
for each, chunk in zip(DEXML, (4096, 3000, 512, 3000)):
  released = row("encoder.embedding_dropout method.label_chunk eval.metric", 0.0, chunk, "nDCG@5")
  often = {"eval.every_epochs": 1.0} if each == "lf_wikipedia_500k" else {}
  source = "configs/*/dist-de-all_decoupled-softmax.yaml and dual-encoder.yaml"
  dexml(each, "_released", source, released | often)
HARD_RELEASED = ("eurlex_4k", 1, 1024), ("lf_amazontitles_131k", 1, 4096), ("lf_wikipedia_500k", 5, 2048)
for each, number, size in HARD_RELEASED:
  hard = {**SHORTLIST, "method.num_hard_negatives": number, "method.shortlist_first_epoch": 6.0}
  of_pool = {**hard, "train.batch_size": size, "eval.every_epochs": 5.0}
  same = {**EXPECTED[f"dexml-{each}_released"][1], **of_pool}
  dexml(each, "_hard_released", "configs/*/dist-de-hnm_decoupled-softmax.yaml, train.py", same)

# Its baselines (section 5.2), whose settings it does not print: Table 7's.
OVA = row("method.name method.loss method.labels", "ova", "binary", "table")
DPR = row("method.name method.loss method.labels", "dpr", "softmax", "in_batch")


def of_table_7(dataset: str, method: str) -> dict:
  """Returns DEXML's values for a set, those that a baseline has, too."""
  values, keys = {**DEXML_ALL, **DEXML[dataset]}, keys_of(methods.SETTINGS[method])
  return {key: value for key, value in values.items() if key in keys}


for each in DEXML:
  raw_products = row("method.temperature encoder.normalize", 1.0, False)  # ours
  of_ova = of_table_7(each, "ova") | OVA | raw_products
  EXPECTED[f"ova-{each}"] = "DEXML, Tables 1 and 2, OvA classifier; Table 7", of_ova
  citation = "DEXA, Tables 2 and 3; DEXML's Table 7"
  EXPECTED[f"dpr-{each}"] = citation, of_table_7(each, "dpr") | DPR
  two = row("method.name method.num_hard_negatives", "ance", 2)
  if each == "lf_amazontitles_1.3m":
    citation = "DEXML, Table 12, softmax, 2 hard negatives"
  EXPECTED[f"ance-{each}"] = citation, of_table_7(each, "ance") | DPR | SHORTLIST | two
OURS["ova"] = {"train.table_learning_rate": 1e-3}

# NGAME: ngame/configs/NGAME/SET.json, "siamese".
NGAME_KEYS = "data.max_length train.batch_size train.num_epochs method.margin_negatives"
NGAME_KEYS += " method.cluster_doubling_epochs method.clusters_first_epoch"
OF_TITLES = (10, 20, 25, 50, 75, 100, 125, 150, 200)
USUAL = (10, 25, 50, 75, 100, 125, 150, 200)
NGAME = {
  "lf_amazontitles_131k": row(NGAME_KEYS, 32, 1600, 300, 10, OF_TITLES, 10.0),
  "lf_amazontitles_1.3m": row(NGAME_KEYS, 32, 1600, 300, 10, OF_TITLES, 10.0),
  "lf_amazon_131k": row(NGAME_KEYS, 128, 350, 300, 10, USUAL, 10.0),
  "lf_wikiseealso_320k": row(NGAME_KEYS, 128, 350, 300, 10, USUAL, 10.0),
  "lf_wikititles_500k": row(NGAME_KEYS, 32, 1600, 300, 10, OF_TITLES, 10.0),  # ours: LF-AmazonTitles-131K's
  "lf_wikipedia_500k": row(NGAME_KEYS, 256, 256, 40, 5, (5, 10, 15, 20, 25, 30, 35), 5.0),
}
MSMARCO = "sentence-transformers/msmarco-distilbert-base-v4"
NGAME_ALL = {
  **DROPOUT,
  **row("encoder.name encoder.pooling encoder.normalize", MSMARCO, "mean", True),
  **row("method.name method.loss method.labels method.num_positives", "ngame", "margin", "in_batch", 1),
  **row("method.margin method.weight_temperature method.cluster_size", 0.3, 0.1, 1),
  **row("method.clusters_every_epochs train.learning_rate train.warmup_steps", 5.0, 2e-4, 100),
  **row("train.weight_decay train.schedule", 0.0, "linear"),
}
for each, values in NGAME.items():
  EXPECTED[f"ngame-{each}"] = f"ngame/configs/NGAME, {each}; DEXA, Tables 2 and 3", {**NGAME_ALL, **values}

# DEXA: dexa/configs/DEXA/LF-AmazonTitles-131K.json, "siamese"; 65,536 and head labels: Table 6, section 4.
CLUSTERS = "method.cluster_size method.cluster_doubling_epochs method.clusters_first_epoch"
DEXA_CLUSTERS = row(CLUSTERS, 4, USUAL, 10.0)
DEXA_ALL = {
  **row("method.name train.weight_decay train.table_learning_rate", "dexa", 0.01, 2e-4),
  **row("method.num_label_clusters method.head_label_points method.num_head_labels", 65_536, 50, 0),
}
for each, values in NGAME.items():
  clusters = {} if each == "lf_wikipedia_500k" else DEXA_CLUSTERS
  EXPECTED[f"dexa-{each}"] = "DEXA, Tables 2, 3 and 6", {**NGAME_ALL, **values, **DEXA_ALL, **clusters}
EXPECTED["dexa-lf_amazontitles_131k_released"] = (
  "dexa/configs and dexa/libs",
  {
    **EXPECTED["dexa-lf_amazontitles_131k"][1],
    **row("method.head_label_points method.num_head_labels", 0, 1000),
    **row("method.unit_texts method.differentiable_weights", False, True),
  },
)

# PRIME: its Table 10; α, λ, m', decay, network: appendix H; sampling: appendix J; the rest: prime/configs.
TABLE_10 = "method.num_label_clusters train.batch_size train.num_epochs train.learning_rate data.max_length"
PRIME = {
  "lf_amazontitles_131k": row(TABLE_10, 65_536, 3200, 300, 3e-4, 32),
  "lf_amazon_131k": row(TABLE_10, 65_536, 512, 300, 3e-4, 128),
  "lf_amazontitles_1.3m": row(TABLE_10, 131_072, 3200, 300, 3e-4, 32),
  "lf_wikititles_500k": row(TABLE_10, 65_536, 3200, 300, 2e-4, 32),
  "lf_wikipedia_500k": row(TABLE_10, 65_536, 512, 50, 1e-4, 256),
  "lf_wikiseealso_320k": row(TABLE_10, 65_536, 1024, 200, 1e-4, 128),
}
PRIME_ALL = {
  **NGAME_ALL,
  **DEXA_CLUSTERS,
  **row("method.name method.loss method.num_positives", "prime", "dynamic_margin", 2),
  **row("method.positive_sampling method.margin_negatives", "inverse_propensity", 100),
  "method.triplet_positives": "released",
  **row("method.margin_minimum method.margin_maximum", 0.1, 0.3),
  **row("method.regulariser_weight method.regulariser_margin method.centroid_momentum", 0.1, 0.1, 0.95),
  **row("method.centroids method.prototype_width method.prototype_dropout", "momentum", 1024, 0.1),
  **row("method.unit_texts train.weight_decay", False, 0.01),
}
for each, values in PRIME.items():
  whole = {**PRIME_ALL, **values, "train.table_learning_rate": values["train.learning_rate"]}
  half = {"method.num_positives": 1, "train.batch_size": values["train.batch_size"] // 2}
  EXPECTED[f"prime-{each}"] = "PRIME, Tables 2, 3 and 10", whole
  EXPECTED[f"prime-{each}_lite"] = "PRIME, section 4.5", {**whole, **half}
EXPECTED["prime-lf_amazontitles_131k_released"] = (
  "prime/configs and prime/libs",
  {
    **EXPECTED["prime-lf_amazontitles_131k_lite"][1],
    "method.centroids": "frozen",
    "method.differentiable_weights": True,
    **row("train.learning_rate train.table_learning_rate", 2e-4, 2e-4),
  },
)

# RAMEN: its Table 10 (batch, epochs, rate, length, clusters every 5 epochs, doubled every 25, margin).
RAMEN_ALL = {
  **NGAME_ALL,
  **row("method.name method.base method.margin", "ramen", "ngame", 0.3),
  **row("train.batch_size train.num_epochs train.learning_rate data.max_length", 1024, 300, 2e-4, 32),
  **row("method.walk_hops method.walk_restart method.pruning_threshold", 400, 0.8, 0.0),
  **row("method.pruning_first_epoch method.pruning_every_epochs", 10.0, 5.0),
  "method.cluster_doubling_epochs": (25, 50, 75, 100, 125, 150, 175, 200, 225),
}
OURS["ramen"] = {  # OAK's, of the same group: encoder, clusters of two at first, warm-up, decay
  "encoder.name": "sentence-transformers/msmarco-distilbert-cos-v5",
  **row("train.warmup_steps train.weight_decay", 500, 0.01),
}
for each in ("lf_wikiseealsotitles_320k", "lf_wikiseealso_320k", "lf_amazontitles_1.3m"):
  ramen = {**RAMEN_ALL, **OURS["ramen"], "data.max_length": DATA[each][0]}
  EXPECTED[f"ramen-{each}"] = "RAMEN, Tables 6 and 10, NGAME", {**ramen, "method.cluster_size": 2}
  of_ance = row("method.base method.num_hard_negatives method.shortlist_size", "ance", 1, 100)
  without = {"method.cluster_size": 4, "method.cluster_doubling_epochs": USUAL}  # no clusters: the defaults
  EXPECTED[f"ramen-{each}_ance"] = "RAMEN, Tables 6 and 10, ANCE", {**ramen, **of_ance, **without}

# UniDEC and DEPSL: Table 2 (batch, pool), Table 1 (widths), section 4 (rates, schedule), 4.3 (heads,
# dropout, η), Table 4 (both ways or one), section 3 (λ's). Sets that Table 2 lacks borrow:
# experiments/unidec.py, depsl.py.
SIZES = "train.batch_size method.pool_size encoder.projection_dim"
UNIDEC = {
  "lf_amazontitles_131k": row(SIZES, 576, 3000, 384),
  "lf_amazon_131k": row(SIZES, 576, 3000, 384),
  "lf_wikiseealso_320k": row(SIZES, 677, 3500, 384),
  "lf_wikiseealsotitles_320k": row(SIZES, 677, 3500, 384),
  "lf_wikipedia_500k": row(SIZES, 222, 3000, 384),  # 221.4 on average
  "lf_wikititles_500k": row(SIZES, 886, 3000, 384),
  "lf_amazontitles_1.3m": row(SIZES, 1098, 3000, 256),
}
DEPSL = {name: {**values, "encoder.projection_dim": 512} for name, values in UNIDEC.items()}
DEPSL["lf_amazontitles_1.3m"] = row(SIZES, 2200, 4000, 384)
BOTH_WAYS = ("lf_wikiseealso_320k", "lf_wikipedia_500k")
UNIDEC_ALL = {
  **DROPOUT,
  **row("encoder.name encoder.embedding_dropout train.schedule", "distilbert-base-uncased", 0.1, "cosine"),
  **row("train.learning_rate train.head_learning_rate train.table_learning_rate", 1e-4, 2e-4, 1e-3),
  **row("method.name method.loss method.labels", "unidec", "decoupled_softmax", "in_batch"),
  **row("method.num_positives method.num_hard_negatives method.shortlist_size", 3, 6, 30),
  **row("method.shortlist_first_epoch method.shortlist_every_epochs", 0.0, 5.0),
  **row("method.clusters_first_epoch method.clusters_every_epochs", 0.0, 5.0),
  **row("method.encoder_query_weight method.classifier_query_weight", 0.5, 0.5),
  "eval.fusion_rows": 0,
}
OURS["unidec"] = row("train.num_epochs encoder.pooling method.temperature", 100, "mean", 0.05)
for each, values in UNIDEC.items():
  length = {"data.max_length": 256} if each == "lf_wikipedia_500k" else {}
  unidec = {**UNIDEC_ALL, **OURS["unidec"], **length}
  pair = row("method.encoder_weight method.binary_weight", 0.5, 1.0)  # the second is ours
  heads = {"method.classifier_dim": values["encoder.projection_dim"], "method.symmetric": True}
  filled = {"method.num_random_negatives": values["method.pool_size"]}  # ours: pools have Table 2's sizes
  EXPECTED[f"unidec-{each}"] = "UniDEC, Tables 1, 2 and 3", {**unidec, **values, **filled, **pair, **heads}
  one = row("method.encoder_weight method.classifier_dim method.binary_weight", 1.0, 0, 0.0)
  ways = {"method.symmetric": each in BOTH_WAYS}
  filled = {"method.num_random_negatives": DEPSL[each]["method.pool_size"]}
  depsl = {**unidec, **DEPSL[each], **filled}
  EXPECTED[f"depsl-{each}"] = "UniDEC, Tables 1, 2 and 4, DEPSL", {**depsl, **one, **ways}

# RAE-XMC: as reviews and re-implementations have it; its text is not at hand.
OURS["rae_xmc"] = {
  **row("train.batch_size train.num_epochs train.learning_rate method.num_hard_negatives", 1024, 30, 2e-4, 1),
  **DROPOUT,
}
for each in ("lf_amazontitles_131k", "lf_wikiseealso_320k", "lf_wikipedia_500k", "lf_amazontitles_1.3m"):
  EXPECTED[f"rae_xmc-{each}"] = (
    "RAE-XMC, arXiv 2502.10615",
    {
      **row("encoder.name encoder.pooling encoder.normalize", "distilbert-base-uncased", "mean", True),
      **row("method.name method.labels method.temperature", "rae_xmc", "in_batch", 0.04),
      **row("method.num_positives eval.num_keys", 1, 200),
      **OURS["rae_xmc"],
    },
  )

# Module II. NGAME: "extreme" of its LF-AmazonTitles-131K, with the paper and today; DEXA, PRIME: likewise.
MODULE_2 = {
  **row("method.name method.loss method.labels", "classifier", "margin", "in_batch_table"),
  **row("train.batch_size train.num_epochs train.table_learning_rate", 2048, 100, 1e-3),
  **row("train.warmup_steps method.margin method.num_positives", 500, 0.2, 0),
  **row("method.margin_positives method.margin_negatives method.weight_temperature", 3, 5, 1.0),
  **row("method.query_dropout method.clusters_every_epochs method.margin_mean", 0.5, 5.0, "all"),
  **row("eval.scores eval.fusion_rows eval.fusion_depth eval.num_candidates", "fused", 75_000, 7, 300),
}
# 32 points at first, doubled once at epoch 20, when they are first made.
FROM_20 = row(CLUSTERS, 64, (), 20.0)
FROM_10 = row(CLUSTERS, 1, (10, 15, 20, 25, 30, 35, 40), 10.0)
EXPECTED["ngame_classifier-released"] = "ngame/configs, LF-AmazonTitles-131K, last", {**MODULE_2, **FROM_10}
of_paper = row("train.warmup_steps method.num_positives method.margin_positives", 100, 1, 0)
of_paper |= row("method.margin_negatives method.weight_temperature", 3, 0.1)
of_paper = MODULE_2 | FROM_10 | of_paper
EXPECTED["ngame_classifier-paper"] = "ngame/configs, LF-AmazonTitles-131K, as of the paper", of_paper
EXPECTED["dexa_classifier-paper"] = "dexa/configs, LF-AmazonTitles-131K", {**MODULE_2, **FROM_20}
of_prime = row("train.table_learning_rate method.num_positives method.margin_positives", 1e-4, 5, 0)
of_prime |= row("method.margin_negatives method.weight_temperature method.margin_mean", 100, 0.1, "existing")
of_prime = MODULE_2 | FROM_20 | of_prime | {"eval.scores": "classifier"}
EXPECTED["prime_classifier-paper"] = "PRIME, Table 4; prime/configs, LF-AmazonTitles-131K", of_prime
of_ramen = row("method.margin_positives method.margin_negatives", 2, 12)
EXPECTED["ramen_classifier-paper"] = "RAMEN, Table 10", MODULE_2 | FROM_20 | of_ramen

# What says where a run's data are and what a plan supposes of them.
ABOUT_DATA = ("name", "data.path", "data.text", "plan.")


def dataset_of(name: str) -> str:
  """Returns the set that a preset is for: the longest name that its own begins with."""
  return max((known for known in DATA if name.partition("-")[2].startswith(known)), key=len, default="")


def test_every_benchmark_preset_stands_in_the_table():
  there = {name for name in PRESETS if dataset_of(name) or name.endswith(("-paper", "-released"))}
  assert set(EXPECTED) == there


@pytest.mark.parametrize("name", EXPECTED)
def test_a_preset_has_the_papers_values(name):
  module, preset = PRESETS[name]
  found = checks.flatten(module.get_config(preset).to_dict())
  citation, expected = EXPECTED[name]
  if dataset := dataset_of(name):
    length, (a, b) = DATA[dataset]
    expected = {"data.max_length": length, "eval.propensity_a": a, "eval.propensity_b": b, **expected}
    expected["eval.scores"] = "fused"  # a method's own ranking, which is its paper's
    expected["data.filter_equal_texts"] = dataset.startswith("lf_")  # ours
  expected = {**expected, **OURS.get(name.partition("-")[0], {})}
  assert {key: found[key] for key in expected} == expected, citation
  usual = checks.flatten(methods.default_config(found["method.name"]))
  changed = {key for key in found if found[key] != usual[key] and not key.startswith(ABOUT_DATA)}
  assert changed <= set(expected), f"{name} sets what the table does not have"


def test_docstrings_say_which_row():
  for name in {name.partition("-")[0] for name in EXPECTED} - {"rae_xmc"}:
    text = importlib.import_module(f"xmc_jax.experiments.{name}").__doc__
    assert "Table" in text or "released config" in text, name
    assert re.search(r"\baims?\s+at\b", text), name


def test_dexmls_docstring_has_the_row_of_each_suffix():
  text = importlib.import_module("xmc_jax.experiments.dexml").__doc__
  listed = set(re.findall(r"^  SET(\w*) ", text, re.M))
  of_sets = {name.removeprefix("dexml-") for name in EXPECTED if name.startswith("dexml-")}
  sets = [name for name in of_sets if not any(name != other and name.startswith(other) for other in of_sets)]
  suffixes = {name.removeprefix(of) for name in of_sets for of in sets if name.startswith(of)}
  assert len(sets) == 4
  assert {re.sub(r"(?<=hard_)\d+$", "M", suffix) for suffix in suffixes} == listed


def _planned(name: str):
  """Plans the preset for eight TPUs."""
  module, preset = PRESETS[name]
  config = module.get_config(f"{preset}_v5e_8")
  config.encoder.pretrained = False
  assert (config.mesh.data, config.mesh.label, config.plan.chip) == (4, 2, "v5e")
  return plans.plan(config, plans.sizes_of(config))


@pytest.mark.slow
def test_presets_fit_eight_tpus():
  # The second has its paper's chunks of texts, which are too large there.
  for name in ("unidec-lf_amazontitles_1.3m", "dexml-lf_wikipedia_500k"):
    plans.check(_planned(name))


@pytest.mark.slow
def test_benchmark_presets_fit_eight_tpus():
  """Of each experiment, those of the longest texts and of the most labels."""
  for name in BENCHMARKS:
    if name.partition("-")[2] in ("lf_wikipedia_500k", "lf_amazontitles_1.3m"):
      plans.check(_planned(name))
