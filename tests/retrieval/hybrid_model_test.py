"""The stacked model: what it learns, what it is too few rows for, and that equal data give equal bits."""

import json
import os
import pathlib
import subprocess
import sys

import made_corpora
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from xmc_jax.errors import UserError
from xmc_jax.retrieval import hybrid_model
from xmc_jax.retrieval.features import feature_names
from xmc_jax.retrieval.hybrid_model import HybridModel, fit, fixed
from xmc_jax.retrieval.sources import SOURCES
from xmc_jax.storage import checksums

ROOT = pathlib.Path(__file__).parents[2]
NAMES = ["a", "b", "c", "constant"]
EACH = 20  # candidates of a query


def made(num_queries: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Features, answers, queries, and the probability that the answers were drawn by: no regression has it."""
  rng = np.random.default_rng(seed)
  features = rng.normal(size=(num_queries * EACH, 4)).astype(np.float32)
  features[:, 3] = 0.1
  truth = sigmoid(features[:, 0] + 1.5 * np.sign(features[:, 1] * features[:, 2]) - 1)
  return features, rng.random(len(truth)) < truth, np.repeat(np.arange(num_queries), EACH), truth


def sigmoid(log_odds: np.ndarray) -> np.ndarray:
  return 1 / (1 + np.exp(-log_odds))


@pytest.fixture(scope="module")
def model():
  return fit(NAMES, *made(250)[:3])


# --- what it learns ---


def test_joining_and_calibrating_is_better_than_either_model(model):
  """On rows that it has not seen."""
  features, right, _, truth = made(400, seed=1)
  assert model.num_rows == 250 and model.features == NAMES
  probability = model.probabilities(features)
  assert probability.dtype == np.float32
  linear, trees = (log_loss(right, sigmoid(one)) for one in model.log_odds(features).T)
  joint = log_loss(right, probability)
  assert joint < trees < linear
  assert joint < log_loss(right, truth) + 0.03  # nobody is better than what the answers were drawn by
  for low in np.arange(0, 0.9, 0.2):  # what is said to be probable so often is so often right
    among = (probability >= low) & (probability < low + 0.2)
    assert among.sum() > 100 and abs(right[among].mean() - probability[among].mean()) < 0.06


def test_what_was_learnt_too_well_is_taken_back():
  """Trees that see noise alone are sure of it: joined with rows held out, nearly nothing is left."""
  rng = np.random.default_rng(0)
  features = rng.normal(size=(4000, 4)).astype(np.float32)
  right = rng.random(4000) < 0.3
  model = fit(NAMES, features, right, np.arange(4000) // EACH)
  other, answers = rng.normal(size=(4000, 4)).astype(np.float32), rng.random(4000) < 0.3
  alone = log_loss(answers, sigmoid(model.log_odds(other)[:, 1]))
  floor = log_loss(answers, np.full(4000, 0.3))
  assert alone > floor + 0.005 and log_loss(answers, model.probabilities(other)) < floor + 0.002


def saturated(num_queries: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """As `made`, but nearly all candidates are wrong, and none is right with more than 0.7."""
  rng = np.random.default_rng(seed)
  features = rng.normal(size=(num_queries * 100, 3)).astype(np.float32)
  truth = 0.7 * sigmoid(3 * features[:, 0] + features[:, 1] - 6)
  return features, rng.random(len(truth)) < truth, np.repeat(np.arange(num_queries), 100), truth


def test_first_labels_are_as_probable_as_predicted():
  """Even if few queries have many candidates; without calibration the mean errors are 0.16 and 0.12."""
  other, _, _, truth = saturated(1000, 9)
  for num_queries, seeds in ((40, 3), (100, 2)):
    errors = []
    for seed in range(seeds):
      found = fit(NAMES[:3], *saturated(num_queries, seed)[:3]).probabilities(other).reshape(1000, 100)
      first = found.argmax(axis=1) + 100 * np.arange(1000)
      errors.append(np.abs(found.ravel()[first] - truth[first]).mean())
    assert np.mean(errors) < 0.1


def test_calibration_leaves_the_order(model):
  """Its weights are positive, so that ranking and its metrics stay."""
  before = HybridModel(NAMES, [0, 0, 0, 1, 0], calibration=(1.2, 0.3, 0.5))
  features = np.zeros((200, 4), np.float32)
  features[:, 3] = np.linspace(-9, 9, 200)
  assert (np.diff(before.probabilities(features)) > 0).all() and (model._calibration[:2] > 0).all()
  p = sigmoid(features[:, 3].astype(np.float64))
  by_hand = sigmoid(1.2 * np.log(p) - 0.3 * np.log(1 - p) + 0.5)
  np.testing.assert_allclose(before.probabilities(features), by_hand, atol=1e-6)


@pytest.mark.parametrize("num_queries", [1, 5, 250])
def test_the_regression_has_a_prior_around_weights_of_other_data(num_queries):
  features, right, *_ = made(num_queries)
  names = ["memory_regression.score", "unheard", "log_frequency", "num_agreeing"]
  others = fixed(names).linear
  assert others[0] > 1 and others[1] == 0
  found = hybrid_model._fitted_regression(names, features, right)
  scale = np.append(features[:, :3].std(axis=0, dtype=np.float64), 1)
  expected = made_corpora.regression(features / scale, right, others[:-1] * scale, 30)
  np.testing.assert_allclose(found, expected / np.append(scale, 1), atol=1e-3)
  np.testing.assert_allclose(found[3], others[3])  # of a feature that was always the same nothing is learnt


def test_probabilities_are_of_the_weights_by_hand():
  model = HybridModel(["a", "b"], [2.0, -1.0, 0.5], joint=(0.5, 9.0, 1.0))
  found = model.probabilities(np.array([[1, 1], [0, 0], [1e6, 0], [-1e6, 0]], np.float32))
  np.testing.assert_allclose(found, [sigmoid(1.75), sigmoid(1.25), 1, 0], atol=1e-6)
  assert model.probabilities(np.zeros((0, 2), np.float32)).shape == (0,)


def test_a_model_that_would_count_below_0_is_left_out():
  rng = np.random.default_rng(0)
  right = rng.random(2000) < 0.5
  good = np.where(right, 1.0, -1.0) + rng.normal(size=2000)
  bad = -0.5 * np.where(right, 1.0, -1.0) + rng.normal(size=2000)
  for log_odds, left in (([bad, good], 1), ([good, bad], 0)):
    weights = hybrid_model._joint(np.stack(log_odds, axis=1), right)
    alone = LogisticRegression(tol=1e-6).fit(good[:, None], right)
    assert weights[1 - left] == 0
    np.testing.assert_allclose([weights[left], weights[2]], [alone.coef_[0, 0], *alone.intercept_], atol=0.01)


def test_answers_that_can_be_told_apart_warn_of_nothing():
  features, _, rows, _ = made(250)
  found = fit(NAMES, features, features[:, 0] > 0, rows).probabilities(features)
  assert np.isfinite(found).all() and log_loss(features[:, 0] > 0, found) < 0.05


# --- too few rows, or answers of one kind ---


def test_a_feature_that_differs_by_rounding_keeps_its_prior_weight():
  """As a cosine of 1 does where held-out queries are in the memory, too: other queries have other cosines."""
  features, right, rows, _ = made(5)
  cosine = np.float32(1) - np.float32(6e-8) * (np.random.default_rng(0).random(len(features)) < 0.5)
  features[:, 1] = np.where(right, cosine, 1)
  assert 0 < features[:, 1].std(dtype=np.float64) < 1e-7
  names = ["encoder.score", "nearest_cosine", "memory.score", "num_agreeing"]
  found, prior = fit(names, features, right, rows).linear, fixed(names).linear
  assert abs(found[1] - prior[1]) < 1e-3 and abs(prior[1]) > 0.1
  assert abs(found[0] - prior[0]) > 1e-3  # others are adapted


def test_few_queries_adapt_weights_of_other_data():
  names = feature_names(list(SOURCES))
  rng = np.random.default_rng(0)
  refreshed = rng.normal(size=(4000, len(names))).astype(np.float32)
  others = fixed(names).probabilities(refreshed)
  truth = sigmoid(2 * refreshed[:, 3].astype(np.float64) - 2)  # the fourth feature says all

  def fitted(num_queries: int, right=None) -> HybridModel:
    features = rng.normal(size=(num_queries * EACH, len(names))).astype(np.float32)
    drawn = rng.random(len(features)) < sigmoid(2 * features[:, 3] - 2)
    answers = drawn if right is None else np.full(len(features), right)
    return fit(names, features, answers, np.repeat(np.arange(num_queries), EACH))

  off = [np.abs(others - truth).mean()]
  for count in (5, 49, 50):
    found = fitted(count)
    assert found.num_rows == count and found.has_trees == (count >= 50)
    off.append(np.abs(found.probabilities(refreshed) - truth).mean())
  assert off[0] > off[1] > off[2] > off[3] and off[2] < off[0] / 2
  for nothing in (fitted(0), fitted(200, True), fitted(200, False)):
    assert nothing.num_rows == 0 and not nothing.has_trees
    np.testing.assert_allclose(nothing.probabilities(refreshed), others, atol=1e-6)


@pytest.mark.parametrize("answer", [True, False])
def test_no_trees_where_one_query_has_all_answers_of_a_kind(answer):
  """What is joined is fitted without it once, and has nothing to tell from then."""
  features, _, rows, _ = made(250)
  right = np.full(len(rows), not answer)
  right[rows == 7] = answer
  found = fit(NAMES, features, right, rows)
  assert found.num_rows == 250 and not found.has_trees
  assert abs(found.probabilities(features).mean() - right.mean()) < 0.01


def test_fixed_weights_know_every_feature():
  known = json.loads((ROOT / "xmc_jax" / "retrieval" / "fixed_weights.json").read_text())
  named = [name for name in feature_names(list(SOURCES)) if not name.startswith("classifier.")]
  assert sorted(known["weights"]) == sorted(named)
  assert np.isfinite([*known["weights"].values(), known["intercept"]]).all()
  none = fixed(["unheard", "of"]).probabilities(np.ones((3, 2), np.float32))
  np.testing.assert_allclose(none, sigmoid(known["intercept"]), atol=1e-6)


# --- the same bits ---


def test_what_is_saved_is_what_is_loaded(model, tmp_path):
  features = made(100, seed=3)[0]
  for number, one in enumerate((model, fixed(NAMES))):
    path = tmp_path / f"{number}.json"
    one.save(path)
    other = HybridModel.load(path)
    assert one.probabilities(features).tobytes() == other.probabilities(features).tobytes()
    assert one.log_odds(features).tobytes() == other.log_odds(features).tobytes()
    assert (other.features, other.num_rows) == (one.features, one.num_rows)
    assert other.has_trees == one.has_trees
    other.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
  assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json", "again.json"]


OLDER = {"format": hybrid_model._FORMAT, "version": 3}


@pytest.mark.parametrize(
  "damage, why",
  [
    (lambda whole: b"", "it was modified"),
    (lambda whole: b"\xff\xfe", "it was modified"),
    (lambda whole: whole[:-9], "it was modified"),
    (lambda whole: whole.replace(b"5", b"6", 1), "it was modified"),
    *((lambda _, other=other: other, "it was modified") for other in (b"[]", b"3", b"{}", b"[" * 100_000)),
    (lambda _: checksums.to_json(OLDER).encode(), "format version 3, and this program reads 4"),
  ],
)
def test_a_damaged_or_older_file_is_refused(model, tmp_path, damage, why):
  path = tmp_path / "hybrid.json"
  model.save(path)
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(UserError) as caught:
    HybridModel.load(path)
  remedy = "delete it, and it is fitted anew, or give --scores=encoder"
  assert str(caught.value) == f"{path}: not readable ({why}); {remedy}"


FIT = """
import sys, pathlib
sys.path[:0] = sys.argv[2:]
import hybrid_model_test as tests
tests.fit(tests.NAMES, *tests.made(900)[:3]).save(pathlib.Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_file(tmp_path):
  for threads in "14":
    variables = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    command = [sys.executable, "-W", "error", "-c", FIT, tmp_path / threads, ROOT, ROOT / "tests/retrieval"]
    subprocess.run(command, env={**os.environ, **variables}, check=True, timeout=120)
  assert (tmp_path / "1").read_bytes() == (tmp_path / "4").read_bytes()


def test_a_query_is_wholly_in_one_part(monkeypatch):
  """No model is asked about a query that it was fitted on."""
  features, right, rows, _ = made(250)
  features[:, 3] = rows  # so that a row tells its query
  fitted_on, asked = [], []

  def fitted(names, some, answers, has_trees):
    fitted_on.append({*some[:, 3].tolist()})
    return np.zeros(5), None

  class Spy(HybridModel):
    def log_odds(self, some):
      asked.append({*some[:, 3].tolist()})
      return np.random.default_rng(0).normal(size=(len(some), 2))

  monkeypatch.setattr(hybrid_model, "_fitted_models", fitted)
  monkeypatch.setattr(hybrid_model, "HybridModel", Spy)
  fit(NAMES, features, right, rows)
  assert len(asked) == 3 and set().union(*asked) == set(range(250))
  for seen, out in zip(fitted_on, asked):
    assert not seen & out and len(seen) + len(out) == 250
  assert len(fitted_on[-1]) == 250  # in the end, on all
