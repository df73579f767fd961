"""The house's rules, read from the source: who may import what, how long things are, what does not occur."""

import ast
import collections
import pathlib
import re
import sys

import pytest

from tests import versions

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "xmc_jax"

# From the top down; a module imports from its own rank or below it, and not in a circle.
RANKS = (
  ("__main__",),
  ("main",),
  ("estimator",),
  ("cli",),
  ("training", "export", "report", "serve"),
  ("runs",),
  ("plan",),
  ("experiments",),
  ("methods",),
  ("refresh",),
  ("retrieval",),
  ("batching", "losses", "models"),
  ("data", "ops", "metrics"),
  ("storage",),
  ("console",),
  ("distributed",),
  ("config",),
  ("types", "errors", "sanitize"),
)
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
# Import name -> the only files, or folders, that may import it.
CONFINED = {
  "flax": ("models/",),
  "orbax": ("storage/checkpoints/",),
  "scann": ("retrieval/",),
  "sklearn": ("retrieval/", "estimator/"),
  "rdflib": ("data/vocabulary/",),
  "lightgbm": ("retrieval/boosted_trees.py",),
  "matplotlib": ("report/drawing.py",),
  "jinja2": ("report/pages.py",),
  **dict.fromkeys(
    ("fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client", "py3langid"), ("serve/",)
  ),
}
# What --help and a config error load.
LIGHT = (
  *("errors.py", "experiments.py", "sanitize.py", "main.py", "distributed/stderr.py"),
  *("cli/flags.py", "cli/error_lines.py", "methods/__init__.py"),
  *sorted(path.relative_to(PACKAGE).as_posix() for path in (PACKAGE / "config").glob("*.py")),
)
REMOVED = ("jax.pmap", "jax.experimental.pjit", "jax.experimental.maps")
AT_THE_ROOT = 8  # files, at most
LONGEST_FILE, LONGEST_FUNCTION = 299, 59
LONGEST = {"main.py": 100, "training/loop.py": 250}
LONGEST_METHOD = 150


def sources(*folders: str) -> list[pathlib.Path]:
  found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
  assert found
  return found


def shown(path: pathlib.Path) -> str:
  return path.relative_to(ROOT).as_posix()


FILES = sources("xmc_jax")
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=shown)


def room_of(path: pathlib.Path) -> str:
  """'models' for models/embedder.py, 'loop' for loop.py, '' for the package's own __init__."""
  first = path.relative_to(PACKAGE).parts[0]
  return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(tree: ast.AST) -> list[tuple[int, str]]:
  """(line, dotted name) of everything imported, inside functions too; 'a.b' for `from a import b`."""
  found = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      found += [(node.lineno, alias.name) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"line {node.lineno}: a relative import"
      found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
      # A registry's names stand elsewhere in the file as texts.
      found += [
        (text.lineno, text.value)
        for text in ast.walk(tree)
        if isinstance(text, ast.Constant)
        and isinstance(text.value, str)
        and re.fullmatch(r"xmc_jax(\.\w+)+", text.value)
      ]
  return found


def rooms_imported(path: pathlib.Path) -> list[tuple[int, str]]:
  return [(line, name.split(".")[1]) for line, name in imports(TREES[path]) if name.startswith("xmc_jax.")]


def test_every_room_has_a_rank():
  assert {room_of(path) for path in FILES} - {""} == set(RANK)


@EACH_FILE
def test_imports_point_down(path):
  room = room_of(path)
  if not room:  # the package's __init__ loads its rooms on first use
    return
  for line, other in rooms_imported(path):
    assert other in RANK, f"{shown(path)}:{line} imports xmc_jax.{other}, which is no room"
    assert RANK[other] >= RANK[room], f"{shown(path)}:{line}: {other} stands above {room}"


def test_rooms_do_not_import_each_other_in_a_circle():
  below = {room: set() for room in RANK}
  for path in FILES:
    if room := room_of(path):
      below[room] |= {other for _, other in rooms_imported(path)} - {room}
  open_rooms = dict(below)
  while open_rooms:
    closed = [room for room, others in open_rooms.items() if not others & open_rooms.keys()]
    assert closed, f"a circle among {sorted(open_rooms)}"
    for room in closed:
      del open_rooms[room]


@EACH_FILE
def test_libraries_stay_in_their_room(path):
  place = path.relative_to(PACKAGE).as_posix()
  for line, name in imports(TREES[path]):
    top = name.split(".")[0]
    if top in CONFINED:
      assert place.startswith(CONFINED[top]), f"{shown(path)}:{line} imports {name}"
    assert not (top == "transformers" and "Flax" in name), f"{shown(path)}:{line} imports {name}"
    assert top != "tests" and top != "experiments", f"{shown(path)}:{line} imports {name}"


@pytest.mark.parametrize("place", LIGHT)
def test_light_modules_load_no_jax(place):
  """At the top of the file, for those two that import the rest when it is needed."""
  tree = TREES[PACKAGE / place]
  top = ast.Module([node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
  light = [other.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for other in LIGHT]
  allowed = ("absl", "ml_collections", *(f"xmc_jax.{other}" for other in light))
  for _, name in imports(top if place in ("main.py", "methods/__init__.py") else tree):
    standard = name.split(".")[0] in sys.stdlib_module_names
    assert standard or name.startswith(allowed), f"{place} imports {name}"


def test_few_files_stand_at_the_root():
  assert len(list(PACKAGE.glob("*.py"))) <= AT_THE_ROOT


@EACH_FILE
def test_words_that_do_not_occur(path):
  tree, place = TREES[path], path.relative_to(PACKAGE).as_posix()
  for node in ast.walk(tree):
    where = f"{shown(path)}:{getattr(node, 'lineno', 0)}"
    if isinstance(node, ast.Attribute):
      name = ast.unparse(node)
      assert "jax.process_" not in name or place.startswith("distributed/"), f"{where}: {name}"
      assert not name.startswith(REMOVED), f"{where}: {name}"
      assert not node.attr.startswith("Flax"), f"{where}: {name}"
    if isinstance(node, ast.Assert):
      raise AssertionError(f"{where}: an assert; say what is wrong and what to do instead")


@EACH_FILE
def test_sizes(path):
  lines = len(path.read_text(encoding="utf-8").splitlines())
  limit = LONGEST.get(path.relative_to(PACKAGE).as_posix(), LONGEST_FILE)
  if path.parent.name == "methods":
    limit = min(limit, LONGEST_METHOD)
  assert lines <= limit, f"{shown(path)} has {lines} lines; at most {limit}"
  for node in ast.walk(TREES[path]):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
      length = node.end_lineno - node.lineno + 1
      assert length <= LONGEST_FUNCTION, f"{shown(path)}:{node.lineno} {node.name} has {length} lines"


def functions(node: ast.Module | ast.ClassDef) -> list[ast.FunctionDef]:
  """The functions of a module and the methods of its classes, but none inside another function."""
  found = [each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
  return found + [each for one in node.body if isinstance(one, ast.ClassDef) for each in functions(one)]


@EACH_FILE
def test_public_functions_are_annotated(path):
  for node in functions(TREES[path]):
    if node.name.startswith("_") and not node.name.endswith("__"):
      continue
    named = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    others = (each for each in (node.args.vararg, node.args.kwarg) if each)
    bare = [each.arg for each in (*named, *others) if not each.annotation and each.arg not in ("self", "cls")]
    where = f"{shown(path)}:{node.lineno} {node.name}"
    assert not bare, f"{where} does not say the types of {', '.join(bare)}"
    assert node.returns or node.name == "__init__", f"{where} does not say what it returns"


@EACH_FILE
def test_files_say_what_they_are_for(path):
  assert ast.get_docstring(TREES[path]), shown(path)


def test_names_of_files():
  for path in sources("xmc_jax", "experiments", "tests", "benchmarks"):
    assert not {"utils", "util", "helpers", "helper", "misc", "common_utils"} & set(
      path.relative_to(ROOT).with_suffix("").parts
    ), shown(path)


def test_no_two_test_files_share_a_name():
  """pytest imports them by their bare names."""
  names = collections.Counter(path.name for path in sources("tests") if path.name.endswith("_test.py"))
  assert max(names.values()) == 1, names.most_common(1)


def test_nothing_points_outside_the_checkout():
  """No path of the machine that this was written on, and none to the notes beside the checkout."""
  outside = re.compile(r"\.\./shared|/work/|/home/\w|/root/|/Users/\w")
  texts = sources("xmc_jax", "experiments", "tests", "benchmarks")
  for path in (*texts, ROOT / "Makefile", ROOT / "pyproject.toml"):
    if path == pathlib.Path(__file__):
      continue
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
      assert not outside.search(line), f"{shown(path)}:{number}: {line.strip()}"


def test_files_that_run_on_other_versions_are_here():
  assert all((ROOT / file).exists() for file in versions.TESTS)
