"""UniDEC and DEPSL: the loss in float64 from the formulas, what the parts reach, what ranks labels."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest
import tiny_runs
from loss_references import decoupled_softmax_row, pick_some_labels, softmax_row

from xmc_jax import refresh
from xmc_jax.cli import commands
from xmc_jax.distributed import sharding
from xmc_jax.errors import ConfigError
from xmc_jax.methods import unidec
from xmc_jax.methods.components import label_priors
from xmc_jax.retrieval import index
from xmc_jax.runs import run as runs
from xmc_jax.runs.model import Model

UNIDEC = tiny_runs.UNIDEC
ALL_LABELS = {"method.labels": "all", "method.num_hard_negatives": 0}
LOG_Q = {"method.log_q": True}
DEPSL = {**UNIDEC, "method.encoder_weight": 1.0}


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "unidec"
  settings = {**UNIDEC, "train.num_epochs": 12, "method.clusters_every_epochs": 6.0}
  commands.train_and_test(tiny_runs.config(data, **settings), workdir)
  return workdir


@pytest.fixture
def start(data, tmp_path):
  """Opens untrained runs: `(run, params, extra_state)`."""
  count = itertools.count()
  return lambda **overrides: tiny_runs.open_initial(
    data, tmp_path / f"run{next(count)}", **UNIDEC | overrides
  )


def _first_batch(run, params, extra_state):
  return run.batches.build(0, tiny_runs.renewed(run, params, extra_state)[0])


# --- the loss, from the formulas ---


def _vectors(run, params, texts):
  """Φ_D and Φ_C `[n, ...]` of texts in float64."""
  pooled, heads = tiny_runs.bag_means(run, params, texts), {}
  for name in ("text_head", "classifier_head"):
    if name in params:
      layer = params[name]["projection"]
      heads[name] = pooled @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)
  bent = np.tanh(heads["text_head"])
  return bent / np.linalg.norm(bent, axis=1, keepdims=True), heads.get("classifier_head")


def _reference(run, params, batch):
  """L of a batch; the pool's positives are looked up in the truth."""
  queries, raw = _vectors(run, params, run.data.train.tokens)
  texts, _ = _vectors(run, params, run.dataset.labels.tokens)
  columns, rows = (ids[ids >= 0] for ids in (batch.columns, batch.rows))
  of_pool = lambda pairs: pairs[rows][:, columns].toarray() > 0
  where = ~of_pool(run.data.train.filter)
  positives, setting = of_pool(run.data.train.truth) & where, run.config.method

  def both(kind, scores, weight):
    row = {"softmax": softmax_row, "decoupled_softmax": decoupled_softmax_row}[kind]
    value, turned = (
      pick_some_labels(row, *arrays)
      for arrays in ((scores, positives, where), (scores.T, positives.T, where.T))
    )
    return weight * value + (1 - weight) * turned

  less = np.zeros(tiny_runs.NUM_LABELS)
  if setting.log_q:  # a step has a leaf
    less = tiny_runs.log_inclusion(run, len(run.batches.rows) / run.batches.steps_per_epoch)
  by_text = queries[rows] @ texts[columns].T / 0.05 - less[columns]
  total = both(setting.loss, by_text, setting.encoder_query_weight if setting.symmetric else 1)
  if setting.encoder_weight == 1:
    return total
  table = np.asarray(params[unidec.TABLE], np.float64)
  scores = raw[rows] @ table[columns].T / setting.classifier_temperature
  prior = scores - math.log(positives.size / positives.sum())
  binary = (np.logaddexp(0, prior) - positives * prior)[where].sum() / len(rows)
  if setting.classifier_loss == "binary":  # over the pool, one way
    by_table = binary
  else:
    kind = setting.loss if setting.classifier_loss == "same" else setting.classifier_loss
    by_table = both(kind, scores, setting.classifier_query_weight if setting.symmetric else 1)
  by_table += setting.binary_weight * binary
  return setting.encoder_weight * total + (1 - setting.encoder_weight) * by_table


CASES = [
  {},
  {"method.loss": "softmax", "method.encoder_query_weight": 0.3, "method.classifier_query_weight": 0.9},
  {"method.symmetric": False, "method.encoder_weight": 0.7},
  {"method.binary_weight": 0.5, "method.classifier_loss": "softmax"},
  {"method.classifier_loss": "binary"},
  {"method.encoder_weight": 1.0},
  {"method.num_hard_negatives": 0, "method.pool_size": 40},
  {**LOG_Q, "method.num_hard_negatives": 0, "train.batch_size": 16},
  # All labels and positives, by text alone and one way: DEXML's decoupled softmax.
  {**ALL_LABELS, "method.num_positives": 0, "method.encoder_weight": 1.0, "method.symmetric": False},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unidec_is_its_formula(case, start):
  run, params, extra_state = start(**case)
  params = jax.tree.map(lambda leaf: 8 * leaf, params)  # tanh bends, and classifiers tell labels apart
  refreshed, _ = tiny_runs.renewed(run, params, extra_state)
  loss_of = jax.jit(lambda params, batch: tiny_runs.loss(run, params, extra_state, batch)[:2])
  for number in (0, 1):
    batch = jax.device_get(tiny_runs.placed_batch(run, number, refreshed))
    found, metrics = loss_of(params, batch)
    expected = _reference(run, params, batch)
    assert expected > 0.1 and float(found) == pytest.approx(expected, rel=1e-4)
    assert metrics["labels_in_pool"] == np.sum(batch.columns >= 0)
    in_pool = np.sum(batch.positives >= 0, axis=1)[batch.rows >= 0]
    assert metrics["positives_in_pool"] == pytest.approx(np.mean(in_pool))


@pytest.mark.parametrize("case", [(1, 0), (2, 0), (0, 0), (1, 14), (2, 19), (0, 14)], ids=str)
def test_log_q_is_the_log_of_how_often_a_label_is_in_a_pool(case, start, monkeypatch):
  """As 600 pools have it that a run samples: of some positives or all, filled up with the others or not."""
  positives, size = case
  settings = {"method.num_positives": positives, "method.pool_size": size, "method.num_hard_negatives": 0}
  taken, log_inclusion_of_pool = [], label_priors.log_inclusion
  monkeypatch.setattr(
    label_priors, "log_inclusion", lambda *given: taken.append(log_inclusion_of_pool(*given)) or taken[-1]
  )
  run, *_ = start(**{**settings, "method.log_q": True, "train.batch_size": 16})
  there = np.zeros(tiny_runs.NUM_LABELS)
  for number in range(600):
    columns = run.batches.build(number).columns
    there[columns[columns >= 0]] += 1 / 600
  found = np.exp(taken[-1])  # the run's own: its plan made the method, too
  np.testing.assert_allclose(found, there, atol=0.1)
  assert found.mean() == pytest.approx(there.mean(), abs=0.02)


@pytest.mark.slow
def test_what_a_pool_drops_is_counted_over_the_whole_run(start):
  run, params, extra_state = start(**{"method.pool_size": 30})
  refreshed, total = tiny_runs.renewed(run, params, extra_state)[0], np.zeros(2)
  for number in range(6):
    batch = run.batches.build(number, refreshed)
    _, metrics, extra_state = tiny_runs.loss(run, params, extra_state, batch)
    total += batch.dropped
    assert [metrics["dropped_negatives"], metrics["dropped_positives"]] == total.tolist()
  assert total[0] > 0


# --- what a step reaches ---


@pytest.mark.slow
def test_a_step_changes_the_classifiers_of_the_pool_and_no_other(start):
  run, params, extra_state = start(**{"method.binary_weight": 1.0})
  batch = _first_batch(run, params, extra_state)
  step = tiny_runs.train_step(run)
  state = step.first_state(params, extra_state)
  before = np.asarray(params[unidec.TABLE])
  state, _ = step(state, sharding.put_batch(batch, run.mesh))
  pool = set(batch.columns[batch.columns >= 0].tolist())
  assert 0 < len(pool) < tiny_runs.NUM_LABELS
  for array, old in (
    (state.params[unidec.TABLE], before),
    *((moment, 0) for moment in jax.tree.leaves(state.opt_state[1][unidec.TABLE]) if np.ndim(moment) == 2),
  ):
    changed = np.any(np.asarray(array) != old, axis=1)
    assert set(np.flatnonzero(changed).tolist()) == pool


@pytest.mark.slow
def test_the_encoder_learns_from_both_heads(start):
  """Each half reaches its own head, and the encoder below."""
  run, params, extra_state = start(**{"method.binary_weight": 1.0})
  batch = _first_batch(run, params, extra_state)

  @functools.partial(jax.jit, static_argnums=1)
  def part(params, name):
    return tiny_runs.loss(run, params, extra_state, batch)[1][name]

  by_text, by_table = (jax.grad(part)(params, name) for name in ("encoder_loss", "classifier_loss"))
  for gradient, head, other in ((by_text, "text", "classifier"), (by_table, "classifier", "text")):
    assert np.any(gradient["encoder"]["word"]) and np.any(gradient[f"{head}_head"]["projection"]["kernel"])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient[f"{other}_head"]))
  assert np.any(by_table[unidec.TABLE]) and not np.any(by_text[unidec.TABLE])


@pytest.mark.slow
def test_dropout_is_on_both_heads(start):
  run, params, extra_state = start(**{"encoder.embedding_dropout": 0.5})
  batch = _first_batch(run, params, extra_state)
  metrics = [tiny_runs.loss(run, params, extra_state, batch, key)[1] for key in range(3)]
  for name in ("encoder_loss", "classifier_loss"):
    assert len({float(of_key[name]) for of_key in metrics}) == 3


# --- refreshes ---


def test_clusters_and_hard_negatives_are_by_the_text_half(start):
  run, params, extra_state = start()
  params[unidec.TABLE] = 100 * np.random.default_rng(0).normal(size=params[unidec.TABLE].shape)
  refreshed, _ = tiny_runs.renewed(run, params, extra_state)
  known = (run.data.train.truth > 0).toarray() | (run.data.train.filter.toarray() > 0)
  queries = run.embedder.queries(params, extra_state, run.data.train.tokens)[:, :12]
  labels = run.embedder.labels(params, extra_state)[:, :12]
  scores = np.where(known, -np.inf, queries @ labels.T)
  nearest = np.sort(scores, axis=1)[:, ::-1][:, :8]
  np.testing.assert_allclose(np.take_along_axis(scores, refreshed["shortlist"], 1), nearest, rtol=1e-5)
  key = jax.random.fold_in(jax.random.key(run.config.train.seed), 0)
  rows = run.batches.rows
  expected = refresh.balanced_clusters(queries[rows], run.batches.steps_per_epoch, key=key)
  np.testing.assert_array_equal(refreshed["clusters"][rows], expected)
  assert set(refreshed["clusters"][np.setdiff1d(np.arange(len(queries)), rows)]) == {-1}


def test_refreshes_are_due_at_once_and_every_few_epochs(start):
  run, *_ = start(**{"method.clusters_every_epochs": 5.0, "method.shortlist_every_epochs": 5.0})
  per_epoch = run.batches.steps_per_epoch
  due = [step for step in range(11 * per_epoch) if refresh.due(run.method.refreshes, step, per_epoch)]
  assert due == [0, 5 * per_epoch, 10 * per_epoch]
  assert refresh.due(run.method.refreshes, 0, per_epoch) == ["clusters", "shortlist"]


# --- prediction ---


@pytest.mark.slow
def test_labels_are_ranked_by_both_halves_or_by_one(trained, data):
  best = runs.reopen(trained).trained()
  run = best.run
  queries, whole = best.queries(run.dataset.test.tokens), best.labels()
  halves = {view: best.labels(view) for view in ("encoder", "classifier")}
  assert queries.shape[1] == whole.shape[1] == 20
  for part in (queries, whole):
    np.testing.assert_allclose(np.linalg.norm(part[:, :12], axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(part[:, 12:], axis=1), 1, rtol=1e-5)
  np.testing.assert_allclose(sum(halves.values()), whole, atol=1e-6)
  assert not np.any(halves["encoder"][:, 12:]) and not np.any(halves["classifier"][:, :12])
  unit = np.asarray(best.params[unidec.TABLE][: tiny_runs.NUM_LABELS])
  unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
  np.testing.assert_allclose(halves["classifier"][:, 12:], unit, atol=1e-5)
  texts = list(run.dataset.test.texts[:5])
  for scores, vectors in (("", whole), ("fused", whole), *halves.items()):
    ids, found, _ = Model.load(trained, scores=scores).predict(texts, 4)
    expected = queries[:5] @ vectors.T
    np.testing.assert_allclose(found, np.sort(expected, axis=1)[:, ::-1][:, :4], rtol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(expected, ids, 1), found, rtol=1e-4)


@pytest.mark.slow
def test_depsl_has_no_classifiers(data, tmp_path):
  means = commands.train_and_test(tiny_runs.config(data, **DEPSL), tmp_path / "run")
  trained = runs.reopen(tmp_path / "run").trained()
  method = trained.run.method
  assert set(trained.params) == {"encoder", "text_head"} and not method.sparse_params and not method.scorers
  assert trained.labels().shape == (tiny_runs.NUM_LABELS, 12)
  assert means["P@1"] > 0.2  # by chance 0.04
  with pytest.raises(ConfigError, match="this run has no classifiers"):
    trained.ranker("classifier")


@pytest.mark.parametrize(
  "settings, message",
  [
    ({"method.encoder_weight": 1.0, "method.binary_weight": 1.0}, "binary_weight = 1.0 has no effect"),
    ({"method.classifier_dim": 0, "method.classifier_loss": "binary"}, "classifier_loss = 'binary' has no"),
    ({"method.symmetric": False, "method.encoder_query_weight": 0.1}, "query_weight = 0.1 has no effect"),
    ({**ALL_LABELS, "method.pool_size": 9}, "pool_size = 9 has no effect"),
    ({**ALL_LABELS, "method.log_q": True}, "log_q = True has no effect when .*'all'; .*log_q=False"),
    ({**LOG_Q, "method.positive_sampling": "inverse_propensity"}, "for uniform, and .* 'inverse_propensity'"),
    ({**LOG_Q, "train.relevance_weights": True}, "for uniform, and train.relevance_weights = True"),
  ],
  ids=str,
)
def test_what_cannot_be_is_refused(settings, message, start):
  with pytest.raises(ConfigError, match=message):
    start(**settings)


@pytest.mark.slow
def test_a_search_that_is_not_the_runs_own_has_a_report_of_its_own(trained, monkeypatch):
  monkeypatch.setattr(index, "_SMALLEST", 20)  # of labels that ScaNN is built for
  built, build = [], index._build
  monkeypatch.setattr(index, "_build", lambda *given: built.append(given) or build(*given))
  before = (trained / "report" / "metrics.json").read_text()
  commands.test(trained, scores="fused", backend="exact")  # as the run itself
  assert not built
  commands.test(trained, backend="scann")
  commands.test(trained, scores="encoder", backend="scann")
  assert (trained / "report" / "metrics.json").read_text() == before
  names = {path.name for path in (trained / "report").glob("metrics*.json")}
  assert names == {"metrics.json", "metrics_scann.json", "metrics_encoder_scann.json"} and built
  with pytest.raises(ConfigError, match=r"eval\.backend = 'hnsw' is not one of 'exact', 'scann', 'auto'"):
    Model.load(trained, backend="hnsw")
