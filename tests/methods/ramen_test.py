"""RAMEN: its regularisers by the formula, pruning, what runs keep of graphs, how each part is left out."""

import functools
import json
import pathlib
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs
from loss_references import margin_row

from xmc_jax import refresh
from xmc_jax.cli import commands
from xmc_jax.errors import ConfigError, DataError, UserError
from xmc_jax.methods.components import graph_edges, graph_regularizer
from xmc_jax.refresh import graph_pruning
from xmc_jax.runs import run as runs
from xmc_jax.runs.model import Model
from xmc_jax.runs.trained import Trained
from xmc_jax.types import DatasetInfo, SampledAnchors

NOWHERE = pathlib.Path("nowhere")
MARGIN, NEGATIVES, TEMPERATURE = 0.3, 2, 0.1
_NO_WALKS = {"method.walk_hops": 0, "method.walk_kept": 10}
_NO_PRUNING = {"method.graph_pruning": False, "method.pruning_threshold": 0.0}
_SHARE = "refresh/kept_words_label"
_DEXML = {
  "method.clusters_first_epoch": 10.0,
  "method.loss": "decoupled_softmax",
  "method.labels": "all",
  "method.temperature": 0.5,
  "method.allow_any_temperature": True,
}


@pytest.fixture(scope="module")
def trained(graph_data, tmp_path_factory):
  """A finished run, and its test metrics."""
  workdir = tmp_path_factory.mktemp("trained") / "run"
  return workdir, commands.train_and_test(tiny_runs.config(graph_data, **tiny_runs.RAMEN), workdir)


def _open(data, tmp_path, name="run", **changes):
  return tiny_runs.open_run(data, tmp_path / name, **tiny_runs.RAMEN | changes)


@pytest.fixture
def start(graph_data, tmp_path):
  return functools.partial(_open, graph_data, tmp_path)


def _info(**graphs):
  devices = jax.make_mesh((1, 1), ("data", "label"))
  return DatasetInfo(10, 10, 8, 50, (), devices, graphs=graphs or {"g": ("query", "label")})


def _normal(vectors):
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _regulariser(vectors, anchors, links):
  """RAMEN's formula in float64: a triplet with the hardest of the others' anchors, row by row."""
  options = {"margin": MARGIN, "num_negatives": NEGATIVES, "weight_temperature": TEMPERATURE}
  losses = []
  for row, positives, weights in zip(links.rows, links.positives, links.weights):
    linked, weight = np.zeros(len(anchors), bool), np.zeros(len(anchors))
    linked[positives[positives >= 0]], weight[positives[weights > 0]] = True, 1
    real = links.columns >= 0
    if row >= 0:
      losses.append(margin_row((anchors @ vectors[row])[real], linked[real], weight[real], **options))
  return np.mean(losses)


def _links(seed, num_rows, num_in_batch, num_columns):
  """Rows in any order, one of them padding, one without an edge; two columns that are padding."""
  rng = np.random.default_rng(seed)
  rows = rng.permutation(num_in_batch)[:num_rows].astype(np.int32)
  rows[-1] = -1
  positives, weights = np.full((num_rows, 3), -1, np.int32), np.zeros((num_rows, 3), np.float32)
  for row in range(1, num_rows - 1):
    chosen = rng.permutation(num_columns - 2)[: rng.integers(1, 4)]
    positives[row, : len(chosen)], weights[row, 0] = chosen, 1
  columns = np.arange(num_columns, dtype=np.int32)
  columns[-2:] = -1
  return SampledAnchors(rows, columns, (), positives, weights)


@pytest.mark.parametrize("unit", [True, False])
def test_regularisers_are_their_formula(unit):
  """Both sides, with weights of their own; by cosine, also where the base scores raw products."""
  config = tiny_runs.config(
    NOWHERE,
    **{
      "method.name": "ramen",
      "method.base": "dexml",
      "method.loss": "decoupled_softmax",
      "method.margin_negatives": NEGATIVES,
      "method.query_graph_weights": (0.7,),
      "method.label_graph_weights": (0.25,),
      "encoder.normalize": unit,
    },
  )
  rng = np.random.default_rng(3)
  make = lambda count: rng.normal(size=(count, 5))
  queries, labels, anchors = make(6), make(9), {"g_query": make(7), "g_label": make(8)}
  links = {"g_query": _links(1, 6, 6, 7), "g_label": _links(2, 5, 9, 8)}
  given = _normal if unit else (lambda vectors: 3 * vectors)
  batch = tiny_runs.pool_batch(np.arange(9), np.zeros((6, 1)), np.zeros((6, 1)), np.zeros((6, 1)))

  def total(queries, labels, anchors):
    return graph_regularizer.add_up(
      config, _info(), queries, labels, anchors, batch._replace(sampled_anchors=links)
    )

  arrays = jax.tree.map(
    lambda x: jnp.asarray(x, jnp.float32), (given(queries), given(labels), jax.tree.map(given, anchors))
  )
  (found, terms), gradient = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(*arrays)
  of_points = _regulariser(_normal(queries), _normal(anchors["g_query"]), links["g_query"])
  of_labels = _regulariser(_normal(labels), _normal(anchors["g_label"]), links["g_label"])
  assert of_points > 0 and of_labels > 0
  assert terms["graph/g_query"] == pytest.approx(of_points, rel=1e-5)
  assert terms["graph/g_label"] == pytest.approx(of_labels, rel=1e-5)
  assert found == pytest.approx(0.7 * of_points + 0.25 * of_labels, rel=1e-5)
  # The point without an edge, and labels that no point sampled, feel nothing.
  assert not np.any(gradient[0][links["g_query"].rows[0]]) and np.any(gradient[0])
  untouched = np.setdiff1d(np.arange(9), links["g_label"].rows[1:-1])
  assert not np.any(gradient[1][untouched]) and np.any(gradient[1])


@pytest.mark.parametrize(
  "weights, expected",
  [
    ((), {"a_query": 1 / 3, "b_query": 1 / 3, "c_query": 1 / 3}),
    ((0.5,), {"a_query": 0.5, "b_query": 0.5, "c_query": 0.5}),
    ((1, 0.0, 2.0), {"a_query": 1.0, "c_query": 2.0}),
    ((0.0,), {}),
  ],
)
def test_weights_of_graphs(weights, expected):
  """λ is 1 / T, one for all or one of each; a side that is not there, or of weight 0, is not sampled from."""
  config = tiny_runs.config(
    NOWHERE,
    **{"method.name": "ramen", "method.query_graph_weights": weights, "method.label_graph_weights": (0.0,)},
  )
  info = _info(a=("query",), b=("query", "label"), c=("query",))
  assert graph_regularizer.weights(config, info) == pytest.approx(expected)
  config.method.graphs, config.method.query_graph_weights = ("b",), ()
  assert graph_regularizer.weights(config, info) == {"b_query": 1.0}


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"method.graphs": ("wrods",)}, r"names 'wrods'.*length, words; did you mean .*method.graphs=.*'words',"),
    ({"method.query_graph_weights": (1.0, 2.0, 3.0)}, r"has 3 weights, and graphs are length, words; give"),
    ({"method.label_graph_weights": (-1.0,)}, r"must hold numbers from 0 to 1,000,000"),
    ({"method.graphs": (3,)}, r"must hold names"),
    ({"method.k": 3.0}, r"method.k = 3.0 has no effect when method.base = 'ngame'"),
    (
      {"method.base": "ance", "method.clusters_first_epoch": 10.0, "method.loss": "decoupled_softmax"},
      r"method.base = 'ance' takes 'softmax' or 'margin'",
    ),
    ({"method.walk_hops": 0}, r"method.walk_kept = 3 has no effect when method.walk_hops = 0"),
    ({"method.graph_pruning": False}, r"threshold = 0.1 has no effect when method.graph_pruning = False"),
    ({"method.graphs": ("words", "words")}, r"names a graph twice"),
  ],
)
def test_settings_that_cannot_work_are_refused(changes, message, start):
  with pytest.raises(ConfigError, match=message):
    start(**changes)


@pytest.mark.parametrize("threshold", [0.0, 0.3])
@pytest.mark.parametrize("centred", [False, True])
def test_kept_edges_are_those_of_like_ends(centred, threshold, monkeypatch):
  """Against dense cosines, some edges at a time; what all vectors share counts unless they are centred."""
  monkeypatch.setattr(graph_pruning, "_CHUNK", 7)
  rng = np.random.default_rng(0)
  edges = sp.csr_matrix(rng.random((30, 12)) < 0.4)
  edges.sort_indices()
  shared = 3 * rng.normal(size=6) * centred
  rows, anchors = (
    _normal(rng.normal(size=(count, 6)) + shared).astype(np.float32).astype(float) for count in (30, 12)
  )
  given = [vectors.astype(np.float32) for vectors in (rows, anchors)]
  if centred:
    assert refresh.kept_edges(edges, *given, threshold=threshold).all()
  kept = refresh.kept_edges(edges, *given, threshold=threshold, centred=centred)
  for vectors, before in zip(given, (rows, anchors)):  # others look at them, too
    np.testing.assert_array_equal(vectors, before)
  if centred:
    rows, anchors = _normal(rows - rows.mean(0)), _normal(anchors - anchors.mean(0))
  left = sp.csr_matrix((kept, edges.indices, edges.indptr), shape=edges.shape).toarray()
  np.testing.assert_array_equal(left, edges.toarray() & (rows @ anchors.T > threshold))
  assert 0.1 * edges.nnz < kept.sum() < 0.7 * edges.nnz
  assert len(refresh.kept_edges(edges[:0], given[0][:0], given[1])) == 0


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("by, prior", [("encoder", 0.0), ("centred", 0.0), ("encoder", 9.0)])
def test_who_judges_edges(by, prior, unit, start):
  changes = {"method.pruning_by": by, "encoder.normalize": unit, "method.base": "dexml"} | _DEXML
  run = start(**changes, **{"method.log_prior": prior})
  params, extra_state = run.initial_parameters()
  definition = run.method.refreshes["kept_words_label"]
  assert (definition.first_epoch, definition.every_epochs) == (1.0, 1.0)
  snapshot = Trained(run, params, extra_state).snapshot()
  rows = np.array(run.embedder.labels(params, extra_state)[:, : snapshot.queries.shape[1]], float)
  anchors = np.array(snapshot.anchors("words_label"), float)
  rows, anchors = _normal(rows), _normal(anchors)
  if by == "centred":
    rows, anchors = _normal(rows - rows.mean(0)), _normal(anchors - anchors.mean(0))
  edges = run.sides["words_label"].edges
  expected = (rows @ anchors.T)[edges.nonzero()] > 0.1
  kept = definition.compute(snapshot)
  np.testing.assert_array_equal(kept, expected)
  assert 0 < kept.sum() < len(kept)


@pytest.mark.slow
def test_the_pretrained_encoder_judges_once_before_the_first_step(graph_data, tmp_path):
  """By what the run starts with, whatever it becomes; and its checkpoints know what was kept."""
  config = tiny_runs.config(graph_data, **tiny_runs.RAMEN, **{"method.pruning_by": "pretrained_centred"})
  commands.train_and_test(config, tmp_path / "run")
  lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  seen = [(line["step"], line["refresh/kept_words_label"]) for line in lines if _SHARE in line]
  run = runs.reopen(tmp_path / "run")
  snapshot = Trained(run, *run.initial_parameters()).snapshot()
  edges = run.sides["words_label"].edges
  kept = refresh.kept_edges(
    edges, snapshot.labels, snapshot.anchors("words_label"), threshold=0.1, centred=True
  )
  assert seen == [(1, pytest.approx(kept.mean()))] and 0 < kept.mean() < 1


@pytest.mark.parametrize("sampling, walk", [("uniform", "with_walks"), ("visits", "with_visits")])
def test_walks_are_done_once_and_validation_points_have_no_part(sampling, walk, monkeypatch, start):
  run = start(**{"method.anchor_sampling": sampling})
  edges = run.dataset.graphs["words"].query_edges[run.data.train.row_numbers]
  options = {"num_hops": 20, "num_kept": 3, "seed": graph_edges._seed("words_query", run.config)}
  expected, walked = refresh.with_walks(edges, **options), getattr(refresh, walk)(edges, **options)
  assert expected.nnz > edges.nnz
  assert sorted(run.sides) == ["length_query", "words_label", "words_query"]
  monkeypatch.setattr(refresh, walk, lambda *args, **options: pytest.fail("walked again"))
  load = functools.partial(
    graph_edges.load, ("words_query",), run.dataset, run.data.train.row_numbers, run.config, run.workdir
  )
  for side in (run.sides["words_query"], load()["words_query"]):
    np.testing.assert_array_equal(side.edges.toarray(), expected.toarray())
    np.testing.assert_array_equal(side.sampling_weights, walked.data if sampling == "visits" else None)
  (path,) = (run.workdir / "graphs").glob("words_query.*.indices.npy")
  path.write_bytes(path.read_bytes()[:-8])
  with pytest.raises(UserError, match=r"words_query.*indices.npy.*delete it"):
    load()


def test_walks_of_data_that_have_changed_are_done_anew(tmp_path):
  """A command that was killed before its first checkpoint goes on with what the files say now."""
  folder = tiny_runs.write_graphs(tiny_runs.write_data(tmp_path / "data"))
  before = _open(folder, tmp_path).sides["words_query"].edges
  path = folder / "words_trn_X_Y.txt"
  head, *rows = path.read_text().splitlines()
  path.write_text("\n".join([head, *reversed(rows)]) + "\n")
  run = _open(folder, tmp_path)
  own = run.dataset.graphs["words"].query_edges[run.data.train.row_numbers]
  after = run.sides["words_query"].edges
  assert np.all(after.toarray() >= (own.toarray() > 0)) and (after != before).nnz


@pytest.mark.parametrize("walked", ["query", "label"])
@pytest.mark.parametrize("sampling", ["uniform", "visits"])
def test_walks_of_one_kind_of_sides_leave_the_other_as_it_is(walked, sampling, start):
  both = start().sides
  changes = {"method.walk_sides": walked, "method.anchor_sampling": sampling}
  run = start("one", **changes)
  for name, side in run.sides.items():
    graph, of_labels = run.dataset.graphs[name.rpartition("_")[0]], name.endswith("_label")
    own = graph.label_edges if of_labels else graph.query_edges[run.data.train.row_numbers]
    expected = both[name].edges if name.endswith(walked) else own > 0
    np.testing.assert_array_equal(side.edges.toarray() > 0, expected.toarray())
    assert (side.sampling_weights is not None) == (sampling == "visits" and name.endswith(walked))
  assert {path.name.partition(".")[0].rpartition("_")[2] for path in (run.workdir / "graphs").iterdir()} == {
    walked
  }


def test_random_edges_of_each_side_have_random_numbers_of_their_own(start):
  run = start(**_NO_WALKS, **{"method.random_edges": 0.5})
  noisy_rows = {}
  for side in ("words_query", "words_label", "length_query"):
    graph = run.dataset.graphs[side.partition("_")[0]]
    own = graph.label_edges if side == "words_label" else graph.query_edges[run.data.train.row_numbers]
    noisy, before = (edges.toarray() > 0 for edges in (run.sides[side].edges, own))
    assert 1.2 * own.nnz < noisy.sum() <= 1.5 * own.nnz and np.all(noisy >= before)
    noisy_rows[side] = set(np.flatnonzero((noisy > before).any(axis=1)).tolist())
  # Of one stream, the fewer would be the first of the more.
  assert len(noisy_rows["length_query"] - noisy_rows["words_query"]) > 3
  assert not (run.workdir / "graphs").exists()  # of walks


def test_the_kept_share_is_logged(trained):
  workdir, _ = trained
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  run = runs.reopen(workdir)
  shares = {}
  for line in lines:
    for name in ("words_query", "words_label", "length_query"):
      if f"refresh/kept_{name}" in line:
        shares.setdefault(name, []).append((line["step"], line[f"refresh/kept_{name}"]))
  per_epoch = run.batches.steps_per_epoch
  for name in ("words_query", "words_label", "length_query"):
    assert [step for step, _ in shares[name]] == [per_epoch + 1, 2 * per_epoch + 1]
    assert all(0 < share < 1 for _, share in shares[name])
  assert any("train/graph/words_query" in line for line in lines)


def test_pruning_begins_with_all_edges_each_time(start):
  """With the points' embeddings turned round, what was pruned is kept, and the other way about."""
  run = start()
  params, extra_state = run.initial_parameters()
  definition, refreshed = run.method.refreshes["kept_words_query"], {}
  snapshot = Trained(run, params, extra_state).snapshot()
  refreshed, _ = refresh.renew("kept_words_query", definition, snapshot, refreshed, extra_state)
  first = refreshed["kept_words_query"]
  snapshot.queries[:] *= -1
  refreshed, _ = refresh.renew("kept_words_query", definition, snapshot, refreshed, extra_state)
  second = refreshed["kept_words_query"]
  assert (second & ~first).any() and (first & ~second).any() and not (first & second).any()


def test_a_trained_run_knows_no_graph(trained, tmp_path):
  """It is tested and predicts when every file of a graph is gone; training says what it lacks."""
  workdir, means = trained
  moved = tmp_path / "moved"
  shutil.copytree(workdir, moved)
  shutil.rmtree(moved / "graphs")
  gone = list((moved / "data").glob("graph.*"))
  assert gone
  for path in gone:
    path.unlink()
  assert commands.test(moved) == means
  texts = ["barn kelt", "suss"]
  assert Model.load(moved).predict(texts)[2] == Model.load(workdir).predict(texts)[2]
  with pytest.raises(DataError, match=r"graph\..* is missing; prepare the data again"):
    runs.reopen(moved).batches  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("base", ["ngame", "ance", "dexml"])
def test_graphs_of_weight_0_leave_the_base(base, graph_data, tmp_path):
  """Bit by bit: so what a graph adds is all that differs between the rows of a comparison."""
  settings = {
    **{key: value for key, value in tiny_runs.RAMEN.items() if "walk" not in key and "pruning" not in key},
    "train.num_epochs": 2,
    "data.num_validation": 0,
  }
  if base != "ngame":
    del settings["method.clusters_first_epoch"]
  settings |= {"ance": {"method.num_hard_negatives": 2, "method.shortlist_first_epoch": 1.0}}.get(base, {})
  settings |= {"dexml": {"method.loss": "decoupled_softmax", "method.labels": "all"}}.get(base, {})
  off = {"method.base": base, "method.query_graph_weights": (0.0,), "method.label_graph_weights": (0.0,)}
  found = []
  for name, changes in ((base, {}), ("ramen", off)):
    run_settings = settings | {"method.name": name} | changes
    commands.train_and_test(tiny_runs.config(graph_data, **run_settings), tmp_path / name)
    found.append(runs.reopen(tmp_path / name).trained().params)
  for left, right in zip(*map(jax.tree.leaves, found), strict=True):
    np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


@pytest.mark.parametrize(
  "changes, sides, pruned",
  [
    ({}, {"words_query", "length_query", "words_label"}, True),
    ({"method.query_graph_weights": (0.0,)}, {"words_label"}, True),
    ({"method.label_graph_weights": (0.0,)}, {"words_query", "length_query"}, True),
    ({"method.graphs": ("words",)}, {"words_query", "words_label"}, True),
    (_NO_PRUNING, {"words_query", "length_query", "words_label"}, False),
  ],
)
def test_what_can_be_left_out(changes, sides, pruned, start):
  """The ablations of the paper's Table 8, as what a batch brings and what is made anew."""
  run = start(**changes)
  assert set(run.batches.build(0).sampled_anchors) == sides
  assert {name for name in run.method.refreshes if name.startswith("kept_")} == (
    {f"kept_{side}" for side in sides} if pruned else set()
  )


def test_labels_that_share_an_anchor_are_added_to_the_truth(start):
  """AugGT: in training alone; what is tested on, and what propensities count, stays as it is."""
  plain = start()
  run = start("augmented", **{"method.augment_truth": True})
  graph, points = run.dataset.graphs["words"], run.data.train.row_numbers
  shared = (graph.query_edges[points].toarray() @ graph.label_edges.toarray().T) > 0
  before = run.data.train.truth.toarray()
  assert (shared & (before == 0)).any()
  np.testing.assert_array_equal(run.truth.toarray(), np.where(before > 0, before, shared))
  np.testing.assert_array_equal(run.data.inverse_propensity, plain.data.inverse_propensity)
  np.testing.assert_array_equal(Trained(run, None, None).snapshot().truth.toarray(), run.truth.toarray())


@pytest.mark.parametrize("paths", [1, 40, 1000])
def test_the_truth_is_augmented_block_by_block(paths, monkeypatch, start):
  """The same as at once, with points that have no link, and points that have more ways than a block."""
  run = start(**{"method.augment_truth": True})
  whole, seen = run.truth, []
  assert run.truth.dtype == np.float32
  monkeypatch.setattr(graph_edges, "_BLOCK_PATHS", paths)
  blocks = graph_edges._blocks
  monkeypatch.setattr(graph_edges, "_blocks", lambda *args: seen.extend(blocks(*args)) or seen)
  points = run.data.train.row_numbers
  found = graph_edges.augmented(run.data.train.truth, run.dataset, points, run.config.method)
  for part in ("indptr", "indices", "data"):
    np.testing.assert_array_equal(
      getattr(found.sorted_indices(), part), getattr(whole.sorted_indices(), part)
    )
  graph = run.dataset.graphs["words"]
  ways = ((graph.query_edges[points] > 0) @ (graph.label_edges.T > 0).astype(int)).sum(axis=1)
  assert all(end == start + 1 or ways[start:end].sum() <= paths for start, end in seen)


def test_too_many_shared_anchors_are_refused(start):
  """At the setting's limit and not before."""
  settings = {"method.augment_truth": True}
  run = start(**settings)
  added = run.truth.nnz - run.data.train.truth.nnz
  run.config.method.max_augmented_pairs = added
  augmented = lambda: graph_edges.augmented(
    run.data.train.truth, run.dataset, run.data.train.row_numbers, run.config.method
  )
  assert augmented().nnz == run.truth.nnz
  run.config.method.max_augmented_pairs = added - 1
  with pytest.raises(ConfigError, match=rf"graph words would add about {added:,} label pairs.*allows only"):
    augmented()
  # Pairs of an earlier graph count too, and the limit that is named is the setting's.
  graphs = {
    name: types.SimpleNamespace(
      query_edges=sp.csr_matrix(np.ones((2, 1), bool)),
      label_edges=sp.csr_matrix((np.arange(5) < number)[:, None]),
    )
    for name, number in (("first", 2), ("second", 5))
  }
  given = sp.csr_matrix((2, 5), dtype=np.float32), types.SimpleNamespace(graphs=graphs), np.arange(2)
  limited = lambda most: types.SimpleNamespace(graphs=(), max_augmented_pairs=most)
  assert graph_edges.augmented(*given, limited(10)).nnz == 10
  with pytest.raises(ConfigError, match=r"about 6 label pairs to 4 of other graphs.*allows only 9"):
    graph_edges.augmented(*given, limited(9))


@pytest.fixture
def unlinked(tmp_path):
  """Data, and a function that takes the links of all rows but `kept` out of a graph's file."""
  folder = tiny_runs.write_graphs(tiny_runs.write_data(tmp_path / "data"))

  def unlink(name, kept=frozenset()):
    first, *rows = (folder / name).read_text().split("\n")
    left = [row if number in kept else "" for number, row in enumerate(rows)]
    (folder / name).write_text("\n".join([first, *left]))

  return folder, unlink


@pytest.mark.slow
def test_sides_without_links_are_left_out_and_those_of_held_out_points_are_not_pruned(unlinked, tmp_path):
  """Orbax saves no array of size 0, and such a training ended at its first checkpoint after pruning."""
  folder, unlink = unlinked
  points = set(_open(folder, tmp_path, "points").data.train.row_numbers.tolist())
  unlink("words_lbl_X_Y.txt")
  unlink("length_trn_X_Y.txt", kept=set(range(200)) - points)
  commands.train_and_test(tiny_runs.config(folder, **tiny_runs.RAMEN), tmp_path / "run")
  run = runs.reopen(tmp_path / "run")
  assert run.dataset.graph_kinds == {"words": ("query",), "length": ("query",)}
  assert run.sides.keys() == {"words_query", "length_query"} and run.sides["length_query"].edges.nnz == 0
  lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  refreshed = {name for line in lines for name in line if name.startswith("refresh/kept_")}
  assert refreshed == {"refresh/kept_words_query"}


def test_graphs_without_any_link_are_no_graphs(unlinked, tmp_path):
  folder, unlink = unlinked
  for name in ("words_trn_X_Y.txt", "words_lbl_X_Y.txt", "length_trn_X_Y.txt"):
    unlink(name)
  with pytest.raises(ConfigError, match=r"the data have none with a link: put NAME_trn_X_Y.txt"):
    _open(folder, tmp_path)
