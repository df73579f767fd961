"""Fits, checks and opens gradient-boosted trees in LightGBM's text format."""

import re
from typing import TYPE_CHECKING

import numpy as np

from xmc_jax.errors import DataError, UserError

if TYPE_CHECKING:
  import lightgbm

_MISSING = (
  "the hybrid ranker needs LightGBM: pip install lightgbm, or rank without it by --scores=encoder, in "
  "training --config.eval.scores=fused"
)
_FEW = 100_000  # with fewer rows, one thread fits in less than a second
# Names of a tree's lines, in LightGBM's order.
_FIELDS = (
  *("num_leaves", "num_cat", "split_feature", "split_gain", "threshold", "decision_type", "left_child"),
  *("right_child", "leaf_value", "leaf_weight", "leaf_count", "internal_value", "internal_weight"),
  *("internal_count", "is_linear", "shrinkage"),
)
_NODES = ("split_feature", "decision_type", "left_child", "right_child")
_OF_LEAVES = ("leaf_weight", "leaf_count")
_OF_NODES = ("split_gain", "internal_value", "internal_weight", "internal_count")
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?")
_INFO = re.compile(rf"none|\[{_NUMBER.pattern}:{_NUMBER.pattern}\]")
_HEADER = (
  "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx={}\n"
  "objective=binary sigmoid:1\nfeature_names={}\nfeature_infos="
)
_END = re.compile(r"end of trees\n\nfeature_importances:\n(Column_[0-9]+=[0-9]+\n)*\n*")


def fitted(features: np.ndarray, right: np.ndarray, settings: dict, num_trees: int) -> str:
  """Fits trees to predict `right` `[n]` from features `[n, F]` float32; returns their text.

  The same input gives the same text for any number of cores.

  Raises:
    UserError: LightGBM is not installed.
  """
  lightgbm = _library()
  data = lightgbm.Dataset(features, right.astype(np.float32), params={"verbose": -1})
  # Threads synchronise about a hundred times per tree: on a busy machine this takes seconds for little work.
  settings = {"num_threads": int(len(features) < _FEW), **settings}
  # Drops the parameters at the end of the text: nothing reads them.
  return lightgbm.train(settings, data, num_trees).model_to_string().partition("\nparameters:")[0] + "\n"


def booster(text: str) -> "lightgbm.Booster":
  """Opens what `fitted` returned.

  Raises:
    UserError: LightGBM is not installed.
    DataError: LightGBM cannot read the text.
  """
  lightgbm = _library()
  try:
    return lightgbm.Booster(model_str=text)
  except lightgbm.basic.LightGBMError as error:
    raise DataError(f"trees of the hybrid ranker: LightGBM cannot read them ({error!s:.100})") from None


def check(text: str, num_features: int) -> None:
  """Raises ValueError unless a text is exactly what LightGBM writes for valid trees on so many features.

  LightGBM trusts its files: a child or a length out of range, or a divisor of 0, would crash the process.
  LightGBM's parser and this one could read unusual text differently, so every line must have the expected
  form.
  """
  header, found, rest = text.partition("\ntree_sizes=")
  numbers = " ".join(f"Column_{feature}" for feature in range(num_features))
  expected = _HEADER.format(num_features - 1, numbers)
  infos = header.removeprefix(expected).split(" ")
  fits = header.startswith(expected) and len(infos) == num_features and all(map(_INFO.fullmatch, infos))
  if not (found and fits):
    raise ValueError("its trees are for other features")
  lengths, _, rest = rest.partition("\n\n")
  for number, length in enumerate(_integers(lengths)):
    if length < 1 or length > len(rest):
      raise ValueError("the length of a tree is wrong")
    _check_tree(rest[:length], number, num_features)
    rest = rest[length:]
  if not _END.fullmatch(rest):
    raise ValueError("the end of its trees is missing")


def _check_tree(text: str, number: int, num_features: int) -> None:
  lines = text.split("\n")
  if not all(line.count("=") == 1 for line in lines[:-3]):
    raise ValueError("a tree has a line without a name")
  names, lists = zip(*(line.split("=") for line in lines[:-3]))
  if names != ("Tree", *_FIELDS) or lines[-3:] != ["", "", ""] or lists[0] != str(number):
    raise ValueError("a tree has unexpected lines")
  tree = dict(zip(names, lists))
  numbers = (_integers(tree[name]) for name in ("num_leaves", "num_cat", "is_linear"))
  (num_leaves,), (num_cat,), (is_linear,) = numbers
  if num_cat or is_linear or num_leaves < 1 or len(_finite_numbers(tree["shrinkage"])) != 1:
    raise ValueError("a tree has categories, regressions, or no leaves")
  if len(_finite_numbers(tree["leaf_value"])) != num_leaves:
    raise ValueError("a tree has another number of leaves than it declares")
  nodes = {name: _integers(tree[name]) for name in _NODES}
  if {*map(len, nodes.values()), len(_finite_numbers(tree["threshold"]))} != {num_leaves - 1}:
    raise ValueError("a tree has another number of nodes than it declares")
  counts = [{len(_finite_numbers(tree[name])) for name in names} for names in (_OF_LEAVES, _OF_NODES)]
  if num_leaves > 1 and counts != [{num_leaves}, {num_leaves - 1}]:
    raise ValueError("a tree has another number of statistics than it declares")
  if not all(0 <= feature < num_features for feature in nodes["split_feature"]):
    raise ValueError("a tree splits by a feature that does not exist")
  if not set(nodes["decision_type"]) <= {0, 2, 4, 6, 8, 10}:  # odd types are for categories
    raise ValueError("a tree has an unknown decision type")
  _check_children(nodes, num_leaves)


def _check_children(nodes: dict[str, list[int]], num_leaves: int) -> None:
  seen = set()
  for side in ("left_child", "right_child"):
    for node, child in enumerate(nodes[side]):
      # Leaf i is stored as -1 - i; a node comes before its children, so every path ends.
      if not (node < child < num_leaves - 1 or -num_leaves <= child < 0) or child in seen:
        raise ValueError("its nodes do not form a tree")
      seen.add(child)


def _integers(text: str) -> list[int]:
  """Reads integers; raises ValueError for any other text, even if some parser would accept it."""
  tokens = text.split(" ") if text else []
  if not all(map(_INTEGER.fullmatch, tokens)):
    raise ValueError("a value is not an integer")
  return [int(token) for token in tokens]


def _finite_numbers(text: str) -> list[float]:
  """Reads finite numbers; raises ValueError for any other text."""
  tokens = text.split(" ") if text else []
  if not all(map(_NUMBER.fullmatch, tokens)) or not np.isfinite(found := [*map(float, tokens)]).all():
    raise ValueError("a value is not a finite number")
  return found


def check_installed() -> None:
  """Raises UserError if LightGBM is not installed, or does not load."""
  _library()


def _library():
  try:
    import lightgbm
  except (ImportError, OSError) as error:  # its shared library needs libgomp
    raise UserError(f"{_MISSING} ({error!s:.100})") from None
  return lightgbm
