"""Reads and writes sentence-transformers' files: what follows an encoder, and the prompt before a text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from xmc_jax.errors import DataError
from xmc_jax.storage import atomic
from xmc_jax.types import Array

POOLINGS = ("mean", "cls", "max", "lasttoken")  # as newer files name them
_OLDER = ("mean_tokens", "cls_token", "max_tokens", "lasttoken")  # older files have a switch for each
_POOLINGS = dict(zip((*POOLINGS, *_OLDER), 2 * POOLINGS))
_ORDER = ("Transformer", "StaticEmbedding", "Pooling", "Dense", "Normalize")
_ACTIVATIONS = {"Tanh": True, "Identity": False, "None": False}


class Modules(NamedTuple):
  """Describes the files beside an encoder."""

  path: str = ""  # the encoder's own folder, below that of modules.json
  static: bool = False  # whether the encoder is a table of token embeddings, a bag
  pooling: str | None = None  # one of POOLINGS; None without such files
  dense: str = ""  # folder of a dense layer on the pooled vector; '' for none
  projection_dim: int = 0  # the layer's outputs; 0 for none
  tanh: bool = False  # whether a tanh follows that layer
  prompt: str = ""  # what stands before every text by default
  unsupported: str = ""  # the first module or setting that an Embedder cannot follow, in words


def read_modules(folder: Path) -> Modules:
  """Reads modules.json and what it lists, and config_sentence_transformers.json, if they are there.

  Raises:
    DataError: a file is not JSON, or lacks what every such file has.
  """
  if not (folder / "modules.json").is_file():
    return Modules()
  modules = _of_settings(folder / "config_sentence_transformers.json")
  last = -1
  for kind, path in _listed(folder / "modules.json"):
    if kind == "Dropout":  # only acts in their training
      continue
    rank = _ORDER.index(kind) if kind in _ORDER else -1
    reason = "" if rank > last else "not supported" if rank < 0 else "a second one, or out of order"
    last = max(last, rank)
    if kind in ("Transformer", "StaticEmbedding"):
      modules = modules._replace(path=path, static=kind == "StaticEmbedding")
    elif kind == "Pooling" and not reason:
      modules, reason = _with_pooling(modules, read_json(folder / path / "config.json"))
    elif kind == "Dense" and not reason:
      modules, reason = _with_dense(modules, path, folder / path / "config.json")
    if reason and not modules.unsupported:
      modules = modules._replace(unsupported=f"{folder / path}: {kind} ({reason})")
  return modules._replace(dense="", projection_dim=0, tanh=False) if modules.unsupported else modules


def head_settings(settings: Any, modules: Modules) -> dict[str, Any]:
  """Returns pooling, projection_dim and projection_tanh of `config.encoder`; for 'auto', those of the files.

  Raises:
    DataError: the files ask for what an Embedder cannot do.
  """
  head = {name: getattr(settings, name) for name in ("pooling", "projection_dim", "projection_tanh")}
  if settings.pooling != "auto":
    return head
  if modules.unsupported:
    raise DataError(
      f"{modules.unsupported} cannot be followed; encoder.pooling=mean, or another of its values, "
      "takes the encoder without what these files add"
    )
  head["pooling"] = modules.pooling or "mean"
  if not settings.projection_dim:
    head |= {"projection_dim": modules.projection_dim, "projection_tanh": modules.tanh}
  return head


def _of_settings(file):
  """Reads the default prompt, and whether embeddings are truncated."""
  settings = read_json(file) if file.is_file() else {}
  prompts = settings.get("prompts")
  prompt = prompts.get(str(settings.get("default_prompt_name"))) if isinstance(prompts, dict) else None
  truncated = settings.get("truncate_dim")
  return Modules(
    prompt=prompt if isinstance(prompt, str) else "",
    unsupported=f"{file}: truncate_dim = {truncated!r:.20}" if truncated else "",
  )


def _with_pooling(modules, pooling):
  """Adds the mode of a Pooling module; returns also why it cannot be followed, or ''."""
  modes = pooling.get("pooling_mode")
  if modes is None:  # older files have a switch for each
    switches = {name: on for name, on in pooling.items() if "pooling_mode_" in name} or {"mean": True}
    modes = [name.removeprefix("pooling_mode_") for name, on in switches.items() if on]
  modes = list(map(str, modes if isinstance(modes, list) else [modes]))
  mode = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
  reason = "" if mode else " + ".join(modes) or "without a mode"
  if modules.prompt and pooling.get("include_prompt") is False:
    reason = reason or "without the prompt"
  return modules._replace(pooling=mode), reason


def _with_dense(modules, path, file):
  """Adds a dense layer; returns also why it cannot be followed, or ''."""
  dense = read_json(file)
  width = dense.get("out_features", 0)
  activation = str(dense.get("activation_function", "Tanh")).rpartition(".")[-1]
  reason = "" if activation in _ACTIVATIONS else f"activation {activation:.60}"
  if dense.get("module_input_name", "sentence_embedding") != "sentence_embedding":
    reason = "on tokens"
  elif dense.get("use_residual"):
    reason = "with a residual"
  tanh = _ACTIVATIONS.get(activation, False)
  return modules._replace(dense=path, projection_dim=width, tanh=tanh), reason


def _listed(file):
  """Lists (kind, folder) of each module; refuses folders outside that of the file."""
  listed = []
  for module in read_json(file, list):
    kind, path = (module.get(key) if isinstance(module, dict) else None for key in ("type", "path"))
    if not isinstance(kind, str) or not isinstance(path, str):
      raise DataError(f"{file}: expected a text under 'type' and 'path' of every module")
    if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
      raise DataError(f"{file}: the path {path!r:.60} leads out of the encoder's folder")
    listed.append((kind.rpartition(".")[-1], path))
  return listed


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
    pooling: one of POOLINGS; '' for a StaticEmbedding, in 0_StaticEmbedding, which has none.
    unit: whether vectors are scaled to length 1.
    width: of the pooled vectors.
    projection, tanh: a layer's {'kernel', 'bias'} or None, and whether a tanh follows it.
  """
  folder = Path(folder)
  kinds = ["Transformer", "Pooling"] if pooling else ["StaticEmbedding"]
  kinds += ["Dense"] * bool(projection) + ["Normalize"] * unit
  paths = ["" if kind == "Transformer" else f"{i}_{kind}" for i, kind in enumerate(kinds)]
  for path in paths:
    (folder / path).mkdir(exist_ok=True)
  if pooling:
    switches = {f"pooling_mode_{name}": pooling == _POOLINGS[name] for name in _OLDER}
    atomic.write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **switches})
  if projection:
    dense = folder / paths[kinds.index("Dense")]
    activation = "torch.nn.modules." + ("activation.Tanh" if tanh else "linear.Identity")
    kernel, bias = (np.asarray(projection[leaf], np.float32) for leaf in ("kernel", "bias"))
    sizes = {"in_features": kernel.shape[0], "out_features": kernel.shape[1], "bias": True}
    atomic.write_json(dense / "config.json", sizes | {"activation_function": activation})
    tensors = {"linear.weight": np.ascontiguousarray(kernel.T), "linear.bias": bias}
    write_safetensors(dense / "model.safetensors", tensors)
  modules = [
    {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for i, (kind, path) in enumerate(zip(kinds, paths))
  ]
  atomic.write_json(folder / "modules.json", modules)


def read_json(file: Path, kind: type = dict) -> Any:
  """Reads a JSON object or list; raises DataError if the file holds anything else."""
  try:
    content = json.loads(file.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as error:
    raise DataError(f"{file}: unreadable ({error})") from None
  if not isinstance(content, kind):
    raise DataError(f"{file}: expected a JSON {'object' if kind is dict else 'list'}")
  return content


def write_safetensors(file: Path, tensors: dict[str, np.ndarray]) -> None:
  """Writes tensors with the format tag that Hugging Face requires, whole or not at all."""
  with atomic.written_whole(file) as target:
    safetensors.numpy.save_file(tensors, target, {"format": "pt"})


def checked_tensor(
  tensors: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], where: Path
) -> np.ndarray:
  """Returns a tensor of a file as float32; raises DataError if it is missing or has another shape."""
  if name not in tensors:
    raise DataError(f"{where}: tensor '{name}' is missing")
  if tensors[name].shape != shape:
    found = tensors[name].shape
    raise DataError(f"{where}: tensor '{name}' has shape {found}, config.json asks for {shape}")
  return np.asarray(tensors[name], np.float32)
