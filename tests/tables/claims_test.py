"""The claims' synthetic data and settings. That the claims hold is no test's business: see docs."""

import json
import os
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax import data, methods
from xmc_jax.experiments.claims import figures, presets, run, synthetic
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs import evaluate


def test_t_star_is_as_the_paper_says(tmp_path):
  synthetic.write_t_star(tmp_path)
  read = data.load(tmp_path, cache_dir=tmp_path / "cache")
  assert (len(read.train), len(read.test), read.num_labels) == (1000, 1000, 5000)
  starred = [text.split()[0] == synthetic.T_STAR for text in read.train.texts]
  assert starred == [True] * 100 + [False] * 900
  truth = read.truth.train
  assert all(truth[row].indices.tolist() == [0, 1, 2, 3, 4] for row in range(100))
  assert truth[100:].nnz == 900 and truth[100:, :5].nnz == 0
  ending = [label for label in range(5000) if synthetic.T_STAR in read.labels.texts[label].split()]
  assert ending == [0] and read.labels.texts[0].endswith(synthetic.T_STAR)
  assert all(text.startswith(synthetic.T_STAR) for text in read.test.texts)
  assert read.truth.test.nnz == 1000 and np.all(read.truth.test.indices == 0)
  assert len({*read.train.texts, *read.test.texts}) == 2000


def test_random_pairs_are_tested_on_what_they_train_on(tmp_path):
  synthetic.write_random_pairs(tmp_path, 50)
  read = data.load(tmp_path, cache_dir=tmp_path / "cache")
  assert list(read.train.texts) == list(read.test.texts) and read.num_labels == 50
  assert np.array_equal(read.truth.train.toarray(), np.eye(50))
  assert {len(text.split()) for text in [*read.train.texts, *read.labels.texts]} == {16}


@pytest.mark.parametrize("loss, pulls", [("decoupled_softmax", [0.2, 0.5]), ("softmax", [-1 / 3, 2 / 3])])
def test_what_pulls_a_label_to_its_point(loss, pulls):
  """Softmax pushes a positive away that has more than its part: 1 − 2 · 4/6. The last pair is filtered."""
  scores, truth = np.log([[4.0, 1.0, 1.0, 9.0]]), sp.csr_matrix([[2.0, 0.5, 0, 0]])
  found = figures.pulls_of(loss, scores, truth, excluded=sp.csr_matrix([[0, 0, 0, 1]]))
  np.testing.assert_allclose(found, pulls, rtol=1e-6)


def test_the_spread_of_pulls_is_over_points_and_times():
  """Label 0 has -1, 1, 1, 3, label 1 one point only."""
  found = figures.spread(np.array([[-1.0, 9.0, 1.0], [1.0, 9.0, 3.0]]), np.array([0, 1, 0]), at_least=2)
  assert found == {"pull": 1.0, "deviation": pytest.approx(2**0.5), "pushed_apart": 0.25}


def test_labels_by_thirds_of_their_similarity():
  """Labels 0 and 1 point the same way, 2 and 3 are at 60 and 90 degrees from them; 4 has no points."""
  vectors = np.array([[1.0, 0.0], [2.0, 0.0], [0.5, 0.75**0.5], [0.0, 1.0]])
  similarities = figures.similarity(vectors, nearest=2)
  np.testing.assert_allclose(similarities, [0.75, 0.75, (0.75**0.5 + 0.5) / 2, 0.75**0.5 / 2], rtol=1e-6)
  truth = sp.csr_matrix([[1, 0, 1, 0], [0, 1, 0, 1]])
  hits = figures.hits_by_label(np.array([[0, 1], [1, -1]]), truth)
  assert hits.tolist() == [1, 1, 0, 0]
  ours, others = np.array([3, 1, 2, 9]), np.array([2, 0, 4, 9])
  found = figures.by_thirds(ours, others, np.array([0.9, 0.5, 0.1, 0.2]), np.array([True, True, True, False]))
  assert found == {"least_similar": -0.5, "most_similar": 0.5}


def test_sparse_classifiers_rank_by_words():
  """Labels 0 and 1 have words 0 and 1 of their own; label 2 was never among the first labels of another."""
  known = sp.csr_matrix(np.eye(3)[[0, 0, 1, 1, 2]])
  truth = sp.csr_matrix(np.eye(3)[[0, 0, 1, 1, 2]])
  negatives = np.array([[0, 1], [1, 0], [0, 1], [1, 0], [2, -1]])
  ids = np.array([[1, 0, -1], [2, 1, 0]])
  margins = figures.margins_of(known, sp.csr_matrix(np.eye(3)[[0, 1]]), truth, negatives, ids)
  assert margins[0, 0] < 0 < margins[0, 1] and margins[1, 2] < 0 < margins[1, 1]
  assert margins[0, 2] == 0 and margins[1, 0] == 0


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_pass_the_checks(name):
  config = presets.get_config(name)
  methods.check_config(config)


def test_each_claim_stands_on_a_page():
  marks = " ".join(
    mark
    for page in (run._ROOT / "docs").rglob("*.md")
    for mark in re.findall(r"<!-- (?:claim|sets): (.*?) -->", page.read_text(encoding="utf-8"), re.S)
  )
  shown = set(re.split(r"[-/\s]", marks))
  assert {re.sub("_(cpp|tate|wordnet)$", "", claim) for claim in presets.CLAIMS} <= shown


def test_the_command_that_makes_tables_needs_no_installed_package(tmp_path):
  left_out = shutil.ignore_patterns("results", "figures")
  docs = shutil.copytree(run._ROOT / "docs", tmp_path / "docs", ignore=left_out)
  (tmp_path / "xmc_jax").symlink_to(run._ROOT / "xmc_jax")
  page = docs / "settings.md"
  before = page.read_text()
  page.write_text(before.replace("- `train.seed` =", "- an old key ="))
  clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
  command = [sys.executable, "docs/make_tables.py", "write", "settings"]
  subprocess.run(command, cwd=tmp_path, env=clean, check=True)
  assert page.read_text() == before


@pytest.fixture
def in_empty_docs(make_tables, tmp_path, monkeypatch):
  """The script, and experiments' results, in an empty docs folder."""
  monkeypatch.setattr(make_tables, "_DOCS", tmp_path / "docs")
  (tmp_path / "docs").mkdir()
  monkeypatch.setattr(run, "_RESULTS", tmp_path / "docs" / "results")
  run._RESULTS.mkdir()
  return make_tables


def test_pages_show_the_results_that_are_kept(make_tables):
  for page in make_tables._pages():
    text = page.read_text(encoding="utf-8")
    assert make_tables.filled(text) == text, f"{page}: run python docs/make_tables.py write"
  for name, expected in make_tables.csv_files().items():
    text = (make_tables._DOCS / "results" / f"{name}.csv").read_text(encoding="utf-8")
    assert text == expected, f"{name}.csv: run python docs/make_tables.py write"


def test_a_claims_table_has_rows_of_all_its_sets(in_empty_docs, tmp_path):
  """In percent: 40, 42 and 44 deviate by 2, and Student's t for two degrees of freedom is 4.303."""
  seed = lambda p, minutes: {"P@1": 0.9, "last": {"P@1": p, "R@10": p + 0.5}, "minutes": minutes}
  seeds = [seed(0.40, 1.0), seed(0.42, 9.0), seed(0.44, 2.0)]
  run.keep("losses_cpp", {"soft_top_5": seeds, "one": [{"last": {"P@1": 0.1, "R@10": 0.0}}]})
  run.keep("losses", {"one": seeds[:1], "two": seeds[2:]})
  run.keep("rows", {"three": [{"P@1": 0.3}]})  # not of steps: without `last`
  (tmp_path / "docs" / "claims").mkdir()
  page = tmp_path / "docs" / "claims" / "dexml.md"
  marks = "<!-- claim: losses P@1 R@10 minutes -->", "<!-- claim: rows losses/two P@1 R@10 -->"
  page.write_text("".join(f"{mark}\nold\n<!-- end -->\n" for mark in marks))
  with pytest.raises(SystemExit, match="no page claims/other; there are claims/dexml"):
    in_empty_docs.write(("claims/other",))
  assert page.read_text().count("old") == 2
  in_empty_docs.write(("claims/dexml",))
  assert page.read_text().splitlines() == [
    marks[0],
    "|  | Cpp P@1 | Cpp R@10 | Cpp minutes | Debian P@1 | Debian R@10 | Debian minutes |",
    "|---|---|---|---|---|---|---|",
    "| soft top 5 | 42.0 ± 5.0 | 92.0 | 2.0 |  |  |  |",
    "| one | 10.0 | 0.0 |  | 40.0 | 90.0 | 1.0 |",
    "| two |  |  |  | 44.0 | 94.0 | 2.0 |",
    "<!-- end -->",
    marks[1],
    "|  | Cpp P@1 | Cpp R@10 | Debian P@1 | Debian R@10 |",
    "|---|---|---|---|---|",
    "| three |  |  | 30.0 |  |",
    "| two |  |  | 44.0 | 94.0 |",
    "<!-- end -->",
  ]


def test_a_claim_set_by_set_and_its_minutes(in_empty_docs, tmp_path):
  """Seed by seed, beside a row of another claim, too: 40, 42, 44 less 38, 41, 41 are 2 ± 4.303 · 1 / √3."""
  run.keep("one_cpp", {"a_0.5": [{"last": {"P@1": p}, "minutes": 2.0} for p in (0.4, 0.42, 0.44)]})
  run.keep("one", {"a_0.5": [{"last": {"P@1": 0.5}, "minutes": 1.6}], "b": [{"last": {"P@1": 0.25}}]})
  run.keep("other_cpp", {"c": [{"last": {"P@1": p}} for p in (0.38, 0.41, 0.41)]})
  page = tmp_path / "docs" / "page.md"
  marks = "<!-- sets: one/a_0.5 P@1 P@1-other/c\none/b P@1-a_0.5 -->", "<!-- minutes: one other -->"
  page.write_text("".join(f"{mark}\n<!-- end -->\n" for mark in marks))
  in_empty_docs.write()
  assert [line for line in page.read_text().splitlines() if line.startswith("|")] == [
    "| not run: Tate, WordNet |  | Cpp | Debian |",
    "|---|---|---|---|",
    "| a 0.5 | P@1 | 42.0 ± 5.0 | 50.0 |",
    "|  | P@1 − c | +2.0 ± 2.5 | not run |",
    "| b | P@1 − a 0.5 | not run | -25.0 |",
    "|  | Cpp | Debian | Tate | WordNet |",
    "|---|---|---|---|---|",
    "| `one` | 6 | 2 |  |  |",
    "| `other` |  |  |  |  |",
  ]


def _write_run(workdir):
  """A finished run with two views; three test points, of which one has more than five labels."""
  (workdir / "report").mkdir(parents=True)
  seconds = {"train": 90.0, "refresh_clusters": 30.0, "compile": 500.0}
  (workdir / "report" / "seconds.json").write_text(json.dumps(seconds))
  lines = [{"memory/host_bytes": 1e9}, {"eval/P@1": 0.1, "eval/P@5": 0.2}, {"memory/host_bytes": 3e9}]
  (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  (workdir / "frequency.json").write_text(json.dumps({"weight": 1.25, "metric": "P@1", "values": []}))
  _write_test(workdir, "", [[0, 1, 2, 3, 9], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])


def _write_test(workdir, suffix, ids):
  views = {"encoder": {"P@1": 0.125}, "classifier": {"P@1": 0.5, "other": 1}}
  thirds = {"P@1": [0.125, 0.1, 0.025], "P@5": [0.25, 0.0, 0.5]}
  report = {
    "metrics": {"P@1": 0.5 if suffix else 0.25, "other": 1},
    "by_source": views,
    "slices": {"head_torso_tail": thirds, "deciles": {"P@1": [0.24, 0.01], "P@5": [0.7, 0.05]}},
  }
  (workdir / "report" / f"metrics{suffix}.json").write_text(json.dumps(report))
  ranking = Ranking(np.array(ids, np.int32), np.tile(np.arange(5.0, 0, -1, np.float32), (3, 1)))
  evaluate.save_predictions(ranking, "abcdefghij", workdir / "predictions" / f"test{suffix}.npz")


def test_finished_runs_are_neither_trained_nor_tested_again(tmp_path, monkeypatch):
  calls = []

  def done(command, **_):
    calls.append(command)
    workdir = next(part for part in command if part.startswith("--workdir=")).partition("=")[2]
    if "--checkpoint=last" in command:
      _write_test(run.pathlib.Path(workdir), "_last", [[9, 8, 0, 1, 2], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
    else:
      _write_run(run.pathlib.Path(workdir))

  unfiltered = sp.csr_matrix(np.array([[1] * 6 + [0] * 4, [1] + [0] * 9, [0] * 10]))
  prepared = types.SimpleNamespace(test=types.SimpleNamespace(unfiltered_positives=unfiltered))
  monkeypatch.setattr(run.subprocess, "run", done)
  monkeypatch.setattr(run.data, "load_prepared", lambda folder: prepared)
  shares = {"head_P@1": 0.125, "torso_P@1": 0.1, "tail_P@1": 0.025}
  deciles = {"decile_1_P@5": 0.7, "decile_2_P@5": 0.05}
  many = {"over_5_labels_P@5": pytest.approx(0.6)}
  for _ in range(2):
    found = run.train("losses", "softmax", 3, tmp_path, [])
    assert found == {
      "softmax": {
        "last": {"P@1": 0.5, **shares, **deciles, **many},
        "minutes": 2.0,
        "GB": 3.0,
        "curve": [0.1],
        "log_frequency": 1.25,
      },
      "softmax_by_encoder": {"last": {"P@1": 0.125}},
      "softmax_by_classifier": {"last": {"P@1": 0.5}},
    }
  assert len(calls) == 2 and "--config.train.seed=3" in calls[0] and "--mode=evaluate" in calls[1]


def test_what_a_file_has_is_not_made_again_while_settings_stay(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(run, "_RESULTS", tmp_path)
  monkeypatch.setattr(run, "CLAIMS", {"claim": {"a": {"k": (1, 2)}, "a_by_kmeans": {"k": 2}, "b": {"k": 3}}})

  def trained(claim, row, seed, runs, extra):
    calls.append(f"{row}-{seed}")
    return {row: {"P@1": seed}, f"{row}_by_encoder": {"P@1": seed}}

  monkeypatch.setattr(run, "train", trained)
  monkeypatch.setattr(run.sys, "argv", ["run", "claim", "--seeds=2"])
  run.main()
  assert calls == ["a-0", "a_by_kmeans-0", "b-0", "a-1", "a_by_kmeans-1", "b-1"]
  before = json.loads((tmp_path / "claim_claim.json").read_text())
  calls.clear()
  run.main()
  assert not calls and json.loads((tmp_path / "claim_claim.json").read_text()) == before
  run.CLAIMS["claim"]["a"]["k"] = (1, 3)  # another row than it was
  monkeypatch.setattr(run.sys, "argv", ["run", "claim", "--seeds=3"])
  run.main()
  assert calls == ["a-0", "a-1", "a-2", "a_by_kmeans-2", "b-2"]
  rows = json.loads((tmp_path / "claim_claim.json").read_text())["rows"]
  assert [*rows] == ["a", "a_by_encoder", "a_by_kmeans", "a_by_kmeans_by_encoder", "b", "b_by_encoder"]
  assert all([seed["P@1"] for seed in of_row] == [0, 1, 2] for of_row in rows.values())
