"""Holds the page: its files, which are read once and served from memory, and its words."""

from importlib import resources
from typing import NamedTuple

_MEDIA = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class PageText(NamedTuple):
  """Holds the words that a page has in place of the usual; '' and () change nothing.

  Attributes:
    title: in place of the run's name.
    description: a sentence below the title.
    examples: texts to try by a click.
  """

  title: str = ""
  description: str = ""
  examples: tuple[str, ...] = ()


class File(NamedTuple):
  """Holds a file of the page."""

  content: bytes
  media_type: str


def files() -> dict[str, File]:
  """Returns the page's files by the path of their address."""
  found = {}
  for name in ("index.html", "page.css", "page.js", "icon.svg"):
    content = resources.files(__name__).joinpath(name).read_bytes()
    path = "/" if name == "index.html" else f"/{name}"
    found[path] = File(content, f"{_MEDIA[name.rpartition('.')[2]]}; charset=utf-8")
  return found
