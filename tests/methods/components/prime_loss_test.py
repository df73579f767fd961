"""PRIME's loss: pair by pair in plain Python, term by term, over devices, and where there is nothing."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs
from loss_references import dynamic_margin_row

from xmc_jax.distributed import sharding
from xmc_jax.methods.components import prime_loss, triplet_pairs

SETTINGS = {
  "loss": "dynamic_margin",
  "margin": 0.3,
  "margin_minimum": 0.1,
  "margin_maximum": 0.3,
  "margin_negatives": 3,
  "weight_temperature": 0.1,
  "differentiable_weights": False,
  "num_positives": 2,
  "triplet_positives": "sampled",
  "prototype_weight": 1.0,
  "text_weight": 1.0,
  "reverse_weight": 1.0,
  "regulariser_weight": 0.1,
  "regulariser_margin": 0.1,
  "regulariser_hinge": True,
}
DEVICE = sharding.make(1, 1)


def _unit(rng, *shape):
  vectors = rng.standard_normal(shape) + 1.5 * np.eye(*shape)[: shape[0]]
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _example(seed=0):
  """Six points and seven columns, the last ones padding; more positives than are sampled."""
  rng = np.random.default_rng(seed)
  batch = tiny_runs.pool_batch(
    columns=[4, 9, 2, 7, 30, 11, -1],
    positives=[[0, 1, 3], [0, -1, -1], [5, 4, -1], [2, 0, 5], [3, -1, -1], [-1, -1, -1]],
    weights=[[0.5, 0.5, 0], [1, 0, 0], [0, 1, 0], [0.5, 0, 0.5], [1, 0, 0], [0, 0, 0]],
    excluded=[[-1], [3], [-1], [-1], [0], [-1]],
    rows=[3, 8, 1, 0, 6, -1],
  )
  return batch, _unit(rng, 6, 5), _unit(rng, 7, 5), _unit(rng, 7, 5)


def _triplets(positive, negatives, settings):
  """Σ ω (s_n - s_p + m) of one positive; a fixed margin is one whose bounds are alike."""
  bounds = ("margin", "margin") if settings["loss"] == "margin" else ("margin_minimum", "margin_maximum")
  options = dict(zip(("minimum", "maximum"), (settings[name] for name in bounds)))
  options["weight_temperature"] = settings["weight_temperature"]
  labels = [1] + [0] * len(negatives)
  scores = np.array([positive, *negatives])
  return dynamic_margin_row(scores, labels, labels, num_negatives=settings["margin_negatives"], **options)[0]


def _reference(batch, queries, texts, prototypes, settings, picked=None):
  """PRIME's loss, from its words; `picked` are one column of each row, of prototypes and of texts."""
  by_text, by_prototype = queries @ texts.T, queries @ prototypes.T
  rows = [row for row in range(len(queries)) if batch.rows[row] >= 0]
  labels = [column for column in range(len(texts)) if batch.columns[column] >= 0]
  known = {(row, c) for row in rows for c in (*batch.positives[row], *batch.excluded[row]) if c >= 0}
  sampled = {(i, c): w for i in rows for c, w in zip(batch.positives[i], batch.weights[i]) if w > 0}

  carried = {(i, c): 1.0 for i in rows for c in batch.positives[i] if c >= 0}
  one_each = lambda columns: {(i, c): 1.0 for i, c in enumerate(columns) if c >= 0}
  of_prototypes, of_texts = map(one_each, picked) if picked else (sampled, sampled)

  def by_query(scores, pairs):
    losses = [
      w * _triplets(scores[i, p], [scores[i, c] for c in labels if (i, c) not in known], settings)
      for (i, p), w in pairs.items()
    ]
    return sum(losses) / len(rows)

  of_labels = {}
  for i, p in carried if picked else sampled:
    negatives = [by_text[j, p] for j in rows if (j, p) not in known]
    of_labels.setdefault(p, []).append(_triplets(by_text[i, p], negatives, settings))
  gaps = {"positive": [by_text[pair] - by_prototype[pair] for pair in of_prototypes], "negative": []}
  for i in rows:
    negatives = sorted((c for c in labels if (i, c) not in known), key=lambda c: -by_prototype[i, c])
    hardest = negatives[: settings["margin_negatives"]]
    gaps["negative"] += [by_prototype[i, c] - by_text[i, c] for c in hardest]
  regulariser = 0.0
  for found in gaps.values():
    found = [gap + settings["regulariser_margin"] for gap in found]
    found = [gap for gap in found if gap > 0 or not settings["regulariser_hinge"]]
    regulariser += sum(found) / len(found) / 2 if found else 0  # the average of its two halves
  return {
    "prototype_loss": by_query(by_prototype, of_prototypes),
    "text_loss": by_query(by_text, of_texts),
    "reverse_loss": sum(sum(x) / len(x) for x in of_labels.values()) / max(1, len(of_labels)),
    "regulariser": regulariser,
  }


def _total(batch, *vectors, mesh=DEVICE, key=0, **changes):
  return _program(mesh, key, tuple(changes.items()))(batch, *map(jnp.asarray, vectors))


@functools.cache
def _program(mesh, key, changes):
  info = types.SimpleNamespace(mesh=mesh)
  config = types.SimpleNamespace(method=types.SimpleNamespace(**SETTINGS | dict(changes)))
  return jax.jit(lambda *given: prime_loss.total(config, info, *given[1:], given[0], jax.random.key(key)))


_CHANGES = [
  {},
  {"loss": "margin"},
  {"margin_negatives": 100},
  {"regulariser_hinge": False},
  {"num_positives": 0, "weight_temperature": 1.0, "margin_minimum": 0.3, "margin_maximum": 0.9},
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("changes", _CHANGES, ids=str)
def test_the_loss_is_its_formula(changes, seed):
  batch, *vectors = _example(seed)
  expected = _reference(batch, *vectors, SETTINGS | changes)
  with jax.enable_x64(True):
    value, parts = _total(batch, *vectors, **changes)
  assert {name: float(part) for name, part in parts.items()} == pytest.approx(expected, rel=1e-6)
  total = sum((0.1 if name == "regulariser" else 1) * x for name, x in expected.items())
  assert float(value) == pytest.approx(total, rel=1e-6)
  assert all(expected.values())


@pytest.mark.parametrize("through", [True, False])
def test_the_gradient_goes_through_the_weights_where_it_is_asked_to(through):
  """Central differences of the formula, whose margins are fixed and whose weights move with the vectors."""
  batch, *vectors = _example()
  changes = {"loss": "margin", "weight_temperature": 0.5, "differentiable_weights": through}
  rng = np.random.default_rng(0)
  steps = [1e-6 * rng.standard_normal(x.shape) for x in vectors]

  def formula(sign):
    found = _reference(batch, *(x + sign * step for x, step in zip(vectors, steps)), SETTINGS | changes)
    return sum((0.1 if name == "regulariser" else 1) * part for name, part in found.items())

  with jax.enable_x64(True):
    slopes = jax.grad(lambda *given: _total(batch, *given, **changes)[0], (0, 1, 2))(*vectors)
  slope = sum(float(np.sum(np.asarray(of) * step)) for of, step in zip(slopes, steps))
  difference = (formula(1) - formula(-1)) / 2
  assert (slope == pytest.approx(difference, rel=1e-5)) == through


def test_released_pairs_are_one_of_all_positives_of_a_query_and_all_carriers_of_a_label():
  """Also those that were not sampled, each as likely; T(q, z) and T(q, h) have a sample of their own."""
  batch, *_ = _example()
  settings = types.SimpleNamespace(**SETTINGS | {"triplet_positives": "released"})
  make = jax.jit(jax.vmap(lambda key: triplet_pairs.of_batch(settings, batch, key)))
  pairs = jax.device_get(make(jax.random.split(jax.random.key(0), 3000)))
  for columns, weights in (pairs.of_prototypes, pairs.of_texts):
    assert columns.shape == weights.shape == (3000, 6, 1)
    np.testing.assert_array_equal(weights, columns >= 0)
    for row, positives in enumerate(batch.positives):
      wanted = positives[positives >= 0] if np.any(positives >= 0) else [-1]
      found, counts = np.unique(columns[:, row, 0], return_counts=True)
      assert found.tolist() == sorted(wanted)
      np.testing.assert_allclose(counts / 3000, 1 / len(wanted), atol=0.04)
  assert np.mean(pairs.of_prototypes[0][:, 0] == pairs.of_texts[0][:, 0]) == pytest.approx(1 / 3, abs=0.04)
  np.testing.assert_array_equal(pairs.of_labels[0][0], batch.positives)
  np.testing.assert_array_equal(pairs.of_labels[1][0], batch.positives >= 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_of_released_pairs_is_its_formula(seed):
  batch, *vectors = _example(seed)
  settings = SETTINGS | {"triplet_positives": "released"}
  with jax.enable_x64(True):
    pairs = triplet_pairs.of_batch(types.SimpleNamespace(**settings), batch, jax.random.key(seed))
    picked = [pair[0][:, 0].tolist() for pair in (pairs.of_prototypes, pairs.of_texts)]
    expected = _reference(batch, *vectors, settings, picked)
    _, parts = _total(batch, *vectors, triplet_positives="released", key=seed)
  assert {name: float(part) for name, part in parts.items()} == pytest.approx(expected, rel=1e-6)
  sampled = _reference(batch, *vectors, SETTINGS)
  assert abs(expected["reverse_loss"] - sampled["reverse_loss"]) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("positives", ["sampled", "released"])
@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2, 2)])
def test_the_loss_over_devices_is_that_of_one(shape, positives):
  batch, *vectors = _example()
  vectors = [np.pad(vectors[0], ((0, 2), (0, 0))), *(np.pad(x, ((0, 1), (0, 0))) for x in vectors[1:])]
  pad = lambda array, value: np.pad(array, ((0, 2), (0, 0)), constant_values=value)
  batch = batch._replace(
    rows=np.pad(batch.rows, (0, 2), constant_values=-1),
    columns=np.pad(batch.columns, (0, 1), constant_values=-1),
    positives=pad(batch.positives, -1),
    weights=pad(batch.weights, 0),
    excluded=pad(batch.excluded, -1),
  )
  devices = sharding.make(*shape)
  total = functools.partial(_total, batch, triplet_positives=positives)
  one = jax.value_and_grad(lambda *given: total(*given)[0], (0, 1, 2))
  many = jax.value_and_grad(lambda *given: total(*given, mesh=devices)[0], (0, 1, 2))
  for found, expected in zip(jax.tree.leaves(jax.jit(many)(*vectors)), jax.tree.leaves(one(*vectors))):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["prototype", "text", "reverse", "regulariser"])
def test_each_term_can_be_switched_off(name):
  batch, *vectors = _example()
  expected = _reference(batch, *vectors, SETTINGS)
  value, _ = _total(batch, *vectors, **{f"{name}_weight": 0.0})
  gone = next(part for part in expected if part.startswith(name))
  left = sum((0.1 if part == "regulariser" else 1) * x for part, x in expected.items() if part != gone)
  assert float(value) == pytest.approx(left, rel=1e-5)


@pytest.mark.slow
def test_without_violators_or_negatives_everything_is_zero():
  """All pairs apart; the same with prototypes far better than texts; then one label; then no rows at all."""
  queries = np.eye(2, 3)
  nothing_wrong = tiny_runs.pool_batch([5, 6], [[0], [1]], [[1], [1]], [[-1], [-1]])
  texts = np.array([[0.8, 0.0, 0.6], [0.0, 0.8, 0.6]])
  one_label = tiny_runs.pool_batch([5], [[0], [0]], [[1], [1]], [[-1], [-1]])
  no_rows = tiny_runs.pool_batch([-1, -1], [[-1], [-1]], [[0], [0]], [[-1], [-1]], rows=[-1, -1])
  better = np.array([[0.9, -0.9, 0.3], [-0.9, 0.9, 0.3]])
  further = np.array([[0.3, 0.1, 0.9], [0.1, 0.3, 0.9]])
  cases = [
    (nothing_wrong, queries, further, better),
    (nothing_wrong, queries, texts, np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]) / 2**0.5),
    (one_label, queries, texts[:1], texts[:1]),
    (no_rows, queries, texts, texts),
  ]
  # Of the second, a prototype scores 0.71 to its own point, and the text 0.8.
  regularisers = (0.0, (0.8 - 0.5**0.5 + 0.05) / 2, 0.1 / 2, 0.0)
  for (batch, *vectors), regulariser in zip(cases, regularisers, strict=True):
    changes = {"regulariser_margin": 0.05, "margin_minimum": 0.05} if batch is nothing_wrong else {}
    loss = functools.partial(_total, batch, **changes)
    gradients, parts = jax.grad(loss, (0, 1, 2), has_aux=True)(*map(jnp.asarray, vectors))
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)
    assert float(parts.pop("regulariser")) == pytest.approx(regulariser, abs=1e-6)
    assert not any(float(part) for part in parts.values())
