"""Reads PyTorch `.bin` checkpoints without PyTorch, and without running functions that a pickle names.

Since PyTorch 1.6 such a file is a zip: `<name>/data.pkl`, a pickled dict of tensors, and one raw buffer
`<name>/data/<key>` per storage. A pickle can name any function, and set the state of any object. The
unpickler here knows the few names that a dict of tensors needs and refuses every other. They become texts,
arrays and methods, which have no state that a pickle without NumPy's types could set.
"""

import collections
import math
import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from xmc_jax.errors import DataError

_STORAGE_TYPES = {
  "FloatStorage": np.float32,
  "DoubleStorage": np.float64,
  "HalfStorage": np.float16,
  "BFloat16Storage": ml_dtypes.bfloat16,
  "LongStorage": np.int64,
  "IntStorage": np.int32,
  "ShortStorage": np.int16,
  "CharStorage": np.int8,
  "ByteStorage": np.uint8,
  "BoolStorage": np.bool_,
}


def read_torch_file(path: Path) -> dict[str, np.ndarray]:
  """Reads the dict of names to tensors that `torch.save` wrote.

  Raises:
    DataError: the file has another format, is damaged, or its pickle asks for anything but tensors.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      pickles = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == "data.pkl"]
      if len(pickles) != 1:
        raise DataError(f"{path}: no data.pkl inside; expected a file written by torch.save")
      with archive.open(pickles[0]) as stream:
        state = _TensorUnpickler(stream, archive, pickles[0].removesuffix("data.pkl"), path).load()
  except DataError:
    raise
  except zipfile.BadZipFile:
    raise DataError(
      f"{path}: not a zip-format PyTorch file (PyTorch < 1.6 wrote another); convert it to model.safetensors"
    ) from None
  except Exception as error:  # a damaged pickle can raise any error
    raise DataError(f"{path}: damaged PyTorch file ({type(error).__name__}: {error})") from None
  if not isinstance(state, dict):
    raise DataError(f"{path}: holds a {type(state).__name__}; expected a dict of tensors")
  return {name: value for name, value in dict.items(state) if isinstance(value, np.ndarray)}


class _TensorUnpickler(pickle.Unpickler):
  """Rebuilds tensors as numpy arrays from the archive's buffers; resolves no other name."""

  def __init__(self, stream: IO[bytes], archive: zipfile.ZipFile, prefix: str, path: Path):
    super().__init__(stream)
    self._archive, self._prefix, self._path = archive, prefix, path
    self._buffers: dict[str, np.ndarray] = {}

  def find_class(self, module: str, name: str) -> Any:
    if module == "torch" and name in _STORAGE_TYPES:
      return name
    if (module, name) == ("collections", "OrderedDict"):
      return collections.OrderedDict
    if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
      return self._tensor
    if (module, name) == ("torch._utils", "_rebuild_parameter"):
      return self._parameter
    raise DataError(f"{self._path}: refused, its pickle asks for {module}.{name}; use model.safetensors")

  def persistent_load(self, pid: Any) -> np.ndarray:
    """Returns a storage: a flat buffer of the archive."""
    _, of_type, key, _, size = pid
    if key not in self._buffers:
      dtype = np.dtype(_STORAGE_TYPES[of_type])
      member = self._archive.getinfo(f"{self._prefix}data/{key}")
      if member.file_size != size * dtype.itemsize or member.compress_type != zipfile.ZIP_STORED:
        expected = f"expected {size * dtype.itemsize}, not compressed"
        raise DataError(f"{self._path}: storage {key} has {member.file_size} bytes, {expected}")
      self._buffers[key] = np.frombuffer(self._archive.read(member), dtype)
    return self._buffers[key]

  def _tensor(
    self, storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object
  ) -> np.ndarray:
    """Copies a tensor from its storage; NumPy raises ValueError for a view beyond it."""
    if math.prod(shape) > storage.size:
      raise ValueError(f"a tensor of shape {shape} is larger than its storage of {storage.size}")
    size = storage.itemsize
    return np.ndarray(
      shape, storage.dtype, storage, offset * size, [size * stride for stride in strides]
    ).copy()

  def _parameter(self, tensor: np.ndarray, *_: object) -> np.ndarray:
    return tensor
