"""PyTorch `.bin` checkpoints without PyTorch, and without running what a pickle asks to run.

Since PyTorch 1.6 such a file is a zip: `<name>/data.pkl`, a pickled dict of tensors, and one raw buffer
`<name>/data/<key>` per storage. A pickle can name any function; the unpickler here knows the four names
that a dict of tensors needs and refuses every other.
"""

import collections
import pickle
import zipfile

import ml_dtypes
import numpy as np

from xmc_jax.contract import DataError

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


def read_torch_file(path):
  """Reads a state dict.

  Args:
    path: a file that `torch.save` wrote, holding a dict of names to tensors.

  Returns:
    dict of name to numpy array.

  Raises:
    DataError: not such a file, damaged, or one whose pickle asks for anything but tensors.
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
  except Exception as error:  # a damaged pickle can fail in any way at all
    raise DataError(f"{path}: damaged PyTorch file ({type(error).__name__}: {error})") from None
  if not isinstance(state, dict):
    raise DataError(f"{path}: holds a {type(state).__name__}; expected a dict of tensors")
  return {name: value for name, value in state.items() if isinstance(value, np.ndarray)}


class _TensorUnpickler(pickle.Unpickler):
  """Rebuilds tensors as numpy views of the archive's buffers; resolves no other name."""

  def __init__(self, stream, archive, prefix, path):
    super().__init__(stream)
    self._archive, self._prefix, self._path = archive, prefix, path
    self._buffers = {}

  def find_class(self, module, name):
    if module == "torch" and name in _STORAGE_TYPES:
      return np.dtype(_STORAGE_TYPES[name])
    if (module, name) == ("collections", "OrderedDict"):
      return collections.OrderedDict
    if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
      return _rebuild_tensor
    if (module, name) == ("torch._utils", "_rebuild_parameter"):
      return _rebuild_parameter
    raise DataError(f"{self._path}: refused, its pickle asks for {module}.{name}; use model.safetensors")

  def persistent_load(self, pid):
    kind, dtype, key, _, size = pid
    if kind != "storage" or not isinstance(dtype, np.dtype):
      raise DataError(f"{self._path}: unknown storage {pid!r}")
    if key not in self._buffers:
      raw = self._archive.read(f"{self._prefix}data/{key}")
      if len(raw) != size * dtype.itemsize:
        raise DataError(f"{self._path}: storage {key} has {len(raw)} bytes, expected {size * dtype.itemsize}")
      self._buffers[key] = np.frombuffer(raw, dtype)
    return self._buffers[key]


def _rebuild_tensor(storage, offset, shape, strides, *_):
  """A tensor from its flat storage: a copy, after checking that the view stays inside the storage."""
  if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
    raise ValueError(f"shape {shape} with strides {strides} at offset {offset}")
  last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
  if 0 not in shape and last >= storage.size:
    raise ValueError(f"a tensor of shape {shape} reaches beyond its storage of {storage.size}")
  bytes_per_item = storage.dtype.itemsize
  view = np.lib.stride_tricks.as_strided(
    storage[offset:], shape, [stride * bytes_per_item for stride in strides], writeable=False
  )
  return view.copy()


def _rebuild_parameter(tensor, *_):
  return tensor
