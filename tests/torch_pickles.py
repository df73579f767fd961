"""Files as `torch.save` writes them, without PyTorch: pickles that are put together from their parts."""

import pathlib
import pickle
import zipfile


def plain(value) -> bytes:
  """Returns what pickles a number, a text or a tuple of these."""
  return pickle.dumps(value, 0)[:-1]


def storage(size: int = 4, key: str = "0", kind: str = "FloatStorage") -> bytes:
  """Returns what pickles a storage of so many numbers."""
  parts = plain("storage"), f"ctorch\n{kind}\n".encode(), plain(key), plain("cpu"), plain(size)
  return b"(" + b"".join(parts) + b"tQ"


def tensor(shape: tuple, strides: tuple, offset: int = 0, numbers: bytes = storage()) -> bytes:
  """Returns what pickles a tensor of a storage's numbers."""
  parts = numbers, plain(offset), plain(shape), plain(strides)
  return b"ctorch._utils\n_rebuild_tensor_v2\n(" + b"".join(parts) + b"\x89}tR"


def in_dict(**values: bytes) -> bytes:
  """Returns what pickles a dict of pickled values."""
  return b"}" + b"".join(plain(name) + value + b"s" for name, value in values.items())


def write(
  path: pathlib.Path, body: bytes, *storages: bytes, compression: int = zipfile.ZIP_STORED
) -> pathlib.Path:
  """Writes a file with the storages '0', '1' and so on."""
  with zipfile.ZipFile(path, "w", compression) as archive:
    archive.writestr("archive/data.pkl", b"\x80\x02" + body + b".")
    for key, raw in enumerate(storages):
      archive.writestr(f"archive/data/{key}", raw)
  return path
