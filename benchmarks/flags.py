"""Flags of a benchmark's command line, each with its default."""

import argparse
import pathlib
from collections.abc import Collection
from typing import Any


def parse(doc: str, parts: Collection[str] = (), folders: str = "", **defaults: Any) -> argparse.Namespace:
  """Parses the command line.

  Args:
    doc: what --help says.
    parts: choices of the first argument, `part`; none if there is no such argument.
    folders: the name of the arguments without a flag, one or several folders; '' if there are none.
    **defaults: by flag, its default, whose type is the flag's. False is a switch, a tuple takes several
      values, a type has no default (None).
  """
  parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
  if parts:
    parser.add_argument("part", choices=parts)
  if folders:
    parser.add_argument(folders, type=pathlib.Path, nargs="+")
  for name, default in defaults.items():
    if default is False:
      parser.add_argument(f"--{name}", action="store_true")
    elif isinstance(default, type):
      parser.add_argument(f"--{name}", type=default)
    elif isinstance(default, tuple):
      parser.add_argument(f"--{name}", nargs="+", default=default, help="default: %(default)s")
    else:
      parser.add_argument(f"--{name}", type=type(default), default=default, help="default: %(default)s")
  return parser.parse_args()
