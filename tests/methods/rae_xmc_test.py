"""RAE-XMC: its loss in float64 NumPy, what a batch says of shared labels, refusals, and runs ranked by it."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs

from xmc_jax.cli import commands
from xmc_jax.errors import UserError
from xmc_jax.methods.rae_xmc import memory_loss
from xmc_jax.retrieval.key_memory import UNCHOSEN, ChosenWeight, KeyMemory
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs import evaluate, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.runs.model import Model
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import run_folder

SETTINGS = tiny_runs.RAE_XMC
POINTS = {"method.point_positive_weight": 0.5, "method.clusters_first_epoch": 0.0}


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "rae_xmc"
  commands.train_and_test(tiny_runs.config(data, **SETTINGS), workdir)
  return workdir


@pytest.fixture(scope="module")
def weighted(trained, tmp_path_factory):
  """The run with a weight of 0.4; what is chosen is 0, as these texts are made of their labels' words."""
  workdir = tmp_path_factory.mktemp("weighted") / "rae_xmc"
  shutil.copytree(trained, workdir)
  ChosenWeight(0.4).save(workdir / run_folder.KEY_WEIGHT)
  return workdir


# --- the loss ---


def _reference(queries, labels, columns, rows, labels_of, sampled, excluded, temperature, weight, bias=None):
  """The losses of a batch, term by term.

  Columns and rows are numbers of labels and points, -1 for none. Each row has its labels, in the pool or not,
  {sampled label: weight}, and labels that its loss must not see; `bias` is of columns, then of rows.
  """
  found, bias = [], np.zeros(len(columns) + len(rows)) if bias is None else bias
  of_columns, of_rows = bias[: len(columns)], bias[len(columns) :]
  for i, query in enumerate(queries):
    if rows[i] < 0:
      found.append(0.0)
      continue
    others = [j for j in range(len(rows)) if j != i and rows[j] >= 0]
    partners = [j for j in others if labels_of[i] & labels_of[j]]
    negatives = [
      np.exp(query @ labels[c] / temperature + of_columns[c])
      for c, label in enumerate(columns)
      if label >= 0 and label not in labels_of[i] and label not in excluded[i]
    ]
    negatives += [np.exp(query @ queries[j] / temperature + of_rows[j]) for j in others if j not in partners]

    total = sum(negatives)

    def surprise(key, more, query=query, total=total):
      positive = np.exp(query @ key / temperature + more)
      return -np.log(positive / (positive + total))

    places = {columns.index(label): share for label, share in sampled[i].items()}
    by_label = sum(share * surprise(labels[c], of_columns[c]) for c, share in places.items())
    by_point = np.mean([surprise(queries[j], of_rows[j]) for j in partners]) if partners else by_label
    found.append((1 - weight) * by_label + weight * by_point)
  return np.array(found)


# Rows 0 and 1 sampled the same label, 7; rows 1 and 2 share label 9, which is not in the pool; row 3 is
# alone, and its filter pair is label 5; row 4 is padding.
COLUMNS, ROWS = [7, 5, -1, 3, 8, -1], [10, 11, 12, 13, -1]
LABELS_OF = [{7, 3}, {7, 9}, {9, 5}, {8}, set()]
SAMPLED = [{7: 0.5, 3: 0.5}, {7: 1.0}, {5: 1.0}, {8: 1.0}, {}]
EXCLUDED = [set(), set(), {3}, {5}, set()]


def _batch():
  def columns_of(ids):
    return [COLUMNS.index(label) for label in sorted(ids) if label in COLUMNS]

  def padded(lists, width, fill):
    return [list(row) + [fill] * (width - len(row)) for row in lists]

  positives = [columns_of(ids) for ids in LABELS_OF]
  weights = [
    [sampled.get(COLUMNS[column], 0.0) for column in row] for row, sampled in zip(positives, SAMPLED)
  ]
  batch = tiny_runs.pool_batch(
    COLUMNS,
    padded(positives, 3, -1),
    padded(weights, 3, 0.0),
    padded(map(columns_of, EXCLUDED), 2, -1),
    rows=ROWS,
  )
  shared = np.array([[bool(one & other) for other in LABELS_OF] for one in LABELS_OF])
  return batch._replace(shared=shared)


def _vectors(seed=0, scale=1.0):
  rng = np.random.default_rng(seed)
  queries, labels = rng.normal(size=(len(ROWS), 8)), rng.normal(size=(len(COLUMNS), 8))
  return [scale * each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, labels)]


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [0.04, 1.0])
@pytest.mark.parametrize("biased", [False, True])
def test_the_loss_is_its_formula(weight, temperature, biased):
  queries, labels = _vectors()
  bias = np.random.default_rng(1).normal(size=len(COLUMNS) + len(ROWS)) if biased else None
  expected = _reference(
    queries, labels, COLUMNS, ROWS, LABELS_OF, SAMPLED, EXCLUDED, temperature, weight, bias
  )  # fmt: skip
  found = memory_loss(
    queries.astype(np.float32), labels.astype(np.float32), _batch(),
    temperature=temperature, point_weight=weight, bias=bias,
  )  # fmt: skip
  np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
  assert found[4] == 0 and np.all(found[:4] > 0)


def test_by_hand():
  """All vectors are equal, so every term is e^0 over a count.

  Row 0 meets two labels that are not its own (5, 8) and two points that share none (2, 3): log 5. Row 1
  meets three (5, 3, 8) and one point (3): log 5. Row 2 meets two (7, 8; 3 is filtered) and two points (0, 3):
  log 5. Row 3 meets two (7, 3; 5 is filtered) and three points: log 6.
  """
  queries, labels = np.ones((5, 4)), np.ones((6, 4))
  expected = np.log([5, 5, 5, 6, 1])
  for weight in (0.0, 0.3):  # a point that shares a label has the same share
    found = memory_loss(queries, labels, _batch(), temperature=0.5, point_weight=weight)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_gradients_are_finite_and_none_reaches_padding(scale):
  queries, labels = (jnp.asarray(each, jnp.float32) for each in _vectors(scale=scale))

  def total(queries, labels):
    return jnp.sum(memory_loss(queries, labels, _batch(), temperature=0.04, point_weight=0.5))

  of_queries, of_labels = jax.grad(total, argnums=(0, 1))(queries, labels)
  assert np.isfinite(of_queries).all() and np.isfinite(of_labels).all()
  assert not of_queries[4].any() and not of_labels[jnp.array([2, 5])].any()
  assert np.all(np.abs(of_queries[:4]).sum(axis=1) > 0) or scale > 1


def _bias(run, columns):
  """-log q of the pool's labels, and of the batch's rows."""
  settings, size = run.config.method, run.config.train.batch_size
  others = settings.num_random_negatives + size * settings.num_hard_negatives
  of_labels = tiny_runs.log_inclusion(run, size, others)[np.maximum(columns, 0)]
  return -np.append(of_labels, np.full(size, np.log(size / len(run.batches.rows))))


@pytest.mark.parametrize("extra", [{}, POINTS, {"method.log_q": True}], ids=["paper", "points", "log_q"])
def test_the_method_is_its_formula(extra, data, tmp_path):
  run, params, extra_state = tiny_runs.open_initial(
    data, tmp_path / "run", **SETTINGS, **extra, **{"method.num_positives": 2}
  )
  queries = run.embedder.queries(params, extra_state, run.data.train.tokens).astype(np.float64)
  vectors = run.embedder.labels(params, extra_state).astype(np.float64)
  truth, filtered, settings = run.data.train.unfiltered_positives, run.data.train.filter, run.config.method
  loss_of = jax.jit(lambda batch: tiny_runs.loss(run, params, extra_state, batch)[:2])
  shortlist = np.random.default_rng(1).integers(0, tiny_runs.NUM_LABELS, (len(run.data.train), 8))
  for number in (0, run.batches.steps_per_epoch - 1):
    batch = run.batches.build(number, {"shortlist": np.where(truth.toarray()[
      np.arange(len(run.data.train))[:, None], shortlist] > 0, -1, shortlist).astype(np.int32)})  # fmt: skip
    columns, rows = batch.columns.tolist(), batch.rows.tolist()
    labels_of = [set(truth[row].indices.tolist()) if row >= 0 else set() for row in rows]
    sampled = [
      {columns[column]: share for column, share in zip(places, shares) if column >= 0 and share > 0}
      for places, shares in zip(batch.positives.tolist(), batch.weights.tolist())
    ]
    assert {len(row) for row in sampled} == {0, 1, 2} or number == 0
    out = [set(filtered[row].indices.tolist()) if row >= 0 else set() for row in rows]
    expected = _reference(
      queries[np.maximum(rows, 0)], vectors[np.maximum(columns, 0)], columns, rows, labels_of, sampled, out,
      settings.temperature, settings.point_positive_weight, _bias(run, columns) if settings.log_q else None,
    )  # fmt: skip
    real = np.array(rows) >= 0
    found, told = loss_of(batch)
    assert float(found) == pytest.approx(expected[real].mean(), rel=1e-4)
    partners = [
      sum(bool(one & other) for other in labels_of) - 1 for one, row in zip(labels_of, rows) if row >= 0
    ]
    assert float(told["points_sharing_a_label"]) == pytest.approx(np.mean(partners), rel=1e-6)


def test_batches_say_who_shares_a_label_also_of_one_that_was_not_sampled(data, tmp_path):
  run = tiny_runs.open_run(data, tmp_path / "run", **SETTINGS)
  batch, truth = run.batches.build(0), run.data.train.unfiltered_positives.toarray() > 0
  rows = truth[np.maximum(batch.rows, 0)] & (batch.rows >= 0)[:, None]
  np.testing.assert_array_equal(batch.shared, rows.astype(int) @ rows.T.astype(int) > 0)
  in_pool = np.zeros(truth.shape[1], bool)
  in_pool[batch.columns[batch.columns >= 0]] = True
  outside = rows & ~in_pool
  assert np.any(outside.astype(int) @ outside.T.astype(int) - np.diag(outside.sum(1)))
  assert tiny_runs.open_run(data, tmp_path / "other").batches.build(0).shared == ()


# --- settings ---


def test_points_as_positives_bring_clusters(data, tmp_path):
  alone = tiny_runs.open_run(data, tmp_path / "a", **SETTINGS).method
  points = tiny_runs.open_run(data, tmp_path / "b", **SETTINGS, **POINTS).method
  assert set(alone.refreshes) == {"shortlist"} and set(points.refreshes) == {"shortlist", "clusters"}
  assert alone.batch.cluster_size == 1 and points.batch.cluster_size == 4
  assert alone.key_temperature == 0.05 and alone.batch.shared
  without = {**SETTINGS, "method.num_hard_negatives": 0}
  assert not tiny_runs.open_run(data, tmp_path / "c", **without).method.refreshes


# --- ranking ---


def _parts(workdir):
  trained = runs.reopen(workdir).trained()
  return trained.run, trained.params, trained.extra_state


def _brute(run, params, extra_state, points, weight, queries):
  """`[n, L]` probabilities by the definition, in float64."""
  keys = [run.embedder.queries(params, extra_state, points.tokens), run.embedder.labels(params, extra_state)]
  scores = np.concatenate(keys).astype(np.float64) @ queries.T.astype(np.float64)
  truth = points.unfiltered_positives.toarray()
  votes = truth / truth.max() if run.config.train.relevance_weights else truth > 0
  values = np.concatenate([weight * votes, (1 - weight) * np.eye(tiny_runs.NUM_LABELS)])
  found = []
  for row in scores.T:
    nearest = np.argsort(-row)[: run.config.eval.num_keys]
    shares = np.exp(row[nearest] / run.config.method.temperature)
    found.append((shares / shares.sum()) @ values[nearest])
  return np.array(found)


@pytest.mark.parametrize("by_relevance", [False, True])
def test_a_run_ranks_by_the_memory_of_all_its_rows(by_relevance, weighted):
  run, params, extra_state = _parts(weighted)
  run.config.train.relevance_weights = by_relevance
  truth = run.dataset.train.unfiltered_positives
  truth.data = 1.0 + truth.indices
  queries = run.embedder.queries(params, extra_state, run.dataset.test.tokens)
  expected = _brute(run, params, extra_state, run.dataset.train, 0.4, queries)
  rank = functools.partial(
    Trained(run, params, extra_state).ranker(), Queries(queries, run.dataset.test.texts), 5
  )
  found = rank()
  np.testing.assert_allclose(found.scores, -np.sort(-expected, axis=1)[:, :5], rtol=1e-4)
  filtered = rank(exclude=run.dataset.test.filter)
  pairs = run.dataset.test.filter.tocoo()
  assert not any(label in filtered.ids[row] for row, label in zip(pairs.row, pairs.col)) and pairs.nnz
  assert len(run.dataset.train) == len(run.data.train) + len(run.data.validation)


def test_scores_encoder_are_label_texts_alone(weighted):
  run, params, extra_state = _parts(weighted)
  queries = run.embedder.queries(params, extra_state, run.dataset.test.tokens)
  labels = run.embedder.labels(params, extra_state)
  found = Trained(run, params, extra_state).ranker("encoder")(Queries(queries, run.dataset.test.texts), 5)
  np.testing.assert_allclose(found.scores, -np.sort(-queries @ labels.T, axis=1)[:, :5], atol=1e-5)


def test_the_weight_is_chosen_on_rows_that_have_no_key(trained, monkeypatch):
  run, params, extra_state = _parts(trained)
  given = {}

  class Spy(KeyMemory):
    def __init__(self, points, point_labels, labels, **settings):
      super().__init__(points, point_labels, labels, **settings)
      given.update(points=points, point_labels=point_labels)

    def choose_weight(self, queries, truth, metric, **more):
      given.update(queries=queries, truth=truth, metric=metric, **more)
      return super().choose_weight(queries, truth, metric, **more)

  monkeypatch.setattr(ranking, "KeyMemory", Spy)
  chosen = ranking.choose_key_weight(Trained(run, params, extra_state))
  train, validation = run.data.train, run.data.validation
  for name, split in (("points", train), ("queries", validation)):
    expected = run.embedder.queries(params, extra_state, split.tokens)
    np.testing.assert_allclose(given[name], expected, atol=1e-6)
  assert (given["point_labels"] != train.unfiltered_positives).nnz == 0
  assert (given["truth"] != validation.unfiltered_positives).nnz == 0
  assert (given["exclude"] != validation.filter).nnz == 0 and given["metric"] == "P@1"
  kept = ChosenWeight.load(trained / run_folder.KEY_WEIGHT, 1.0)
  assert kept == chosen and len(set(kept.values)) > 1


def test_the_test_table_is_by_the_memory_with_the_encoders_beside_it(trained):
  report = json.loads((trained / "report" / "metrics.json").read_text())
  run, params, extra_state = _parts(trained)
  split = run.dataset.test
  queries = run.embedder.queries(params, extra_state, split.tokens)
  for scores, found in (("fused", report["metrics"]), ("encoder", report["by_source"]["encoder"])):
    ranking = evaluate.rank_split(run, Trained(run, params, extra_state).ranker(scores), queries, split)
    assert evaluate.score(run, split, ranking) == pytest.approx(found)
  assert set(report["by_source"]) == {"encoder"}


def test_a_run_evaluated_by_another_weight(weighted):
  """`--mode=evaluate` ranks by the weight in the folder; figures by the encoder go to a file of their own."""
  by_memory, by_encoder = commands.test(weighted), commands.test(weighted, scores="encoder")
  files = [weighted / "report" / f"metrics{suffix}.json" for suffix in ("", "_encoder")]
  kept = [json.loads(path.read_text())["metrics"] for path in files]
  assert kept == [pytest.approx(by_memory), pytest.approx(by_encoder)] and by_memory != by_encoder


def test_a_weight_that_is_damaged_or_gone(trained, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(trained, workdir)
  path = workdir / run_folder.KEY_WEIGHT
  kept = path.read_text()
  path.write_text("{")
  with pytest.raises(UserError, match=r"key_weight\.json: not readable"):
    commands.test(workdir)
  path.unlink()
  expected = Model.load(trained).predict(["bama relt"], 5)
  assert Model.load(workdir).predict(["bama relt"], 5)[2] == expected[2]
  assert not path.exists()  # who predicts writes nothing
  run, params, extra_state = _parts(workdir)
  ranking.fit_own_scores(Trained(run, params, extra_state))
  assert path.read_text() == kept


def test_without_validation_rows_the_weight_is_the_usual_one(data, tmp_path):
  run, params, extra_state = tiny_runs.open_initial(
    data, tmp_path / "run", **SETTINGS, **{"data.num_validation": 0}
  )
  ranking.fit_own_scores(Trained(run, params, extra_state))
  assert ChosenWeight.load(run.workdir / run_folder.KEY_WEIGHT, 1.0) == ChosenWeight(UNCHOSEN)


def test_labels_that_are_not_reached_are_not_predicted(weighted, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(weighted, workdir)
  config = json.loads((workdir / "config.json").read_text())
  config["eval"]["num_keys"] = 1
  (workdir / "config.json").write_text(json.dumps(config))
  (tmp_path / "texts.txt").write_text("bama relt\n\n")
  ids, scores, names = Model.load(workdir).predict(["bama relt"], 20)
  reached = int(np.sum(ids >= 0))
  assert 0 < reached < 20 and len(names[0]) == reached and np.all(np.isneginf(scores[0, reached:]))
  commands.predict(workdir, str(tmp_path / "texts.txt"), str(tmp_path / "out.jsonl"), LabelRequest(20))
  lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
  assert len(lines[0]["labels"]) == reached and all(label["id"] >= 0 for label in lines[0]["labels"])


@pytest.mark.slow
def test_a_page_of_a_run_that_ranks_by_the_memory(data, tmp_path):
  workdir = tmp_path / "run"
  commands.train_and_test(
    tiny_runs.config(data, **SETTINGS, **{"eval.report_page": True, "train.num_epochs": 1}), workdir
  )
  page = (workdir / "report" / "index.html").read_text()
  told = page.partition("What scores tell")[2]
  assert "above every wrong one" in told and "above a random other one" not in told
