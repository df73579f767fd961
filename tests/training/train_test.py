"""Whole runs on a tiny data set: what they write, when they stop, and what can be done with them after."""

import contextlib
import io
import itertools
import json
import re
import shutil
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs

import xmc_jax
from xmc_jax.cli import commands
from xmc_jax.data import documents
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.runs import create, evaluate, metric_writer
from xmc_jax.runs import run as runs
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.predict import predict_lines
from xmc_jax.training import guide, loop

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
  """A run of three epochs, and what it returned."""
  workdir = tmp_path_factory.mktemp("train") / "run"
  return workdir, commands.train_and_test(tiny_runs.config(data), workdir)


@pytest.fixture
def no_training(monkeypatch):
  """Makes any training step an error."""
  error = AssertionError("a step was trained")
  monkeypatch.setattr(loop.TrainStep, "__call__", mock.Mock(side_effect=error))


def test_a_run_writes_what_it_says(finished):
  workdir, means = finished
  written = {path.name for path in workdir.iterdir()} - {"tensorboard"}
  assert written == {
    *("config.json", "chunks.json", "data", "tokenizer.json", "checkpoints", "best"),
    *("metrics.jsonl", "report", "predictions", ".lock"),
  }
  assert {path.name for path in (workdir / "checkpoints").iterdir()} == {"12", "18"}  # the last two of three
  assert len(list((workdir / "best").iterdir())) == 1
  report = json.loads((workdir / "report" / "metrics.json").read_text())
  assert report["metrics"] == means and report["rows"] == 50
  names = ("P", "nDCG", "R", "F1", "PSP", "PSnDCG", "coverage")
  assert set(means) == {f"{name}@{k}" for name in names for k in (1, 3, 5, 10)} | {"LRAP"}
  assert means["P@1"] > 0.3  # of 60 labels
  seconds = json.loads((workdir / "report" / "seconds.json").read_text())
  assert {"prepare", "compile", "train", "evaluate", "save", "test"} <= set(seconds)
  assert all(value >= 0 for value in seconds.values())
  predictions = sp.load_npz(workdir / "predictions" / "test.npz")
  assert predictions.shape == (50, 60) and np.all(np.diff(predictions.indptr) == 10)


def test_metrics_are_in_order_and_complete(finished):
  lines = tiny_runs.metric_lines(finished[0])
  assert [line["step"] for line in lines] == [6, 6, 12, 12, 18, 18]
  for losses, validation in zip(lines[::2], lines[1::2]):
    assert set(losses) == {"step", "train/loss", "train/gradient_norm"}
    assert "eval/P@1" in validation and "eval/R@10" in validation


def test_the_best_parameters_are_those_of_the_best_validation_score(finished):
  workdir, _ = finished
  scores = {line["step"]: line["eval/P@1"] for line in tiny_runs.metric_lines(workdir) if "eval/P@1" in line}
  first_best = max(scores, key=lambda step: (scores[step], -step))
  trained = runs.reopen(workdir).trained()
  run, step = trained.run, trained.step
  assert step == first_best
  queries = evaluate.embed_split(trained, run.data.validation)
  ranking = evaluate.rank_split(run, trained.ranker(), queries, run.data.validation)
  found = evaluate.score(run, run.data.validation, ranking)
  assert found["P@1"] == scores[step]


def test_rerunning_trains_nothing_and_gives_the_same(finished, data, no_training, capsys, tmp_path):
  workdir, means = finished
  before = tiny_runs.metric_lines(workdir), (workdir / "predictions" / "test.npz").read_bytes()
  shutil.copytree(workdir, tmp_path / "run")  # others look at the original
  assert commands.train_and_test(tiny_runs.config(data), tmp_path / "run") == means
  table = capsys.readouterr().out
  assert f"P@1    {100 * means['P@1']:6.2f}" in table and "parameters of step" in table
  after = tiny_runs.metric_lines(tmp_path / "run"), (tmp_path / "run/predictions/test.npz").read_bytes()
  assert after == before


def test_other_data_in_the_same_folder_are_refused(data, tmp_path):
  own = shutil.copytree(data, tmp_path / "data")
  tiny_runs.open_run(own, tmp_path / "run")
  (tmp_path / "run" / "checkpoints" / "1").mkdir(parents=True)
  lines = (own / "trn.json").read_text().splitlines()
  (own / "trn.json").write_text("\n".join(lines[::-1]) + "\n")
  with pytest.raises(ConfigError, match=r"holds a run on other data.*has changed since.*--workdir"):
    tiny_runs.open_run(own, tmp_path / "run")


def test_what_may_change_may_change(finished, data, no_training, tmp_path):
  """The same scores at each place; whose they are a last bit may decide, which depends on the processor."""
  shutil.copytree(finished[0], tmp_path / "run")
  changed = {"eval.batch_size": 17, "eval.num_examples": 0, "checkpoint.keep": 1, "mesh.data": 2}
  commands.train_and_test(tiny_runs.config(data, **changed), tmp_path / "run")
  before, after = (
    sp.load_npz(folder / "predictions" / "test.npz") for folder in (finished[0], tmp_path / "run")
  )
  np.testing.assert_array_equal(after.indptr, before.indptr)
  np.testing.assert_allclose(after.data, before.data, rtol=1e-5, atol=1e-6)
  assert np.mean(after.indices == before.indices) > 0.99


@pytest.mark.parametrize("settings", [{}, tiny_runs.PRIME | {"data.num_validation": 0}])
def test_no_epochs_keep_the_first_parameters(settings, data, no_training, tmp_path):
  config = tiny_runs.config(data, **settings, **{"train.num_epochs": 0})
  means = commands.train_and_test(config, tmp_path)
  trained = runs.reopen(tmp_path).trained()
  assert trained.step == 0 and commands.train_and_test(config, tmp_path) == means == commands.test(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, trained.params, trained.run.initial_parameters()[0])
  if settings:  # what is made before a first step
    made = trained.extra_state
    assert np.all(np.asarray(made["label_cluster"]) >= 0) and np.any(made["centroids"])
  assert xmc_jax.Model.load(tmp_path, warm=False).predict(["bate kerv"], k=3)[0].shape == (1, 3)


def test_evaluate_from_the_folder_alone(data, tmp_path, capsys):
  """Trained, moved, raw data and cache deleted: the same metrics and predictions."""
  source = tmp_path / "here" / "data"
  shutil.copytree(data, source)
  encoder = tiny_runs.tiny_bert(tmp_path / "here" / "encoder", "distilbert")
  overrides = {"encoder.name": str(encoder), "encoder.pooling": "cls", "train.num_epochs": 1}
  overrides |= {"method.labels": "in_batch", "data.max_length": 8}  # one width: quick to compile
  workdir = tmp_path / "here" / "run"
  means = commands.train_and_test(tiny_runs.config(source, **overrides), workdir)
  predictions = (workdir / "predictions" / "test.npz").read_bytes()
  moved = tmp_path / "elsewhere"
  workdir.rename(moved)
  shutil.rmtree(tmp_path / "here")
  shutil.rmtree(moved / "predictions")
  capsys.readouterr()
  commands.test(moved, str(tmp_path / "test.jsonl"))
  assert f"P@1    {100 * means['P@1']:6.2f}" in capsys.readouterr().out
  assert json.loads((moved / "report" / "metrics.json").read_text())["metrics"] == means
  assert (moved / "predictions" / "test.npz").read_bytes() == predictions
  model = xmc_jax.Model.load(moved)
  ids, _, _ = model.predict(["bate kerv"], k=3)
  assert ids.shape == (1, 3)
  lines = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
  stored = sp.load_npz(moved / "predictions" / "test.npz")
  assert len(lines) == stored.shape[0]
  for line, row in zip(lines, range(len(lines))):
    ranked = stored.indices[stored.indptr[row] : stored.indptr[row + 1]]
    assert [found["id"] for found in line["labels"]] == ranked.tolist()
    assert all(found["text"] == model.labels[found["id"]] for found in line["labels"])


# --- NaN, early stop ---


def test_an_infinite_loss_stops_with_step_rows_and_checkpoint(data, tmp_path, monkeypatch):
  """The parameters are poisoned before step 9; an epoch has 6, so the last good checkpoint is that of 6."""
  calls, original = itertools.count(1), loop.TrainStep.__call__

  def poisoned(self, state, batch):
    if next(calls) == 9:
      state = state._replace(params=jax.tree.map(lambda leaf: leaf.at[:].set(jnp.nan), state.params))
    return original(self, state, batch)

  monkeypatch.setattr(loop.TrainStep, "__call__", poisoned)
  config = tiny_runs.config(data)
  with pytest.raises(UserError) as caught:
    commands.train_and_test(config, tmp_path / "run")
  message = str(caught.value)
  run = runs.reopen(tmp_path / "run")
  rows = run.batches.build(8).rows
  rows = run.data.train.row_numbers[rows[rows >= 0]]
  # Unit vectors of NaN are zero, so it may be the gradient that tells.
  assert re.match(r"train/(loss|gradient_norm) is nan at step 9, training rows ", message)
  assert "\n" not in message
  named = tmp_path / "run" / "report" / "rows_of_step_9.txt"
  assert ", ".join(map(str, rows[:10].tolist())) + f", ... (all 32 in {named})" in message
  assert list(map(int, named.read_text().split())) == rows.tolist()
  assert "the last good checkpoint is step 6" in message and "train.learning_rate" in message
  # With the poison gone, the same command goes on from there.
  monkeypatch.setattr(loop.TrainStep, "__call__", original)
  commands.train_and_test(config, tmp_path / "run")
  assert [line["step"] for line in tiny_runs.metric_lines(tmp_path / "run")] == [6, 6, 12, 12, 18, 18]


def test_a_learning_rate_out_of_bounds_stops_before_anything_is_saved(data, tmp_path):
  overrides = {"train.learning_rate": 1e9, "train.warmup_fraction": 0.0}
  overrides |= {"encoder.normalize": False, "method.temperature": 1.0}
  with pytest.raises(UserError, match=r"at step \d, training rows .*; no checkpoint was saved yet; try"):
    commands.train_and_test(tiny_runs.config(data, **overrides), tmp_path / "run")


def nothing_but_a_step(self, state, batch):
  return state._replace(step=state.step + 1), {"loss": jnp.float32(1), "gradient_norm": jnp.float32(1)}


def test_early_stop(data, tmp_path, monkeypatch):
  """Scores 3, 5, 4, 5: the second is the best, and two evaluations without a better one are enough."""
  told = iter([0.3, 0.5, 0.4, 0.5, 0.9])
  monkeypatch.setattr(evaluate, "score", lambda *_: {"P@1": next(told)})

  monkeypatch.setattr(loop.TrainStep, "__call__", nothing_but_a_step)
  overrides = {"train.num_epochs": 9, "train.early_stop_evals": 2, "checkpoint.every_epochs": 0.0}
  run = tiny_runs.open_run(data, tmp_path / "run", **overrides)
  step = _train(run).step
  assert step == 12
  lines = tiny_runs.metric_lines(run.workdir)
  assert [line["eval/P@1"] for line in lines if "eval/P@1" in line] == [0.3, 0.5, 0.4, 0.5]
  assert run.saved.newest.latest() == 24
  # Once more: it has stopped for good.
  monkeypatch.setattr(loop.TrainStep, "__call__", lambda *_: pytest.fail("it went on"))
  assert _train(run).step == 12


def test_it_ends_in_time(data, tmp_path, monkeypatch):
  """Epochs of a minute: a fourth would end after 3.5 minutes, in one process or in two."""
  now = [0.0]
  monkeypatch.setattr(metric_writer.time, "perf_counter", lambda: now[0])

  def ten_seconds(*args):
    now[0] += 10
    return nothing_but_a_step(*args)

  monkeypatch.setattr(loop.TrainStep, "__call__", ten_seconds)
  run = tiny_runs.open_run(data, tmp_path / "run", **{"train.num_epochs": 9, "train.minutes": 3.5})
  assert run.batches.steps_per_epoch == 6
  for last_step in (7, None, None):
    with contextlib.closing(MetricWriter(run.workdir)) as writer:
      loop.train(run, writer, last_step=last_step)
    assert run.saved.newest.latest() == (last_step or 18)


def _train(run):
  with contextlib.closing(MetricWriter(run.workdir)) as voice:
    loop.train(run, voice)
  return run.trained()


# --- parts of the loop ---


def test_validation_rows_are_in_no_batch(data, tmp_path):
  run = tiny_runs.open_run(data, tmp_path / "run")
  held_out = set(run.data.validation.row_numbers.tolist())
  assert len(held_out) == len(run.data.validation) == 20
  seen = set()
  for step in range(run.batches.steps_per_epoch):
    rows = run.batches.build(step).rows
    seen |= set(run.data.train.row_numbers[rows[rows >= 0]].tolist())
  assert not seen & held_out
  assert len(seen) == len(run.batches.rows) == 170
  again = tiny_runs.open_run(data, tmp_path / "again", **{"train.seed": 1})
  assert set(again.data.validation.row_numbers.tolist()) != held_out


def test_the_whole_run_is_one_program_and_the_last_parameters_serve_without_validation(
  data, tmp_path, monkeypatch
):
  steps, original = [], loop.TrainStep.__call__
  monkeypatch.setattr(
    loop.TrainStep, "__call__", lambda self, *args: steps.append(self) or original(self, *args)
  )
  overrides = {"data.num_validation": 0, "train.num_epochs": 2, "method.labels": "in_batch", "eval.k": 60}
  run = tiny_runs.open_run(data, tmp_path / "run", **overrides)
  step = _train(run).step
  assert step == len(steps) == 12 and len(set(map(id, steps))) == 1
  assert steps[0].num_programs == 1
  assert not (run.workdir / "best").exists() or not list((run.workdir / "best").iterdir())


def test_init_from_starts_with_the_parameters_of_another_run(finished, data, tmp_path):
  workdir, _ = finished
  first = tmp_path / "first"
  shutil.copytree(workdir, first)
  expected = runs.reopen(first).trained().params
  config = tiny_runs.config(
    data, **{"init_from": str(first), "train.learning_rate": 1e-8, "train.num_epochs": 1}
  )
  run = create.create(config, tmp_path / "second", MetricWriter(tmp_path / "second"))
  found = run.initial_parameters()[0]
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  means = commands.train_and_test(config, tmp_path / "second")
  assert means["P@1"] == pytest.approx(finished[1]["P@1"], abs=0.05)
  # Once there is a checkpoint, the other run is no longer needed.
  shutil.rmtree(first)
  assert commands.train_and_test(config, tmp_path / "second") == means


@pytest.mark.parametrize("method", ["ova", "unidec"])
def test_init_from_a_run_on_other_labels(method, tmp_path):
  """Each label's row comes from there, by its key; new labels have a new run's, and words their ids.

  Texts that it was not trained on are held out first.
  """
  tables = {"ova": lambda params: params["table"], "unidec": lambda params: params["classifiers"]}
  folder = tiny_runs.write_data(tmp_path / "data")
  few = shutil.copytree(folder, tmp_path / "few")
  order = [*range(10, 60), *range(5)]  # five labels are missing, and the others stand elsewhere
  rows = (few / "lbl.json").read_text().splitlines()
  (few / "lbl.json").write_text("".join(f"{rows[label]}\n" for label in order))
  for name in ("trn", "tst"):
    points = [json.loads(line) for line in (few / f"{name}.json").read_text().splitlines()][:180]
    for point in points:
      point["target_ind"] = [order.index(label) for label in point["target_ind"] if label in order]
      point["target_rel"] = [1.0] * len(point["target_ind"])
    (few / f"{name}.json").write_text("".join(json.dumps(point) + "\n" for point in points))
    (few / f"filter_labels_{ {'trn': 'train', 'tst': 'test'}[name] }.txt").write_text("")
  settings = {**(tiny_runs.UNIDEC if method == "unidec" else {"method.name": method}), "train.num_epochs": 1}
  xmc_jax.train(tiny_runs.config(few, **settings), tmp_path / "first")
  first = runs.reopen(tmp_path / "first")
  settings |= {"init_from": str(tmp_path / "first"), "data.num_validation": 100}
  run = tiny_runs.open_run(folder, tmp_path / "second", **settings)
  theirs, found, own = (
    np.asarray(tables[method](params))
    for params in (
      first.trained().params,
      run.initial_parameters()[0],
      run.initial_parameters(from_other_run=False)[0],
    )
  )
  np.testing.assert_array_equal(found[order], theirs[:55])
  np.testing.assert_array_equal(found[5:10], own[5:10])
  assert (tmp_path / "second/tokenizer.json").read_text() == (tmp_path / "first/tokenizer.json").read_text()
  trained_on = _labelled_texts(first.data.train)
  shutil.rmtree(tmp_path / "first")
  later = runs.reopen(tmp_path / "second")
  others = _labelled_texts(later.dataset.train) - trained_on
  held_out = list(later.data.validation.texts)
  assert len(held_out) == 100 and others <= set(held_out)
  num_known = sum(text in trained_on for text in held_out)
  assert 0 < num_known < 100 and f"first was trained on {num_known} of these" in guide.of_training(later)
  settings["init_from"] = str(tmp_path / "second")
  third = tiny_runs.open_run(folder, tmp_path / "third", **settings)
  assert list(third.data.validation.texts) == held_out  # as on the same data
  settings |= {"init_from": str(tmp_path / "third"), "data.num_validation": 20}
  fourth = tiny_runs.open_run(few, tmp_path / "fourth", **settings)
  known = np.flatnonzero(np.load(tmp_path / "fourth" / "known.npy"))
  assert set(fourth.dataset.train.texts[known]) == trained_on  # by the first run


def _labelled_texts(split):
  return set(split.texts[np.flatnonzero(np.diff(split.truth.indptr))])


@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    ({"encoder.width": 8}, r"init_from.*encoder/word is \(\d+, 16\) there and \(\d+, 8\) here"),
    ({}, "no such file"),
  ],
)
def test_init_from_something_that_does_not_fit(overrides, message, finished, data, tmp_path):
  source = finished[0] if overrides else tmp_path / "nothing"
  with pytest.raises(ConfigError, match=message):
    tiny_runs.open_run(data, tmp_path / "run", init_from=str(source), **overrides).initial_parameters()


def test_a_reader_leaves_a_save_in_progress_alone(finished, tmp_path):
  shutil.copytree(finished[0], tmp_path / "run")
  for folder in ("best", "checkpoints"):
    (tmp_path / "run" / folder / "99.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
  model = xmc_jax.Model.load(tmp_path / "run")
  model.predict(["x"], k=1)
  for folder in ("best", "checkpoints"):
    assert (tmp_path / "run" / folder / "99.orbax-checkpoint-tmp" / "state").is_dir()


def test_no_transfer_is_implicit(data, tmp_path):
  """A step on a placed batch moves nothing between host and device."""
  run = tiny_runs.open_run(data, tmp_path / "run")
  step = tiny_runs.train_step(run)
  state = step.first_state(*run.initial_parameters())
  for number in range(2):
    batch = tiny_runs.placed_batch(run, number)
    if number == 0:
      state, _ = step(state, batch)
    else:
      with jax.transfer_guard("disallow"):
        step(state, batch)


# --- prediction ---


@pytest.fixture(scope="module")
def model(finished):
  return xmc_jax.Model.load(finished[0])


def assert_same_order(ids, others, score_of):
  """Two rankings of the same labels; neighbours may stand either way where rounding alone parts their scores.

  A product's last bits depend on how many texts are embedded together, on CPUs that multiply them in blocks.
  """
  assert sorted(ids) == sorted(others)
  for label, other in zip(list(ids), list(others), strict=True):
    assert label == other or abs(score_of[label] - score_of[other]) < 1e-6


def test_predict_agrees_with_the_evaluation(model, finished):
  workdir, _ = finished
  run = runs.reopen(workdir)
  stored = sp.load_npz(workdir / "predictions" / "test.npz")
  unfiltered = np.flatnonzero(np.diff(run.dataset.test.filter.indptr) == 0)
  ids, scores, names = model.predict(list(run.dataset.test.texts), k=10)
  for row in unfiltered:
    here = slice(stored.indptr[row], stored.indptr[row + 1])
    np.testing.assert_allclose(scores[row], stored.data[here], atol=1e-5)
    assert_same_order(ids[row], stored.indices[here], dict(zip(ids[row].tolist(), scores[row].tolist())))
  assert names == [[model.labels[label] for label in row] for row in ids]
  assert len(unfiltered) < 50


def test_embed_gives_what_predict_ranks_by(model):
  texts = ["ba", model.labels[3], ""]
  vectors, labels = model.embed(texts), model.embed(list(model.labels))
  assert vectors.shape == (3, 16) and vectors.dtype == np.float32
  ids, scores, _ = model.predict(texts, k=60)
  np.testing.assert_allclose(np.take_along_axis(vectors @ labels.T, ids, 1), scores, atol=1e-5)
  np.testing.assert_allclose(np.linalg.norm(vectors[1]), 1, rtol=1e-5)
  assert all(sorted(row) == list(range(60)) for row in ids)


@pytest.mark.parametrize("k", [0, -1, 61])
def test_k_out_of_range(k, model):
  with pytest.raises(UserError, match="there are 60 labels; set 1 to 60"):
    model.predict(["x"], k=k)


def test_predict_lines_writes_one_object_a_line_whatever_the_text(model):
  lines = [
    "bave mima\n",
    "\n",
    "日本語 🙂 \u2028 \u0085 x\r\n",
    "  \t\n",
    '"quoted" \\ {}\n',
    "\ud800 lone\n",
    "no end",
  ]
  out = io.StringIO()
  assert predict_lines(model, documents.of_lines(lines), out, LabelRequest(60), block=2) == 7
  written = [json.loads(line) for line in out.getvalue().split("\n")[:-1]]
  assert [entry["text"] for entry in written] == [line.rstrip("\r\n") for line in lines]
  assert "日本語 🙂" in out.getvalue()
  for entry, ids, scores in zip(written, *model.predict([line.rstrip("\r\n") for line in lines], k=60)[:2]):
    if not entry["text"].strip():
      assert entry["labels"] == []
      continue
    of_label = dict(zip(ids.tolist(), scores.tolist()))
    assert_same_order([label["id"] for label in entry["labels"]], ids, of_label)
    assert all(set(label) == {"id", "key", "score", "text"} for label in entry["labels"])
    found = [label["score"] for label in entry["labels"]]  # of two texts at a time, and of all at once
    np.testing.assert_allclose(found, scores, atol=1e-5)
    assert entry["labels"][0]["text"] == model.labels[entry["labels"][0]["id"]]
