"""What extras bring is imported where it is used: without it all else runs, and one line names the extra."""

import ast
import importlib.metadata
import json
import pathlib
import re
import sys
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from tests import command_lines, tiny_runs
from tests.data import sample_folders
from xmc_jax import data, models
from xmc_jax.data import extracted
from xmc_jax.errors import UserError

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Where imports differ.
NAMES = {"orbax-checkpoint": "orbax", "scikit-learn": "sklearn", "absl-py": "absl", "python-docx": "docx"}
ROOMS = ("xmc_jax", "experiments")
OTHERS = {"tensorboard", "pandas", "polars", "torch"}  # never needed, used where they are installed


def libraries(requirements) -> set[str]:
  """The import names of requirements, without those that name this project's extras."""
  names = {re.match(r"[\w.-]+", line)[0] for line in requirements}
  return {NAMES.get(name, name) for name in names - {"xmc_jax"}}


(EVERY,) = EXTRAS["all"]
FEATURES = re.fullmatch(r"xmc_jax\[([\w,]+)\]", EVERY)[1].split(",")
OF_EXTRAS = set().union(*(libraries(EXTRAS[name]) for name in FEATURES))
_LINES = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
BASE = libraries(line for line in _LINES if not line.startswith("#"))
# The command line, in a process where the libraries of extras cannot be imported.
PLAIN = f"""
import runpy, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
class Finder(PathFinder):
  @classmethod
  def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {OF_EXTRAS | OTHERS} else super().find_spec(name, path, target)
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Finder]
runpy.run_module("xmc_jax.main", run_name="__main__", alter_sys=True)
"""


def run_plain(*arguments) -> str:
  """Runs the command line without any library of an extra; returns what it printed."""
  ended = command_lines.run(sys.executable, "-c", PLAIN, *arguments)
  assert ended.returncode == 0, ended.stderr
  return ended.stdout


def test_extras():
  assert set(EXTRAS) >= {"cuda12", "cuda13", "tpu", "scann", "serve", "bench", "dev", "all"}
  assert not OF_EXTRAS & BASE
  assert "xmc_jax[test]" in EXTRAS["dev"]
  assert all("xmc_jax[all]" in EXTRAS[name] for name in ("test", "bench"))


def test_the_lock_installs_on_the_oldest_python():
  """Checks the packages that are installed as locked; Debian 12 has an early patch of Python 3.11."""
  oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
  locked = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.lock").read_text("utf-8"), re.M))
  installed = {found.metadata["Name"]: found for found in importlib.metadata.distributions()}
  too_new = {}
  for name, version in locked.items():
    if name in installed and installed[name].version == version:
      needed = installed[name].metadata.get("Requires-Python", "")
      if oldest not in SpecifierSet(needed):
        too_new[name] = needed
  assert too_new == {}


def _imports(node: ast.AST, inside: bool = False):
  """Yields (library, whether it is inside a function), but nothing under `if TYPE_CHECKING`."""
  for child in ast.iter_child_nodes(node):
    if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
      continue
    if isinstance(child, ast.Import):
      yield from ((alias.name.partition(".")[0], inside) for alias in child.names)
    if isinstance(child, ast.ImportFrom):
      yield child.module.partition(".")[0], inside
    yield from _imports(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


@pytest.mark.parametrize("path", sorted(path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py")))
def test_what_is_imported_is_required(path):
  """By requirements.txt; inside functions, and in the server's own room, by an extra too."""
  room = libraries(EXTRAS["serve"]) if path.is_relative_to(ROOT / "xmc_jax" / "serve") else set()
  for name, inside in _imports(ast.parse(path.read_text(encoding="utf-8"))):
    known = name in sys.stdlib_module_names or name in {"xmc_jax", "experiments"} | BASE | room
    assert known or (inside and name in OF_EXTRAS | OTHERS), f"{path}: {name}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Returns a run that was trained without extras, and what was printed."""
  place = tmp_path_factory.mktemp("plain")
  config = tiny_runs.config_file(
    place / "tiny.py",
    tiny_runs.write_data(place / "data"),
    **{"eval.scores": "hybrid", "data.num_validation": 60, "train.num_epochs": 1, "eval.report_page": True},
  )
  return place / "run", run_plain(f"--config={config}", f"--workdir={place / 'run'}")


@pytest.mark.slow
def test_without_extras_it_trains_and_shows(trained):
  folder, said = trained
  assert re.search(r"^P@1 ", said, re.M) and (folder / "hybrid.json").exists()
  assert "<img " in (folder / "report" / "index.html").read_text(encoding="utf-8")  # drawn figures


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "scann"])
def test_without_extras_it_predicts(trained, backend, tmp_path):
  (tmp_path / "texts.txt").write_text("barn kelt\n")
  use = ("--mode=predict", f"--workdir={trained[0]}", f"--input={tmp_path / 'texts.txt'}", "--k=2")
  assert len(json.loads(run_plain(*use, f"--backend={backend}"))["labels"]) == 2


@pytest.mark.slow
def test_without_extras_it_exports(trained, tmp_path):
  run_plain("--mode=export", f"--workdir={trained[0]}", f"--output={tmp_path / 'export'}")
  assert (tmp_path / "export" / "sentence_transformers").is_dir()


def test_help_without_extras():
  assert "--workdir" in run_plain("--help")


def test_tables_without_pyarrow(tmp_path, monkeypatch):
  folder = sample_folders.parquet(tmp_path / "tables")
  arrow = sample_folders.huggingface(tmp_path / "set")
  monkeypatch.setitem(sys.modules, "pyarrow", None)  # import raises
  for path in (folder, folder / "trn.parquet", arrow):
    for columns in ({}, {"text": "query", "label_column": "label"}):
      with pytest.raises(UserError, match=r'/\S+: .*pyarrow.*pip install "xmc_jax\[parquet\]"$'):
        data.load(path, **columns)


def test_workbooks_without_openpyxl(tmp_path, monkeypatch):
  path = sample_folders.table(tmp_path / "t.xlsx", [{"text": "a", "labels": "b"}])
  monkeypatch.setitem(sys.modules, "openpyxl", None)  # import raises
  with pytest.raises(UserError, match=r"t\.xlsx: \.xlsx files need openpyxl .*: pip install openpyxl$"):
    data.load(path)


def test_pdf_files_without_pypdf(tmp_path, monkeypatch):
  (tmp_path / "pypdf.py").write_text("raise ImportError('no pypdf')")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  expected = r'a\.pdf: .* pypdf .*\(no pypdf\): pip install "xmc_jax\[documents\]"$'
  with pytest.raises(UserError, match=expected):
    extracted.text_of(b"%PDF-1.4", "a.pdf")


def test_load_encoder_without_transformers(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "transformers", None)  # import raises
  with pytest.raises(UserError, match=r'transformers.*pip install "xmc_jax\[transformers\]"$'):
    models.load_encoder(tiny_runs.tiny_bert(tmp_path / "encoder"))
