"""A run's page: written whole, safe, quick, and right about what it shows."""

import csv
import json
import re
import types

import numpy as np
import pytest
from page_runs import HOSTILE, made_run, written

from xmc_jax import report, sanitize
from xmc_jax.report import one_run
from xmc_jax.runs import evaluate

FIGURES = {"loss", "validation", "frequencies", "found", "precision_recall", "scores"}


def test_the_page_has_every_part(plain_run):
  page = written(plain_run)
  folder, words = plain_run.run.workdir / "report", page.words
  assert page.path == folder / "index.html"
  assert {png.stem for png in folder.glob("*.png")} == FIGURES and page.tags.count("img") == len(FIGURES)
  headings = re.findall(r"<h[23]>(.*?)</h[23]>", page.text)
  for heading in ("How good it is", "How it learnt", "On frequent and on rare labels", "What scores tell",
                  "Examples", "Time and memory", "Settings"):  # fmt: skip
    assert heading in headings
  report = json.loads((folder / "metrics.json").read_text())
  means = report["metrics"]
  shares = (means["P@1"], *report["intervals_95"]["P@1"], means["R@5"], means["R@10"])
  first, low, high, five, ten = (f"{100 * share:.1f}" for share in shares)
  beginning = words[: words.index("How good it is")]
  assert f"right for {first} of 100 test texts ({low} to {high} for" in beginning
  assert f"The first 5 labels hold {five} % of a text's right labels" in beginning
  assert f"<b>{ten}</b>" in page.text
  assert "18 steps, 6 to an epoch" in words and "Parameters of step 6" in words
  assert "3 min 29 s" in words and "1.50 GB" in words  # 209 s in all
  assert "encoder.width" in words and "above a random other one" in words
  assert "Whether the probabilities hold" not in words and 'class="why"' not in page.text


def test_a_table_of_all_labels(plain_run, undrawn):
  written(plain_run)
  dataset, ids = plain_run.run.dataset, plain_run.ranking.ids
  truth, train = dataset.test.unfiltered_positives.toarray() > 0, dataset.train.truth.toarray() > 0
  with (plain_run.run.workdir / "report" / "labels.csv").open(encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))
  assert [row["key"] for row in rows] == [sanitize.line(key) for key in dataset.label_keys]
  assert [row["label"] for row in rows] == [sanitize.line(text) for text in dataset.labels.texts]
  seen = 0
  for label, row in enumerate(rows):
    points = np.flatnonzero(truth[:, label])
    assert (int(row["training_points"]), int(row["test_points"])) == (train[:, label].sum(), len(points))
    ranks = [(np.flatnonzero(ids[point] == label).tolist() or [np.inf])[0] for point in points]
    values = [row["R@1"], row["R@5"], row["mean_reciprocal_rank"]]
    if not ranks:
      assert values == ["", "", ""]
      continue
    expected = [np.mean([share(rank) for rank in ranks]) for share in
                (lambda rank: rank < 1, lambda rank: rank < 5, lambda rank: 1 / (rank + 1))]  # fmt: skip
    np.testing.assert_allclose(list(map(float, values)), expected, atol=1e-4)
    seen += 1
  assert seen > 10


def test_strangers_words_are_shown_and_do_nothing(plain_run, undrawn):
  words = written(plain_run).words
  assert "<script>alert(1)</script>" in words or "<img src=x" in words
  assert any(word in words for word in ("漢字", "שלום", "$x^2$"))
  assert len(HOSTILE[7]) > 5000 and "long " * 100 not in words


def test_another_suffix_leaves_the_page_alone(plain_run, undrawn):
  """Writing the page itself again is the same."""
  before = written(plain_run)
  evaluate.write_report(plain_run.run, plain_run.run.dataset.test, plain_run.ranking, 12, suffix="_exact")
  page = written(plain_run, suffix="_exact")
  assert page.path.name == "index_exact.html" and "Parameters of step 12" in page.words
  assert (page.path.parent / "found_exact.png").exists()
  assert before.path.read_text() == before.text == written(plain_run).text


def test_several_views_and_refreshes(fused_run, undrawn):
  words = written(fused_run, seconds={"train": 30.0}).words
  assert "ranked by both scores" in words and "By other scores" in words
  assert "clusters 3 times" in words and "shortlist 3 times" in words
  assert "30.0 s" in words and "preparing data" not in words


@pytest.mark.parametrize(
  "which, scores, shown",
  [
    ("fused_run", "encoder", "ranked by the encoder."),
    ("fused_run", "classifier", "ranked by the classifier."),
    ("hybrid_run", "memory", "ranked by the source memory alone."),
    ("hybrid_run", "lexical_labels", "ranked by the source lexical labels alone."),
  ],
)
def test_one_view_or_source_of_several(request, which, scores, shown, undrawn):
  """A source's scores are no probabilities, and it may find fewer labels than are asked for."""
  made = request.getfixturevalue(which)
  rank = made.trained.ranker(scores)
  ranking = evaluate.rank_split(made.run, rank, made.queries, made.run.dataset.test)
  evaluate.write_report(made.run, made.run.dataset.test, ranking, 6, suffix=f"_{scores}")
  page = written(made._replace(ranking=ranking, why=None), scores=scores, suffix=f"_{scores}")
  assert shown in page.words and 'class="why"' not in page.text
  assert ("the larger, the higher a label is ranked" in page.words) == ("source" in shown)
  assert "Whether the probabilities hold" not in page.words


def test_nothing_recorded(data_folder, tmp_path):
  made = made_run(data_folder, tmp_path / "run", epochs=0, **{"data.num_validation": 0})
  (made.run.workdir / "report" / "seconds.json").unlink()
  words = written(made).words
  assert "No reading of memory" in words and "No rows were held out" in words
  drawn = {path.stem for path in (made.run.workdir / "report").glob("*.png")}
  assert drawn == FIGURES - {"loss", "validation"}


def test_one_label_one_epoch_no_validation(tmp_path):
  folder = tmp_path / "raw"
  folder.mkdir()
  for name in ("trn", "tst"):
    points = [{"uid": f"{row}", "title": f"point {row}", "target_ind": [0] * (row > 1)} for row in range(9)]
    lines = [json.dumps(point | {"target_rel": [1.0] * len(point["target_ind"])}) for point in points]
    (folder / f"{name}.json").write_text("\n".join(lines) + "\n")
  (folder / "lbl.json").write_text('{"uid": "l", "title": "the only label"}\n')
  settings = {"data.num_validation": 0, "eval.k": 1, "train.batch_size": 4, "method.label_chunk": 1}
  made = made_run(folder, tmp_path / "run", epochs=1, **settings)
  text = written(made).words
  assert "2 of 9 test points have no label" in text and "the only label" in text


def test_only_the_main_process_writes(plain_run, monkeypatch, undrawn):
  written(plain_run)
  before = {path: path.stat().st_mtime_ns for path in (plain_run.run.workdir / "report").iterdir()}
  monkeypatch.setattr(one_run, "runtime", types.SimpleNamespace(is_main_process=lambda: False))
  report.write(plain_run.trained, plain_run.ranking, plain_run.queries)
  assert {path: path.stat().st_mtime_ns for path in (plain_run.run.workdir / "report").iterdir()} == before
