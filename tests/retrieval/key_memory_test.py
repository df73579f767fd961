"""The memory of keys: a dense float64 reference, what is left out, the weight's choice."""

import numpy as np
import pytest
import scipy.sparse as sp
from made_corpora import unit_vectors

from xmc_jax import metrics
from xmc_jax.errors import UserError
from xmc_jax.retrieval import key_memory
from xmc_jax.retrieval.key_memory import ChosenWeight, KeyMemory

N, L, D, Q, TAU = 70, 50, 6, 40, 0.2


@pytest.fixture
def rng():
  return np.random.default_rng(5)


@pytest.fixture
def parts(rng):
  """Points, their labels (every fifth has none), label vectors."""
  truth = rng.random((N, L)) < 0.06
  truth[::5] = False
  return (
    unit_vectors(rng, N, D),
    sp.csr_matrix(truth * rng.choice([0.25, 1], truth.shape).astype(np.float32)),
    unit_vectors(rng, L, D),
  )


def _dense(parts, queries, k, weight, num_keys, exclude=None):
  """Rankings as lists of (id, probability), by the definition, in float64, one query after the other."""
  points, truth, labels = (np.asarray(part.todense()) if sp.issparse(part) else part for part in parts)
  keys = np.concatenate([points, labels]).astype(np.float64)
  values = np.concatenate([weight * truth, (1 - weight) * np.eye(len(labels))])
  found = []
  for row, query in enumerate(queries.astype(np.float64)):
    scores, votes = keys @ query, values.copy()
    if exclude is not None:
      scores[len(points) + exclude[row].indices] = -np.inf
      votes[:, exclude[row].indices] = 0
    nearest = np.argsort(-scores, kind="stable")[:num_keys]
    nearest = nearest[np.isfinite(scores[nearest])]
    shares = np.exp(scores[nearest] / TAU)
    probability = (shares / shares.sum()) @ votes[nearest]
    order = [label for label in np.argsort(-probability, kind="stable") if probability[label] > 0]
    found.append([(int(label), probability[label]) for label in order[:k]])
  return found


def _assert_same(ranking, expected, k):
  assert ranking.ids.dtype == np.int32 and ranking.scores.dtype == np.float32
  for ids, scores, pairs in zip(ranking.ids, ranking.scores, expected, strict=True):
    assert len(ids) == k
    assert ids[: len(pairs)].tolist() == [label for label, _ in pairs]
    np.testing.assert_allclose(scores[: len(pairs)], [value for _, value in pairs], rtol=1e-4)
    assert np.all(ids[len(pairs) :] == -1) and np.all(np.isneginf(scores[len(pairs) :]))


@pytest.mark.parametrize("weight", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("num_keys", [1, 12, 500])
def test_ranking_is_the_softmax_over_the_nearest_keys(weight, num_keys, parts, rng):
  queries = unit_vectors(rng, Q, D)
  memory = KeyMemory(*parts, temperature=TAU, weight=weight, num_keys=num_keys)
  _assert_same(memory.rank(queries, 8), _dense(parts, queries, 8, weight, num_keys), 8)


def test_excluded_pairs_are_no_candidates(parts, rng):
  queries = unit_vectors(rng, Q, D)
  exclude = sp.csr_matrix(rng.random((Q, L)) < 0.2)
  memory = KeyMemory(*parts, temperature=TAU, weight=0.4, num_keys=15)
  found = memory.rank(queries, 8, exclude=exclude)
  _assert_same(found, _dense(parts, queries, 8, 0.4, 15, exclude), 8)
  assert not any(np.intersect1d(ids, exclude[row].indices).size for row, ids in enumerate(found.ids))


def test_more_labels_than_are_reached_or_than_there_are(parts, rng):
  queries = unit_vectors(rng, Q, D)
  for num_keys in (3, N + L):
    found = KeyMemory(*parts, temperature=TAU, num_keys=num_keys).rank(queries, L + 4)
    _assert_same(found, _dense(parts, queries, L + 4, 0.5, num_keys), L + 4)
  assert np.all(found.ids[:, L:] == -1) and np.all(found.ids[:, :L] >= 0)


def test_everything_excluded_or_nothing_asked(parts, rng):
  memory = KeyMemory(*parts, temperature=TAU, weight=0.5, num_keys=10)
  exclude = sp.csr_matrix(np.r_[np.ones((1, L)), np.zeros((2, L))])
  queries = unit_vectors(rng, 3, D)
  found = memory.rank(queries, 4, exclude=exclude)
  assert np.all(found.ids[0] == -1) and np.all(np.isneginf(found.scores[0]))
  _assert_same(found, _dense(parts, queries, 4, 0.5, 10, exclude), 4)
  assert memory.rank(np.zeros((0, D), np.float32), 4).ids.shape == (0, 4)


def test_points_without_labels_and_no_points_at_all(parts, rng):
  queries, none = unit_vectors(rng, Q, D), sp.csr_matrix((N, L))
  found = KeyMemory(parts[0], none, parts[2], temperature=TAU, num_keys=20).rank(queries, 5)
  _assert_same(found, _dense((parts[0], none, parts[2]), queries, 5, 0.5, 20), 5)
  empty = np.zeros((0, D), np.float32), sp.csr_matrix((0, L)), parts[2]
  by_text = KeyMemory(*empty, temperature=TAU).rank(queries, 5)
  np.testing.assert_array_equal(by_text.ids, np.argsort(-queries @ parts[2].T, axis=1)[:, :5])


def test_blocks_change_nothing(parts, rng, monkeypatch):
  queries, exclude = unit_vectors(rng, Q, D), sp.csr_matrix(rng.random((Q, L)) < 0.1)
  memory = KeyMemory(*parts, temperature=TAU, num_keys=15)
  expected = memory.rank(queries, 8, exclude=exclude)
  monkeypatch.setattr(key_memory, "_BLOCK", 7)
  found = memory.rank(queries, 8, exclude=exclude)
  np.testing.assert_array_equal(found.ids, expected.ids)
  np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize("metric", ["P@1", "R@10", "PSP@5"])
def test_the_weight_that_earns_most_is_chosen(metric, parts, rng, monkeypatch):
  queries, truth = unit_vectors(rng, Q, D), sp.csr_matrix((rng.random((Q, L)) < 0.1).astype(np.float32))
  exclude, propensity = sp.csr_matrix(rng.random((Q, L)) < 0.05), 1 + rng.random(L)
  memory, k = KeyMemory(*parts, temperature=TAU, num_keys=15), int(metric.split("@")[1])
  grid = (0.0, 0.25, 0.5, 1.0)
  monkeypatch.setattr(key_memory, "GRID", grid)
  chosen = memory.choose_weight(queries, truth, metric, exclude=exclude, inverse_propensity=propensity)
  earned = []
  for weight in grid:
    lists = [[label for label, _ in row] for row in _dense(parts, queries, k, weight, 15, exclude)]
    ids = np.array([row + [-1] * (k - len(row)) for row in lists])
    earned.append(metrics.evaluate(ids, truth, ks=(k,), inverse_propensity=propensity)[metric])
  assert chosen == ChosenWeight(grid[int(np.argmax(earned))], metric, tuple(earned))
  assert len(set(earned)) > 1


def test_no_rows_to_choose_on(parts):
  chosen = KeyMemory(*parts, temperature=TAU).choose_weight(np.zeros((0, D)), sp.csr_matrix((0, L)), "P@1")
  assert chosen == ChosenWeight(0.5)


def test_a_weight_is_kept(tmp_path):
  path = tmp_path / "key_weight.json"
  kept = ChosenWeight(0.35, "P@1", (0.25, 0.5))
  kept.save(path)
  assert ChosenWeight.load(path, 1.0) == kept


@pytest.mark.parametrize(
  "damaged", [b"", b"[]", b'{"weight": 0.5}', b'{"weight": 1.5, "metric": "", "values": []}']
)
def test_a_damaged_weight_is_one_line(damaged, tmp_path):
  path = tmp_path / "key_weight.json"
  path.write_bytes(damaged)
  with pytest.raises(UserError, match=r"key_weight\.json: not readable .*; delete it") as raised:
    ChosenWeight.load(path, 1.0)
  assert "\n" not in str(raised.value)
