"""Files of metadata graphs: points and labels linked to anchors, which have texts of their own."""

import re
from pathlib import Path

from xmc_jax.data.formats.lines import anywhere, find
from xmc_jax.data.formats.source import GraphFiles
from xmc_jax.errors import DataError

_ANCHORS = re.compile(r"(?P<name>.+)_anchors\.txt(\.gz)?")
_EDGES = re.compile(r"(?P<name>.+)_(?P<side>trn|lbl)_X_Y\.(txt|npz)(\.gz)?")


def find_graphs(folder: Path, notices: list[str]) -> tuple[GraphFiles, ...]:
  """Finds a folder's graphs: `NAME_{trn,lbl}_X_Y.{txt,npz}` with `NAME_anchors.txt` or `NAME.raw.txt`.

  Adds a notice for each graph that is left out because its anchors are missing.
  """
  edges: dict[str, dict[str, Path]] = {}
  alone: dict[str, Path] = {}
  for path in sorted(folder.iterdir()):
    if match := _EDGES.fullmatch(path.name):
      sides = edges.setdefault(match["name"], {})
      if match["side"] in sides:
        raise DataError(f"{folder}: {sides[match['side']].name} and {path.name} say the same; remove one")
      sides[match["side"]] = path
    elif match := _ANCHORS.fullmatch(path.name):
      alone[match["name"]] = path
  if missing := sorted(alone.keys() - edges.keys()):
    name = missing[0]
    raise DataError(
      f"{alone[name]}: {name}_trn_X_Y.txt or {name}_lbl_X_Y.txt, its links, are missing beside it"
    )
  graphs = []
  for name, sides in edges.items():
    names = (f"{name}_anchors.txt", f"{name}.raw.txt")
    if anchors := find(folder, *anywhere(*names)):
      graphs.append(GraphFiles(name, anchors, sides.get("trn"), sides.get("lbl")))
    else:
      beside = next(iter(sides.values())).name
      notices.append(f"not read: {beside}, as {' or '.join(names)} (or .gz), the anchors' texts, is missing")
  return tuple(graphs)
