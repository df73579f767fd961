"""Builds HTML pages as text. Whatever is not `Markup` is untrusted, and is escaped."""

import base64
import html
from collections.abc import Iterable, Sequence

from xmc_jax import sanitize

LONGEST = 300  # characters of a text that are shown
_CUT = " …"
_FEW = 9  # columns that a phone has room for

# Blocks scripts and outside resources, even if an untrusted text were not escaped.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c2126; --faint: #555e67; --line: #d5dadf;
  --right: #00609a; --wrong: #a84300; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ground: #171a1d; --ink: #e3e7ea; --faint: #a3adb5; --line: #3a4148;
    --right: #7cc4f2; --wrong: #f0a06a; }
  figure img { filter: invert(.91) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 1000px;
  background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p { margin: .5rem 0; max-width: 75ch; }
.note { color: var(--faint); font-size: .92em; }
.wide { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); font-size: .92em; padding-bottom: .35rem; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.text, th.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
thead th { border-bottom: 2px solid var(--faint); font-weight: 600; white-space: normal;
  vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody th { font-weight: 600; }
small { color: var(--faint); font-size: .84em; font-weight: 400; white-space: nowrap; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; margin: .75rem 0; }
figure { margin: 0; flex: 1 1 400px; max-width: 480px; min-width: 0; break-inside: avoid; }
figure img { display: block; width: 100%; height: auto; }
figcaption { color: var(--faint); font-size: .92em; margin-top: .25rem; }
.cards { display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); }
.card { border: 1px solid var(--line); border-radius: 4px; padding: .6rem .8rem; break-inside: avoid;
  overflow-wrap: anywhere; min-width: 0; }
.card > p { margin: 0 0 .35rem; font-weight: 600; }
.card ol, .card ul { margin: 0; padding: 0; list-style: none; font-size: .93em; }
.card li { padding: .12rem 0 .12rem 1.5rem; text-indent: -1.5rem; }
.card li > b { display: inline-block; width: 1.5rem; text-indent: 0; }
.why { display: block; text-indent: 0; color: var(--faint); font-size: .84em; }
.stack { display: grid; gap: .75rem; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: .75rem; }
.sides h4 { margin: 0; font-size: .9em; color: var(--faint); font-weight: 600; }
.right b { color: var(--right); } .wrong b { color: var(--wrong); } .missed { color: var(--faint); }
.bar { display: inline-block; height: .7em; background: #56a0cf; }
details { margin: .75rem 0; } summary { cursor: pointer; }
/* On a phone, a table with few columns has the name of a row above its numbers. */
@media (max-width: 600px) {
  .few table, .few thead, .few tbody { display: block; }
  .few tr { display: flex; flex-wrap: wrap; }
  .few tr > * { flex: 1 1 0; min-width: 0; padding: .15rem .25rem .15rem 0; font-size: .8rem;
    overflow-wrap: anywhere; hyphens: auto; }
  .few thead tr > * { font-size: .65rem; }
  .few tr > :first-child { flex-basis: 100%; font-size: .93rem; white-space: normal; }
  .few tbody td, .few tbody tr + tr > td { border-top: 0; }
  .few small { white-space: normal; } }
@media print { body { max-width: none; padding: 0; font-size: 11px; } h2 { break-after: avoid; }
  .wide { overflow: visible; } .figures figure { flex-basis: 45%; } }
"""


class Markup(str):
  """Marks text that is HTML already."""

  __slots__ = ()


def words(text: object, longest: int = LONGEST) -> Markup:
  """Returns any text as one escaped line of HTML, cut if it is longer than `longest`."""
  if isinstance(text, Markup):
    return text
  shown = sanitize.line(str(text)[: 8 * longest])
  if len(shown) > longest:
    shown = shown[: longest - len(_CUT)].rstrip() + _CUT
  return Markup(html.escape(shown))


def isolated(text: object, longest: int = LONGEST) -> Markup:
  """Returns `words` that do not change the text direction of what is around them."""
  return Markup(f"<bdi>{words(text, longest)}</bdi>")


def element(name: str, *parts: object, css: str = "") -> Markup:
  """Returns an element around parts; escapes each part that is no `Markup`."""
  of_class = f' class="{css}"' if css else ""
  return Markup(f"<{name}{of_class}>{''.join(map(words, parts))}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
  return Markup("\n".join(map(words, parts)))


def paragraph(*parts: object, css: str = "") -> Markup:
  return element("p", *parts, css=css)


def note(*parts: object) -> Markup:
  return paragraph(*parts, css="note")


def table(
  head: Sequence[object],
  rows: Iterable[Sequence[object]],
  *,
  caption: str = "",
  text_columns: Sequence[int] = (),
) -> Markup:
  """Returns a table that scrolls by itself on a narrow screen.

  Args:
    head: the column headings.
    rows: the cells; the first of each row names the row.
    caption: what the table shows.
    text_columns: positions of columns with words, which may wrap.
  """

  def row(cells: Sequence[object], kinds: str) -> Markup:
    return element(
      "tr",
      *(
        element("th" if kinds == "head" or not column else "td", cell, css="text" * (column in text_columns))
        for column, cell in enumerate(cells)
      ),
    )

  body = [row(cells, "body") for cells in rows]
  parts = [element("thead", row(head, "head")), element("tbody", *body)]
  titled = [element("caption", caption)] if caption else []
  return element("div", element("table", *titled, *parts), css="wide few" if len(head) <= _FEW else "wide")


def bar(share: float) -> Markup:
  """Returns a horizontal bar; its width is `share` times 8 em."""
  return Markup(f'<span class="bar" style="width:{8 * min(max(share, 0.0), 1.0):.2f}em"></span>')


def image(png: bytes, alternative: str, caption: str) -> Markup:
  """Returns a picture with a caption; the picture is embedded in the page."""
  data = base64.b64encode(png).decode("ascii")
  source = f'<img alt="{words(alternative, 1000)}" src="data:image/png;base64,{data}">'
  return element("figure", Markup(source), element("figcaption", caption))


def document(title: str, *parts: object) -> str:
  """Returns a complete page that needs no other files."""

  return (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f"<title>{words(title, 200)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    f"{joined(parts)}\n</body>\n</html>\n"
  )
