"""Annif's corpora of short texts: lines of a text, a tab and the URIs of its labels in angle brackets."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from xmc_jax.data.formats.lines import Lines
from xmc_jax.data.formats.source import Options, Place
from xmc_jax.errors import DataError

_URIS = re.compile(r"\s*(<[^<>\s]+>\s*)*")
_SAMPLE = 100  # lines that tell such a file


def is_corpus(path: Path, options: Options) -> bool:
  """Returns whether the first lines of a file all end so, one of them with a URI."""
  with suppress(DataError), Lines(path, [], options) as lines:
    first = [line.rpartition("\t") for line in lines.take_text()[:_SAMPLE] if line.strip()]
    is_all = all(tab and _URIS.fullmatch(uris) for _, tab, uris in first)
    return is_all and any("<" in uris for *_, uris in first)
  return False


def records(path: Path, notices: list[str], options: Options) -> Iterator[tuple[Place, list[dict]]]:
  """Yields the lines as records, some at a time; the last tab separates. Empty lines are skipped."""
  with Lines(path, notices, options) as lines:
    for first, texts in lines.chunks():
      place = Place(path, [first + at for at, line in enumerate(texts) if line.strip()])
      rows = []
      for row, line in enumerate(filter(str.strip, texts)):
        text, tab, uris = line.rpartition("\t")
        if not tab or not _URIS.fullmatch(uris):
          raise place.refuse(row, "a text, a tab and URIs in angle brackets", line)
        rows.append({"text": text, "labels": [uri[1:-1] for uri in uris.split()]})
      yield place, rows
