"""Writes and calls embedding functions as StableHLO files, with their parameters: tokens in, vectors out.

They run without this package. `jax.export` serialises each file: one function for CPU, CUDA and TPU, for any
number of texts and any length up to `max_length`. Matrix products are in float32 on all platforms.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jax import export as jax_export

from xmc_jax.errors import DataError
from xmc_jax.runs.label_functions import INPUTS, Function, filled, named_arrays, reads, shapes_of
from xmc_jax.runs.trained import Trained
from xmc_jax.types import Array, Tokens

PLATFORMS = ("cpu", "cuda", "tpu")
PARAMETERS = "parameters.safetensors"
_SUFFIX = ".stablehlo"
_PRECISION = "highest"  # by default, accelerators round the factors of float32 products
# The only custom calls that a program may make. An untrusted file could otherwise name any function of the
# process that runs it.
_CALLS = ("shape_assertion",)


def write(folder: Path, functions: Mapping[str, Function], trained: Trained, max_length: int) -> dict:
  """Writes functions as `NAME.stablehlo`, and the parameters that they read as `parameters.safetensors`.

  Returns:
    The signature that a reader needs, as a JSON object.
  """
  folder.mkdir(parents=True, exist_ok=True)
  read = [reads(function, trained, max_length) for function in functions.values()]
  names = sorted(set.union(*read) - INPUTS)
  named = named_arrays(trained)
  parameters = {name: np.ascontiguousarray(jax.device_get(named[name])) for name in names}
  safetensors.numpy.save_file(parameters, folder / PARAMETERS)
  widths = {}
  for name, function in functions.items():
    program = _lowered(function, trained, names, max_length)
    (folder / f"{name}{_SUFFIX}").write_bytes(program.serialize())
    widths[name] = program.out_avals[0].shape[1]
  return {
    "functions": {name: f"{name}{_SUFFIX}" for name in functions},
    "arguments": [
      {"name": "parameters", "type": "dict of all arrays in the file", "file": PARAMETERS},
      {"name": "input_ids", "shape": ["b", "t"], "dtype": "int32"},
      {"name": "attention_mask", "shape": ["b", "t"], "dtype": "int32", "is": "1 for a token, then 0"},
    ],
    "returns": {name: {"shape": ["b", width], "dtype": "float32"} for name, width in widths.items()},
    "limits": {"b": "1 or more", "t": f"1 to {max_length}"},
    "platforms": list(PLATFORMS),
    "calling_convention_version": jax_export.maximum_supported_calling_convention_version,
    "written_by": f"jax {jax.__version__}",
  }


class Programs:
  """Loads and calls functions that `write` wrote.

  Raises:
    DataError: a file is missing, damaged, or makes a custom call that no export makes.
  """

  def __init__(self, folder: Path):
    self._folder = folder
    self._functions: dict[str, Callable[..., jax.Array]] = {}
    try:
      self._parameters = safetensors.numpy.load_file(folder / PARAMETERS)
    except (OSError, safetensors.SafetensorError, TypeError, KeyError) as error:
      raise DataError(f"{folder / PARAMETERS}: unreadable ({_reason(error)}); export again") from None

  def __call__(self, name: str, tokens: Tokens) -> Array:
    """Returns `[b, D]` float32 embeddings of tokens by the function of this name."""
    if name not in self._functions:
      self._functions[name] = jax.jit(self._opened(name))
    mask = np.arange(tokens.ids.shape[1]) < np.asarray(tokens.lengths)[:, None]
    return self._functions[name](self._parameters, tokens.ids, mask.astype(np.int32))

  def _opened(self, name: str) -> Callable[..., Array]:
    path = self._folder / f"{name}{_SUFFIX}"
    try:
      program = jax_export.deserialize(bytearray(path.read_bytes()))
      called = set(re.findall(r"custom_call\s+@([\w.$]+)", program.mlir_module()))
      if called - set(_CALLS):
        raise ValueError(f"it calls {min(called - set(_CALLS))}, which no export does")
      one = jax.ShapeDtypeStruct((1, 1), jnp.int32)
      jax.eval_shape(program.call, self._parameters, one, one)
    except Exception as error:  # a damaged file can make flatbuffers and MLIR raise anything
      raise DataError(f"{path}: unusable ({_reason(error)}); export again") from None
    return program.call


def _lowered(function: Function, trained: Trained, names: list[str], max_length: int) -> jax_export.Exported:
  """Returns the exported function of `(parameters by name, input_ids, attention_mask)`."""

  def call(parameters, input_ids, attention_mask):
    tokens = Tokens(input_ids, attention_mask.sum(axis=1))
    no_ids = jnp.full(input_ids.shape[:1], -1, jnp.int32)
    return function(*filled(trained, parameters), tokens, no_ids)

  b, t = jax_export.symbolic_shape("b, t", constraints=["b >= 1", "t >= 1", f"t <= {max_length}"])
  texts, shapes = jax.ShapeDtypeStruct((b, t), jnp.int32), shapes_of(named_arrays(trained))
  with jax.default_matmul_precision(_PRECISION):
    return jax_export.export(jax.jit(call), platforms=PLATFORMS)(
      {name: shapes[name] for name in names}, texts, texts
    )


def _reason(error: Exception) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
