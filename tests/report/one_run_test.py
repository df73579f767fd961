"""A run's page: written whole, safe, quick, and right about what it shows."""

import csv
import json
import re
import types

import numpy as np
import pytest
import scipy.sparse as sp
from page_runs import HOSTILE, made_run, of_test
from pages_test import check_page

from xmc_jax import report, sanitize
from xmc_jax.distributed import runtime
from xmc_jax.report import one_run, pages
from xmc_jax.runs import evaluate
from xmc_jax.runs.ranking import ranker

FIGURES = {"loss", "validation", "frequencies", "found", "precision_recall", "scores"}


def _write(made, **kwargs):
  path = report.write(made.run, made.ranking, made.queries, made.params, made.extra_state, **kwargs)
  text = path.read_text(encoding="utf-8")
  assert not list(path.parent.glob("*.tmp"))
  assert not re.search(r"\bnan\b|\binf\b", re.sub(r"base64,[^\"]*", "", text), re.IGNORECASE)
  return path, text, check_page(text)


def _headings(text):
  return re.findall(r"<h[23]>(.*?)</h[23]>", text)


def test_the_page_has_every_part(plain_run):
  path, text, checked = _write(plain_run)
  assert path == plain_run.run.workdir / "report" / "index.html"
  assert {found.stem for found in path.parent.glob("*.png")} == FIGURES
  assert checked.seen.count("img") == len(FIGURES)
  for heading in ("How good it is", "How it learnt", "On frequent and on rare labels", "What scores tell",
                  "Examples", "Time and memory", "Settings"):  # fmt: skip
    assert heading in _headings(text)
  means = json.loads((path.parent / "metrics.json").read_text())["metrics"]
  assert f"<b>{100 * means['P@5']:.1f}</b>" in text and f"<b>{100 * means['R@10']:.1f}</b>" in text
  assert "18 steps, 6 to an epoch" in text and "Parameters of step 6" in text
  assert "3 min 29 s" in text and "1.50 GB" in text  # 209 s in all
  assert "encoder.width" in text


def test_it_begins_with_how_good_it_is(plain_run, undrawn):
  _, text, _ = _write(plain_run)
  report_json = json.loads((plain_run.run.workdir / "report" / "metrics.json").read_text())
  first, low, high, five = (
    f"{100 * value:.1f}"
    for value in (
      report_json["metrics"]["P@1"], *report_json["intervals_95"]["P@1"], report_json["metrics"]["R@5"]
    )
  )  # fmt: skip
  sentence = " ".join(text[: text.index("<h2>")].rpartition("<p>")[2].split())
  assert f"right for {first} of 100 test texts</b> ({low} to {high} for" in sentence
  assert f"The first 5 labels hold {five} % of a text's right labels" in sentence


def test_a_table_of_all_labels(plain_run, undrawn):
  _write(plain_run)
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
  _, text, checked = _write(plain_run)
  shown = " ".join(checked.texts)
  assert "<script>alert(1)</script>" in shown or "<img src=x" in shown
  assert any(word in shown for word in ("漢字", "שלום", "$x^2$"))
  assert len(HOSTILE[7]) > 5000 and "long " * 100 not in text


def test_writing_it_again_is_the_same(plain_run, undrawn):
  first = _write(plain_run)[1]
  assert _write(plain_run)[1] == first


def test_another_suffix_leaves_the_page_alone(plain_run, undrawn):
  folder = plain_run.run.workdir / "report"
  before = _write(plain_run)[1]
  evaluate.write_report(plain_run.run, plain_run.run.dataset.test, plain_run.ranking, 12, suffix="_exact")
  path, text, _ = _write(plain_run, suffix="_exact")
  assert path.name == "index_exact.html" and "Parameters of step 12" in text
  assert (folder / "found_exact.png").exists()
  assert (folder / "index.html").read_text() == before


def test_several_views_and_refreshes(fused_run, undrawn):
  _, text, _ = _write(fused_run, seconds={"train": 30.0})
  assert "ranked by both scores" in text and "By other scores" in text
  assert "clusters 3 times" in text and "shortlist 3 times" in text
  assert "30.0 s" in text and "preparing data" not in text


@pytest.mark.parametrize("scores", ["encoder", "classifier"])
def test_one_view_of_several(fused_run, scores, undrawn):
  made = fused_run
  rank = ranker(made.run, made.params, made.extra_state, scores)
  ranking = evaluate.rank_split(made.run, rank, made.queries, made.run.dataset.test)
  evaluate.write_report(made.run, made.run.dataset.test, ranking, 6, suffix=f"_{scores}")
  _, text, _ = _write(made._replace(ranking=ranking), scores=scores, suffix=f"_{scores}")
  assert f"ranked by the {scores}" in text


def test_nothing_recorded(data_folder, tmp_path):
  made = made_run(data_folder, tmp_path / "run", epochs=0, **{"data.num_validation": 0})
  (made.run.workdir / "report" / "seconds.json").unlink()
  _, text, _ = _write(made)
  assert "No reading of memory" in text and "No rows were held out" in text
  assert {path.stem for path in (made.run.workdir / "report").glob("*.png")} == FIGURES - {
    "loss",
    "validation",
  }


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
  _, text, _ = _write(made)
  assert "2 of 9 test points have no label" in text and "the only label" in text


def test_no_test_labels(data_folder, tmp_path, undrawn):
  made = made_run(data_folder, tmp_path / "run")
  test = made.run.dataset.test
  test.unfiltered_positives = sp.csr_matrix(test.truth.shape, dtype=np.float32)
  _, text, _ = _write(of_test(made.run, made.params, made.extra_state))
  assert "No test point has a label" in text and "Examples" not in _headings(text)


def test_only_the_main_process_writes(plain_run, monkeypatch, undrawn):
  _write(plain_run)
  before = {path: path.stat().st_mtime_ns for path in (plain_run.run.workdir / "report").iterdir()}
  monkeypatch.setattr(one_run, "runtime", types.SimpleNamespace(is_main_process=lambda: False))
  made = plain_run
  report.write(made.run, made.ranking, made.queries, made.params, made.extra_state)
  assert {path: path.stat().st_mtime_ns for path in (made.run.workdir / "report").iterdir()} == before
  assert runtime.is_main_process()


def test_a_page_that_cannot_be_finished_leaves_the_old_one(plain_run, monkeypatch, undrawn):
  path, before, _ = _write(plain_run)
  monkeypatch.setattr(pages, "render", lambda *_, **__: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    report.write(plain_run.run, plain_run.ranking, plain_run.queries, plain_run.params, plain_run.extra_state)
  assert path.read_text() == before
