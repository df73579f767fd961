"""Every registered method goes through these; DEXML's loss also against a float64 reference."""

import itertools
import types

import jax
import loss_references
import numpy as np
import optax
import pytest
import tiny_runs

from xmc_jax import methods
from xmc_jax.cli import commands
from xmc_jax.runs.trained import Trained
from xmc_jax.training import loop
from xmc_jax.types import BatchSpec, Method, Refresh, Tokens

LABELS = ["all", "in_batch"]
SETTINGS = {"all": {}, "in_batch": {"method.num_random_negatives": 7, "method.num_positives": 2}}
_RAW = {"encoder.normalize": False, "method.temperature": 0.1, "method.allow_any_temperature": True}
_LISTED = {"method.shortlist_size": 8}
# What every method is put through: its settings, by a name for the test.
CASES = {
  "dexml-all": {"method.name": "dexml"},
  "dexml-soft_top_k": {"method.name": "dexml", "method.loss": "soft_top_k", "method.num_positives": 3},
  "dexml-in_batch": {"method.name": "dexml", "method.labels": "in_batch", **SETTINGS["in_batch"]},
  "dexml-hard": {"method.name": "dexml", "method.labels": "in_batch", "method.num_hard_negatives": 2},
  "dexml-fresh": {"method.name": "dexml", "method.labels": "in_batch", "method.num_fresh_negatives": 5},
  "dpr": {"method.name": "dpr"},
  "ance": {"method.name": "ance", **_LISTED},
  "ova": {
    "method.name": "ova",
    "method.loss": "binary",
    "method.labels": "table",
    "train.table_learning_rate": 0.1,
    **_RAW,
  },
}
_AT_ONCE = {"method.clusters_first_epoch": 0.0}
CASES |= {
  "ance-margin": {"method.name": "ance", **_LISTED, "method.loss": "margin"},
  "ngame": {**tiny_runs.NGAME, **_AT_ONCE},
  "dexa": {**tiny_runs.DEXA, **_AT_ONCE, "method.num_head_labels": 3},
  "classifier": {**tiny_runs.CLASSIFIER, **_AT_ONCE},
  "unidec": {
    **tiny_runs.UNIDEC,
    "method.binary_weight": 0.1,
    "method.pool_size": 48,
    "train.table_learning_rate": 0.2,
  },
  "depsl": {
    **tiny_runs.UNIDEC,
    "method.encoder_weight": 1.0,
    "method.num_hard_negatives": 0,
    "method.pool_size": 40,
  },
  "prime": {**tiny_runs.PRIME, **_AT_ONCE, "method.prototype_dropout": 0.0, "method.num_head_labels": 3},
  "ramen": {
    **tiny_runs.RAMEN,
    "method.base": "ance",
    "method.clusters_first_epoch": 10.0,  # its default: the base has none
    "method.num_hard_negatives": 2,
    **_LISTED,
  },
  "rae_xmc": {**tiny_runs.RAE_XMC, "method.num_positives": 2, "method.shortlist_first_epoch": 0.0},
}
CASES["ramen-dexml"] = {
  **CASES["ramen"],
  "method.base": "dexml",
  "method.loss": "decoupled_softmax",
  "method.labels": "all",
  "method.num_hard_negatives": 0,
  "method.shortlist_size": 100,
}
CASES["rae_xmc-points"] = {**CASES["rae_xmc"], **_AT_ONCE, "method.point_positive_weight": 0.5}
# A method without a case above goes through the checks as it comes.
CASES |= {
  name: {"method.name": name}
  for name in methods.names()
  if name not in {settings["method.name"] for settings in CASES.values()}
}
ROWS = {"table": 60, "classifiers": 60, "auxiliary": 11, "free_vectors": 11}
EACH = pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
# Those that also run over meshes of which one axis is split: a plain encoder, and one with classifiers.
EVERY_MESH = (CASES["dexml-all"], CASES["unidec"])


@pytest.fixture(scope="module")
def encoder_run(graph_data, tmp_path_factory):
  """A finished run, for methods that stand on one."""
  workdir = tmp_path_factory.mktemp("encoder") / "run"
  commands.train_and_test(tiny_runs.config(graph_data, **CASES["ngame"], **{"train.num_epochs": 1}), workdir)
  return workdir


@pytest.fixture
def make_run(graph_data, tmp_path, request):
  count = itertools.count()

  def make(**overrides):
    if overrides.get("method.name") == "classifier":
      overrides |= {"init_from": str(request.getfixturevalue("encoder_run")), "data.path": ""}
    return tiny_runs.open_run(graph_data, tmp_path / f"run{next(count)}", **overrides)

  return make


def test_a_refresh_for_batches_that_no_batch_reads_is_refused(monkeypatch):
  refreshes = {"clusters": Refresh(1.0, print), "means": Refresh(1.0, print)}
  made = Method(None, None, None, None, BatchSpec(), (), refreshes)
  config = methods.default_config()
  monkeypatch.setattr(methods, "_file", lambda name: types.SimpleNamespace(make=lambda *_: made))
  with pytest.raises(ValueError, match=r"'means'.*target=EXTRA_STATE"):
    methods.make(config, None)


def _start(run, total_steps=40, **changes):
  step = tiny_runs.train_step(run, total_steps, **changes)
  state = step.first_state(*run.initial_parameters())
  Trained(run, state.params, state.extra_state).freeze_queries()
  refreshed, extra_state = tiny_runs.renewed(run, state.params, state.extra_state)
  return step, state._replace(extra_state=extra_state), refreshed


def _loss_and_gradient(run, params, extra_state, batch):
  def loss(params):
    return run.method.loss(params, extra_state, batch, jax.random.key(3))[0]

  return jax.jit(jax.value_and_grad(loss))(tiny_runs.with_rows(run, params, extra_state, batch))


def _assert_close(found, expected, tolerance):
  largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
  for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(np.asarray(left), np.asarray(right), atol=tolerance * largest)


@pytest.mark.slow
@EACH
def test_the_loss_falls_in_one_program_with_donated_state(settings, make_run):
  run = make_run(**settings | {"encoder.embedding_dropout": 0.0})  # its noise is as large as what is learnt
  step, state, refreshed = _start(run)
  losses = []
  for number in range(4 * run.batches.steps_per_epoch):
    before = state
    state, metrics = step(state, tiny_runs.placed_batch(run, number, refreshed))
    losses.append(float(metrics["loss"]))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params))
  per_epoch = np.array(losses).reshape(4, -1).mean(1)
  assert per_epoch[-1] < 0.8 * per_epoch[0]
  assert step.num_programs == 1
  assert int(state.step) == len(losses)


@pytest.mark.slow
@EACH
def test_padding_changes_nothing(settings, make_run):
  run = make_run(**settings | {"encoder.embedding_dropout": 0.0})
  _, state, refreshed = _start(run)
  params, extra_state = state.params, state.extra_state
  last = run.batches.build(run.batches.steps_per_epoch - 1, refreshed)
  real = last.rows >= 0
  assert 0 < real.sum() < len(real)
  static = loop.static_labels(run.batches, run.mesh)
  loss, gradient = _loss_and_gradient(run, params, extra_state, last._replace(**static))

  # The same rows without padding.
  edges = np.cumsum([len(group.ids) for group in last.queries])[:-1]
  queries = [
    Tokens(group.ids[keep], group.lengths[keep]) for group, keep in zip(last.queries, np.split(real, edges))
  ]
  short = last._replace(
    rows=last.rows[real],
    queries=tuple(group for group in queries if len(group.ids)),
    **{name: getattr(last, name)[real] for name in ("positives", "excluded", "weights")},
    vectors=last.vectors[real] if run.method.batch.frozen else (),
    sampled_anchors={
      side: _without_padding(links, side, real) for side, links in last.sampled_anchors.items()
    },
    shared=last.shared[real][:, real] if run.method.batch.shared else (),
    **static,
  )
  expected, expected_gradient = _loss_and_gradient(run, params, extra_state, short)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  _assert_close(gradient, expected_gradient, 1e-5)

  # Words in padding rows and padding columns.
  columns = np.asarray(static.get("columns", last.columns))
  noisy = last._replace(**static)
  noisy = noisy._replace(columns=columns, labels=_fill(noisy.labels, columns < 0))
  noisy = noisy._replace(
    queries=_fill(last.queries, ~real),
    sampled_anchors={
      side: links._replace(anchors=_fill(links.anchors, links.columns < 0))
      for side, links in last.sampled_anchors.items()
    },
  )
  if run.method.batch.frozen:
    noisy = noisy._replace(vectors=np.where(real[:, None], last.vectors, 7))
  found, found_gradient = _loss_and_gradient(run, params, extra_state, noisy)
  np.testing.assert_allclose(found, loss, rtol=1e-6)
  _assert_close(found_gradient, gradient, 1e-6)


def _without_padding(links, side, real):
  """A side's rows that are some, in a batch that has the real rows alone."""
  kept = links.rows >= 0
  rows = links.rows[kept]
  rows = (np.cumsum(real) - 1)[rows] if side.endswith("_query") else rows
  return links._replace(rows=rows, positives=links.positives[kept], weights=links.weights[kept])


def _fill(groups, padding):
  """The groups with words in the rows that are padding."""
  filled, at = [], 0
  for group in groups:
    ids, lengths = np.array(group.ids), np.array(group.lengths)
    here = padding[at : at + lengths.size].reshape(lengths.shape)
    ids[here], lengths[here] = 17, ids.shape[-1]
    filled.append(Tokens(ids, lengths))
    at += lengths.size
  return tuple(filled)


@pytest.mark.slow
@EACH
def test_meshes_agree(settings, make_run):
  """Loss and parameters after two steps agree to 1e-5 of the largest one; 60 labels on 8 devices.

  Steps are plain gradient descent, but for tables: where the parts of a gradient cancel, what is left is
  rounding, which depends on the order of summing, and which Adam would divide by its own size.
  """
  found = []
  one_axis = ((2, 1), (1, 4)) if settings in EVERY_MESH else ()
  for data, label in ((1, 1), *one_axis, (2, 4)):
    # Chunks of the gradient cache are so small that there are several on every mesh.
    changes = {"mesh.data": data, "mesh.label": label, "encoder.embedding_dropout": 0.0}
    chunks = (
      {"method.label_chunk": 3} if "label_chunk" in methods.SETTINGS[settings["method.name"]].keys else {}
    )
    run = make_run(**settings | changes | chunks)
    step, state, refreshed = _start(run, dense=optax.sgd(1.0))
    for number in range(2):
      state, metrics = step(state, tiny_runs.placed_batch(run, number, refreshed))
    assert all(len(leaf.sharding.device_set) == data * label for leaf in jax.tree.leaves(state))
    assert step.num_programs == 1
    params = jax.device_get(state.params)
    for name, rows in ROWS.items():  # the rest is padding
      if name in params:
        params[name] = params[name][:rows]
    found.append((params, float(metrics["loss"])))
  for params, loss in found[1:]:
    _assert_close(params, found[0][0], 1e-5)
    assert loss == pytest.approx(found[0][1], rel=1e-5)


# --- losses of a batch against their formulas, in float64 ---


@pytest.fixture(scope="module")
def filtered(tmp_path_factory):
  """A tiny data set with many filter pairs, of true labels and of others."""
  folder = tiny_runs.write_data(tmp_path_factory.mktemp("filtered") / "data")
  rng = np.random.default_rng(3)
  pairs = zip(np.repeat(np.arange(200), 6), rng.integers(0, tiny_runs.NUM_LABELS, 1200))
  lines = sorted({f"{row} {label}\n" for row, label in pairs})
  (folder / "filter_labels_train.txt").write_text("".join(lines))
  return folder


def _reference(loss, scores, weights, true, real):
  """One row. Scores `[S]`, weights `[S]` of the sampled positives, true and real `[S]` boolean.

  Of the positives that were not sampled, softmax has all in its denominator (DEXML, eq. 4); decoupled softmax
  (eq. 5) and SoftTop-k see none of them.
  """
  if loss == "soft_top_k":
    seen = real & (~true | (weights > 0))
    return -weights[seen] @ np.log(loss_references.soft_top_k(scores[seen], _K, _ALPHA))
  row = {
    "decoupled_softmax": loss_references.decoupled_softmax_row,
    "softmax": loss_references.softmax_row,
    "binary": loss_references.binary_row,
  }[loss]
  return row(scores[real], true[real], weights[real])[0]


_K, _ALPHA = 2.0, 1.5
_DEXML = [
  *itertools.product(LABELS, [1, 0], [{}]),
  ("all", 0, {"method.log_prior": 0.7}),
  ("in_batch", 2, {"method.log_prior": 0.7, "method.log_q": True}),
  ("all", 0, {"method.binary_prior": False}),
]
_BASELINES = {"dpr": _RAW, "ance": {}, "ova": {**CASES["ova"], "method.temperature": 0.5}}


def _bias(run):
  """c `[L]`: τ' log(1 + n) - log q."""
  counts, settings = (run.data.train.unfiltered_positives > 0).sum(axis=0), run.config.method
  log_q = tiny_runs.log_inclusion(run, run.config.train.batch_size)
  log_counts = np.log(1 + np.asarray(counts).ravel())
  return settings.get("log_prior", 0) * log_counts - settings.get("log_q", 0) * log_q


@pytest.mark.parametrize("loss", ["decoupled_softmax", "softmax", "soft_top_k", "binary"])
@pytest.mark.parametrize("labels, num_positives, priors", _DEXML)
def test_dexml_is_its_formula(loss, labels, num_positives, priors, filtered, tmp_path):
  settings = {"method.loss": loss, "method.labels": labels, "method.num_positives": num_positives, **priors}
  _assert_formula(filtered, tmp_path, **settings, **{"method.k": _K, "method.alpha": _ALPHA})


@pytest.mark.parametrize("name", _BASELINES)
def test_baselines_are_their_formulas(name, filtered, tmp_path):
  """DPR and ANCE: softmax over the pool; OvA: binary cross-entropy over all labels, by its table."""
  _assert_formula(filtered, tmp_path, **{"method.name": name, **_BASELINES[name]})


def _assert_formula(data, folder, **settings):
  settings["encoder.embedding_dropout"] = 0.0
  run, params, extra_state = tiny_runs.open_initial(data, folder / "run", **settings)
  queries = run.embedder.queries(params, extra_state, run.data.train.tokens).astype(np.float64)
  vectors = run.embedder.labels(params, extra_state).astype(np.float64)[:, : queries.shape[1]]
  truth, filtered = run.data.train.truth.toarray() > 0, run.data.train.filter.toarray()
  loss_of = jax.jit(lambda batch: run.method.loss(params, extra_state, batch, jax.random.key(0))[0])
  refreshed, _ = tiny_runs.renewed(run, params, extra_state)
  num_filtered, bias, loss = 0, _bias(run), run.config.method.loss
  for number in (0, run.batches.steps_per_epoch - 1):
    batch = run.batches.build(number, refreshed)
    batch = batch._replace(**loop.static_labels(run.batches, run.mesh))
    columns = np.asarray(batch.columns)
    at, expected = np.maximum(columns, 0), []
    prior = 0.0
    if loss == "binary" and run.config.method.get("binary_prior"):  # log(S / P)
      known = np.asarray(batch.positives)[batch.rows >= 0]
      prior = np.log(np.sum(columns >= 0) * len(known) / np.sum(known >= 0))
    for row, positives, weights in zip(batch.rows, batch.positives, batch.weights):
      if row < 0:
        continue
      scores = vectors[at] @ queries[row] / run.config.method.temperature + bias[at] - prior
      dense = np.zeros(len(columns))
      dense[positives[positives >= 0]] = weights[positives >= 0]
      out = filtered[row, at]
      num_filtered += int(np.sum(out & (columns >= 0)))
      true = truth[row, at] & ~out
      expected.append(_reference(loss, scores, dense, true, (columns >= 0) & ~out))
    assert float(loss_of(batch)) == pytest.approx(np.mean(expected), rel=1e-5)
  assert num_filtered > 0


def test_one_vs_all_expects_one_label_of_a_point_at_first(data, tmp_path):
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "run", **CASES["ova"])
  table = params["table"][: tiny_runs.NUM_LABELS]
  np.testing.assert_allclose(table[:, -1], -0.1 * np.log(tiny_runs.NUM_LABELS), rtol=1e-6)
  assert 0.015 < table[:, :-1].std() < 0.025
  np.testing.assert_array_equal(Trained(run, params, extra_state).snapshot().queries[:, -1], 1)


def test_sampled_label_gradients(data, tmp_path):
  """The loss is the same; of the gradient, a quarter of the labels give their part, on average the whole."""
  settings = {"method.labels": "all", "method.label_gradients": 0.25, "encoder.embedding_dropout": 0.0}
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "run", **settings)
  whole = tiny_runs.open_run(data, tmp_path / "whole", **{**settings, "method.label_gradients": 1.0})
  batch = tiny_runs.placed_batch(run, 0)

  def value_and_gradient(run):
    of_key = lambda params, key: run.method.loss(params, extra_state, batch, key)[0]
    return jax.jit(jax.value_and_grad(of_key))

  expected, exact = value_and_gradient(whole)(params, jax.random.key(0))
  sampled, found = value_and_gradient(run), []
  for key in jax.random.split(jax.random.key(1), 300):
    value, gradient = sampled(params, key)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    found.append(gradient["encoder"]["word"])
  exact, found = np.asarray(exact["encoder"]["word"]), np.asarray(found, np.float64)
  error = np.sqrt(((found.mean(axis=0) - exact) ** 2).sum() / (exact**2).sum())
  spread = np.sqrt(found.var(axis=0).sum() / (exact**2).sum())
  assert error < 2 * spread / np.sqrt(len(found)) and 0.05 < spread < 1
