"""Readers of the supported file layouts; `recognise` detects the layout of a path."""

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from xmc_jax.data.formats import beir, huggingface, paired, raw_json, tables
from xmc_jax.data.formats.filters_and_graphs import FILTERS, find_graphs
from xmc_jax.data.formats.lines import find, reading
from xmc_jax.data.formats.source import Options, Source, some_of
from xmc_jax.data.vocabulary import files as vocabulary_files
from xmc_jax.errors import ConfigError, DataError

# In order of detection: the first layout whose files are present is used.
_READERS: dict[str, tuple[Callable[[Path, Options, list[str]], dict | None], str]] = {
  "raw_json": (raw_json.recognise, raw_json.LOOKS_FOR),
  "index": (partial(paired.recognise, paired.INDEX), "trn_X_Y.txt, tst_X_Y.txt, trn_X.txt, tst_X.txt, Y.txt"),
  "pecos": (partial(paired.recognise, paired.PECOS), "Y.trn.npz, Y.tst.npz, X.trn.txt, X.tst.txt, Y.txt"),
  "beir": (beir.recognise, beir.LOOKS_FOR),
  "huggingface": (huggingface.recognise, huggingface.LOOKS_FOR),
  "table": (tables.recognise, tables.LOOKS_FOR),
}
LAYOUTS = ("auto", *_READERS)
"""Names the legal values of `data.layout`; 'auto' detects the layout from the files."""


def recognise(path: Path, layout: str, options: Options) -> Source:
  """Returns the source at a path: a folder in one of the layouts, or a single table.

  Args:
    path: a folder or a file.
    layout: one of LAYOUTS; 'auto' uses the first whose files are present.
    options: how to read the files.

  Raises:
    ConfigError: an unknown layout.
    DataError: no such path, no permission, no known layout, or a missing file of the layout.
  """
  if layout not in LAYOUTS:
    near = difflib.get_close_matches(layout, LAYOUTS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"--config.data.layout={layout}: expected one of {', '.join(LAYOUTS)}{hint}")
  with reading(path):
    refuse_missing(path)
    return _recognise(path, layout, options)


def refuse_missing(path: Path, setting: str = "--config.data.path") -> None:
  """Raises DataError if nothing is at a path; names what is called like it, and the setting of the path."""
  try:
    path.stat()
  except (FileNotFoundError, NotADirectoryError):
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, 1)
    meant = f"did you mean {path.parent / near[0]}?" if near else "give a folder or a table that is there"
    raise DataError(f"{path}: no such file or folder; {meant} ({setting}=PATH)") from None


def _recognise(path: Path, layout: str, options: Options) -> Source:
  tried = _READERS if layout == "auto" else {layout: _READERS[layout]}
  notices: list[str] = []
  if path.is_dir():
    names = sorted(entry.name for entry in path.iterdir())
    filters = {split: find(path, *files) for split, files in FILTERS.items()}
    beside: dict = {"filters": filters, "graphs": find_graphs(path, notices)}
  else:
    if layout not in ("auto", "table"):
      raise DataError(f"{path}: expected a folder for --config.data.layout={layout}, found a file")
    if tables.suffix(path) not in tables.POINT_SUFFIXES:
      suffixes = ", ".join(tables.POINT_SUFFIXES)
      raise DataError(f"{path}: expected a folder, or a table in {suffixes} (or .gz)")
    names, tried = [], {"table": _READERS["table"]}
    beside = {"filters": {"train": None, "test": None}, "graphs": ()}
  if any(beside["filters"].values()) or any(graph.query_edges for graph in beside["graphs"]):
    options = options._replace(merge_texts=False)  # these files count the rows
  for name, (reader, _) in tried.items():
    fields = reader(path, options, notices)
    if fields is not None:
      return _complete(path, name, {**fields, **beside, "notices": notices, "options": options})
  looked_for = "; ".join(f"{name}: {files}" for name, (_, files) in tried.items())
  shown = some_of(names) or "nothing"
  raise DataError(f"{path}: no known layout. Looked for {looked_for} (or .gz); found {shown}")


def _complete(path: Path, layout: str, fields: dict) -> Source:
  graphs = fields["graphs"]
  for side, why in fields.pop("unordered", {}).items():
    if unclear := [getattr(graph, side) for graph in graphs if getattr(graph, side)]:
      raise DataError(f"{unclear[0]}: which of its rows is which cannot be told, as {why}")
  if not vocabulary_files.is_vocabulary(fields["labels_file"], fields["options"]):
    for key in ("vocabulary", "language", "alternative_names"):
      if value := getattr(fields["options"], key):
        setting = f"--config.data.{key}={value}"
        raise DataError(f"{path}: {setting} is for tables with a vocabulary, and there is none")
  extra = [*fields["filters"].values(), *(file for graph in graphs for file in graph[1:])]
  files = (*fields.pop("files"), *(file for file in extra if file is not None))
  name = path.resolve().name if path.is_dir() else path.name.split(".")[0]
  return Source(layout, name, files, **{"read_by": {}, **fields})
