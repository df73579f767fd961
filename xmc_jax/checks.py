"""What a config's values must be, alone and together. Knows nothing of jax.

A fault is one line that says key, value, limit and remedy; what it names after
`--config.` is accepted.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xmc_jax import method_checks

LOSSES = ("decoupled_softmax", "softmax", "soft_top_k", "binary", "margin", "dynamic_margin")
METRICS = ("P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@100")

CHOICES = {
  "data.layout": ("auto", "raw_json", "index", "pecos", "table"),
  "encoder.pooling": ("mean", "cls"),
  "encoder.dtype": ("auto", "float32", "bfloat16"),
  "method.loss": LOSSES,
  "method.classifier_loss": ("same", "decoupled_softmax", "softmax", "binary"),
  "method.labels": ("all", "in_batch", "table", "in_batch_table"),
  "method.positive_sampling": ("uniform", "inverse_propensity"),
  "method.shortlist_backend": ("auto", "exact", "scann"),
  "method.centroids": ("momentum", "frozen", "none"),
  "method.base": ("ngame", "ance", "dexml"),
  "method.label_clustering": ("balanced", "balanced_centroids", "kmeans"),
  "train.schedule": ("linear", "cosine"),
  "eval.backend": ("exact", "scann", "auto"),
  "eval.metric": METRICS,
  "eval.scores": ("fused", "encoder", "classifier"),
  "plan.chip": ("a100_40", "a100_80", "h100", "h200", "v5e", "v5p", "v6e"),
}
LARGEST = 2**31 - 1  # ids, steps and seeds are int32
# The smallest legal value of what may be anything from there to LARGEST.
AT_LEAST = {
  "data.max_length": 3,  # [CLS], a token, [SEP]
  "data.num_validation": 0,
  "data.split_seed": 0,
  "encoder.num_layers": 0,
  "encoder.num_frozen_layers": 0,
  "encoder.projection_dim": 0,
  "encoder.width": 1,
  "method.num_positives": 0,
  "method.num_random_negatives": 0,
  "method.num_hard_negatives": 0,
  "method.num_fresh_negatives": 0,
  "method.shortlist_size": 1,
  "method.shortlist_first_epoch": 0,
  "method.shortlist_every_epochs": 0,
  "method.shortlist_every_steps": 0,
  "method.leaf_size": 0,
  "method.leaves_first_epoch": 0,
  "method.leaves_every_epochs": 0,
  "method.leaves_every_steps": 0,
  "method.margin": 0,
  "method.margin_negatives": 1,
  "method.margin_positives": 0,
  "method.margin_minimum": 0,
  "method.margin_maximum": 0,
  "method.num_label_clusters": 0,
  "method.label_clusters_every_epochs": 0,
  "method.num_head_labels": 0,
  "method.head_label_points": 0,
  "method.prototype_width": 0,
  "method.prototype_weight": 0,
  "method.text_weight": 0,
  "method.reverse_weight": 0,
  "method.regulariser_weight": 0,
  "method.regulariser_margin": 0,
  "method.random_edges": 0,
  "method.walk_hops": 0,
  "method.walk_kept": 1,
  "method.pruning_threshold": 0,
  "method.pruning_first_epoch": 0,
  "method.pruning_every_epochs": 0,
  "method.pool_size": 0,
  "method.classifier_dim": 0,
  "method.binary_weight": 0,
  "method.encoder_query_weight": 0,
  "method.classifier_query_weight": 0,
  "method.label_chunk": 0,
  "method.query_chunk": 0,
  "method.score_chunk": 0,
  "train.num_epochs": 1,
  "train.batch_size": 1,
  "train.warmup_steps": 0,
  "train.head_learning_rate": 0,
  "train.weight_decay": 0,
  "train.clip_norm": 0,
  "train.early_stop_evals": 0,
  "train.seed": 0,
  "eval.every_epochs": 0,
  "eval.batch_size": 1,
  "eval.k": 1,
  "eval.num_candidates": 1,
  "eval.fusion_rows": 0,
  "eval.fusion_depth": 1,
  "eval.propensity_a": 0,
  "eval.propensity_b": 0,
  "eval.num_examples": 0,
  "checkpoint.every_epochs": 0,
  "checkpoint.keep": 1,
  "mesh.data": 1,
  "mesh.label": 1,
  "plan.num_points": 0,
  "plan.num_labels": 0,
  "plan.num_graphs": 0,
  "plan.tokens_per_point": 0,
  "plan.tokens_per_label": 0,
  "plan.labels_per_point": 0,
}
AT_MOST = {
  "method.num_label_clusters": 2**30,  # a power of two
  "method.encoder_weight": 1,
  "method.encoder_query_weight": 1,
  "method.classifier_query_weight": 1,
  "method.pruning_threshold": 1,
  "method.random_edges": 100,
}
POSITIVE = (
  "method.temperature",
  "method.classifier_temperature",
  "method.encoder_weight",  # at 0 the encoder would not learn, by which clusters and negatives are made
  "method.k",
  "method.alpha",
  "method.weight_temperature",
  "train.learning_rate",
  "train.table_learning_rate",
)
SHARES = (
  "data.test_fraction",
  "encoder.dropout",
  "encoder.embedding_dropout",
  "method.query_dropout",
  "method.centroid_momentum",
  "method.prototype_dropout",
  "method.walk_restart",
  "train.warmup_fraction",
)
_NEEDED = ("name", "encoder.name", "method.name", "data.text")  # texts that must not be empty

_TYPES = {
  bool: "True or False",
  int: "a whole number",
  float: "a number",
  str: "a text",
  tuple: "a list in parentheses",
}


def faults(config: Any, default: Mapping) -> Iterator[str]:
  """What is wrong with a config, line by line; later lines suppose that the earlier ones are mended.

  Args:
    config: a ConfigDict, or whatever a config file made instead.
    default: every key with its default.
  """
  if not isinstance(config, Mapping) and not hasattr(config, "to_dict"):
    yield f"get_config() gave {_shown(config)}; it must return xmc_jax.config.default() with other values"
    return
  values, known = flatten(config), flatten(default)
  yield from _key_faults(values, known)
  for key, usual in known.items():
    if fault := type_fault(key, values[key], usual):
      yield fault
  yield from _choice_faults(values)
  yield from _range_faults(values, known)
  yield from method_checks.faults(values, LARGEST)
  yield from _joint_faults(values)
  if values["encoder.name"] in ("bag", "gru"):
    yield from _table_faults(values)


def flatten(section: Mapping, prefix: str = "") -> dict[str, Any]:
  """Nested sections as one dict with dotted keys."""
  flat = {}
  for key, value in section.items():
    nested = isinstance(value, Mapping) or hasattr(value, "to_dict")
    flat.update(flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
  return flat


def unknown_key(key: str, known: Iterable[str]) -> str:
  """What to say of a key that a config does not have."""
  known = list(known)
  if below := [name for name in known if name.startswith(f"{key}.")]:
    return f"config.{key} is a section, not a value; set one of {', '.join(below)}"
  near = [name for name in known if name.rpartition(".")[2] == key]
  near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.75)
  if near:
    return f"config has no key {key!r}; did you mean {' or '.join(map(repr, near))}?"
  section = key.partition(".")[0]
  beside = [name for name in known if name.startswith(f"{section}.")]
  options = beside or dict.fromkeys(name.partition(".")[0] for name in known)
  return f"config has no key {key!r}; there are {', '.join(options)}"


def type_fault(key: str, value: Any, usual: Any) -> str:
  """What to say of a value of the wrong type; '' if it is of the right one."""
  wanted = type(usual)
  legal = (int, float) if wanted is float else wanted
  if isinstance(value, legal) and (wanted is bool or not isinstance(value, bool)):
    return ""
  example = f'"{usual}"' if wanted is tuple else usual  # a shell would take parentheses for its own
  remedy = "its default is ''" if usual == "" else f"for instance --config.{key}={example}"
  return f"{key} = {_shown(value)} is not {_TYPES[wanted]}; {remedy}"


def _shown(value: Any) -> str:
  try:
    text = repr(value)
  except ValueError:  # a whole number with more digits than Python prints
    return "a huge number"
  return text if len(text) <= 60 else text[:60] + "..."


def _key_faults(values: dict, known: dict) -> Iterator[str]:
  for key in values.keys() - known.keys():
    yield unknown_key(str(key), known)
  for key in known.keys() - values.keys():
    yield f"config has no {key}; start from xmc_jax.config.default(), which has every key"


def _choice_faults(values: dict) -> Iterator[str]:
  for key, legal in CHOICES.items():
    value = values[key]
    if value not in legal:
      near = difflib.get_close_matches(value, legal, n=1)
      hint = f"did you mean --config.{key}={near[0]}?" if near else f"set --config.{key}={legal[0]}"
      yield f"{key} = {_shown(value)} is not one of {', '.join(map(repr, legal))}; {hint}"
  for key in _NEEDED:
    if not values[key].strip():
      yield f"{key} is empty; it must name something"


def _range_faults(values: dict, default: dict) -> Iterator[str]:
  for key, low in AT_LEAST.items():
    value = values[key]
    if not value >= low:
      yield f"{key} = {_shown(value)} is less than {low}; set --config.{key}={low} or more"
    if value > (most := AT_MOST.get(key, LARGEST)):
      yield f"{key} = {_shown(value)} is more than {most}; set --config.{key}={most} or less"
  for key in POSITIVE:
    most = AT_MOST.get(key, LARGEST)
    if not 0 < values[key] <= most:
      usual = 1.0 if key == "method.temperature" and not values["encoder.normalize"] else default[key]
      yield (
        f"{key} = {_shown(values[key])} must be more than 0 and at most {most}; "
        f"for instance --config.{key}={usual}"
      )
  for key in SHARES:
    if not 0 <= values[key] < 1:
      yield (
        f"{key} = {_shown(values[key])} must be at least 0 and less than 1; "
        f"for instance --config.{key}={default[key]}"
      )


def _joint_faults(values: dict) -> Iterator[str]:
  batch, devices = values["train.batch_size"], values["mesh.data"]
  if batch % devices:
    down = batch // devices * devices
    up = down + devices
    nearest = down if down and (batch - down <= up - batch or up > LARGEST) else up
    yield (
      f"train.batch_size = {batch} does not divide by mesh.data = {devices}; "
      f"the nearest that does: --config.train.batch_size={nearest}"
    )
  depth = int(values["eval.metric"].partition("@")[2])
  if depth > values["eval.k"]:
    yield (
      f"eval.metric = {values['eval.metric']!r} looks at {depth} labels per point, and eval.k = "
      f"{values['eval.k']} keeps fewer; set --config.eval.k={depth}, or --config.eval.metric=P@1"
    )
  patience = values["train.early_stop_evals"]
  if patience and not values["data.num_validation"]:
    yield (
      f"train.early_stop_evals = {patience} needs validation rows, and data.num_validation = 0; "
      "set --config.train.early_stop_evals=0, or --config.data.num_validation=1000"
    )


def _table_faults(values: dict) -> Iterator[str]:
  """Of what starts from a table of token embeddings: a bag, or a GRU."""
  name, width = values["encoder.name"], values["encoder.width"]
  if values["encoder.pooling"] != "mean":
    yield (
      f"encoder.pooling = {values['encoder.pooling']!r}: encoder.name = {name!r} is a mean over all tokens; "
      "set --config.encoder.pooling=mean"
    )
  for key in ("encoder.num_layers", "encoder.num_frozen_layers"):
    if values[key]:
      yield f"{key} = {values[key]}: encoder.name = {name!r} has no layers to count; set --config.{key}=0"
  if name == "gru" and width % 2:
    yield (
      f"encoder.width = {width} is odd, and each of a GRU's two directions has half of it; "
      f"set --config.encoder.width={width + 1 if width < LARGEST else width - 1}"
    )
