"""Reads and writes encoder weights: Hugging Face folders, with sentence-transformers' files beside them."""

import dataclasses
import shutil
from pathlib import Path
from typing import NamedTuple

import ml_collections
import numpy as np
import safetensors
import safetensors.numpy

from xmc_jax.errors import ConfigError, DataError
from xmc_jax.models import bag_gru_files, hf_names, locate, sentence_modules
from xmc_jax.models.architectures import Spec, known_spec
from xmc_jax.models.encoder import EncoderSpec
from xmc_jax.models.sentence_modules import Modules, checked_tensor, read_json, write_safetensors
from xmc_jax.models.torch_files import read_torch_file
from xmc_jax.storage import atomic

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


class Pretrained(NamedTuple):
  """Holds an encoder read from disk."""

  params: dict  # path below `encoder/` ('layer_0/attention/query/kernel') -> float32 numpy array
  spec: Spec
  found: str  # where it came from, in words
  tokenizer_file: str | None
  folder: Path | None  # None where the sizes are built in
  projection: dict | None = None  # sentence-transformers' dense layer, {'kernel' [D, D'], 'bias' [D']}
  modules: Modules = Modules()  # what else its files say, known without the weights


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
  modules = sentence_modules.read_modules(folder)
  inner = folder / modules.path
  config_file = inner / "config.json"
  tokenizer = next((f for f in (inner / "tokenizer.json", folder / "tokenizer.json") if f.is_file()), None)
  spec: Spec
  if modules.static:
    spec = bag_gru_files.spec_from_static(inner / "model.safetensors")
  elif bag_gru_files.is_ours(config := read_json(config_file)):
    spec = bag_gru_files.spec_from_config(config, config_file)
  else:
    spec = _first_layers(hf_names.spec_from_config(config, config_file), num_layers, name)
  return Pretrained(
    params=_files_of(spec).from_tensors(*_read_tensors(inner), spec) if weights else {},
    spec=spec,
    found=found,
    tokenizer_file=str(tokenizer) if tokenizer else None,
    folder=inner,
    projection=_read_projection(folder, modules, spec.width) if weights and modules.dense else None,
    modules=modules,
  )


def token_table(params: dict[str, np.ndarray]) -> np.ndarray:
  """Returns the token embeddings `[V, D]` in the parameters of a `Pretrained`, of a transformer or a bag."""
  return params["embeddings/word" if "embeddings/word" in params else "word"]


def describe(name: str, *, num_layers: int = 0, pretrained: bool = True) -> Pretrained:
  """Reads an encoder without weights; if not `pretrained`, takes built-in sizes if the name is not here."""
  spec = None if pretrained or locate.locate_here(name) else known_spec(name)
  if spec is None:
    return load_pretrained(name, num_layers=num_layers, weights=False)
  spec = _first_layers(spec, num_layers, name)
  return Pretrained({}, spec, f"{name}, built in", tokenizer_file=None, folder=None)


def modules_of(settings: ml_collections.ConfigDict) -> Modules:
  """Reads what sentence-transformers' files add to `config.encoder.name`; a bag or a GRU has none."""
  if locate.source_key(settings) != "name":
    return Modules()
  return describe(settings.name, pretrained=False).modules


def copy_description(name: str, folder: str | Path) -> None:
  """Writes an encoder's sizes and tokenizer, without weights, into `folder`, if it has no description yet."""
  folder = Path(folder)
  if (folder / "config.json").is_file():
    return
  described = describe(name, pretrained=False)
  folder.mkdir(parents=True, exist_ok=True)
  if described.tokenizer_file:
    shutil.copyfile(described.tokenizer_file, folder / "tokenizer.json")
  atomic.write_json(folder / "config.json", _files_of(described.spec).config_from_spec(described.spec))


def _files_of(spec):
  """Returns the module that converts configs and tensors of such an encoder."""
  return hf_names if isinstance(spec, EncoderSpec) else bag_gru_files


def _first_layers(spec, num_layers, name):
  if not 0 <= num_layers <= spec.num_layers:
    raise ConfigError(
      f"config.encoder.num_layers={num_layers}, but encoder '{name}' has {spec.num_layers} layers; "
      f"set --config.encoder.num_layers={spec.num_layers}, or less"
    )
  return dataclasses.replace(spec, num_layers=num_layers or spec.num_layers)


def _read_tensors(folder):
  """Reads all tensors of a model folder; returns also the file to name in messages."""
  single, index, torch = (
    folder / name for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
  )
  if single.is_file():
    return _read_safetensors(single), single
  if index.is_file():
    tensors: dict[str, np.ndarray] = {}
    for shard in sorted({*read_json(index).get("weight_map", {}).values()}):
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


def _read_projection(folder, modules, width):
  tensors, file = _read_tensors(folder / modules.dense)
  weight = checked_tensor(tensors, "linear.weight", (modules.projection_dim, width), file)
  bias = tensors.get("linear.bias", np.zeros(len(weight)))
  return {"kernel": np.ascontiguousarray(weight.T), "bias": np.asarray(bias, np.float32)}


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
  write_safetensors(folder / "model.safetensors", _files_of(spec).to_tensors(params, spec))
  atomic.write_json(folder / "config.json", _files_of(spec).config_from_spec(spec))
  if not tokenizer_file:
    return
  for name in _TOKENIZER_FILES:
    source = Path(tokenizer_file).with_name(name) if name != "tokenizer.json" else Path(tokenizer_file)
    if source.is_file() and source.resolve() != (folder / name).resolve():
      with atomic.written_whole(folder / name) as target:
        shutil.copyfile(source, target)
