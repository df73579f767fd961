"""Holds the page: its files and its words."""

from typing import NamedTuple

FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}


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
