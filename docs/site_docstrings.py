"""Makes the project's docstrings readable for mkdocstrings: mathematics, links and examples.

Formulas are turned into MathML when the site is built, so that a page loads no script for them.
"""

import re
import textwrap
from typing import Any

import griffe
from latex2mathml import converter
from pymdownx.slugs import slugify

_BLOCK = re.compile(r"^( *)\.\. math::\n((?:\1 +.*\n|\s*\n)+)", re.M)
_INLINE = re.compile(r":math:`([^`]+)`")
_PAGE = re.compile(r'docs/(\w+)\.md(?:,\s+"([^"]+)")?')
_slug = slugify(case="lower")
_SEVERAL = re.compile(r"^  ((?:\*{0,2}\w+, )+\*{0,2}\w+): ", re.M)  # "  pool, rows: both are ..."
_LINK = re.compile(r"`([^`<]+?)\s+<(https?://[^>]+)>`_")


class Readable(griffe.Extension):
  """Rewrites every docstring before it is parsed."""

  def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
    """Rewrites an object's docstring, if it has one."""
    if obj.docstring:
      obj.docstring.value = readable(obj.docstring.value)


def readable(docstring: str) -> str:
  """Returns a docstring in the Markdown and Google style that mkdocstrings reads."""
  text = re.sub(r"^Example:$", "Examples:", docstring, flags=re.M)
  text = _BLOCK.sub(_block, text + "\n").removesuffix("\n")
  text = _INLINE.sub(lambda found: converter.convert(found[1]), text)
  text = _SEVERAL.sub(_one_by_one, text)
  text = _PAGE.sub(_page, text)
  return _LINK.sub(lambda found: f"[{' '.join(found[1].split())}]({found[2]})", text)


def _one_by_one(found: re.Match) -> str:
  """Returns a line for each of several arguments that a docstring describes together, by the last of them."""
  *others, last = found[1].split(", ")
  return "".join(f"  {name}: see `{last.lstrip('*')}`.\n" for name in others) + f"  {last}: "


def _page(found: re.Match) -> str:
  """Returns a link from a page of the API to another page, or to a section of it."""
  anchor = f"#{_slug(' '.join(found[2].split()), '-')}" if found[2] else ""
  return f"[{' '.join(found[0].split())}](../{found[1]}.md{anchor})"


def _block(found: re.Match) -> str:
  """Returns a formula as one line of HTML, which Markdown leaves alone."""
  formula = " ".join(textwrap.dedent(found[2]).split())
  parts = [converter.convert(part, display="block") for part in formula.split(r"\qquad")]
  return f'{found[1]}<div class="formula">{"".join(parts)}</div>\n\n'
