"""Links of README.md, docs/ and the notebooks lead somewhere, and their code names what exists."""

import ast
import contextlib
import importlib
import json
import pathlib
import re
import types

import pytest

from tests.docs.documents_test import FENCED, PAGES, ROOT, blocks

# --- links ---


def anchors(page: pathlib.Path) -> set[str]:
  """What can stand behind a # in a link to this page."""
  titles = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.M)
  return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def linked(text: str) -> list[str]:
  found = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text))
  return [link for link in found if not re.match(r"\w+:", link)]


def test_links_lead_somewhere():
  broken = []
  texts = {page: page.read_text(encoding="utf-8") for page in {*PAGES, *ROOT.glob("docs/*/*.md")}}
  for notebook in (ROOT / "notebooks").glob("*.ipynb"):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    texts[notebook] = "\n\n".join(prose)
  for page, text in texts.items():
    for link in linked(text):
      path, _, anchor = link.partition("#")
      place = (page.parent / path).resolve() if path else page
      if not place.exists() or (anchor and anchor not in anchors(place)):
        broken.append(f"{page.relative_to(ROOT)}: {link}")
  assert not broken


# --- Python ---


CODE = {
  f"{page.name} {number}": block
  for page in PAGES
  for number, block in enumerate(blocks(page, "python"))
  if page.name != "extending.md"  # pieces of a file that tests/docs/extending_test.py runs
}
# Packages of the reader's, which tests do without.
_THEIRS = {"datasets", "faiss", "fasttext", "pandas", "pecos", "polars", "sentence_transformers"}


def missing_names(code: str) -> list[str]:
  """Names that the code imports, or asks modules for, and that are not there."""
  tree, known, missing = ast.parse(code), {}, []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for name in node.names:
        if (top := name.name.partition(".")[0]) not in _THEIRS:
          importlib.import_module(name.name)
          known[name.asname or top] = importlib.import_module(name.name if name.asname else top)
    elif isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] not in _THEIRS:
      for name in node.names:
        known[name.asname or name.name] = found = _member(importlib.import_module(node.module), name.name)
        missing += [] if found is not None else [f"{node.module}.{name.name}"]
  for node in ast.walk(tree):
    found = _resolved(node.value, known) if isinstance(node, ast.Attribute) else None
    if isinstance(found, types.ModuleType | type) and _member(found, node.attr) is None:
      missing.append(ast.unparse(node))
  return missing


def _member(module, name: str):
  with contextlib.suppress(ImportError):
    return getattr(module, name, None) or importlib.import_module(f"{module.__name__}.{name}")
  return None


def _resolved(node: ast.AST, known: dict):
  if isinstance(node, ast.Name):
    return known.get(node.id)
  if isinstance(node, ast.Attribute) and (found := _resolved(node.value, known)) is not None:
    return getattr(found, node.attr, None)
  return None


def test_a_name_that_is_not_there_is_found():
  assert missing_names("import xmc_jax\nxmc_jax.Modell.load('x')") == ["xmc_jax.Modell"]
  assert missing_names("from xmc_jax import nothing") == ["xmc_jax.nothing"]


@pytest.mark.parametrize("name", CODE)
def test_code_names_what_exists(name):
  assert not missing_names(CODE[name])
