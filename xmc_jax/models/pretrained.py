"""Reads and writes encoder weights: Hugging Face folders, with sentence-transformers' files beside them."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from xmc_jax.errors import ConfigError, DataError
from xmc_jax.models import bag_gru_files, hf_names, locate
from xmc_jax.models.architectures import Spec, known_spec
from xmc_jax.models.encoder import EncoderSpec
from xmc_jax.models.torch_files import read_torch_file
from xmc_jax.storage import atomic
from xmc_jax.types import Array

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


class Pretrained(NamedTuple):
  """Holds an encoder read from disk.

  Attributes:
    params: dict of path below `encoder/` ('layer_0/attention/query/kernel') to float32 numpy array.
    spec: EncoderSpec, BagSpec or GruSpec.
    found: where it came from, in words.
    tokenizer_file: path of tokenizer.json, or None.
    folder: the folder; None where the sizes are built in.
    pooling: 'cls' or 'mean' if sentence-transformers' files ask for it, else None.
    unit: whether they ask for unit vectors; None without such files.
    projection: their dense layer as {'kernel' [D, D'], 'bias' [D']}, or None.
    projection_dim: D', known without the weights; 0 for none.
    tanh: whether a tanh follows that layer.
  """

  params: dict
  spec: Spec
  found: str
  tokenizer_file: str | None
  folder: Path | None
  pooling: str | None = None
  unit: bool | None = None
  projection: dict | None = None
  projection_dim: int = 0
  tanh: bool = False


def load_pretrained(name: str, *, num_layers: int = 0, weights: bool = True) -> Pretrained:
  """Reads an encoder.

  Args:
    name: a name that `locate.locate` finds.
    num_layers: keep the first so many blocks; 0 keeps all.
    weights: False reads everything but the tensors (`params` and `projection` are then empty).

  Returns:
    Pretrained.

  Raises:
    UserError, DataError: the encoder is missing or unreadable; the message names the file.
  """
  folder, found = locate.locate(name)
  modules = _sentence_modules(folder)
  inner = folder / modules["path"]
  config_file = inner / "config.json"
  config = _read_json(config_file)
  tokenizer = next((f for f in (inner / "tokenizer.json", folder / "tokenizer.json") if f.is_file()), None)
  if bag_gru_files.is_ours(config):
    spec = bag_gru_files.spec_from_config(config, config_file)
  else:
    spec = _first_layers(hf_names.spec_from_config(config, config_file), num_layers, name)
  return Pretrained(
    params=_read_params(inner, spec) if weights else {},
    spec=spec,
    found=found,
    tokenizer_file=str(tokenizer) if tokenizer else None,
    folder=inner,
    pooling=modules.get("pooling"),
    unit=modules.get("unit"),
    projection=_read_projection(folder / modules["dense"]) if weights and "dense" in modules else None,
    projection_dim=modules.get("projection_dim", 0),
    tanh=modules.get("tanh", False),
  )


def describe(name: str, *, num_layers: int = 0, pretrained: bool = True) -> Pretrained:
  """Reads an encoder without weights; if not `pretrained`, takes built-in sizes if the name is not here."""
  spec = None if pretrained or locate.locate_here(name) else known_spec(name)
  if spec is None:
    return load_pretrained(name, num_layers=num_layers, weights=False)
  spec = _first_layers(spec, num_layers, name)
  return Pretrained(params={}, spec=spec, found=f"{name}, built in", tokenizer_file=None, folder=None)


def _first_layers(spec, num_layers, name):
  if not 0 <= num_layers <= spec.num_layers:
    raise ConfigError(
      f"config.encoder.num_layers={num_layers}, but encoder '{name}' has {spec.num_layers} layers; "
      f"set 0 (all) to {spec.num_layers}"
    )
  return dataclasses.replace(spec, num_layers=num_layers or spec.num_layers)


def _read_params(folder, spec):
  tensors, file = _read_tensors(folder)
  if isinstance(spec, EncoderSpec):
    return hf_names.from_hf(tensors, spec, file)
  return bag_gru_files.from_tensors(tensors, spec, file)


def _read_tensors(folder):
  """Reads all tensors of a model folder; returns also the file to name in messages."""
  single, index, torch = (
    folder / name for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
  )
  if single.is_file():
    return _read_safetensors(single), single
  if index.is_file():
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
      raise DataError(f"{index}: expected a file for each tensor under 'weight_map'")
    tensors: dict[str, np.ndarray] = {}
    for shard in sorted(set(weight_map.values())):
      tensors |= _read_safetensors(folder / Path(shard).name)  # only from this folder
    return tensors, index
  if torch.is_file():
    return read_torch_file(torch), torch
  raise DataError(f"{folder}: no model.safetensors and no pytorch_model.bin")


def _read_safetensors(file):
  try:
    return safetensors.numpy.load_file(file)
  except (OSError, safetensors.SafetensorError, TypeError, KeyError) as error:
    raise DataError(f"{file}: unreadable ({error}); fetch it again") from None


def _read_json(file, kind=dict):
  try:
    content = json.loads(file.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as error:
    raise DataError(f"{file}: unreadable ({error})") from None
  if not isinstance(content, kind):
    raise DataError(f"{file}: expected a JSON {'object' if kind is dict else 'list'}")
  return content


def _sentence_modules(folder):
  """Reads sentence-transformers' modules.json: path of the encoder, pooling, unit, dense, tanh."""
  if not (folder / "modules.json").is_file():
    return {"path": ""}
  notes = {"path": "", "unit": False}
  for kind, path in _listed_modules(folder / "modules.json"):
    if kind == "Transformer":
      notes["path"] = path
    elif kind == "Pooling":
      pooling = _read_json(folder / path / "config.json")
      modes = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
      notes["pooling"] = next((mode for key, mode in modes.items() if pooling.get(key)), None)
    elif kind == "Dense":
      dense = _read_json(folder / path / "config.json")
      width = dense.get("out_features", 0)
      if type(width) is not int or width < 0:
        raise DataError(f"{folder / path / 'config.json'}: out_features is {width!r:.60}; expected a number")
      notes |= {"dense": path, "projection_dim": width}
      notes["tanh"] = "Tanh" in str(dense.get("activation_function", "Tanh"))
    elif kind == "Normalize":
      notes["unit"] = True
  return notes


def _listed_modules(file):
  """Lists (kind, folder) of each module; refuses folders outside that of the file."""
  found = []
  for module in _read_json(file, list):
    kind, path = (module.get(key) if isinstance(module, dict) else None for key in ("type", "path"))
    if not isinstance(kind, str) or not isinstance(path, str):
      raise DataError(f"{file}: expected a text under 'type' and 'path' of every module")
    if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
      raise DataError(f"{file}: the path {path!r:.60} leads out of the encoder's folder")
    found.append((kind.rsplit(".", 1)[-1], path))
  return found


def _read_projection(folder):
  tensors, file = _read_tensors(folder)
  if "linear.weight" not in tensors:
    raise DataError(f"{file}: tensor 'linear.weight' is missing")
  kernel = np.ascontiguousarray(np.asarray(tensors["linear.weight"], np.float32).T)
  bias = tensors.get("linear.bias", np.zeros(kernel.shape[1]))
  return {"kernel": kernel, "bias": np.asarray(bias, np.float32)}


def save_pretrained(
  params: dict[str, np.ndarray], spec: Spec, folder: str | Path, tokenizer_file: str | Path | None = None
) -> None:
  """Writes an encoder as a Hugging Face folder; `load_pretrained` reads equal parameters back.

  Args:
    params: as in `Pretrained.params`.
    spec: EncoderSpec, BagSpec or GruSpec.
    folder: made if missing; files in it are replaced whole or not at all.
    tokenizer_file: tokenizer.json to copy along with its companions, or None.
  """
  folder = Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  if isinstance(spec, EncoderSpec):
    config, tensors = hf_names.config_from_spec(spec), hf_names.to_hf(params, spec)
  else:
    config, tensors = bag_gru_files.config_from_spec(spec), bag_gru_files.to_tensors(params, spec)
  write_safetensors(folder / "model.safetensors", tensors)
  write_json(folder / "config.json", config)
  if not tokenizer_file:
    return
  for name in _TOKENIZER_FILES:
    source = Path(tokenizer_file).with_name(name) if name != "tokenizer.json" else Path(tokenizer_file)
    if source.is_file() and source.resolve() != (folder / name).resolve():
      with atomic.written_whole(folder / name) as target:
        shutil.copyfile(source, target)


def save_sentence_modules(
  folder: str | Path,
  *,
  pooling: str,
  unit: bool,
  width: int,
  projection: Mapping[str, Array] | None = None,
  tanh: bool = False,
) -> None:
  """Writes the files from which sentence-transformers reads pooling, projection and normalisation.

  Args:
    folder: the folder of a saved encoder.
    pooling: 'cls' or 'mean'.
    unit: whether vectors are scaled to length 1.
    width: of the pooled vectors.
    projection: {'kernel', 'bias'} or None.
    tanh: whether a tanh follows the projection.
  """
  folder = Path(folder)
  kinds = ["Transformer", "Pooling"] + ["Dense"] * bool(projection) + ["Normalize"] * unit
  package = "sentence_transformers.models"
  modules: list[dict[str, Any]] = [
    {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"{package}.{kind}"}
    for i, kind in enumerate(kinds)
  ]
  for module in modules[1:]:
    (folder / module["path"]).mkdir(exist_ok=True)
  pooled = {"word_embedding_dimension": width}
  pooled |= {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
  write_json(folder / "1_Pooling" / "config.json", pooled)
  if projection:
    activation = "torch.nn.modules." + ("activation.Tanh" if tanh else "linear.Identity")
    kernel, bias = (np.asarray(projection[leaf], np.float32) for leaf in ("kernel", "bias"))
    sizes = {"in_features": kernel.shape[0], "out_features": kernel.shape[1], "bias": True}
    write_json(folder / "2_Dense" / "config.json", sizes | {"activation_function": activation})
    tensors = {"linear.weight": np.ascontiguousarray(kernel.T), "linear.bias": bias}
    write_safetensors(folder / "2_Dense" / "model.safetensors", tensors)
  write_json(folder / "modules.json", modules)


def write_safetensors(file: Path, tensors: dict[str, np.ndarray]) -> None:
  """Writes tensors with the format tag that Hugging Face requires, whole or not at all."""
  with atomic.written_whole(file) as target:
    safetensors.numpy.save_file(tensors, target, {"format": "pt"})


def write_json(file: Path, content: object) -> None:
  """Writes indented JSON, whole or not at all."""
  atomic.write_text(file, json.dumps(content, indent=2) + "\n")
