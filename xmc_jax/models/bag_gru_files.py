"""Converts bags and GRUs, which Hugging Face has no format for, to configs and tensors of files, and back.

A bag is also read from sentence-transformers' StaticEmbedding, which has no config. A GRU's tensors have the
names and layout of PyTorch's `nn.GRU(E, H, bidirectional=True)`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from xmc_jax.errors import DataError
from xmc_jax.models.architectures import Spec
from xmc_jax.models.bag import BagSpec
from xmc_jax.models.gru import DIRECTIONS, GruSpec
from xmc_jax.models.sentence_modules import checked_tensor

_TABLE = "word_embeddings.weight"
_STATIC = "embedding.weight"  # the table of a StaticEmbedding
_SPECS = {"xmc_jax_bag": BagSpec, "xmc_jax_gru": GruSpec}  # by model_type
_SIZES = {BagSpec: ("vocab_size", "width"), GruSpec: ("vocab_size", "embedding_width", "width")}


def is_ours(config: dict[str, Any]) -> bool:
  """Returns whether a config.json describes one of these encoders."""
  return str(config.get("model_type")) in _SPECS


def config_from_spec(spec: BagSpec | GruSpec) -> dict[str, Any]:
  """Converts a BagSpec or GruSpec to a dict for config.json."""
  kind = next(kind for kind, spec_type in _SPECS.items() if isinstance(spec, spec_type))
  return {"model_type": kind, **{key: getattr(spec, key) for key in _SIZES[type(spec)]}}


def spec_from_config(config: dict[str, Any], where: Path) -> BagSpec | GruSpec:
  """Converts config.json's dict to a spec: the inverse of `config_from_spec`.

  Raises:
    DataError: a size is missing, or such an encoder cannot have it.
  """
  spec_type = _SPECS[config["model_type"]]
  sizes = {key: config.get(key) for key in _SIZES[spec_type]}
  for key, size in sizes.items():
    if (
      type(size) is not int or not 0 < size < 2**31 or (spec_type is GruSpec and key == "width" and size % 2)
    ):
      raise DataError(f"{where}: {key} is {size!r}; expected a whole number that the encoder can have")
  return spec_type(**sizes)


def spec_from_static(file: Path) -> BagSpec:
  """Reads the sizes of a StaticEmbedding's table; raises DataError if the file has none."""
  try:
    with safetensors.safe_open(file, "numpy") as tensors:
      sizes = tensors.get_slice(_STATIC).get_shape()
  except (OSError, safetensors.SafetensorError) as error:
    raise DataError(f"{file}: unreadable ({error}); expected the table of a StaticEmbedding") from None
  if len(sizes) != 2:
    raise DataError(f"{file}: tensor '{_STATIC}' has shape {sizes}; expected two numbers")
  return BagSpec(*sizes)


def table_width(spec: Spec) -> int:
  """Returns the number of columns of a spec's token table."""
  return getattr(spec, "embedding_width", spec.width)


def from_tensors(
  tensors: dict[str, np.ndarray], where: Path, spec: BagSpec | GruSpec
) -> dict[str, np.ndarray]:
  """Converts the tensors of a file to our flat parameters, float32 numpy arrays.

  Raises:
    DataError: names the first tensor that is missing or has another shape.
  """
  if isinstance(spec, BagSpec) and _STATIC in tensors:
    tensors = {_TABLE: tensors[_STATIC]}
  read = {name: checked_tensor(tensors, name, shape, where) for name, shape in _shapes(spec).items()}
  params = {"word": read[_TABLE]}
  for direction, theirs in _directions(spec).items():
    # PyTorch has two biases for each gate. They are added, except that r scales the candidate's second one.
    first, second = read[theirs["bias_ih"]], read[theirs["bias_hh"]]
    size = spec.width // 2
    params |= {
      f"{direction}_input/kernel": np.ascontiguousarray(read[theirs["weight_ih"]].T),
      f"{direction}_input/bias": np.concatenate([first[:-size] + second[:-size], first[-size:]]),
      f"{direction}_state/kernel": np.ascontiguousarray(read[theirs["weight_hh"]].T),
      f"{direction}_state/bias": second[-size:].copy(),
    }
  return params


def to_tensors(params: dict[str, np.ndarray], spec: BagSpec | GruSpec) -> dict[str, np.ndarray]:
  """Converts our flat parameters to the tensors of a file; `from_tensors` gives equal parameters back."""
  tensors = {_TABLE: np.ascontiguousarray(params["word"], np.float32)}
  for direction, theirs in _directions(spec).items():
    of_state = np.asarray(params[f"{direction}_state/bias"], np.float32)
    written = {
      "weight_ih": np.asarray(params[f"{direction}_input/kernel"], np.float32).T,
      "weight_hh": np.asarray(params[f"{direction}_state/kernel"], np.float32).T,
      "bias_ih": np.asarray(params[f"{direction}_input/bias"], np.float32),
      "bias_hh": np.concatenate([np.zeros(2 * of_state.size, np.float32), of_state]),
    }
    tensors |= {theirs[part]: np.ascontiguousarray(value) for part, value in written.items()}
  return tensors


def _directions(spec):
  """Returns for each direction PyTorch's names of its four tensors; none for a bag."""
  if isinstance(spec, BagSpec):
    return {}
  parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
  endings = dict(zip(DIRECTIONS, ("_l0", "_l0_reverse")))
  return {name: {part: f"gru.{part}{ending}" for part in parts} for name, ending in endings.items()}


def _shapes(spec):
  gates = 3 * (spec.width // 2)
  shapes = {"weight_ih": (gates, table_width(spec)), "weight_hh": (gates, spec.width // 2)}
  return {_TABLE: (spec.vocab_size, table_width(spec))} | {
    name: shapes.get(part, (gates,)) for theirs in _directions(spec).values() for part, name in theirs.items()
  }
