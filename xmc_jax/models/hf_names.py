"""Maps Hugging Face's configs and parameter names for BERT and its kin to ours and back."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from xmc_jax.errors import DataError
from xmc_jax.models.encoder import EncoderSpec
from xmc_jax.models.sentence_modules import checked_tensor

_DEFAULTS = {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "relative_attention_num_buckets": 32}
# Our sizes -> the keys of config.json.
_SIZES = {
  "vocab_size": "vocab_size",
  "width": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "ffn_width": "intermediate_size",
  "max_positions": "max_position_embeddings",
  "layer_norm_eps": "layer_norm_eps",
}
# Per block: our path -> Hugging Face's, below `layer_<i>` and `<layers>.<i>`.
_OF_BERT = {
  "attention/query": "attention.self.query",
  "attention/key": "attention.self.key",
  "attention/value": "attention.self.value",
  "attention/output": "attention.output.dense",
  "attention_layer_norm": "attention.output.LayerNorm",
  "intermediate": "intermediate.dense",
  "output": "output.dense",
  "output_layer_norm": "output.LayerNorm",
}


class _Family(NamedTuple):
  """Describes models of one `model_type`."""

  class_name: str
  block: dict[str, str]
  sizes: dict[str, str]
  switches: dict[str, Any]  # fields of EncoderSpec that no key of config.json tells
  layers: str = "encoder.layer"
  activation: str = "hidden_act"  # the key of config.json that names it
  after_padding: bool = False  # whether positions begin after the padding's token id


_BERT = _Family("BertModel", _OF_BERT, _SIZES | {"num_types": "type_vocab_size"}, {})
_FAMILIES = {
  "bert": _BERT,
  "roberta": _BERT._replace(class_name="RobertaModel", after_padding=True),
  "xlm-roberta": _BERT._replace(class_name="XLMRobertaModel", after_padding=True),
  "camembert": _BERT._replace(class_name="CamembertModel", after_padding=True),
  "mpnet": _Family(
    "MPNetModel",
    _OF_BERT
    | {f"attention/{ours}": f"attention.attn.{ours[0]}" for ours in ("query", "key", "value", "output")}
    | {"attention_layer_norm": "attention.LayerNorm"},
    _SIZES | {"num_buckets": "relative_attention_num_buckets"},
    {"first_position": 2},
  ),
  "distilbert": _Family(
    "DistilBertModel",
    {
      "attention/query": "attention.q_lin",
      "attention/key": "attention.k_lin",
      "attention/value": "attention.v_lin",
      "attention/output": "attention.out_lin",
      "attention_layer_norm": "sa_layer_norm",
      "intermediate": "ffn.lin1",
      "output": "ffn.lin2",
      "output_layer_norm": "output_layer_norm",
    },
    {
      "vocab_size": "vocab_size",
      "width": "dim",
      "num_layers": "n_layers",
      "num_heads": "n_heads",
      "ffn_width": "hidden_dim",
      "max_positions": "max_position_embeddings",
    },
    {},
    layers="transformer.layer",
    activation="activation",
  ),
  "modernbert": _Family(
    "ModernBertModel",
    {  # some of ours are equal parts of one of theirs, in this order
      "attention_layer_norm": "attn_norm",
      **dict.fromkeys(("attention/query", "attention/key", "attention/value"), "attn.Wqkv"),
      "attention/output": "attn.Wo",
      "intermediate_layer_norm": "mlp_norm",
      **dict.fromkeys(("intermediate", "gate"), "mlp.Wi"),
      "output": "mlp.Wo",
    },
    _SIZES
    | {key: key for key in ("local_rope_theta", "local_attention", "norm_bias", "attention_bias", "mlp_bias")}
    | {"layer_norm_eps": "norm_eps", "rope_theta": "global_rope_theta"}
    | {"global_every": "global_attn_every_n_layers"},
    {"pre_norm": True, "gated": True},
    layers="layers",
    activation="hidden_activation",
  ),
}


def names(spec: EncoderSpec) -> dict[str, str]:
  """Returns a dict of each parameter's path ('layer_0/attention/query/kernel') to Hugging Face's name."""
  modern = spec.kind == "modernbert"
  pairs = {"embeddings/word": f"embeddings.{'tok' if modern else 'word'}_embeddings.weight"}
  if not spec.rope_theta:
    pairs["embeddings/position"] = "embeddings.position_embeddings.weight"
  if spec.num_types:
    pairs["embeddings/type"] = "embeddings.token_type_embeddings.weight"
  if spec.num_buckets:
    pairs["relative_bias"] = "encoder.relative_attention_bias.weight"
  family = _FAMILIES[spec.kind]
  modules = {"embeddings/layer_norm": f"embeddings.{'norm' if modern else 'LayerNorm'}"}
  for i in range(spec.num_layers):
    for ours, theirs in family.block.items():
      modules[f"layer_{i}/{ours}"] = f"{family.layers}.{i}.{theirs}"
  if spec.pre_norm:
    modules["final_layer_norm"] = "final_norm"
    modules.pop("layer_0/attention_layer_norm", None)
  for ours, theirs in modules.items():
    is_norm = ours.endswith("layer_norm")
    pairs[f"{ours}/{'scale' if is_norm else 'kernel'}"] = f"{theirs}.weight"
    if spec.norm_bias if is_norm else spec.attention_bias if "attention/" in ours else spec.mlp_bias:
      pairs[f"{ours}/bias"] = f"{theirs}.bias"
  return pairs


def shape(path: str, spec: EncoderSpec) -> tuple[int, ...]:
  """Returns the shape of our parameter at `path`."""
  width, ffn = spec.width, spec.ffn_width
  positions = spec.first_position + spec.max_positions
  tables = {"word": spec.vocab_size, "position": positions, "type": spec.num_types}
  if path == "relative_bias":
    return (spec.num_buckets, spec.num_heads)
  *_, module, leaf = path.split("/")
  if leaf in tables:
    return (tables[leaf], width)
  inward = (width, ffn)
  rows, columns = {"intermediate": inward, "gate": inward, "output": (ffn, width)}.get(module, (width, width))
  if "attention/" in path:
    rows = columns = width
  return (rows, columns) if leaf == "kernel" else (columns,)


def from_tensors(tensors: dict[str, np.ndarray], where: Path, spec: EncoderSpec) -> dict[str, np.ndarray]:
  """Converts Hugging Face's tensors to our flat parameters, float32 numpy arrays by path.

  Names may have any prefix ('bert.') and the old endings LayerNorm.gamma and .beta. Heads, poolers and blocks
  beyond `num_layers` are ignored.

  Raises:
    DataError: names the first tensor that is missing or has another shape.
  """
  word = names(spec)["embeddings/word"]
  prefixes = sorted((name.removesuffix(word) for name in tensors if name.endswith(word)), key=len)
  if not prefixes:
    raise DataError(f"{where}: no tensor '{word}'; expected the weights of a model like BERT")
  found = {
    name.removeprefix(prefixes[0])
    .replace("LayerNorm.gamma", "LayerNorm.weight")
    .replace("LayerNorm.beta", "LayerNorm.bias"): value
    for name, value in tensors.items()
    if name.startswith(prefixes[0])
  }
  params = {}
  for theirs, parts in _parts(spec).items():
    rows, *columns = shape(parts[0], spec)[:: -1 if parts[0].endswith("kernel") else 1]
    value = checked_tensor(found, theirs, (len(parts) * rows, *columns), where)
    for ours, part in zip(parts, np.split(value, len(parts))):
      params[ours] = np.ascontiguousarray(part.T if ours.endswith("kernel") else part)
  return params


def _parts(spec):
  """Returns a dict of each of Hugging Face's names to the paths of our parameters in it, in order."""
  parts: dict[str, list[str]] = {}
  for ours, theirs in names(spec).items():
    parts.setdefault(theirs, []).append(ours)
  return parts


def to_tensors(params: dict[str, np.ndarray], spec: EncoderSpec) -> dict[str, np.ndarray]:
  """Converts our flat parameters to Hugging Face's tensors: the inverse of `from_tensors`."""
  tensors = {}
  for theirs, parts in _parts(spec).items():
    value = np.concatenate([np.asarray(params[ours], np.float32) for ours in parts], axis=-1)
    tensors[theirs] = np.ascontiguousarray(value.T if parts[0].endswith("kernel") else value)
  return tensors


def spec_from_config(config: dict[str, Any], where: Path) -> EncoderSpec:
  """Converts config.json's dict to an EncoderSpec.

  Raises:
    DataError: another architecture, an activation that is not exact GELU, relative positions, a missing key.
  """
  kind = config.get("model_type")
  if not isinstance(kind, str) or kind not in _FAMILIES:
    raise DataError(f"{where}: model_type is {kind!r:.60}; supported are {', '.join(_FAMILIES)}")
  family = _FAMILIES[kind]
  if kind == "modernbert":
    config = _of_one_version(config, where)
  activation = config.get(family.activation, "gelu")
  positions = config.get("position_embedding_type", "absolute")
  if activation != "gelu" or positions != "absolute":
    raise DataError(
      f"{where}: activation {activation!r}, positions {positions!r}; supported are 'gelu' and 'absolute'"
    )
  try:
    sizes = {ours: (_DEFAULTS | config)[theirs] for ours, theirs in family.sizes.items()}
  except KeyError as error:
    raise DataError(f"{where}: key {error} is missing") from None
  if family.after_padding:
    padding = config.get("pad_token_id", 1)
    sizes["first_position"] = padding + 1 if type(padding) is int else padding  # `_check` refuses others
  spec = EncoderSpec(kind, **sizes, **family.switches)
  _check(spec, where)
  return dataclasses.replace(spec, max_positions=spec.max_positions - spec.first_position)


def _of_one_version(config, where):
  """Returns ModernBERT's config with the keys of transformers 4 in place of those of transformers 5."""
  config = dict(config)
  ropes, kinds = config.get("rope_parameters"), config.get("layer_types")
  ropes = ropes if isinstance(ropes, dict) else {}
  for rope in (config.get("rope_scaling"), *ropes.values()):
    if rope and (not isinstance(rope, dict) or rope.get("rope_type", "default") != "default"):
      raise DataError(f"{where}: rotary embeddings are {rope!r:.60}; expected rope_type 'default'")
  for kind, key in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
    if ropes.get(kind):
      config[key] = ropes[kind].get("rope_theta")
  if isinstance(kinds, list):
    every = next((i for i, kind in enumerate(kinds) if i and kind == "full_attention"), len(kinds))
    if kinds != [("sliding" if i % every else "full") + "_attention" for i in range(len(kinds))]:
      raise DataError(f"{where}: layer_types are {kinds!r:.60}; expected full_attention in every n-th layer")
    config["global_attn_every_n_layers"] = every
  return config


def _check(spec, where):
  """Raises DataError for sizes of another type, heads that do not divide the width, and no two positions."""
  for field in dataclasses.fields(spec):
    value, kind = getattr(spec, field.name), cast(type, field.type)
    if not isinstance(value, (int, float) if kind is float else kind):
      raise DataError(f"{where}: {field.name} is {value!r:.60}; expected {kind.__name__}")
  if not spec.num_heads or spec.width % spec.num_heads:
    raise DataError(f"{where}: width {spec.width} does not divide into {spec.num_heads} heads")
  if (positions := spec.max_positions - spec.first_position) < 2:
    raise DataError(f"{where}: {positions} positions; expected 2 or more")


def config_from_spec(spec: EncoderSpec) -> dict[str, Any]:
  """Converts an EncoderSpec to a dict for config.json that Hugging Face reads."""
  family = _FAMILIES[spec.kind]
  sizes = dataclasses.replace(spec, max_positions=spec.first_position + spec.max_positions)
  return {
    "model_type": spec.kind,
    "architectures": [family.class_name],
    "pad_token_id": max(0, spec.first_position - 1),
    "initializer_range": 0.02,
    family.activation: "gelu",
    **{theirs: getattr(sizes, ours) for ours, theirs in family.sizes.items()},
  }
