"""tf-idf by hand, and our methods' rows beside it: the same encoder and data for all."""

import importlib
import json
import pathlib
import types

import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs

from benchmarks import accuracy_methods, tfidf
from xmc_jax import data, methods

BOARD = accuracy_methods.Board("LF-DebianTitles", "debian", "", pathlib.Path("runs"))


# --- tf-idf ---


def _split(texts, truth, filtered=()):
  """A split of these texts; truth `[n, L]`, filtered pairs as (row, label)."""
  truth = sp.csr_matrix(np.array(truth, np.float32))
  out = np.zeros(truth.shape, bool)
  for row, label in filtered:
    out[row, label] = True
  return data.Split(np.array(texts, object), None, truth, sp.csr_matrix(out), np.arange(len(texts)))


# Every word stands in two of the six texts: all weigh the same, and a text of n words has n equal entries.
POINTS = ["red apple", "red pear", "green melon"]
LABELS = ["apple", "pear melon", "green"]
TRUTH = [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def _fitted(filtered=()):
  labels = types.SimpleNamespace(texts=np.array(LABELS, object))
  return tfidf.fit(_split(POINTS, TRUTH, filtered), labels)


def test_cosines_of_label_texts_by_hand():
  """Of "red melon" and "pear melon" one word of two is the same: 1 / 2; unknown words are none."""
  fitted = _fitted()
  scores = tfidf.by_text(fitted, fitted.vectorizer.transform(["red melon", "apple", "unheard"])).toarray()
  np.testing.assert_allclose(scores, [[0, 1 / 2, 0], [1, 0, 0], [0, 0, 0]], atol=1e-6)


def test_votes_by_hand(monkeypatch):
  """In "red apple tree" "tree" is unknown, so its cosines are 1 to "red apple", 1 / 2 to "red pear".

  Their labels are (0) and (0, 1): of 3 / 2 in all, label 0 has all and label 1 a third; the nearest point
  alone votes for label 0.
  """
  fitted = _fitted()
  queries = fitted.vectorizer.transform(["red apple tree", "unheard"])
  np.testing.assert_allclose(tfidf.by_vote(fitted, queries).toarray(), [[1, 1 / 3, 0], [0, 0, 0]], atol=1e-6)
  monkeypatch.setattr(tfidf, "NUM_NEIGHBOURS", 1)
  np.testing.assert_allclose(tfidf.by_vote(fitted, queries).toarray(), [[1, 0, 0], [0, 0, 0]], atol=1e-6)


def test_filtered_pairs_of_training_points_do_not_vote():
  fitted = _fitted(filtered=[(0, 0)])
  queries = fitted.vectorizer.transform(["red apple"])
  np.testing.assert_allclose(tfidf.by_vote(fitted, queries).toarray(), [[1 / 3, 1 / 3, 0]], atol=1e-6)


@pytest.mark.parametrize("most_scores", [1 << 25, 3])  # all rows at once, and one by one
def test_rankings_by_hand(most_scores, monkeypatch):
  """The first point's label 0 is filtered: it is the point itself. -1 is what has no score."""
  monkeypatch.setattr(tfidf, "_MOST_SCORES", most_scores)
  split = _split(["red apple", "red melon"], [[1, 0, 0], [0, 1, 0]], filtered=[(0, 0)])
  by_vote, by_both = (tfidf.rank(_fitted(), split, 3, weight).ids.tolist() for weight in (0, 10))
  # "Red melon" is as near to all points: votes are 2, 1 and 1 of 3; "pear melon" is nearest by its text.
  assert by_vote == [[1, -1, -1], [0, 1, 2]]
  assert by_both == [[1, -1, -1], [1, 0, 2]]


@pytest.mark.parametrize("kind", tfidf.KINDS)
def test_a_baseline_leaves_what_a_run_leaves(kind, tmp_path):
  config = tiny_runs.config(tiny_runs.write_data(tmp_path / "data"))
  workdir = tmp_path / "runs" / "tfidf_vote-0"
  found = tfidf.run(kind, config, workdir)
  report = json.loads((workdir / "report" / "metrics.json").read_text())
  assert found["P@1"] > 0.5  # points are made of their labels' words
  assert report["metrics"] == found and report["intervals_95"].keys() >= found.keys() and "R@100" not in found
  assert accuracy_methods.is_finished(workdir)
  assert json.loads((workdir / "metrics.jsonl").read_text())["memory/host_bytes"] > 0


def test_rows_held_out_vote_once_the_weight_is_chosen(tmp_path):
  """The weight is chosen as without their votes; then all training points rank the test rows."""
  config = tiny_runs.config(tiny_runs.write_data(tmp_path / "data"), **{"eval.metric": "nDCG@5"})
  for kind in ("both", "both_all"):
    tfidf.run(kind, config, tmp_path / kind)
  files = [tmp_path / kind / "report" / "metrics.json" for kind in ("both", "both_all")]
  reports = [json.loads(file.read_text()) for file in files]
  assert reports[0]["weights"] == reports[1]["weights"] and len(set(reports[0]["weights"].values())) > 1
  dataset = tfidf.create.load_data(config, None, "")
  train = data.hold_out(dataset.train, config.data.num_validation, config.train.seed)[0]
  weight = float(max(reports[0]["weights"], key=reports[0]["weights"].get))
  stored = []
  for kind, points in (("both", train), ("both_all", dataset.train)):
    ranking = tfidf.rank(tfidf.fit(points, dataset.labels), dataset.test, 10, weight)
    kept = sp.load_npz(tmp_path / kind / "predictions" / "test.npz")
    assert kept.indices.tolist() == ranking.ids[ranking.ids >= 0].tolist()
    np.testing.assert_array_equal(kept.data, ranking.scores[ranking.ids >= 0])
    stored.append(kept.indices.tolist())
  assert stored[0] != stored[1]


# --- our methods ---


def test_every_method_stands_in_the_table():
  names = {row.experiment for row in accuracy_methods.ROWS.values()}
  found = {_config(name, BOARD).method.name for name in accuracy_methods.ROWS}
  assert found == set(methods.names()), "add a row for the method to ROWS in benchmarks/accuracy_methods.py"
  assert {"depsl", "prime_classifier"} <= names
  assert {row.baseline for row in accuracy_methods.ROWS.values()} - {""} <= set(tfidf.KINDS)


def _config(name, board):
  """The config of a row as its training has it."""
  row = accuracy_methods.ROWS[name]
  preset, given = accuracy_methods.settings(row, 0, board)
  config = importlib.import_module(f"xmc_jax.experiments.{row.experiment}").get_config(preset)
  config.update_from_flattened_dict(given)
  return config


@pytest.mark.parametrize("family", ["debian", "debian_minilm3"])
def test_all_have_the_same_encoder_and_data(family):
  seen = {}
  rows = accuracy_methods.ROWS.items()
  for name in (name for name, row in rows if not row.baseline and row.experiment != "auto"):
    config = _config(name, BOARD._replace(family=family))
    methods.check_config(config)
    assert config.eval.every_epochs == 1
    if not accuracy_methods.ROWS[name].base:
      of_encoder = (config.encoder.name, config.encoder.num_layers, config.encoder.init_table)
      seen[name] = (*of_encoder, config.data.to_json(), config.eval.k)
  assert len(set(seen.values())) == 1, seen


def test_classifiers_take_data_and_encoder_of_their_base():
  extra = ("--config.data.num_validation=4", "--config.train.num_epochs=2")
  board = BOARD._replace(data="/data", extra=extra)
  assert {"--config.data.path=/data", *extra} <= set(accuracy_methods.command("dexa", 0, board))
  on_top = accuracy_methods.command("dexa_classifier", 0, board)
  assert {f"--config.init_from={board.folder('dexa', 0)}", extra[1]} <= set(on_top)
  assert not [flag for flag in on_top if flag.startswith("--config.data.")]
