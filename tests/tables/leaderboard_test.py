"""The leaderboard: tf-idf by hand, one budget for all, runs that are not trained twice, and its table."""

import importlib
import importlib.util
import json
import pathlib
import types

import numpy as np
import pytest
import scipy.sparse as sp
import tiny_runs
from cases import each_case

from benchmarks import leaderboard, tfidf
from xmc_jax import data, methods

BOARD = leaderboard.Board("", "debian", 15, "", pathlib.Path("runs"))


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
  """The first point's label 0 is filtered: it is the point itself. -1 is what shares no word."""
  monkeypatch.setattr(tfidf, "_MOST_SCORES", most_scores)
  split = _split(["red apple", "red melon"], [[1, 0, 0], [0, 1, 0]], filtered=[(0, 0)])
  ranked = {kind: tfidf.rank(_fitted(), kind, split, 3, weight=10).ids.tolist() for kind in tfidf.KINDS}
  # "Red melon" is as near to all points: votes are 2, 1 and 1 of 3; "pear melon" is nearest by its text.
  assert ranked["labels"] == [[-1, -1, -1], [1, -1, -1]]
  assert ranked["vote"] == ranked["vote_all"] == [[1, -1, -1], [0, 1, 2]]
  assert ranked["both"] == ranked["both_all"] == [[1, -1, -1], [1, 0, 2]]


def test_the_largest_of_a_row():
  """Equal ones come by rising id, and what is 0 or less does not come."""
  scores = sp.csr_matrix(np.array([[0.5, 2, 0.5, 0.5], [0, 0, 1, -1], [0, 0, 0, 0]], np.float32))
  ids, values = tfidf.largest(scores, 3)
  assert ids.tolist() == [[1, 0, 2], [2, -1, -1], [-1, -1, -1]]
  assert values.tolist() == [[2, 0.5, 0.5], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("kind", tfidf.KINDS)
def test_a_baseline_leaves_what_a_run_leaves(kind, tmp_path):
  config = tiny_runs.config(tiny_runs.write_data(tmp_path / "data"))
  found = tfidf.run(kind, config, tmp_path / "runs" / "main" / "tfidf_vote-0")
  outcome = leaderboard.outcome("tfidf_vote", 0, BOARD._replace(runs=tmp_path / "runs"))
  assert found["P@1"] > 0.5  # points are made of their labels' words
  assert outcome["metrics"]["P@1"] == round(found["P@1"], 5) and outcome["half_intervals"]["P@1"] > 0
  assert set(outcome["metrics"]) == set(leaderboard._KEPT) - {"R@100"}  # eval.k is 10
  assert outcome["validation"] is None and outcome["GB"] > 0
  # As a training has them.
  with (tmp_path / "runs" / "main" / "tfidf_vote-0" / "metrics.jsonl").open("a") as file:
    file.writelines(json.dumps({"eval/P@1": precision}) + "\n" for precision in (0.5, 0.4))
  outcome = leaderboard.outcome("tfidf_vote", 0, BOARD._replace(runs=tmp_path / "runs"))
  assert outcome["validation"] == 0.5
  assert outcome["curve"] == [0.5, 0.4]


def test_rows_held_out_vote_once_the_weight_is_chosen(tmp_path):
  """The weight is chosen as without their votes; then all training points rank the test rows."""
  config = tiny_runs.config(tiny_runs.write_data(tmp_path / "data"), **{"eval.metric": "nDCG@5"})
  for kind in ("both", "both_all"):
    tfidf.run(kind, config, tmp_path / kind)
  reports = [
    json.loads((tmp_path / kind / "report" / "metrics.json").read_text()) for kind in ("both", "both_all")
  ]
  assert reports[0]["weights"] == reports[1]["weights"] and len(set(reports[0]["weights"].values())) > 1
  dataset = tfidf.create.load_data(config, None, "")
  train = data.hold_out(dataset.train, config.data.num_validation, config.train.seed)[0]
  weight = float(max(reports[0]["weights"], key=reports[0]["weights"].get))
  stored = []
  for kind, points in (("both", train), ("both_all", dataset.train)):
    ranking = tfidf.rank(tfidf.fit(points, dataset.labels), "both", dataset.test, 10, weight)
    kept = sp.load_npz(tmp_path / kind / "predictions" / "test.npz")
    assert kept.indices.tolist() == ranking.ids[ranking.ids >= 0].tolist()
    np.testing.assert_array_equal(kept.data, ranking.scores[ranking.ids >= 0])
    stored.append(kept.indices.tolist())
  assert stored[0] != stored[1]


# --- the budget ---


def test_every_method_stands_in_the_table():
  names = {leaderboard.ROWS[name].experiment for name in leaderboard.ROWS}
  found = {_config(name, BOARD).method.name for name in leaderboard.ROWS}
  assert found == set(methods.names()), "add a row for the method to ROWS in benchmarks/leaderboard.py"
  assert {"depsl", "prime_classifier"} <= names
  assert {row.baseline for row in leaderboard.ROWS.values()} - {""} == set(tfidf.KINDS)


def _config(name, board):
  """The config of a row as its training has it."""
  row = leaderboard.ROWS[name]
  preset, given = leaderboard.settings(row, 0, board)
  module = importlib.import_module(f"experiments.{row.experiment}")
  config = module.get_config(preset)
  config.update_from_flattened_dict(given)
  return config


@each_case("family, epochs", [("debian", 15), ("debian", 4), ("debian_minilm3", 8)])
def test_all_have_the_same_budget_encoder_and_data(family, epochs):
  board = BOARD._replace(family=family, epochs=epochs)
  trained = [name for name, row in leaderboard.ROWS.items() if not row.baseline]
  seen = {}
  for name in trained:
    config = _config(name, board)
    methods.check_config(config)
    assert config.train.num_epochs == epochs and config.eval.every_epochs == 1
    if not leaderboard.ROWS[name].base:
      of_encoder = (config.encoder.name, config.encoder.num_layers, config.encoder.init_table)
      seen[name] = (*of_encoder, config.data.to_json(), config.eval.k)
  assert len(set(seen.values())) == 1, seen


def test_clocks_are_stretched_to_the_budget():
  """NGAME's preset of 30 epochs clusters from 2 on, every 2, and doubles at 5, 10, 15 and 20."""
  settings = leaderboard.settings(leaderboard.ROWS["ngame"], 3, BOARD)[1]
  assert settings["method.clusters_first_epoch"] == settings["method.clusters_every_epochs"] == 1
  assert settings["method.cluster_doubling_epochs"] == (2, 5, 8, 10)
  assert settings["train.seed"] == 3 and "method.pruning_first_epoch" not in settings
  assert leaderboard.settings(leaderboard.ROWS["ramen"], 0, BOARD)[1]["method.pruning_first_epoch"] == 1.5
  same = leaderboard.settings(leaderboard.ROWS["ance"], 0, BOARD)[1]  # 15 epochs as they are
  assert not [key for key in same if key.startswith("method.")]


def test_a_loss_of_its_own_metric_chooses_its_epoch_by_it():
  row = leaderboard.ROWS["dexml_soft_top_5"]
  assert leaderboard.settings(row, 0, BOARD)[1]["eval.metric"] == "P@5"
  assert "eval.metric" not in leaderboard.settings(row, 0, BOARD._replace(epochs=0))[1]
  assert "eval.metric" not in leaderboard.settings(leaderboard.ROWS["dexml"], 0, BOARD)[1]


def test_the_command_line_names_boards_rows_and_encoders(tmp_path, capsys):
  rows, seeds, board = leaderboard.parse(["--methods", "dexa_classifier", "dpr", "--seeds=2"])
  assert (rows, seeds, board.name, board.epochs) == (["dpr", "dexa", "dexa_classifier"], 2, "", 15)
  assert leaderboard.parse(["--preset=debian_minilm3"])[2].name == "debian_minilm3"
  assert leaderboard.parse(["--budget=5"])[2].name == "5_epochs"
  other = leaderboard.parse([f"--data={tmp_path}", "--board=mine", "--config.data.num_validation=4"])[2]
  assert other.name == "mine" and other.data == str(tmp_path)
  assert "--config.data.num_validation=4" in leaderboard.command("dexa", 0, other)
  on_top = leaderboard.command("dexa_classifier", 0, other)
  assert f"--config.init_from={other.folder('dexa', 0)}" in on_top
  assert not [flag for flag in on_top if flag.startswith("--config.data.")]  # they are the encoder's
  for wrong in (["--config.data.num_validation=4"], ["dexa"]):
    with pytest.raises(SystemExit):
      leaderboard.parse(wrong)
  assert "--board=NAME" in capsys.readouterr().err


# --- runs and tables ---


@pytest.fixture
def page(tmp_path, monkeypatch):
  """An empty docs folder; the page that is filled in."""
  path = pathlib.Path(leaderboard.__file__).parents[1] / "docs" / "make_tables.py"
  spec = importlib.util.spec_from_file_location("make_tables", path)
  make_tables = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(make_tables)
  monkeypatch.setattr(make_tables, "_DOCS", tmp_path / "docs")
  monkeypatch.setattr(leaderboard, "_RESULTS", tmp_path / "docs" / "results" / "leaderboard")
  monkeypatch.setattr(leaderboard, "write_tables", lambda: make_tables.write(("results",)))
  (tmp_path / "docs").mkdir()
  found = tmp_path / "docs" / "results.md"
  found.write_text("<!-- leaderboard -->\n<!-- end -->\n")
  return found


def _seed(p, minutes):
  metrics, halves = {"P@1": p, "R@10": 0.5}, {"P@1": 0.02, "R@10": 0.01}
  return {"metrics": metrics, "half_intervals": halves, "minutes": minutes, "GB": 1.5}


def test_last_steps_have_columns_where_every_trained_row_has_them(page):
  leaderboard._RESULTS.mkdir(parents=True)
  ended = {"validation": 0.5, "last": {"P@1": 0.25, "R@100": 0.75}}
  for name, more in {"a": ended, "b": {"validation": None, "last": {}}}.items():
    row = {"what": name.upper(), "seeds": [{**_seed(0.3, 4), **more}]}
    (leaderboard._RESULTS / f"{name}.json").write_text(json.dumps(row))
  leaderboard.write_tables()
  lines = page.read_text().splitlines()
  assert lines[1].endswith("| minutes | GB | P@1 at the end | R@100 at the end |")
  assert lines[3].endswith("| 4.0 | 1.5 | 25.0 | 75.0 |") and lines[4].endswith("| 4.0 | 1.5 |  |  |")


def test_the_table_is_made_of_the_files(page):
  """Best first; 40, 42 and 44 deviate by 2, and Student's t for two degrees of freedom is 4.303."""
  leaderboard._RESULTS.mkdir(parents=True)
  for name, seeds in {"a": [_seed(0.3, 4)], "b": [_seed(0.40, 1), _seed(0.42, 9), _seed(0.44, 2)]}.items():
    (leaderboard._RESULTS / f"{name}.json").write_text(json.dumps({"what": name.upper(), "seeds": seeds}))
  leaderboard.write_tables()
  assert page.read_text().splitlines() == [
    "<!-- leaderboard -->",
    "|  | seeds | P@1 | R@10 | minutes | GB | P@1 over seeds |",
    "|---|---|---|---|---|---|---|",
    "| B | 3 | **42.0** ± 2.0 | **50.0** ± 1.0 | 2.0 | 1.5 | 42.0 ± 5.0 |",
    "| A | 1 | 30.0 ± 2.0 | **50.0** ± 1.0 | 4.0 | 1.5 | 30.0 |",
    "<!-- end -->",
  ]
  page.write_text("<!-- leaderboard: R@10 -->\n<!-- end -->\n")  # one of its metrics
  leaderboard.write_tables()
  assert page.read_text().splitlines()[3] == "| B | 3 | **50.0** ± 1.0 | 2.0 | 1.5 | 42.0 ± 5.0 |"


def _write_run(workdir, p, seconds):
  (workdir / "report").mkdir(parents=True)
  slices = {"head_torso_tail": {"P@1": [0.1] * 3, "P@5": [0.1] * 3}, "deciles": {"P@1": [1], "P@5": [1]}}
  report = {"metrics": {"P@1": p}, "intervals_95": {"P@1": [p - 0.01, p + 0.03]}, "slices": slices}
  (workdir / "report" / "metrics.json").write_text(json.dumps(report))
  (workdir / "metrics.jsonl").write_text('{"memory/host_bytes": 2e9}\n{"eval/P@1": 0.25}\n')
  (workdir / "report" / "seconds.json").write_text(json.dumps({"train": seconds}))


def test_finished_runs_are_not_trained_again_and_failed_ones_are(page, tmp_path, monkeypatch):
  calls, broken = [], {"dexa-1"}

  def trained(command, **_):
    workdir = next(part for part in command if part.startswith("--workdir=")).partition("=")[2]
    if "--checkpoint=last" in command:
      last = {"metrics": {"P@1": 0.125, "other": 1}}
      (pathlib.Path(workdir) / "report" / "metrics_last.json").write_text(json.dumps(last))
      return None
    calls.append(pathlib.Path(workdir).name)
    if calls[-1] not in broken:
      _write_run(pathlib.Path(workdir), 0.4 if "classifier" in workdir else 0.3, 90)
    return types.SimpleNamespace(returncode=calls[-1] in broken)

  monkeypatch.setattr(leaderboard.subprocess, "run", trained)
  given = ["--methods", "dexa", "dexa_classifier", "--seeds=2", f"--runs={tmp_path / 'runs'}"]
  with pytest.raises(SystemExit, match="not finished: dexa-1, dexa_classifier-1"):
    leaderboard.main(given)
  assert calls == ["dexa-0", "dexa_classifier-0", "dexa-1"]  # classifiers wait for their encoder
  assert "| DEXA | 1 | 30.0 ± 2.0 | 1.5 | 2.0 |" in page.read_text()
  broken.clear()
  for _ in range(2):
    leaderboard.main(given)
  assert calls[3:] == ["dexa-1", "dexa_classifier-1"]
  kept = json.loads((leaderboard._RESULTS / "dexa_classifier.json").read_text())
  assert kept["what"] == "DEXA with classifiers" and [seed["seed"] for seed in kept["seeds"]] == [0, 1]
  assert kept["seeds"][0]["last"] == {"P@1": 0.125}
  assert kept["seeds"][0]["minutes"] == 3 and kept["seeds"][0]["validation"] == 0.25  # its encoder's with it
  assert kept["settings"]["train.num_epochs"] == 15 and not {"init_from", "train.seed"} & set(
    kept["settings"]
  )
