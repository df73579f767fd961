"""Makes texts from data safe to print: they may contain control characters, which a terminal obeys."""

import re
import sys

# C0 and C1 controls except tab and line feed, delete, changes of text direction, lone surrogates.
_UNSAFE = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_REPLACEMENT = "\ufffd"


def text(shown: str) -> str:
  """Replaces every unsafe character of a text; keeps tabs and line feeds.

  Example:
    >>> text("a\\x1b[2Jb")
    'a\ufffd[2Jb'
  """
  return _UNSAFE.sub(_REPLACEMENT, shown)


def line(shown: str, longest: int = sys.maxsize) -> str:
  """Makes a text one safe line: replaces unsafe characters, and each run of white space by one space.

  A line of more characters than `longest` is cut, and ends with an ellipsis.
  """
  found = text(" ".join(shown.split()))
  return found if len(found) <= longest else f"{found[:longest]}…"


def json(dumped: str) -> str:
  """Escapes every unsafe character of a JSON text; its meaning stays the same."""
  return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", dumped)
