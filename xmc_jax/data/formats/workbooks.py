"""Reads the first sheet of an Excel workbook (.xlsx) as a table."""

import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

from xmc_jax.data.formats.json_records import text_of
from xmc_jax.data.formats.lines import open_bytes, refuse_overpacked
from xmc_jax.data.formats.source import one_line
from xmc_jax.errors import DataError, UserError

_MOST_ROWS = 1 << 20  # of a sheet in Excel; a damaged row may claim any number
_WITHOUT_VALUE = re.compile(rb"</f>(<v ?/>|<v></v>)?</c>")  # the end of a formula's cell


def rows(path: Path, notices: list[str]) -> Iterator[tuple[int, list[str], int]]:
  """Yields the rows that are not empty as (number, cells, letters), as wide as the first or wider.

  Raises:
    UserError: openpyxl is not installed.
    DataError: the file is damaged.
  """
  try:
    import openpyxl
  except ImportError as error:
    raise UserError(f"{path}: .xlsx files need openpyxl ({error}): pip install openpyxl") from None
  try:
    with open_bytes(path) as file, zipfile.ZipFile(file) as archive:
      refuse_overpacked(archive, path.stat().st_size)
      with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what is no cell
        sheet, *others = openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets
      if others:
        notices.append(f"{path.name}: only the first of {1 + len(others)} sheets is read, {sheet.title!r}")
      if any(_has_unsaved(archive, name) for name in archive.namelist() if name.startswith("xl/worksheets/")):
        notices.append(f"{path.name}: formulas without a value are read as empty; save it once in Excel")
      sheet.reset_dimensions()  # which some programs write wrongly
      width = 0
      for number, values in enumerate(sheet.iter_rows(max_row=_MOST_ROWS, values_only=True), 1):
        cells = [str(value) if (text := text_of(value)) is None else text for value in values]
        filled = max((at for at, cell in enumerate(cells, 1) if cell), default=0)
        width = width or filled
        if filled:
          cells = [*cells[: max(filled, width)], *[""] * (width - len(cells))]
          yield number, cells, sum(map(len, cells))
  except DataError:
    raise
  except Exception as error:  # a damaged file can fail in any of the layers
    raise DataError(f"{path}: expected an Excel workbook ({one_line(error)})") from None


def _has_unsaved(archive: zipfile.ZipFile, name: str) -> bool:
  """Returns whether a sheet has formulas whose value no program has stored."""
  end = b""
  with archive.open(name) as file:
    while block := file.read(1 << 20):
      if _WITHOUT_VALUE.search(end + block):
        return True
      end = block[-16:]  # longer than the end of a cell
  return False
