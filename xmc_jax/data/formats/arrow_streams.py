"""Reads `.arrow` files as `datasets.save_to_disk` writes them: streams of record batches, not compressed.

The file is mapped, and the texts of some rows at a time are copied out of it. Every batch is validated before
it is used, because offsets in a damaged one point outside of its memory.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmc_jax.data.formats.arrow_rows import check_installed, record_chunks, refuse_too_many_rows
from xmc_jax.data.formats.lines import reading
from xmc_jax.data.formats.source import Place, one_line
from xmc_jax.errors import DataError

if TYPE_CHECKING:
  import pyarrow as pa

_END = b"\xff\xff\xff\xff\0\0\0\0"  # the last bytes of every stream that was closed
# Fields of the FlatBuffers tables Message and RecordBatch of Arrow's format, as offsets into their vtables.
_HEADER, _COMPRESSION = 8, 10


def records(path: Path, columns: Sequence[str]) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the rows of a stream, some at a time, with these columns.

  Raises:
    DataError: the file is damaged, cut short or compressed.
  """
  done = 0
  for rows in record_chunks(path, "Arrow", _batches(path, columns)):
    yield Place(path, range(done + 1, done + 1 + len(rows)), "row"), rows
    done += len(rows)


def schema(path: Path) -> "pa.Schema":
  """Returns the schema of a stream, with its metadata.

  Raises:
    DataError: the file is cut short, or does not begin with a schema.
  """
  check_installed(path)
  import pyarrow as pa

  _refuse_unclosed(path)
  try:
    with pa.memory_map(str(path)) as file:
      return _schema_of(pa.ipc.MessageReader.open_stream(file))
  except Exception as error:  # a damaged file can fail in any of the layers
    raise DataError(f"{path}: expected an Arrow stream ({one_line(error)})") from None


def _schema_of(messages: Any) -> "pa.Schema":
  import pyarrow as pa

  first = next(iter(messages), None)
  if first is None or first.type != "schema":
    raise ValueError(f"it begins with {'nothing' if first is None else first.type}")
  return pa.ipc.read_schema(first)


def _batches(path: Path, columns: Sequence[str]) -> Iterator["pa.RecordBatch"]:
  import pyarrow as pa

  _refuse_unclosed(path)
  with pa.memory_map(str(path)) as file:
    messages = pa.ipc.MessageReader.open_stream(file)
    known = _schema_of(messages)
    size, rows = path.stat().st_size, 0
    for message in messages:
      batch = _batch_of(message, known).select(columns)
      rows += batch.num_rows
      refuse_too_many_rows(rows, size)
      batch.validate(full=True)
      yield batch


def _refuse_unclosed(path: Path) -> None:
  with reading(path), open(path, "rb") as file:
    file.seek(max(path.stat().st_size - len(_END), 0))
    if file.read() != _END:
      raise DataError(f"{path}: expected the mark that ends an Arrow stream (a truncated download?)")


def _batch_of(message: Any, known: "pa.Schema") -> "pa.RecordBatch":
  import pyarrow as pa

  if message.type != "record batch":  # dictionaries, which `datasets` does not write
    raise ValueError(f"found {message.type}")
  if _is_compressed(message.metadata):
    raise ValueError("found compressed data, which `datasets` does not write")
  return pa.ipc.read_record_batch(message, known)


def _is_compressed(metadata: "pa.Buffer") -> bool:
  """Returns whether a record batch has compressed buffers, which could unpack to any size.

  pyarrow has verified the offsets in the metadata when it read the message.
  """
  from flatbuffers.encode import Get
  from flatbuffers.packer import uoffset
  from flatbuffers.table import Table

  content = bytearray(metadata)
  message = Table(content, Get(uoffset, content, 0))
  batch = Table(content, message.Indirect(message.Pos + message.Offset(_HEADER)))
  return batch.Offset(_COMPRESSION) != 0
