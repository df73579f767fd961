"""NGAME, DEXA and their classifiers: the formulas in float64, the clusters, what may be combined."""

import json
import shutil

import jax
import numpy as np
import pytest
import tiny_runs
from loss_references import margin_row

from xmc_jax import methods, refresh
from xmc_jax.cli import commands
from xmc_jax.distributed import sharding
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.methods.components import label_clusters, refreshes
from xmc_jax.runs import create, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.model import Model
from xmc_jax.runs.trained import Trained
from xmc_jax.types import DatasetInfo

_FEW = {"method.margin_negatives": 4, "method.clusters_every_epochs": 1.0}
NGAME = {**tiny_runs.NGAME, **_FEW}
DEXA = {**tiny_runs.DEXA, **_FEW}
CLASSIFIER = {
  **tiny_runs.CLASSIFIER,
  **_FEW,
  "method.margin": 0.2,
  "method.margin_positives": 2,
  "method.weight_temperature": 1.0,
  "train.table_learning_rate": 0.01,
}


@pytest.fixture(scope="module")
def encoder_run(data, tmp_path_factory):
  """The folder of a finished run of DEXA."""
  workdir = tmp_path_factory.mktemp("runs") / "dexa"
  commands.train_and_test(tiny_runs.config(data, **DEXA), workdir)
  return workdir


@pytest.fixture(scope="module")
def classifier_run(data, encoder_run, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "classifier"
  settings = {**CLASSIFIER, "init_from": str(encoder_run), "data.path": "", "eval.num_candidates": 20}
  commands.train_and_test(tiny_runs.config(data, **settings), workdir)
  return workdir


# --- the loss of a batch ---


def _expected(run, batch, queries, labels):
  """The mean over a batch's rows. Queries `[N, D]` and labels `[L, D]` are whole tables."""
  truth, filtered = (pairs.toarray() > 0 for pairs in (run.data.train.truth, run.data.train.filter))
  settings, losses = run.config.method, []
  options = {"margin": settings.margin, "num_negatives": settings.margin_negatives}
  options |= {"num_positives": settings.margin_positives, "weight_temperature": settings.weight_temperature}
  for row, positives, weights in zip(batch.rows, batch.positives, batch.weights):
    if row < 0:
      continue
    pool = batch.columns[(batch.columns >= 0) & ~filtered[row, batch.columns]]
    sampled = np.isin(pool, batch.columns[positives[weights > 0]])
    weights = sampled / max(1, sampled.sum())
    loss = margin_row(labels[pool] @ queries[row], truth[row, pool], weights, **options)
    if settings.margin_mean == "all":  # one divisor for every row
      num_positives = settings.margin_positives or settings.num_positives
      loss *= min(sampled.sum(), num_positives) / num_positives
      loss *= min((~truth[row, pool]).sum(), settings.margin_negatives) / settings.margin_negatives
    losses.append(loss)
  return np.mean(losses)


def _unit(vectors):
  vectors = np.asarray(vectors, np.float64)
  return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


@pytest.mark.parametrize("num_positives", [1, 0])
def test_ngame_is_its_formula(num_positives, data, tmp_path):
  run, params, extra_state = tiny_runs.open_initial(
    data, tmp_path / "run", **NGAME, **{"method.num_positives": num_positives}
  )
  queries, labels = (
    run.embedder.queries(params, extra_state, run.data.train.tokens),
    run.embedder.labels(params, extra_state),
  )
  loss_of = jax.jit(lambda batch: tiny_runs.loss(run, params, extra_state, batch)[0])
  for number in (0, run.batches.steps_per_epoch - 1):  # the last one has padding
    batch = run.batches.build(number)
    expected = _expected(run, batch, _unit(queries), _unit(labels))
    assert expected > 0.01 and float(loss_of(batch)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("unit_texts", [True, False])
def test_dexa_is_ngame_on_augmented_labels(unit_texts, data, tmp_path):
  settings = {**DEXA, "method.unit_texts": unit_texts, "method.num_head_labels": 3}
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "run", **settings)
  params["encoder"] = jax.tree.map(lambda leaf: 30 * leaf, params["encoder"])  # lengths that matter
  _, extra_state = tiny_runs.renewed(run, params, extra_state, "label_cluster")
  table, clusters = np.asarray(params["auxiliary"], np.float64), np.asarray(extra_state["label_cluster"])

  label_texts = tiny_runs.bag_means(run, params, run.dataset.labels.tokens)
  labels = _unit((_unit(label_texts) if unit_texts else label_texts) + table[clusters])
  queries = _unit(tiny_runs.bag_means(run, params, run.data.train.tokens))
  np.testing.assert_allclose(run.embedder.labels(params, extra_state), labels, atol=1e-5)
  batch = run.batches.build(1)
  found = tiny_runs.loss(run, params, extra_state, batch)[0]
  assert float(found) == pytest.approx(_expected(run, batch, queries, labels), rel=1e-4)


def test_without_clusters_dexa_is_ngame(data, tmp_path):
  def loss_and_gradient(name, settings):
    run = tiny_runs.open_run(data, tmp_path / name, **settings)
    params, extra_state = run.initial_parameters()
    batch = run.batches.build(0)
    return jax.value_and_grad(lambda params: tiny_runs.loss(run, params, extra_state, batch)[0])(params)

  one = loss_and_gradient("ngame", NGAME)
  other = loss_and_gradient("dexa", {**DEXA, "method.num_label_clusters": 0})
  for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_array_equal(left, right)


def test_label_frequency_is_in_dexas_scores_as_in_ngames(data, tmp_path):
  losses, encoder = [], None
  priors = {
    "method.loss": "softmax",
    "method.log_prior": 0.7,
    "method.log_q": True,
    "encoder.normalize": True,
  }
  for settings in (NGAME, DEXA):
    run = tiny_runs.open_run(data, tmp_path / settings["method.name"], **settings | priors)
    params, extra_state = run.initial_parameters()
    batch, encoder = run.batches.build(0), encoder or params["encoder"]
    params |= {"encoder": encoder, "auxiliary": np.zeros((len(batch.columns), 16))}
    losses.append(float(run.method.loss(params, extra_state, batch, jax.random.key(1))[0]))
  assert losses[0] == pytest.approx(losses[1], rel=1e-5)


# --- clusters of points ---


def test_clusters_double_by_the_epoch():
  settings = methods.default_config("ngame").method
  assert [refreshes.cluster_size(settings, epoch) for epoch in (0, 9, 10, 24, 25, 199, 200, 300)] == [
    4, 4, 8, 8, 16, 512, 1024, 1024,
  ]  # fmt: skip


@pytest.mark.slow
def test_batches_are_made_of_clusters_of_points_with_labels(data, tmp_path):
  run = tiny_runs.open_run(data, tmp_path / "run", **NGAME)
  assert run.method.batch.cluster_size == 4
  params, extra_state = run.initial_parameters()
  clusters = tiny_runs.renewed(run, params, extra_state, "clusters", step=6)[0]["clusters"]
  with_labels = np.diff(run.data.train.truth.indptr) > 0
  assert np.all((clusters >= 0) == with_labels)
  sizes = np.bincount(clusters[with_labels])
  assert sizes.max() <= 4 and len(sizes) == 64 and sizes.max() - sizes.min() <= 1
  queries = _unit(run.embedder.queries(params, extra_state, run.data.train.tokens))
  within = np.mean([queries[a] @ queries[b] for a in np.flatnonzero(with_labels) for b in
                    np.flatnonzero(clusters == clusters[a]) if a != b])  # fmt: skip
  assert within > np.mean(queries @ queries.T) + 0.1


@pytest.mark.parametrize("settings", [NGAME, DEXA], ids=["ngame", "dexa"])
def test_labels_of_shortlists_join_the_pools_of_clusters(settings, data, tmp_path):
  listed = {"method.num_hard_negatives": 2, "method.shortlist_size": 8, "method.shortlist_first_epoch": 1.0}
  run = tiny_runs.open_run(data, tmp_path / "run", **settings, **listed)
  assert {"clusters", "shortlist"} <= set(run.method.refreshes)
  shortlist = np.full((len(run.data.train), 8), -1, np.int32)
  shortlist[:, 0] = [np.setdiff1d(np.arange(40), row.indices)[0] for row in run.data.train.truth]
  clusters = np.arange(len(run.data.train)) // 4
  batch = run.batches.build(0, {"clusters": clusters, "shortlist": shortlist})
  assert len(set(clusters[batch.rows])) < len(batch.rows) // 2
  assert set(shortlist[batch.rows, 0]) <= set(batch.columns.tolist())


# --- clusters of labels ---


def _info(counts):
  counts = np.asarray(counts)
  return DatasetInfo(100, len(counts), 8, 50, (), sharding.make(), counts)


def test_head_labels_by_number_and_by_points():
  info = _info([5, 60, 0, 50, 5, 49])
  settings = methods.default_config("dexa").method
  assert label_clusters.head_labels(settings, info).tolist() == []
  settings.head_label_points = 50
  assert label_clusters.head_labels(settings, info).tolist() == [1, 3]
  settings.head_label_points, settings.num_head_labels = 0, 4
  assert label_clusters.head_labels(settings, info).tolist() == [0, 1, 3, 5]  # of two with 5, the lower id
  settings.num_head_labels = 9
  assert label_clusters.head_labels(settings, info).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["balanced", "balanced_centroids", "kmeans"])
@pytest.mark.parametrize("heads", [*(pytest.param(heads, marks=pytest.mark.slow) for heads in (0, 5)), 99])
def test_labels_share_clusters_and_head_labels_do_not(kind, heads, data, tmp_path):
  settings = {**DEXA, "method.label_clustering": kind, "method.num_head_labels": heads}
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "run", **settings)
  _, extra_state = tiny_runs.renewed(run, params, extra_state, "label_cluster")
  clusters, heads = np.asarray(extra_state["label_cluster"]), min(heads, 60)
  sizes = np.bincount(clusters, minlength=8 + heads)
  assert len(sizes) == 8 + heads and sizes.sum() == 60
  counts = np.bincount(run.data.train.unfiltered_positives.indices, minlength=60)
  assert set(np.flatnonzero(clusters >= 8)) == set(np.argsort(-counts, kind="stable")[:heads])
  assert np.all(sizes[8:] == 1)
  assert kind == "kmeans" or sizes[:8].max() - sizes[:8].min() <= 1


def test_filtered_pairs_move_no_centroid_that_labels_are_clustered_by(tmp_path):
  """Clusters are those of means in NumPy over the pairs that count; of a third of the points one does not."""
  folder = tiny_runs.write_data(tmp_path / "data")
  labels = [json.loads(line)["target_ind"] for line in (folder / "trn.json").read_text().splitlines()]
  pairs = [f"{row} {ids[0]}\n" for row, ids in enumerate(labels) if ids and row % 3 == 0]
  (folder / "filter_labels_train.txt").write_text("".join(pairs))
  settings = {**DEXA, "method.label_clustering": "balanced_centroids", "method.num_head_labels": 0}
  run, params, extra_state = tiny_runs.open_initial(folder, tmp_path / "run", **settings)
  _, extra_state = tiny_runs.renewed(run, params, extra_state, "label_cluster")
  every, counted = ((of > 0).toarray() for of in (run.data.train.truth, run.data.train.unfiltered_positives))
  assert every.sum() > counted.sum() + 40
  snapshot = Trained(run, params, extra_state).snapshot()
  queries = np.asarray(snapshot.queries, np.float64)

  def clusters(pairs):
    means = [
      queries[points].mean(0) if points.any() else snapshot.texts[label]
      for label, points in enumerate(pairs.T)
    ]
    key = jax.random.fold_in(jax.random.key(run.config.train.seed), 0)
    return refresh.balanced_clusters(np.asarray(means, np.float32), 8, key=key)

  np.testing.assert_array_equal(extra_state["label_cluster"], clusters(counted))
  assert np.any(clusters(counted) != clusters(every))


def test_renumbered_clusters_keep_most_of_their_labels():
  old = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
  new = np.array([2, 2, 2, 0, 0, 1, 1, 1, 1])
  found = label_clusters.renumbered(new, old, np.arange(9))
  assert found.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
  head = np.array([0, 0, 0, 1, 1, 1, 7, 8, 9])  # those that do not count stay
  found = label_clusters.renumbered(np.array([1, 1, 1, 0, 0, 0, 7, 8, 9]), head, np.arange(6))
  assert found.tolist() == head.tolist()


@pytest.mark.slow
def test_clusters_can_follow_the_texts(data, tmp_path):
  settings = {**DEXA, "method.label_clusters_every_epochs": 1.0, "train.num_epochs": 3}
  commands.train_and_test(tiny_runs.config(data, **settings), tmp_path / "run")
  run = runs.reopen(tmp_path / "run")
  assert "time/refresh_label_cluster" in (tmp_path / "run" / "metrics.jsonl").read_text()
  assert sorted(set(np.asarray(run.trained().extra_state["label_cluster"]).tolist())) == list(range(8))


# --- classifiers ---


@pytest.mark.slow
def test_classifiers_start_at_the_label_vectors_of_the_run_before(data, encoder_run, tmp_path):
  settings = {**CLASSIFIER, "init_from": str(encoder_run), "data.path": ""}
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "run", **settings)
  before = runs.reopen(encoder_run)
  loaded = before.trained()
  labels = loaded.labels()
  np.testing.assert_allclose(params["classifiers"][:60], labels, atol=1e-6)
  queries = loaded.queries(run.data.train.tokens)
  np.testing.assert_allclose(
    run.embedder.queries(params, extra_state, run.data.train.tokens), queries, atol=1e-6
  )
  assert run.config.encoder == before.config.encoder and run.config.data == before.config.data


def test_classifiers_start_without_the_label_frequency_of_the_run_before(data, tmp_path):
  run, params, extra_state = tiny_runs.open_initial(
    data, tmp_path / "run", **{"encoder.normalize": True, "method.log_prior": 1.0}
  )
  config = methods.default_config("classifier")
  config.encoder = run.config.encoder
  found, _ = methods.make(config, run._info()).init_from_run(Trained(run, params, extra_state).snapshot())
  labels = run.embedder.labels(params, extra_state)[:, :16]
  np.testing.assert_allclose(found["classifiers"], labels, atol=1e-6)


@pytest.mark.parametrize("mean", ["existing", "all"])
def test_the_classifier_loss_is_its_formula(mean, data, encoder_run, tmp_path):
  settings = {**CLASSIFIER, "init_from": str(encoder_run), "data.path": "", "method.margin_mean": mean}
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "run", **settings)
  rng = np.random.default_rng(1)
  params["classifiers"] = params["classifiers"] + 0.2 * rng.normal(size=params["classifiers"].shape)
  Trained(run, params, extra_state).freeze_queries()
  batch = run.batches.build(1)
  found = tiny_runs.loss(run, params, extra_state, batch)[0]
  expected = _expected(run, batch, _unit(run.batches.vectors), _unit(params["classifiers"]))
  assert expected > 0.001 and float(found) == pytest.approx(expected, rel=1e-4)


def test_a_mean_over_all_pairs_needs_their_number(data):
  unclear = {**NGAME, "method.margin_mean": "all", "method.num_positives": 0}
  with pytest.raises(ConfigError, match=r"margin_mean = 'all' needs .*; set --config.*existing"):
    tiny_runs.config(data, **unclear)


@pytest.mark.slow
def test_a_step_leaves_the_encoder_and_other_labels_as_they_are(data, encoder_run, tmp_path):
  settings = {**CLASSIFIER, "init_from": str(encoder_run), "data.path": "", "train.batch_size": 4}
  run = tiny_runs.open_run(data, tmp_path / "run", **settings)
  step = tiny_runs.train_step(run, table_rate=lambda count: 0.01)
  state = step.first_state(*run.initial_parameters())
  Trained(run, state.params, state.extra_state).freeze_queries()
  before = jax.device_get(state)
  batch = run.batches.build(0)
  after = jax.device_get(step(state, sharding.put_batch(batch, run.mesh))[0])
  for one, other in zip(jax.tree.leaves(before.extra_state), jax.tree.leaves(after.extra_state), strict=True):
    np.testing.assert_array_equal(one, other)
  moved = np.flatnonzero(np.any(before.params["classifiers"] != after.params["classifiers"], axis=1))
  assert len(moved) > 0 and set(moved) <= set(batch.columns.tolist()) and len(moved) < 40


@pytest.mark.slow
def test_three_ways_to_rank(classifier_run, capsys):
  run = runs.reopen(classifier_run)
  trained = run.trained()
  texts = run.dataset.test.texts[:20]
  queries = trained.queries(run.dataset.test.tokens)[:20]
  vectors = {view: trained.labels(view) for view in ("encoder", "classifier")}
  for view in vectors:
    ids, scores, names = Model.load(classifier_run, scores=view).predict(texts, k=7)
    expected = np.argsort(-(queries @ vectors[view].T), axis=1)[:, :7]
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ vectors[view].T, expected, 1), atol=1e-5)
    assert names[0] == [run.dataset.labels.texts[label] for label in ids[0]]
  _, fused, _ = Model.load(classifier_run).predict(texts, k=7)
  both = sum(queries @ table.T for table in vectors.values())
  assert np.all(fused.max(1) <= both.max(1) + 1 + 1e-5) and np.all(fused.max(1) >= both.max(1) - 1e-5)
  with pytest.raises(UserError, match=r"scores = 'x': .* has 'hybrid', 'fused', 'encoder', 'classifier'"):
    Model.load(classifier_run, scores="x").predict(texts, k=1)


@pytest.mark.slow
def test_the_table_and_the_report_tell_of_each(classifier_run, capsys):
  means = {scores: commands.test(classifier_run, scores=scores) for scores in ("encoder", "classifier", "")}
  printed = capsys.readouterr().out
  assert means[""] != means["encoder"] != means["classifier"]
  names = {"fused", "encoder", "classifier"}
  heads = [words for line in printed.splitlines() if (words := line.split()) and names.issuperset(words)]
  assert heads == [["encoder", "classifier"], ["classifier", "encoder"], ["fused", "encoder", "classifier"]]
  first = [line.split()[1:] for line in printed.splitlines() if line.startswith("P@1")]
  shown = {scores: f"{100 * found['P@1']:.2f}" for scores, found in {**means, "fused": means[""]}.items()}
  assert first == [[shown[name] for name in of_table] for of_table in heads]
  for suffix, kind in (("", ""), ("_encoder", "encoder"), ("_classifier", "classifier")):
    report = json.loads((classifier_run / "report" / f"metrics{suffix}.json").read_text())
    assert report["metrics"] == means[kind]
    assert report["by_source"].keys() == {"encoder", "classifier"} - {kind}
    assert (classifier_run / "predictions" / f"test{suffix}.npz").exists()


@pytest.mark.slow
def test_fusion_is_fitted_on_training_rows_less_the_training_filter(classifier_run, monkeypatch):
  run = runs.reopen(classifier_run)
  trained = run.trained()
  (classifier_run / "fusion.npz").rename(classifier_run / "kept.npz")
  given = {}

  def fit(self, queries, truth, exclude, *, depth):
    given.update(queries=queries, truth=truth, exclude=exclude)
    self.tree = ranking.Tree.load(classifier_run / "kept.npz")

  monkeypatch.setattr(ranking.Fusion, "fit", fit)
  ranking.fit_own_scores(trained)
  order = np.random.default_rng(0).permutation(run.batches.rows)
  assert (given["exclude"] != run.data.train.filter[order]).nnz == 0 and run.data.train.filter.nnz > 0
  assert (given["truth"] != run.data.train.unfiltered_positives[order]).nnz == 0
  expected = trained.queries(run.data.train.tokens)[order]
  np.testing.assert_allclose(given["queries"], expected, atol=1e-6)


def test_classifiers_want_a_run_on_the_same_data(data, encoder_run, tmp_path):
  with pytest.raises(ConfigError, match=r"needs a trained encoder; set --config.init_from=FOLDER"):
    tiny_runs.open_run(data, tmp_path / "a", **CLASSIFIER)
  with pytest.raises(ConfigError, match=r"data of their encoder.*leave --config.data.path out"):
    settings = {**CLASSIFIER, "init_from": str(encoder_run), "data.path": str(tmp_path)}
    tiny_runs.open_run(data, tmp_path / "b", **settings)
  with pytest.raises(ConfigError, match="nowhere"):
    tiny_runs.open_run(data, tmp_path / "c", **{**CLASSIFIER, "init_from": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(
  "changed, message",
  [
    ({"data.num_validation": 5}, r"num_validation = 5, and 20 in .*leave --config.data.num_validation out"),
    ({"encoder.width": 8}, r"encoder.width = 8, and 16 in"),
    ({"eval.propensity_a": 0.7}, r"eval.propensity_a = 0.7, and 0.55 in"),
  ],
)
def test_settings_that_are_the_encoders_cannot_be_given(changed, message, data, encoder_run, tmp_path):
  settings = {**CLASSIFIER, "init_from": str(encoder_run), "data.path": ""}
  made = tiny_runs.config(data, **settings)  # a test's config has other values than the defaults
  made.data.update(methods.default_config().data)
  made.encoder.update(methods.default_config().encoder)
  made.data.cache_dir = str(tmp_path / "cache")
  run = create.create(made, tmp_path / "a", MetricWriter(tmp_path / "a"))
  assert run.config.data.cache_dir == str(tmp_path / "cache")  # where things are is no setting of theirs
  made.update_from_flattened_dict(changed)
  with pytest.raises(ConfigError, match=message):
    create.create(made, tmp_path / "b", MetricWriter(tmp_path / "b"))


@pytest.mark.slow
def test_other_runs_than_dual_encoders_are_refused(data, classifier_run, tmp_path):
  ova = {"method.name": "ova", "method.loss": "binary", "method.labels": "table", "train.num_epochs": 1}
  commands.train_and_test(tiny_runs.config(data, **ova), tmp_path / "ova")
  for folder in (tmp_path / "ova", classifier_run):
    settings = {**CLASSIFIER, "init_from": str(folder), "data.path": ""}
    run = tiny_runs.open_run(data, tmp_path / "new", **settings)
    with pytest.raises(ConfigError, match="need a dual encoder, which that run has not trained"):
      run.initial_parameters()


@pytest.mark.slow
def test_dexa_begins_from_another_runs_vectors_and_their_clusters(data, encoder_run, tmp_path):
  run, params, extra_state = tiny_runs.open_initial(data, tmp_path / "a", **DEXA, init_from=str(encoder_run))
  before = runs.reopen(encoder_run).trained()
  np.testing.assert_array_equal(params["auxiliary"], before.params["auxiliary"])
  _, extra_state = tiny_runs.renewed(run, params, extra_state, "label_cluster")
  np.testing.assert_array_equal(extra_state["label_cluster"], before.extra_state["label_cluster"])
  other = tiny_runs.open_run(
    data, tmp_path / "b", **{**DEXA, "method.num_label_clusters": 16, "init_from": str(encoder_run)}
  )
  with pytest.raises(ConfigError, match=r"params/auxiliary is \(8, 16\) there and \(16, 16\) here"):
    other.initial_parameters()


@pytest.mark.slow
def test_stale_files_of_a_killed_run_are_not_used(data, encoder_run, classifier_run, tmp_path):
  """Vectors from before the first checkpoint may be another encoder's; a run that goes on fuses anew."""
  settings = {**CLASSIFIER, "init_from": str(encoder_run), "data.path": "", "eval.num_candidates": 20}
  config = tiny_runs.config(data, **settings)
  tiny_runs.open_run(data, tmp_path / "run", **settings)  # the folder, and nothing trained
  vectors = np.load(classifier_run / "vectors.npy")
  np.save(tmp_path / "run" / "vectors.npy", -vectors)
  means = commands.train_and_test(config, tmp_path / "run")
  np.testing.assert_array_equal(np.load(tmp_path / "run" / "vectors.npy"), vectors)
  newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name))
  shutil.rmtree(newest)
  (tmp_path / "run" / "fusion.npz").write_bytes(b"")
  assert commands.train_and_test(config, tmp_path / "run") == means
  assert (tmp_path / "run" / "fusion.npz").stat().st_size > 0
  (tmp_path / "run" / "vectors.npy").write_bytes(b"\x93NUMPY")
  shutil.rmtree(max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name)))
  with pytest.raises(UserError, match=r"vectors.npy: not readable .*delete it, and it is made again"):
    commands.train_and_test(config, tmp_path / "run")


@pytest.mark.slow
def test_clipping_takes_in_the_rows_of_tables(data, tmp_path):
  """Adam forgets the scale of a first gradient, but for epsilon: with tiny norms the step shrinks."""
  moved = []
  for limit in (0.0, 1e-9):
    run = tiny_runs.open_run(data, tmp_path / str(limit), **DEXA, **{"train.clip_norm": limit})
    step = tiny_runs.train_step(run, table_rate=lambda count: 0.01)
    state = step.first_state(*run.initial_parameters())
    _, extra_state = tiny_runs.renewed(run, state.params, state.extra_state, "label_cluster")
    before = np.asarray(state.params["auxiliary"])
    after, _ = step(
      state._replace(extra_state=extra_state), sharding.put_batch(run.batches.build(0), run.mesh)
    )
    moved.append(float(np.abs(np.asarray(after.params["auxiliary"]) - before).max()))
  assert moved[0] == pytest.approx(0.01, rel=0.01) and 0 < moved[1] < 0.003


def test_a_dual_encoder_has_one_kind_of_scores(data, encoder_run, tmp_path):
  with pytest.raises(ConfigError, match=r"scores = 'classifier': this run has no classifiers"):
    tiny_runs.open_run(data, tmp_path / "run", **NGAME, **{"eval.scores": "classifier"})
  assert commands.test(encoder_run, scores="encoder") == commands.test(encoder_run)
  with pytest.raises(UserError, match=r"scores = 'classifier': this run has no classifiers"):
    commands.test(encoder_run, scores="classifier")
  with pytest.raises(UserError, match=r"scores = 'text'"):
    Model.load(encoder_run, scores="text")
