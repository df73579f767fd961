"""Reads the public names of xmc_jax from its source, without importing it: for docs/api.md and its pages.

docs/make_tables.py writes a list for each part into docs/api.md; docs/site_pages.py makes a page of each.
"""

import ast
import functools
import pathlib
import re
from typing import NamedTuple

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_MODULES = ("errors", "types")  # what a new method or a caller needs of those that are no subpackages
_NAMES_ALONE = {  # parts for those who change the library; docs/formulas.md has each loss
  *("config", "losses", "methods", "models", "ops", "plan", "refresh", "report", "retrieval", "types"),
}


class PublicName(NamedTuple):
  """Describes a public name.

  Attributes:
    written: as users write it, `xmc_jax.losses.softmax`.
    identifier: where it is defined, `xmc_jax.losses.softmax.softmax`.
    file: the path of that file in the repository.
    summary: the first paragraph of its docstring.
  """

  written: str
  identifier: str
  file: str
  summary: str


def parts() -> tuple[str, ...]:
  """Returns the parts of the API: xmc_jax, then its subpackages and modules with public names."""
  folders = sorted(path.parent.name for path in _ROOT.glob("xmc_jax/*/__init__.py"))
  rooms = [name for name in folders if _exported(f"xmc_jax.{name}")]
  return ("xmc_jax", *sorted([*rooms, *_MODULES]))


def public_names(part: str) -> list[PublicName]:
  """Returns the public names of a part, in the order of the alphabet.

  Raises:
    LookupError: a name has no docstring.
  """
  if part == "xmc_jax":
    places = ast.literal_eval(_assigned("xmc_jax", "_NAMES"))
    found = [(name, f"xmc_jax.{module}") for name, module in places.items()]
  else:
    found = [(name, f"xmc_jax.{part}") for name in _exported(f"xmc_jax.{part}")]
  return [_described(part, name, module) for name, module in sorted(found, key=lambda one: one[0].lower())]


def about(part: str) -> str:
  """Returns the docstring of a part, without the lists of names in it."""
  text = ast.get_docstring(_tree("xmc_jax" if part == "xmc_jax" else f"xmc_jax.{part}")) or ""
  kept = [block for block in text.split("\n\n") if not re.search(r"\S {2,}\S", block)]
  return "\n\n".join(f"{block[:-1]}." if block.endswith(":") else block for block in kept)


def api_tables(_: list[str]) -> str:
  """Returns a heading, a sentence and a list of public names for each part of the API."""
  lines: list[str] = []
  for part in parts():
    lines += [f"## {written(part)}", "", about(part).partition("\n\n")[0], ""]
    if part in _NAMES_ALONE:
      lines += [", ".join(f"[`{one.written}`](../{one.file})" for one in public_names(part)), ""]
      continue
    for one in public_names(part):
      sentence = re.split(r"(?<=\.) (?=[A-Z'])", one.summary)[0]
      lines.append(f"- [`{one.written}`](../{one.file}): {sentence}")
    lines.append("")
  return "\n".join(lines)


def written(part: str) -> str:
  """Returns a part's name as users write it."""
  return part if part == "xmc_jax" else f"xmc_jax.{part}"


def _described(part: str, name: str, module: str) -> PublicName:
  defined, node = _definition(module, name)
  docstring = _docstring(defined, node)
  if not docstring:
    raise LookupError(f"{defined}.{name} is public and has no docstring")
  file = _path(defined).relative_to(_ROOT).as_posix()
  summary = " ".join(docstring.partition("\n\n")[0].split())
  return PublicName(f"{written(part)}.{name}", f"{defined}.{name}", file, summary)


def _exported(module: str) -> list[str]:
  """Returns a module's `__all__`, or else the functions and classes that it defines."""
  if all_names := _assigned(module, "__all__"):
    return list(ast.literal_eval(all_names))
  kinds = (ast.FunctionDef, ast.ClassDef)
  return [
    node.name for node in _tree(module).body if isinstance(node, kinds) and not node.name.startswith("_")
  ]


def _definition(module: str, name: str) -> tuple[str, ast.stmt]:
  """Follows imports to the module that defines a name, and its statement there.

  Raises:
    LookupError: the module neither defines nor imports it.
  """
  body = _tree(module).body
  for node in [*body, *(inner for outer in body if isinstance(outer, ast.If) for inner in outer.body)]:
    if isinstance(node, ast.ImportFrom) and node.module:  # under `if TYPE_CHECKING`, too
      for alias in node.names:
        if (alias.asname or alias.name) == name:
          return _definition(node.module, alias.name)
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
      return module, node
    if name in _targets(node):
      return module, node
  raise LookupError(f"{module} neither defines nor imports {name}")


def _docstring(module: str, node: ast.stmt) -> str:
  """Returns the docstring of a function or class, or the string that follows an assignment."""
  if isinstance(node, ast.FunctionDef | ast.ClassDef):
    return ast.get_docstring(node) or ""
  body = _tree(module).body
  after = body[body.index(node) + 1 :][:1]
  is_text = after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant)
  return str(after[0].value.value) if is_text else ""


def _assigned(module: str, name: str) -> ast.expr | None:
  """Returns what a module assigns to a name; None if it does not."""
  return next((node.value for node in _tree(module).body if name in _targets(node)), None)


def _targets(node: ast.stmt) -> list[str]:
  if isinstance(node, ast.Assign):
    return [target.id for target in node.targets if isinstance(target, ast.Name)]
  is_name = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
  return [node.target.id] if is_name else []


@functools.cache
def _tree(module: str) -> ast.Module:
  return ast.parse(_path(module).read_text(encoding="utf-8"))


def _path(module: str) -> pathlib.Path:
  folder = _ROOT.joinpath(*module.split("."))
  return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
