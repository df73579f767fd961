"""Maps Hugging Face's configs and parameter names for DistilBERT and BERT to ours and back."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from xmc_jax.errors import DataError
from xmc_jax.models.encoder import EncoderSpec

# Per block: our path -> Hugging Face's, below `layer_<i>` and `<layers>.<i>`.
_BLOCK = {
  "bert": {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/output": "attention.output.dense",
    "attention_layer_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_layer_norm": "output.LayerNorm",
  },
  "distilbert": {
    "attention/query": "attention.q_lin",
    "attention/key": "attention.k_lin",
    "attention/value": "attention.v_lin",
    "attention/output": "attention.out_lin",
    "attention_layer_norm": "sa_layer_norm",
    "intermediate": "ffn.lin1",
    "output": "ffn.lin2",
    "output_layer_norm": "output_layer_norm",
  },
}
_LAYERS = {"bert": "encoder.layer", "distilbert": "transformer.layer"}


def names(spec: EncoderSpec) -> dict[str, str]:
  """Returns a dict of each parameter's path ('layer_0/attention/query/kernel') to Hugging Face's name."""
  pairs = {"embeddings/word": "embeddings.word_embeddings.weight"}
  pairs["embeddings/position"] = "embeddings.position_embeddings.weight"
  if spec.num_types:
    pairs["embeddings/type"] = "embeddings.token_type_embeddings.weight"
  modules = {"embeddings/layer_norm": "embeddings.LayerNorm"}
  for i in range(spec.num_layers):
    for ours, theirs in _BLOCK[spec.kind].items():
      modules[f"layer_{i}/{ours}"] = f"{_LAYERS[spec.kind]}.{i}.{theirs}"
  for ours, theirs in modules.items():
    pairs[f"{ours}/{'scale' if ours.endswith('layer_norm') else 'kernel'}"] = f"{theirs}.weight"
    pairs[f"{ours}/bias"] = f"{theirs}.bias"
  return pairs


def shape(path: str, spec: EncoderSpec) -> tuple[int, ...]:
  """Returns the shape of our parameter at `path`."""
  width, ffn = spec.width, spec.ffn_width
  tables = {"word": spec.vocab_size, "position": spec.max_positions, "type": spec.num_types}
  *_, module, leaf = path.split("/")
  if leaf in tables:
    return (tables[leaf], width)
  rows, columns = {"intermediate": (width, ffn), "output": (ffn, width)}.get(module, (width, width))
  if "attention/" in path:
    rows = columns = width
  return (rows, columns) if leaf == "kernel" else (columns,)


def from_hf(tensors: dict[str, np.ndarray], spec: EncoderSpec, where: Path) -> dict[str, np.ndarray]:
  """Converts Hugging Face's tensors to our flat parameters.

  Args:
    tensors: dict of name to array; may have any prefix ('bert.'), the old names LayerNorm.gamma and .beta,
      and heads or poolers beside the encoder.
    spec: the sizes to expect; blocks beyond `num_layers` are ignored.
    where: the file, for messages.

  Returns:
    dict of our path to float32 numpy array.

  Raises:
    DataError: names the first missing tensor, or the first with another shape.
  """
  word = "embeddings.word_embeddings.weight"
  prefixes = sorted((name.removesuffix(word) for name in tensors if name.endswith(word)), key=len)
  if not prefixes:
    raise DataError(f"{where}: no tensor '{word}'; expected the weights of a BERT or DistilBERT model")
  found = {
    name.removeprefix(prefixes[0])
    .replace("LayerNorm.gamma", "LayerNorm.weight")
    .replace("LayerNorm.beta", "LayerNorm.bias"): value
    for name, value in tensors.items()
    if name.startswith(prefixes[0])
  }
  params = {}
  for ours, theirs in names(spec).items():
    if theirs not in found:
      raise DataError(f"{where}: tensor '{prefixes[0]}{theirs}' is missing")
    value = np.asarray(found[theirs], np.float32)
    value = value.T if ours.endswith("kernel") else value
    expected = shape(ours, spec)
    if value.shape != expected:
      wanted = expected[::-1] if ours.endswith("kernel") else expected
      stored = found[theirs].shape
      raise DataError(
        f"{where}: tensor '{prefixes[0]}{theirs}' has shape {stored}, config.json asks for {wanted}"
      )
    params[ours] = np.ascontiguousarray(value)
  return params


def to_hf(params: dict[str, np.ndarray], spec: EncoderSpec) -> dict[str, np.ndarray]:
  """Converts our flat parameters to Hugging Face's tensors: the inverse of `from_hf`."""
  tensors = {}
  for ours, theirs in names(spec).items():
    value = np.asarray(params[ours], np.float32)
    tensors[theirs] = np.ascontiguousarray(value.T if ours.endswith("kernel") else value)
  return tensors


def spec_from_config(config: dict[str, Any], where: Path) -> EncoderSpec:
  """Converts config.json's dict to an EncoderSpec.

  Raises:
    DataError: another architecture, an activation that is not exact GELU, relative positions, a missing key.
  """
  kind = config.get("model_type")
  if not isinstance(kind, str) or kind not in _BLOCK:
    raise DataError(
      f"{where}: model_type is {kind!r:.60}; supported are 'bert' (also MiniLM) and 'distilbert'"
    )
  activation = config.get("hidden_act" if kind == "bert" else "activation", "gelu")
  positions = config.get("position_embedding_type", "absolute")
  if activation != "gelu" or positions != "absolute":
    raise DataError(
      f"{where}: activation {activation!r}, positions {positions!r}; supported are 'gelu' and 'absolute'"
    )
  try:
    if kind == "bert":
      spec = EncoderSpec(
        kind=kind,
        vocab_size=config["vocab_size"],
        width=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        ffn_width=config["intermediate_size"],
        max_positions=config["max_position_embeddings"],
        num_types=config.get("type_vocab_size", 2),
        layer_norm_eps=config.get("layer_norm_eps", 1e-12),
      )
    else:
      spec = EncoderSpec(
        kind=kind,
        vocab_size=config["vocab_size"],
        width=config["dim"],
        num_layers=config["n_layers"],
        num_heads=config["n_heads"],
        ffn_width=config["hidden_dim"],
        max_positions=config["max_position_embeddings"],
      )
  except KeyError as error:
    raise DataError(f"{where}: key {error} is missing") from None
  _check(spec, where)
  return spec


def _check(spec, where):
  """Raises DataError for sizes that no encoder has."""
  for name, value in dataclasses.asdict(spec).items():
    if name not in ("kind", "layer_norm_eps") and (type(value) is not int or not 0 <= value < 2**31):
      raise DataError(f"{where}: {name} is {value!r:.60}; expected a whole number")
  if type(spec.layer_norm_eps) is not float or not 0 < spec.layer_norm_eps < 1:
    raise DataError(f"{where}: layer_norm_eps is {spec.layer_norm_eps!r:.60}; expected a small number")
  if not spec.num_heads or spec.width % spec.num_heads:
    raise DataError(f"{where}: width {spec.width} does not divide into {spec.num_heads} heads")


def config_from_spec(spec: EncoderSpec) -> dict[str, Any]:
  """Converts an EncoderSpec to a dict for config.json that Hugging Face reads."""
  common = {
    "model_type": spec.kind,
    "vocab_size": spec.vocab_size,
    "max_position_embeddings": spec.max_positions,
    "pad_token_id": 0,
    "initializer_range": 0.02,
  }
  if spec.kind == "bert":
    return common | {
      "architectures": ["BertModel"],
      "hidden_size": spec.width,
      "num_hidden_layers": spec.num_layers,
      "num_attention_heads": spec.num_heads,
      "intermediate_size": spec.ffn_width,
      "type_vocab_size": spec.num_types,
      "layer_norm_eps": spec.layer_norm_eps,
      "hidden_act": "gelu",
    }
  return common | {
    "architectures": ["DistilBertModel"],
    "dim": spec.width,
    "n_layers": spec.num_layers,
    "n_heads": spec.num_heads,
    "hidden_dim": spec.ffn_width,
    "activation": "gelu",
  }
