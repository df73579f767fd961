"""Reads Parquet files, and Arrow streams as `datasets.save_to_disk` writes them, by pyarrow.

An Arrow file is mapped, and its batches are validated, because offsets in a damaged one point outside of its
memory. As many rows at a time become Python objects as CHUNK_BYTES hold on average.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmc_jax.data.formats.columns import refuse_twice
from xmc_jax.data.formats.lines import CHUNK_BYTES, CHUNK_ROWS, expecting, open_bytes, reading
from xmc_jax.data.formats.source import Place, one_line
from xmc_jax.errors import DataError, UserError

if TYPE_CHECKING:
  import pyarrow as pa

_END = b"\xff\xff\xff\xff\0\0\0\0"  # the last bytes of every stream that was closed


def schema(path: Path) -> "pa.Schema":
  """Returns the schema of a file, with its metadata."""
  with _opened(path) as file:
    return _schema_of(file)


def records(path: Path, columns: Sequence[str]) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the rows of a file, some at a time, with these columns, or with all."""
  done = 0
  with _opened(path) as file:
    names = _schema_of(file).names
    refuse_twice(path, names, columns)
    try:
      for batch in _batches(file, [*(columns or dict.fromkeys(names))]):
        step = _rows_at_once(batch.nbytes, batch.num_rows)
        for first in range(0, batch.num_rows, step):
          rows = batch.slice(first, step).to_pylist()
          yield Place(path, range(done + 1, done + 1 + len(rows)), "row"), rows
          done += len(rows)
    except Exception as error:  # a damaged file can fail in any of the layers
      expected = f"more {'Arrow' if _is_stream(path) else 'parquet'} data ({one_line(error)})"
      raise DataError(f"{path}, after row {done}: expected {expected}") from None


def _is_stream(path: Path) -> bool:
  return path.suffix == ".arrow"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
  """Opens a file as pyarrow's ParquetFile or RecordBatchStreamReader."""
  try:
    import pyarrow as pa
    import pyarrow.parquet
  except ImportError as error:
    line = f'{path}: parquet and Arrow files need pyarrow ({error}): pip install "xmc_jax[parquet]"'
    raise UserError(line) from None
  kind = "an Arrow stream" if _is_stream(path) else "a parquet file"
  with contextlib.ExitStack() as files:
    with expecting(path, kind):
      if _is_stream(path):
        _refuse_unclosed(path)
        file = pa.ipc.open_stream(files.enter_context(pa.memory_map(str(path))))
      else:
        file = pyarrow.parquet.ParquetFile(files.enter_context(open_bytes(path)))
    yield file


def _schema_of(file: Any) -> "pa.Schema":
  return file.schema_arrow if hasattr(file, "schema_arrow") else file.schema


def _batches(file: Any, columns: list[str]) -> Iterator["pa.RecordBatch"]:
  if hasattr(file, "schema_arrow"):
    groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
    step = _rows_at_once(sum(group.total_byte_size for group in groups), file.metadata.num_rows)
    yield from file.iter_batches(step, columns=columns)
  else:
    for batch in file:
      chosen = batch.select(columns)
      chosen.validate(full=True)
      yield chosen


def _rows_at_once(num_bytes: int, num_rows: int) -> int:
  return min(max(CHUNK_BYTES * num_rows // max(num_bytes, 1), 1), CHUNK_ROWS)


def _refuse_unclosed(path: Path) -> None:
  """Refuses a stream that ends after a whole batch but before its end, which pyarrow reads."""
  with reading(path), open(path, "rb") as file:
    file.seek(max(path.stat().st_size - len(_END), 0))
    if file.read() != _END:
      raise DataError(f"{path}: expected the mark that ends an Arrow stream (a truncated download?)")
