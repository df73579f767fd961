"""Texts from data, made safe to show: a terminal obeys control characters, and they can be in any text."""

import re

# C0 and C1 without tab and line feed, delete, what turns the direction of reading, lone surrogates.
_UNSAFE = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_REPLACEMENT = "\ufffd"


def text(shown: str) -> str:
  """Some lines with every unsafe character replaced; tabs and line feeds stay.

  Example:
    >>> text("a\\x1b[2Jb")
    'a\ufffd[2Jb'
  """
  return _UNSAFE.sub(_REPLACEMENT, shown)


def line(shown: str) -> str:
  """`text` of one line: white space of any kind is one space."""
  return text(" ".join(shown.split()))


def json(dumped: str) -> str:
  """JSON with every unsafe character escaped, which means the same."""
  return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", dumped)
