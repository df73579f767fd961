"""Adds to the site the pages that docs/ lacks, and leads links out of docs/ to copies (MkDocs hooks).

- The API: a page for each part, from the names that docs/api_tables.py finds; mkdocstrings fills it.
- CONTRIBUTING.md and CHANGELOG.md of the repository's root, and the notebooks as pages.
- Any other file that a page links is copied. So pages read the same on the site and in the repository.

Search shows how to use the library before how it is built and measured.
"""

import functools
import json
import pathlib
import posixpath
import re
import sys
from typing import Any

_DOCS = pathlib.Path(__file__).resolve().parent
_ROOT = _DOCS.parent
sys.path.insert(0, str(_DOCS))
import api_tables  # noqa: E402
import site_docstrings  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

# Pages of the site that stand elsewhere in the repository: place on the site -> place in the repository.
_ELSEWHERE = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_ELSEWHERE |= {
  f"notebooks/{path.stem}.md": f"notebooks/{path.name}" for path in _ROOT.glob("notebooks/*.ipynb")
}
_FIRST = {"Start", "Use"}  # parts of the navigation whose pages search shows first
_COPIES = "files"  # where the site has what is linked and is no page
_LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")
_FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)


def on_config(config: Any) -> Any:
  """Lists the pages of the API in the navigation, which names api.md alone."""
  pages = [{api_tables.written(part): f"api/{part}.md"} for part in api_tables.parts()]
  (reference,) = [entry["Reference"] for entry in config.nav if "Reference" in entry]
  (place,) = [number for number, entry in enumerate(reference) if "API" in entry]
  reference[place] = {"API": [reference[place]["API"], *pages]}
  return config


def on_files(files: Files, config: Any) -> Files:
  """Adds the pages that docs/ lacks, and copies of linked files."""
  for part in api_tables.parts():
    files.append(File.generated(config, f"api/{part}.md", content=_api_page(part)))
  for place, source in _ELSEWHERE.items():
    files.append(File.generated(config, place, content=_markdown(_ROOT / source)))
  for file in list(files.documentation_pages()):
    for target in _targets(file.src_uri, file.content_string):
      copy = f"{_COPIES}/{target}"
      if not _on_site(target) and (_ROOT / target).is_file() and not files.get_file_from_path(copy):
        files.append(File.generated(config, copy, abs_src_path=str(_ROOT / target)))
  return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
  """Leads links to where the site has their targets, and sets the page's weight in the search."""
  uri = page.file.src_uri
  is_first = page.ancestors and page.ancestors[-1].title in _FIRST
  page.meta.setdefault("search", {"boost": 1 if is_first or uri == "settings.md" else 1e-3})
  if uri == "api.md":
    markdown = re.sub(r"\[`([\w.]+)`\]\(\.\./[^)]*\)", _api_link, markdown)
  parts = _FENCED.split(markdown)
  return "".join(
    part if part.startswith("```") else _LINK.sub(lambda found: _led(found, uri), part) for part in parts
  )


def _led(found: re.Match, uri: str) -> str:
  start, target, anchor, end = found[1], _in_repository(uri, found[2]), found[3] or "", found[4]
  if uri.startswith("api/") or not (_ROOT / target).is_file():
    return found[0]
  place = _on_site(target) or f"{_COPIES}/{target}"
  return f"{start}{posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor}{end}"


def _on_site(target: str) -> str:
  """Returns the place on the site of a file of the repository; '' if it is none of the site's own."""
  for place, source in _ELSEWHERE.items():
    if source == target:
      return place
  if target == "README.md":
    return "index.md"
  name = target.removeprefix("docs/")
  return name if target.startswith("docs/") and name.endswith((".md", ".png")) else ""


def _in_repository(uri: str, link: str) -> str:
  """Returns the path in the repository that a page's relative link leads to."""
  source = _ELSEWHERE.get(uri, f"docs/{uri}")
  return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _targets(uri: str, text: str) -> set[str]:
  """Returns the files of the repository that a page links."""
  return {_in_repository(uri, found[2]) for found in _LINK.finditer(_FENCED.sub("", text))}


def _api_page(part: str) -> str:
  lines = [f"# {api_tables.written(part)}", "", site_docstrings.readable(api_tables.about(part)), ""]
  for one in api_tables.public_names(part):
    place, written = _places()[one.identifier]
    if place == f"{part}.md":
      lines += [f"::: {one.identifier}", "    options:", f"      heading: {one.written}", ""]
    else:
      lines += [f"`{one.written}` is [`{written}`]({place}#{one.identifier}).", ""]
  return "\n".join(lines)


@functools.cache
def _places() -> dict[str, tuple[str, str]]:
  """Returns the page in api/ that describes each public name, and its name there: the first of several."""
  found: dict[str, tuple[str, str]] = {}
  for part in api_tables.parts():
    for one in api_tables.public_names(part):
      found.setdefault(one.identifier, (f"{part}.md", one.written))
  return found


def _api_link(found: re.Match) -> str:
  """Returns the link to a name's description in place of that to its file."""
  names = [one for part in api_tables.parts() for one in api_tables.public_names(part)]
  identifier = next(one.identifier for one in names if one.written == found[1])
  return f"[`{found[1]}`](api/{_places()[identifier][0]}#{identifier})"


def _markdown(path: pathlib.Path) -> str:
  """Returns a page's Markdown; of a notebook its texts, code and what the code printed."""
  text = path.read_text(encoding="utf-8")
  if path.suffix != ".ipynb":
    return text
  parts = []
  for cell in json.loads(text)["cells"]:
    source = "".join(cell["source"])
    parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    parts += [_output(output) for output in cell.get("outputs", ())]
  return "\n\n".join(part for part in parts if part)


def _output(output: dict) -> str:
  data = output.get("data", {})
  if "image/png" in data:
    return f'<img alt="figure" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
  if "text/html" in data:  # on one line, which Markdown leaves alone
    return "".join(data["text/html"]).strip().replace("\n", "&#10;")
  text = "".join(output.get("text", data.get("text/plain", ""))).strip("\n")
  return f"```text\n{text}\n```" if text else ""
