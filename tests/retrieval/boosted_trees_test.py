"""Boosted trees as arrays: they predict what LightGBM does, bit for bit."""

import sys

import lightgbm
import numpy as np
import pytest

from xmc_jax.errors import UserError
from xmc_jax.retrieval import boosted_trees, hybrid_model

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


@pytest.mark.parametrize("settings", [{}, {"num_leaves": 2}, {"min_data_in_leaf": 5}])
@pytest.mark.parametrize("num_rows, kind", [(3000, "both"), (60, "both"), (3000, "all"), (200, "none")])
def test_it_predicts_what_lightgbm_predicts(settings, num_rows, kind):
  """Also of trees that are a leaf alone: too few rows, or answers of one kind; and on the very thresholds."""
  features, right = made(num_rows, kind)
  trees = boosted_trees.fitted(features, right, SETTINGS | settings, 7)
  data = lightgbm.Dataset(features, right.astype(np.float32), params={"verbose": -1})
  theirs = lightgbm.train({"num_leaves": boosted_trees.MOST_LEAVES} | SETTINGS | settings, data, 7)
  edges = np.repeat(np.array([node[1] for node in trees.nodes])[:, None], NUM_FEATURES, axis=1)
  for looked_at in (features, made(999)[0], edges, features[:1], features[:0]):
    expected = theirs.predict(looked_at, raw_score=True) if len(looked_at) else []
    np.testing.assert_array_equal(trees.predict(looked_at), expected)
  assert (not trees.nodes) == (kind != "both" or num_rows == 60) or settings


def test_the_number_of_threads_changes_nothing():
  one, three = (boosted_trees.fitted(*made(), SETTINGS | {"num_threads": threads}, 20) for threads in (1, 3))
  assert one.nodes == three.nodes and one.values == three.values


def test_without_lightgbm_one_line_says_what_to_do(monkeypatch):
  monkeypatch.setitem(sys.modules, "lightgbm", None)
  with pytest.raises(UserError, match="pip install lightgbm, or rank without it by --scores=encoder"):
    boosted_trees.fitted(*made(), SETTINGS, 1)
