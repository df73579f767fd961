"""docs/formulas.md names every loss and method; what it names is there; citations lead to its sections."""

import ast
import importlib
import importlib.util
import pathlib
import re

import pytest

import xmc_jax
from tests.docs.documents_test import FENCED, ROOT
from xmc_jax import losses, methods
from xmc_jax.config.defaults import keys_of

TEXT = (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8")
# What is marked as code in a sentence; a key may have a value behind it.
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", FENCED.sub("", TEXT))))
TITLES = set(re.findall(r"^#{2,3} (.*)$", FENCED.sub("", TEXT), re.M))
SECTIONS = {"data", "encoder", "eval", "mesh", "method", "train"}
OF_METHODS = [keys_of(methods.SETTINGS[name]) for name in methods.names()]
DOTTED = re.compile(r"[a-z_]+(\.\w+)+")
NAMED_KEYS = [span for span in SPANS if DOTTED.match(span) and span.partition(".")[0] in SECTIONS]
CODE = sorted({DOTTED.match(span)[0] for span in SPANS if DOTTED.match(span) and span not in NAMED_KEYS})


def found(name: str):
  """The module, or what a module holds, that the page calls `name`; None if there is none."""
  place = xmc_jax
  for part in name.removeprefix("xmc_jax.").replace("components.", "methods.components.", 1).split("."):
    path = f"{getattr(place, '__name__', '')}.{part}"
    if not hasattr(place, part) and hasattr(place, "__path__") and importlib.util.find_spec(path):
      importlib.import_module(path)
    place = getattr(place, part, None)
  return place


def test_every_loss_and_method_is_named():
  missing = {f"losses.{name}" for name in losses.__all__} - set(CODE)
  of_methods = {".".join(name.split(".")[:2]) for name in CODE if name.startswith("methods.")}
  missing |= {f"methods.{name}" for name in methods.names()} - of_methods
  assert not missing, f"docs/formulas.md does not say where {missing} is computed"


@pytest.mark.parametrize("name", [name for name in CODE if not name.endswith(".py")])
def test_code_that_is_named_is_there(name):
  assert found(name) is not None


@pytest.mark.parametrize("span", NAMED_KEYS)
def test_settings_that_are_named_are_there(span):
  key, _, value = span.partition("=")
  declared = [keys[key] for keys in OF_METHODS if key in keys]
  choices = [choice for one in declared for choice in one.choices or ()]
  assert declared and (not value or not choices or value in choices)


# --- citations of the page in docstrings and comments ---


def citations(path: pathlib.Path) -> list[str]:
  """The sections of the page that a source cites: docs/formulas.md, "SECTION"."""
  text = re.sub(r"\n\s*(# ?)?", " ", path.read_text(encoding="utf-8"))
  return re.findall(r'docs/formulas\.md, "([^"]+)"', text)


def test_citations_lead_to_sections():
  cited = {path: citations(path) for path in (ROOT / "xmc_jax").rglob("*.py")}
  assert sum(map(len, cited.values())) >= 20
  assert not [(path.name, title) for path, titles in cited.items() for title in titles if title not in TITLES]


@pytest.mark.parametrize("name", methods.names())
def test_every_method_cites_its_section(name):
  path = ROOT / "xmc_jax" / "methods" / f"{name}.py"
  assert 'docs/formulas.md, "' in re.sub(r"\s+", " ", ast.get_docstring(ast.parse(path.read_text())))
