"""Runs side by side: right numbers, refusals in one line, safe words."""

import copy
import json
import re
import shutil

import numpy as np
import pytest
from page_runs import NAME, made_run
from pages_test import check_page

from xmc_jax import metrics, report
from xmc_jax.errors import UserError
from xmc_jax.report import comparison, finished_runs
from xmc_jax.runs import evaluate


@pytest.fixture
def first(plain_run, tmp_path):
  return _copy(plain_run, tmp_path / NAME)


@pytest.fixture
def second(fused_run, tmp_path):
  return _copy(fused_run, tmp_path / "fused")


def _copy(made, folder):
  return shutil.copytree(made.run.workdir, folder)


def _refused(workdirs, scores=""):
  with pytest.raises(UserError) as error:
    report.compare(workdirs, scores=scores)
  assert "\n" not in str(error.value)
  return str(error.value)


def test_a_table_and_a_page(first, second, plain_run, fused_run, capsys):
  report.compare([first, second])
  shown, path = capsys.readouterr().out, first / "report" / "compare.html"
  text = path.read_text(encoding="utf-8")
  checked = check_page(text)
  assert str(path) in shown and not list(path.parent.glob("*.tmp"))
  assert checked.seen.count("img") == 6 and "<script" not in text
  truth = plain_run.run.dataset.test.unfiltered_positives
  means = [metrics.evaluate(made.ranking.ids, truth)["P@5"] for made in (plain_run, fused_run)]
  row = next(line for line in shown.splitlines() if line.startswith("P@5"))
  assert f"{100 * means[0]:.2f}" in row and f"{100 * means[1]:.2f} {100 * (means[1] - means[0]):+.2f}" in row
  for heading in ("How good they are", "Where they differ most", "Time", "Settings that differ"):
    assert f"<h2>{heading}</h2>" in text
  assert "method.name" in text and "&#34;unidec&#34;" in text
  assert not re.search(r"\bnan\b|\binf\b", re.sub(r"base64,[^\"]*", "", text), re.IGNORECASE)


def test_differences_are_marked_and_adjusted(first, second, plain_run, tmp_path, undrawn):
  third = _copy(plain_run, tmp_path / "third")
  runs = finished_runs.opened([first, second, third])
  means, found = comparison.measured(runs)
  alone = [comparison.measured([runs[0], other])[1][0] for other in runs[1:]]
  assert means[0] == means[2] and found[1]["P@5"] == (0.0, 0.0, 0.0, 1.0)
  for name, difference in found[0].items():
    assert difference[:3] == alone[0][name][:3]
    adjusted = metrics.holm([alone[0][name].p_value, alone[1][name].p_value])
    assert difference.p_value == pytest.approx(adjusted[0])
  sure = found[0]["P@5"]._replace(p_value=0.049), found[0]["P@5"]._replace(p_value=0.051)
  assert "*" in comparison._console_cell(0.5, sure[0]) and "*" not in comparison._console_cell(0.5, sure[1])
  assert "Holm" in comparison._explained(runs) and "Holm" not in comparison._explained(runs[:2])


def test_several_runs_at_another_destination(first, second, plain_run, tmp_path, undrawn):
  """Their tables have few columns, so that they never scroll sideways on a phone."""
  others = [_copy(plain_run, tmp_path / name) for name in ("third", "fourth")]
  report.compare([first, second, *others], str(tmp_path / "side.html"))
  page = (tmp_path / "side.html").read_text()
  check_page(page)
  assert page.count('<div class="wide few"><table>') == page.count("<table>") > 4
  assert not (first / "report" / "compare.html").exists()
  with pytest.raises(UserError, match="cannot be written"):
    report.compare([first, second], str(tmp_path / "nowhere" / "side.html"))


def test_what_cannot_be_compared_is_refused(first, second, tmp_path):
  assert "two or more runs, at most 20, and got 0" in _refused([]) and "got 1" in _refused([first])
  assert "given twice" in _refused([first, first.parent / "." / first.name])
  assert "no such file" in _refused([first, tmp_path / "none"])
  assert "and got 21" in _refused([first] * 21)
  for name in ("report/metrics.json", "predictions/test.npz", "report/seconds.json"):
    shutil.move(second / name, tmp_path / "aside")
    assert f"not finished, as {name} is missing" in _refused([first, second])
    shutil.move(tmp_path / "aside", second / name)
  (first / "report" / "compare.html").symlink_to(tmp_path / "victim")
  assert "leads out" in _refused([first, second])


@pytest.mark.parametrize("name", ["test.truth.columns", "test.texts", "labels.texts", "test.filter.columns"])
def test_other_test_data_is_refused(first, second, name):
  path = second / "data" / "manifest.json"
  manifest = json.loads(path.read_text())
  manifest["files"][f"{name}.npy"]["sha256"] = "of another file"
  path.unlink()  # the cache's own is linked here
  path.write_text(json.dumps(manifest))
  assert f"{name}.npy differs" in _refused([first, second])


def test_damaged_files_are_refused_and_readings_are_left_out(first, second, undrawn):
  report_path, predictions = second / "report" / "metrics.json", second / "predictions" / "test.npz"
  (second / "metrics.jsonl").write_text("nothing of ours")
  report.compare([first, second])
  for path in (predictions, report_path):
    path.write_bytes(path.read_bytes()[:200])
    assert "not readable (" in _refused([first, second])
  report_path.write_text('{"step": "<b>"}')
  assert f"--workdir={second} makes them again" in _refused([first, second])


def _ranked_by(made, folder, scores):
  """Copies a run, and ranks it as `--mode=evaluate --scores=` does."""
  rank = made.trained.ranker(scores)
  ranking = evaluate.rank_split(made.run, rank, made.queries, made.run.dataset.test)
  shutil.copytree(made.run.workdir, folder)
  run = copy.copy(made.run)
  run.workdir = folder
  evaluate.write_report(run, made.run.dataset.test, ranking, 9, suffix=f"_{scores}")
  return ranking


def test_another_ranking_of_the_runs(fused_run, hybrid_run, tmp_path, undrawn, capsys):
  folders = [tmp_path / "first", tmp_path / "second"]
  rankings = [_ranked_by(made, folder, "memory") for made, folder in zip((fused_run, hybrid_run), folders)]
  report.compare(folders, scores="memory")
  shown, truth = capsys.readouterr().out, hybrid_run.run.dataset.test.unfiltered_positives
  means = [metrics.evaluate(ranking.ids, truth)["P@5"] for ranking in rankings]
  row = next(line for line in shown.splitlines() if line.startswith("P@5"))
  assert f"{100 * means[0]:.2f}" in row and f"{100 * means[1]:.2f}" in row
  assert shown.count("ranked by memory)") == 2
  text = (folders[0] / "report" / "compare_memory.html").read_text()
  check_page(text)
  assert not (folders[0] / "report" / "compare.html").exists()
  assert text.count('<td class="text">memory</td>') == 2
  assert [run.step for run in finished_runs.opened(folders, "memory")] == [9, 9]


def test_runs_by_their_own_scores_say_which(first, hybrid_run, tmp_path, undrawn, capsys):
  other = _copy(hybrid_run, tmp_path / "hybrid")
  report.compare([first, other])
  shown = capsys.readouterr().out
  assert "ranked by fused)" in shown and "ranked by hybrid)" in shown
  with pytest.raises(UserError, match=r"--mode=evaluate --workdir=\S+ .* --scores=hybrid first"):
    report.compare([other, first], scores="hybrid")
  # A run's own ranking has no name behind its files.
  assert finished_runs._files(other, "hybrid")[1].name == "test.npz"


def test_rankings_that_are_not_there_are_refused(first, second, tmp_path):
  missing = "not ranked by memory yet, as report/metrics_memory.json is missing; give --mode=evaluate"
  assert f"{missing} --workdir={first} --scores=memory first" in _refused([first, second], "memory")
  assert "--scores=../x is unknown; choose one of hybrid, fused, encoder" in _refused([first, second], "../x")
  for run in (first, second):
    (run / "report" / "metrics_encoder.json").write_text('{"step": 3}')
    (run / "predictions" / "test_encoder.npz").write_bytes(b"nothing")
  assert f"--workdir={first} --scores=encoder makes them again" in _refused([first, second], "encoder")


def test_rows_that_gain_most():
  assert comparison.most(np.array([0.0, 0.5, -1.0, 0.9, 0.1, 0.2])).tolist() == [3, 1, 5]
  assert comparison.most(np.zeros(4)).size == 0


def test_shallow_rankings_and_no_validation(data_folder, first, tmp_path, undrawn, capsys):
  other = made_run(data_folder, tmp_path / "shallow", epochs=1, **{"eval.k": 3, "data.num_validation": 0})
  report.compare([first, other.run.workdir])
  shown = capsys.readouterr().out
  assert "P@3" in shown and "P@5" not in shown
  assert json.loads((other.run.workdir / "report" / "metrics.json").read_text())["step"] == 6
