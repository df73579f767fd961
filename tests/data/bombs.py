"""Files that claim, or unpack to, far more than they are; and what it takes to read each of them.

`python tests/data/bombs.py BYTES FOLDER` makes every bomb of that size somewhere in FOLDER, reads it, and
prints a line of JSON for each: its name, what became of it, seconds, and by how many bytes it raised the most
that the process has held in memory (Linux only).
"""

import gzip
import io
import json
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import sample_folders as samples

from xmc_jax import data
from xmc_jax.errors import UserError

_GRAPH = ("kind_anchors.txt", "kind_trn_X_Y.txt", "kind_lbl_X_Y.txt")


def _packed(path: Path, piece: bytes, size: int, first: bytes = b"") -> None:
  """A .gz of one piece over and over."""
  block = piece * max((1 << 20) // len(piece), 1)
  with gzip.open(path, "wb", 1) as file:
    file.write(first)
    for _ in range(max(size // len(block), 1)):
      file.write(block)


def _index(folder: Path, *without: str) -> Path:
  samples.index(folder)
  for name in without:
    (folder / name).unlink()
  return folder


def _one_json_line(folder: Path, size: int) -> None:
  samples.raw_json(folder)
  (folder / "trn.json").unlink()
  _packed(folder / "trn.json.gz", b"x", size, b'{"title": "')


def _one_text_line(folder: Path, size: int) -> None:
  with open(_index(folder) / "Y.txt", "wb") as file:
    file.truncate(size)  # zeros, and a hole on the disk


def _one_target_line(folder: Path, size: int) -> None:
  _packed(_index(folder, "trn_X_Y.txt") / "trn_X_Y.txt.gz", b"0:1 ", size, b"5 5\n")


def _long_target_lines(folder: Path, size: int) -> None:
  """Lines of 1 MiB, which are legal; few enough to be parsed in a while, too many to be held."""
  rows = min(size >> 20, 24)
  samples.write(_index(folder, "trn_X_Y.txt", *_GRAPH) / "trn_X.txt", "t\n" * rows)
  line = b"0:1 " * ((1 << 18) - 1) + b"0:1\n"
  _packed(folder / "trn_X_Y.txt.gz", line, rows << 20, b"%d 5\n" % rows)


def _header(folder: Path, size: int) -> None:
  samples.write(_index(folder) / "trn_X_Y.txt", f"{10**12} 5\n0:1\n")


def _open_quote(folder: Path, size: int) -> None:
  samples.separated(folder, "csv")
  (folder / "train.csv").unlink()
  _packed(folder / "train.csv.gz", b"ten letters, or so\n", size, b'id,Title,tags\n1,"')


def _row_of_many_cells(folder: Path, size: int) -> None:
  samples.separated(folder, "csv")
  (folder / "train.csv").unlink()
  _packed(folder / "train.csv.gz", b'"\n",', size, b"id,Title,tags\n")


def _nested_json(folder: Path, size: int) -> None:
  samples.raw_json(folder)
  samples.write(folder / "trn.json", b'{"title": ' + b"[" * min(size, 10_000_000) + b"\n")


def _nested_cell(folder: Path, size: int) -> None:
  samples.jsonl(folder)
  samples.write(folder / "train.jsonl", b'{"text": "", "labels": "' + b"[" * min(size, 10_000_000) + b'"}\n')


def _npz(folder: Path, **members: bytes) -> None:
  whole = samples.pecos(folder) / "Y.trn.npz"
  with zipfile.ZipFile(whole) as archive:
    members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()} | members
  with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in members.items():
      archive.writestr(f"{name}.npy", content)


def _npy(array: np.ndarray, shape: tuple | None = None) -> bytes:
  """An array's .npy; it may claim another shape."""
  file = io.BytesIO()
  header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
  np.lib.format.write_array_header_1_0(file, header)
  return file.getvalue() + array.tobytes()


def _npz_of_zeros(folder: Path, size: int) -> None:
  size = max(size, 1 << 29)  # a smaller one may be held
  path = samples.pecos(folder) / "Y.trn.npz"
  with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("more.npy", "w") as member:
    member.write(_npy(np.zeros(0, np.float32), (size // 4,)))
    for _ in range(size >> 20):
      member.write(bytes(1 << 20))


def _npz_claim(folder: Path, size: int) -> None:
  _npz(folder, indptr=_npy(np.zeros(6, np.int64), (10**12,)), shape=_npy(np.array([10**12 - 1, 5])))


def _npz_rows(folder: Path, size: int) -> None:
  """Three entries, and 10^9 rows to find them in."""
  three, shape = _npy(np.arange(3)), _npy(np.array([10**9, 5]))
  _npz(folder, format=_npy(np.array(b"coo")), row=three, col=three, data=three, shape=shape)


def _parquet_cells(folder: Path, size: int) -> None:
  import pyarrow
  import pyarrow.parquet

  samples.parquet(folder)
  for name in _GRAPH:
    (folder / name).unlink()
  rows = 4096
  text = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(rows, np.int32)), ["x" * (size // rows)])
  table = pyarrow.table({"query": text.cast(pyarrow.string()), "label": [[0]] * rows})
  pyarrow.parquet.write_table(table, folder / "trn.parquet")


def _parquet_rows(folder: Path, size: int) -> None:
  """Equal values, of which a file may have any number."""
  import pyarrow
  import pyarrow.parquet

  samples.parquet(folder)
  for name in _GRAPH:
    (folder / name).unlink()
  values = np.zeros(size // 100, np.int8)
  table = pyarrow.table({"query": pyarrow.array(values).cast(pyarrow.string()), "label": values})
  pyarrow.parquet.write_table(table, folder / "trn.parquet")


def _arrow(folder: Path, columns: dict, compression: str | None = None) -> Path:
  """A saved data set whose training rows are these."""
  import pyarrow

  samples.huggingface(folder)
  for name in _GRAPH:
    (folder / name).unlink()
  samples.saved_split(folder / "train", [])
  path = folder / "train" / "data-00000-of-00001.arrow"
  return samples.arrow_stream(path, pyarrow.table(columns).to_batches(), compression)


def _arrow_compressed(folder: Path, size: int) -> None:
  _arrow(folder, {"query": ["x" * size], "label": [[0]]}, "zstd")


def _arrow_claim(folder: Path, size: int) -> None:
  """A batch whose body is said to be far longer than the file."""
  import pyarrow

  path = _arrow(folder, {"query": ["apple"] * 7, "label": [[0]] * 7})
  *_, batch = pyarrow.ipc.MessageReader.open_stream(path.read_bytes())
  length = batch.body.size.to_bytes(8, "little")
  content = path.read_bytes()
  assert length in content
  path.write_bytes(content.replace(length, size.to_bytes(8, "little")))


def _arrow_views(folder: Path, size: int) -> None:
  """One text that every row points to."""
  import pyarrow

  rows = 4096
  texts = pyarrow.array(["x" * (size // rows)], pyarrow.string_view())
  view = texts.buffers()[1].to_pybytes() * rows
  buffers = [None, pyarrow.py_buffer(view), *texts.buffers()[2:]]
  _arrow(folder, {"query": pyarrow.Array.from_buffers(texts.type, rows, buffers), "label": [[0]] * rows})


def _arrow_nulls(folder: Path, size: int) -> None:
  """Columns without contents, of any length."""
  import pyarrow

  column = pyarrow.Array.from_buffers(pyarrow.null(), 2**31 - 1, [None])
  _arrow(folder, {"query": column, "label": column})


# Name -> what writes it, and what is said of it; '' where it loads.
BOMBS = {
  "one JSON line": (
    _one_json_line,
    r"trn\.json\.gz, line 1: expected lines of at most 16 MiB, found '{\"title",
  ),
  "one text line": (_one_text_line, r"Y\.txt, line 1: expected lines of at most 16 MiB"),
  "one target line": (_one_target_line, r"trn_X_Y\.txt\.gz, line 2: expected lines of at most 16 MiB"),
  "long target lines": (_long_target_lines, ""),
  "header": (_header, r"trn_X_Y\.txt, line 1: expected a header that counts 1 rows"),
  "open quote": (_open_quote, r"train\.csv\.gz, line 2: expected a row of at most 16 MiB \(is a quote never"),
  "row of many cells": (_row_of_many_cells, r"train\.csv\.gz, line 2: expected a row of at most 16 MiB"),
  "nested JSON": (_nested_json, r"trn\.json, line 1: expected one JSON object, found"),
  "nested cell": (_nested_cell, r"train\.jsonl, line 1: expected a JSON list of labels"),
  "npz of zeros": (
    _npz_of_zeros,
    r"Y\.trn\.npz: expected a matrix saved .* bytes packed in .*, more than 100 times",
  ),
  "npz claim": (
    _npz_claim,
    r"Y\.trn\.npz: expected a matrix saved .*indptr of shape \(1000000000000,\) in \d+ bytes",
  ),
  "npz rows": (_npz_rows, r"X\.trn\.txt, line 6: expected another text, as Y\.trn\.npz has 1000000000 rows"),
  "parquet cells": (_parquet_cells, ""),
  "parquet rows": (_parquet_rows, r"after row 0: expected more parquet data \(found 2,000,000 rows in"),
  "arrow compressed": (_arrow_compressed, r"after row 0: expected more Arrow data \(found compressed data"),
  "arrow claim": (_arrow_claim, r"after row 0: expected more Arrow data \("),
  "arrow views": (_arrow_views, ""),
  "arrow nulls": (_arrow_nulls, r"after row 0: expected more Arrow data \(found 2,147,483,647 rows in"),
}


def _peak() -> int:
  """The most memory since `_forget_peak`, in bytes."""
  with open("/proc/self/status", encoding="ascii") as lines:
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _forget_peak() -> None:
  with open("/proc/self/clear_refs", "w", encoding="ascii") as command:
    command.write("5")


def measured(name: str, folder: Path, size: int) -> dict:
  """Makes a bomb, reads it, and says what that took."""
  BOMBS[name][0](folder, size)
  _forget_peak()
  before, start = _peak(), time.perf_counter()
  try:
    data.prepare(folder, folder / "out")
    said = ""
  except UserError as error:
    said = str(error)
  return {"name": name, "said": said, "seconds": time.perf_counter() - start, "grown": _peak() - before}


def main() -> None:
  size, place = int(sys.argv[1]), sys.argv[2]
  with tempfile.TemporaryDirectory(dir=place) as folder:
    measured("parquet cells", Path(folder), 1 << 20)  # loads libraries
  for name in BOMBS:
    with tempfile.TemporaryDirectory(dir=place) as folder:
      found = measured(name, Path(folder), size)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
  main()
