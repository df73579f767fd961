"""LightGBM's text: what it writes is accepted and says the same; what would crash or hang it is refused."""

import os
import pathlib
import subprocess
import sys

import lightgbm
import numpy as np
import pytest
from cases import each_case

from xmc_jax.errors import UserError
from xmc_jax.retrieval import hybrid_model, lightgbm_text

ROOT = pathlib.Path(__file__).parents[2]
NUM_FEATURES = 5
SETTINGS = hybrid_model._TREES


def made(num_rows: int = 3000, kind: str = "both") -> tuple[np.ndarray, np.ndarray]:
  """Features and answers that need more than a line; some features are constant, some mostly zeros."""
  rng = np.random.default_rng(num_rows)
  features = rng.normal(size=(num_rows, NUM_FEATURES)).astype(np.float32)
  features[:, 3] = -9.21034
  features[:, 4] *= rng.random(num_rows) < 0.05
  right = features[:, 0] * features[:, 1] + 0.3 * rng.normal(size=num_rows) > 0.4
  return features, {"both": right, "all": np.ones_like(right), "none": np.zeros_like(right)}[kind]


@pytest.fixture(scope="module")
def text():
  return lightgbm_text.fitted(*made(), SETTINGS, 20)


# --- what LightGBM writes ---


@each_case("settings", [{}, {"num_leaves": 2}, {"num_leaves": 31, "min_data_in_leaf": 5}])
@each_case("num_rows, kind", [(3000, "both"), (60, "both"), (3000, "all"), (200, "none")])
def test_what_is_fitted_is_accepted_and_says_what_lightgbm_says(settings, num_rows, kind):
  """Also of trees that are a leaf alone: too few rows, or answers of one kind."""
  features, right = made(num_rows, kind)
  found = lightgbm_text.fitted(features, right, {**SETTINGS, **settings}, 7)
  lightgbm_text.check(found, NUM_FEATURES)
  data = lightgbm.Dataset(features, right.astype(np.float32), params={"verbose": -1})
  theirs = lightgbm.train({**SETTINGS, **settings}, data, 7)
  looked_at = np.concatenate([features, made(999)[0]])
  np.testing.assert_array_equal(
    lightgbm_text.booster(found).predict(looked_at, raw_score=True), theirs.predict(looked_at, raw_score=True)
  )
  assert ("num_leaves=1\n" in found) == (kind != "both" or num_rows == 60) or settings


def test_the_number_of_threads_changes_nothing(text):
  for threads in (1, 3):
    assert lightgbm_text.fitted(*made(), {**SETTINGS, "num_threads": threads}, 20) == text


def test_nothing_of_the_machine_is_in_it(text):
  assert text.isascii() and "parameters" not in text and text.endswith("\n")


# --- what is refused ---


def changed(text: str, key: str, change, tree: int = 0) -> str:
  """The text with a line of a tree changed, its length in the header put right."""
  trees = text.split("Tree=")
  lines = trees[tree + 1].split("\n")
  number = next(number for number, line in enumerate(lines) if line.startswith(f"{key}="))
  values = lines[number].partition("=")[2].split(" ")
  before = len(trees[tree + 1])
  lines[number] = f"{key}={' '.join(map(str, change(values)))}"
  trees[tree + 1] = "\n".join(lines)
  return resized("Tree=".join(trees), tree, len(trees[tree + 1]) - before)


def resized(text: str, tree: int, by: int) -> str:
  header, found, rest = text.partition("tree_sizes=")
  sizes, end, rest = rest.partition("\n")
  numbers = sizes.split(" ")
  numbers[tree] = str(int(numbers[tree]) + by)
  return header + found + " ".join(numbers) + end + rest


def put(place: int, value) -> callable:
  return lambda values: [*values[:place], value, *values[place + 1 :]]


def test_a_changed_text_is_still_one(text):
  """So that what is refused below is refused for what was changed."""
  assert changed(text, "leaf_value", lambda values: values, 3) == text
  found = changed(text, "leaf_value", put(0, "0.123456"), 19)
  lightgbm_text.check(found, NUM_FEATURES)
  assert (
    lightgbm_text.booster(found).predict(made()[0]) != lightgbm_text.booster(text).predict(made()[0])
  ).any()


@each_case(
  "key, change",
  [
    ("left_child", put(0, 0)),  # to itself
    ("left_child", put(2, 1)),  # back
    ("left_child", put(0, "0.5")),  # LightGBM reads 0
    ("left_child", put(0, "1e0")),
    ("left_child", put(0, "1_0")),
    ("left_child", put(0, "１")),
    ("right_child", put(0, 99)),
    ("right_child", put(1, -99)),
    ("right_child", put(1, "nan")),
    ("right_child", lambda values: [values[0], *values[:-1]]),  # two ways to one node
    ("left_child", lambda values: values[:-1]),
    ("right_child", lambda values: [*values, -1]),
    ("split_feature", put(0, NUM_FEATURES)),
    ("split_feature", put(0, -1)),
    ("split_feature", put(0, 4294967295)),
    ("split_feature", lambda values: values[:-1]),
    ("threshold", put(3, "nan")),
    ("threshold", put(3, "1e999")),
    ("threshold", put(3, "x")),
    ("threshold", lambda values: []),
    ("decision_type", put(0, 1)),  # by category, of which there are none
    ("decision_type", put(0, 300)),
    ("leaf_value", put(0, "nan")),
    ("leaf_value", put(0, "-inf")),
    ("leaf_value", lambda values: values[:-1]),
    ("leaf_value", lambda values: [*values, 0.5]),
    ("num_leaves", lambda values: [0]),
    ("num_leaves", lambda values: [-3]),
    ("num_leaves", lambda values: [1]),
    ("num_leaves", lambda values: [2**31]),
    ("num_leaves", lambda values: []),
    ("num_cat", lambda values: [1]),
    ("is_linear", lambda values: [1]),
    ("shrinkage", lambda values: ["nan"]),
    ("split_gain", lambda values: values[:-1]),
    ("internal_count", lambda values: [*values[:-1], "x"]),
    ("leaf_weight", lambda values: ["0\nnum_leaves=9"]),
    ("left_child", lambda values: ["0\rleft_child=9"]),
  ],
)
@each_case("tree", [0, 19])
def test_trees_that_are_none_are_refused(text, key, change, tree):
  with pytest.raises(ValueError):
    lightgbm_text.check(changed(text, key, change, tree), NUM_FEATURES)


@each_case(
  "old, new",
  [
    ("tree\n", ""),
    ("num_class=1", "num_class=2"),
    ("num_tree_per_iteration=1", "num_tree_per_iteration=0"),  # by which LightGBM divides
    ("num_tree_per_iteration=1", "num_tree_per_iteration=3"),
    ("max_feature_idx=4", "max_feature_idx=5"),
    ("max_feature_idx=4", "max_feature_idx=9\nmax_feature_idx=4"),
    ("max_feature_idx=4", "max_feature_idx=4\rmax_feature_idx=9"),
    ("objective=binary sigmoid:1", "objective=lambdarank"),
    ("Column_4", "Column_4 Column_5"),
    ("feature_infos=", "feature_infos=none "),
    ("tree_sizes=", "tree_sizes=9"),  # where LightGBM goes on reading
    ("tree_sizes=", "tree_size="),
    ("tree_sizes=", "average_output\ntree_sizes="),
    ("Tree=1\n", "Tree=2\n"),
    ("Tree=1\n", "Tree=1\nfirst=1\n"),
    ("num_leaves=8\n", "num_leaves=8\nnum_leaves=7\n"),
    ("shrinkage=1\n", "shrinkage=1\nleft_child=0\n"),
    ("is_linear=0\n", ""),
    ("threshold=", "4\nthreshold="),
    ("end of trees", "end of"),
    ("end of trees", "Tree=20\nend of trees"),
    ("end of trees\n", "end of trees\nparameters:\n[boosting: rf]\n"),
  ],
)
def test_other_texts_are_refused(text, old, new):
  assert old in text
  with pytest.raises(ValueError):
    lightgbm_text.check(text.replace(old, new, 1), NUM_FEATURES)


def test_trees_on_other_features_or_none_are_refused(text):
  for found, num_features in ((text, 4), (text, 6), ("", 5), (text.partition("Tree=")[0], 5), ("tree\n", 1)):
    with pytest.raises(ValueError):
      lightgbm_text.check(found, num_features)


FUZZ = """
import sys
import numpy as np
from xmc_jax.errors import UserError
from xmc_jax.retrieval import lightgbm_text
text, rng, opened = sys.stdin.read(), np.random.default_rng(0), 0
tokens = "0|-1|1|7|-9|99999999999|nan|1e999|| |=|\\n|\\r|0.5|x|Tree=".split("|")
features = rng.normal(size=(50, 5)).astype(np.float32)
for number in range(3000):
  place, length = rng.integers(len(text)), rng.integers(0, 4)
  new = text[:place] + tokens[rng.integers(len(tokens))] + text[place + length:]
  if number % 3 == 0:
    new = text[:place]
  try:
    lightgbm_text.check(new, 5)
  except ValueError:
    continue
  lightgbm_text.booster(new).predict(features)
  opened += 1
print(opened)
"""


@pytest.mark.slow
def test_nothing_that_is_accepted_ends_the_process(text):
  """LightGBM opens whatever passes: digits differ, but there is no way out of the arrays, and an end."""
  found = subprocess.run(
    [sys.executable, "-W", "error", "-c", FUZZ],
    input=text,
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert found.returncode == 0, found.stderr
  assert int(found.stdout) > 20


def test_without_lightgbm_one_line_says_what_to_do(monkeypatch):
  monkeypatch.setitem(sys.modules, "lightgbm", None)
  for call in (lambda: lightgbm_text.booster(""), lambda: lightgbm_text.fitted(*made(), SETTINGS, 1)):
    with pytest.raises(UserError, match="pip install lightgbm, or rank without it by --scores=encoder"):
      call()
