"""Gradient-boosted trees as LightGBM's own text: fitted, checked before they are used, and opened."""

import re

import numpy as np

from xmc_jax.contract import DataError, UserError

_MISSING = "the hybrid ranker needs LightGBM: pip install lightgbm, or give --scores=encoder"
_LISTS = ("split_feature", "threshold", "decision_type", "left_child", "right_child")


def fitted(features: np.ndarray, right: np.ndarray, settings: dict, num_trees: int) -> str:
  """Fits trees on features `[n, F]` float32 and whether each row is right `[n]`; returns their text.

  The same input gives the same text, whatever the number of cores.

  Raises:
    UserError: LightGBM is not installed.
  """
  lightgbm = _library()
  data = lightgbm.Dataset(features, right.astype(np.float32), params={"verbose": -1})
  # The text ends with the parameters that it was made by, of which nothing is read again.
  return lightgbm.train(settings, data, num_trees).model_to_string().partition("\nparameters:")[0] + "\n"


def booster(text: str):
  """Opens what `fitted` returned.

  Raises:
    UserError: LightGBM is not installed.
    DataError: it does not read the text.
  """
  lightgbm = _library()
  try:
    return lightgbm.Booster(model_str=text)
  except lightgbm.basic.LightGBMError as error:
    raise DataError(f"trees of the hybrid ranker: LightGBM cannot read them ({error!s:.100})") from None


def check(text: str, num_features: int) -> None:
  """Raises ValueError where a text is not that of trees that end, on so many features.

  LightGBM trusts its files: one with a child out of range would end the process.
  """
  header, *trees = re.split(r"^Tree=\d+\n", text, flags=re.MULTILINE)
  settings = _values(header)
  if settings.get("max_feature_idx") != str(num_features - 1) or settings.get("num_class") != "1":
    raise ValueError("its trees are for other features")
  if not trees or settings.get("linear_tree", "0") != "0":
    raise ValueError("it has no trees")
  for tree in trees:
    _check_tree(_values(tree.partition("\n\n")[0]), num_features)


def _check_tree(tree: dict[str, str], num_features: int) -> None:
  num_leaves = int(tree["num_leaves"])
  if int(tree["num_cat"]) or num_leaves < 1:
    raise ValueError("a tree has categories, or no leaves")
  if len(tree["leaf_value"].split()) != num_leaves:
    raise ValueError("a tree's leaves are not as many as it says")
  if num_leaves == 1:
    return
  lists = {name: [float(value) for value in tree[name].split()] for name in _LISTS}
  if any(len(values) != num_leaves - 1 for values in lists.values()):
    raise ValueError("a tree's nodes are not as many as it says")
  if not all(0 <= feature < num_features for feature in lists["split_feature"]):
    raise ValueError("a tree looks at a feature that there is not")
  seen = set()
  for side in ("left_child", "right_child"):
    for node, child in enumerate(lists[side]):
      # A leaf is -1 - its number; a node stands before its children, so that every way ends.
      if not (node < child < num_leaves - 1 or -num_leaves <= child < 0) or child in seen:
        raise ValueError("its nodes make no tree")
      seen.add(child)


def _values(text: str) -> dict[str, str]:
  return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _library():
  try:
    import lightgbm
  except (ImportError, OSError) as error:  # its shared library needs libgomp
    raise UserError(f"{_MISSING} ({error!s:.100})") from None
  return lightgbm
