"""The documents make one site: pages and public names have their place, and links lead somewhere."""

import html.parser
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types
import urllib.parse

import pytest

import xmc_jax
from tests.docs.documents_test import ROOT

DOCS = ROOT / "docs"
# Pages of the site that docs/ lacks.
ELSEWHERE = {"contributing.md", "changelog.md"}
ELSEWHERE |= {f"notebooks/{path.stem}.md" for path in ROOT.glob("notebooks/*.ipynb")}
_NO_MKDOCS = 'make docs needs mkdocs-material, mkdocstrings[python] and latex2mathml: pip install -e ".[dev]"'


def script(name: str):
  """Imports a script of docs/."""
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(DOCS))
    return importlib.import_module(name)


# --- navigation ---


def test_every_page_is_in_the_navigation_once():
  written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
  (navigation,) = re.findall(
    r"^nav:\n(.*?)^\w", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M | re.S
  )
  assert sorted(re.findall(r": (\S+\.md)\b", navigation)) == sorted(written | ELSEWHERE)


def test_broken_links_and_unlisted_pages_fail():
  """MkDocs refuses what it warns of, as `make docs` is strict."""
  (settings,) = re.findall(r"^validation:\n((?:  .*\n)+)", (ROOT / "mkdocs.yml").read_text(), re.M)
  kinds = ("omitted_files", "absolute_links", "unrecognized_links", "anchors")
  assert settings.split() == [word for kind in kinds for word in (f"{kind}:", "warn")]


# --- the API ---


def public_names() -> set[str]:
  """What a user finds by dir(xmc_jax), and in the `__all__` of its rooms."""
  found = set()
  for name in dir(xmc_jax):
    member = getattr(xmc_jax, name)
    if name.startswith("_") or (isinstance(member, types.ModuleType) and name not in xmc_jax._ROOMS):
      continue
    if isinstance(member, types.ModuleType):
      found |= {f"xmc_jax.{name}.{one}" for one in member.__all__}
    else:
      found.add(f"xmc_jax.{name}")
  for path in (ROOT / "xmc_jax").glob("*/__init__.py"):
    room = importlib.import_module(f"xmc_jax.{path.parent.name}")
    found |= {f"{room.__name__}.{name}" for name in getattr(room, "__all__", ())}
  return found


def test_every_public_name_is_in_the_api():
  found = public_names()
  assert {"xmc_jax.Model", "xmc_jax.train", "xmc_jax.losses.softmax"} <= found
  assert "xmc_jax.refresh.balanced_clusters" in found
  page = (DOCS / "api.md").read_text(encoding="utf-8")
  assert not {name for name in found if f"[`{name}`](" not in page}


def test_names_are_read_without_importing_them():
  code = "import api_tables, sys; print(len(api_tables.api_tables([])), 'jax' in sys.modules)"
  ended = subprocess.run([sys.executable, "-c", code], cwd=DOCS, capture_output=True, text=True, check=True)
  length, has_jax = ended.stdout.split()
  assert int(length) > 10_000 and has_jax == "False"


def test_a_public_name_without_a_docstring_is_named(monkeypatch):
  api_tables = script("api_tables")
  monkeypatch.setattr(api_tables, "_docstring", lambda *_: "")
  with pytest.raises(
    LookupError, match=r"xmc_jax\.report\.comparison\.compare is public and has no docstring"
  ):
    api_tables.public_names("report")


def test_docstrings_become_markdown():
  for needed in ("griffe", "latex2mathml", "pymdownx"):
    pytest.importorskip(needed, reason=_NO_MKDOCS)
  readable = script("site_docstrings").readable
  formula = readable("Computes it.\n\n.. math::\n  a \\\\\n  \\qquad b_i\n\nThe :math:`\\eta` of it.\n")
  assert "math::" not in formula and ":math:" not in formula and "<mi>&#x003B7;</mi>" in formula
  assert formula.count('display="block"') == 2 and formula.count('<div class="formula">') == 1
  assert "\n\nThe <math" in formula
  assert readable("`NGAME\n  <https://x.org/a>`_, 2023") == "[NGAME](https://x.org/a), 2023"
  assert readable("Example:\n  >>> f(1)") == "Examples:\n  >>> f(1)"
  cited = 'docs/formulas.md, "SoftTop-k"'
  assert readable(cited) == f"[{cited}](../formulas.md#softtop-k)"
  arguments = "Args:\n  a: see `c`.\n  b: see `c`.\n  **c: any\n    text"
  assert readable("Args:\n  a, b, **c: any\n    text") == arguments


# --- the site ---


class Page(html.parser.HTMLParser):
  """Collects what a page links, what it loads, and what can be linked in it."""

  def __init__(self, path: pathlib.Path):
    super().__init__()
    self.anchors, self.links, self.loaded = set(), [], []
    self.feed(path.read_text(encoding="utf-8"))

  def handle_starttag(self, tag, attrs):
    known = dict(attrs)
    self.anchors |= {known[key] for key in ("id", "name") if known.get(key)}
    for key in ("href", "src", "srcset", "poster", "data"):
      if known.get(key):
        (self.links if tag == "a" else self.loaded).append(known[key])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> pathlib.Path:
  """Builds the site with `make docs`'s own settings."""
  pytest.importorskip("material", reason=_NO_MKDOCS)
  pytest.importorskip("mkdocstrings", reason=_NO_MKDOCS)
  out = tmp_path_factory.mktemp("site") / "out"
  command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
  environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
  ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
  assert not ended.returncode, ended.stderr
  return out


@pytest.mark.slow
def test_links_and_anchors_of_the_site_lead_somewhere(site):
  pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
  assert len(pages) > 50
  broken, foreign = [], []
  for path, page in pages.items():
    for link in page.links + page.loaded:
      parts = urllib.parse.urlsplit(link)
      if parts.scheme or parts.netloc:
        foreign += [(path.name, link)] if link in page.loaded and parts.scheme != "data" else []
        continue
      target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
      anchor = urllib.parse.unquote(parts.fragment)
      if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
        broken.append((path.name, link))
  assert not broken
  assert not foreign, "pages that load something from another host"
  sheets = list(site.rglob("*.css"))
  assert sheets and not [
    path for path in sheets if "url(http" in path.read_text() or "@import" in path.read_text()
  ]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium (apt-get install chromium)")
def test_search_works_in_pages_that_are_opened_as_files(site):
  command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
  page = f"{(site / 'index.html').as_uri()}?q=shortlist"
  ended = subprocess.run([*command, "--dump-dom", page], capture_output=True, text=True, timeout=120)
  assert re.search(r"\b[1-9]\d* matching documents", ended.stdout)


@pytest.mark.slow
def test_every_public_name_is_described(site):
  """With its arguments, shapes and errors, in HTML; no mark-up is left over."""
  api_tables = script("api_tables")
  anchors = set().union(*(Page(path).anchors for path in (site / "api").glob("*.html")))
  for part in api_tables.parts():
    assert not {one.identifier for one in api_tables.public_names(part)} - anchors
  losses, model = ((site / "api" / f"{name}.html").read_text() for name in ("losses", "xmc_jax"))
  assert losses.count("<math") > 10
  for text in (":math:", ".. math", "&gt;`_", "&gt;&gt;&gt; <p>"):
    assert text not in losses
  assert "<code>[..., L]</code>" in losses and "Parameters:" in losses and "Returns:" in losses
  assert "Raises:" in model and "xmc_jax.Model" in model
