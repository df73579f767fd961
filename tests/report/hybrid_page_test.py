"""A page of a run that ranks by all sources, or by one: one scale, reliability, reasons."""

import collections
import csv
import html
import itertools
import json
import re
import types

import numpy as np
import scipy.sparse as sp
from page_runs import HOSTILE, written

from xmc_jax import metrics, sanitize
from xmc_jax.report import label_table, scores
from xmc_jax.runs import evaluate


def _part(words: str, first: str, behind: str) -> str:
  return words[words.index(f" {first} ") : words.index(f" {behind} ")]


def test_every_part_is_there(hybrid_run):
  page = written(hybrid_run)
  words = page.words
  assert page.path.with_name("reliability.png").exists() and page.tags.count("img") == 7
  assert "ranked by all sources together, whose scores are probabilities" in words
  scored = _part(words, "What scores tell", "Whether the probabilities hold")
  assert "the ranking's own: probabilities that a label is right" in scored
  assert "random" not in scored.replace("drawn at random:", "")
  assert "Here the method's own vectors rank" in words and "memory regression: the same" in words
  assert "classifier" not in words  # a word that no table has gets no explanation
  assert "…" not in re.sub(r"«[^»]*»", "", _part(words, "What scores tell", "Examples"))


def test_the_section_on_scores_looks_at_no_vectors(hybrid_run, undrawn, monkeypatch):
  """Whatever vectors say, none of their scores is on the page."""
  before = written(hybrid_run).words
  monkeypatch.setattr(scores, "score_labels", lambda *_: 1 / 0)
  assert written(hybrid_run).words == before


def test_reliability_is_that_of_all_ranked_labels(hybrid_run, undrawn):
  report = json.loads((hybrid_run.run.workdir / "report" / "metrics.json").read_text())["calibration"]
  truth, ids = hybrid_run.run.dataset.test.unfiltered_positives.toarray() > 0, hybrid_run.ranking.ids
  right = np.take_along_axis(truth, ids.astype(int), axis=1)[ids >= 0]
  words = written(hybrid_run).words
  said = f"error {100 * report['ece']:.2f} percentage points over all {len(right):,} ranked pairs"
  assert said in words and f", {100 * report['ece_first']:.2f} over the first label" in words
  # The last row of the table keeps everything.
  assert f" {len(right) / len(truth):.2f} {100 * right.mean():.1f} Examples" in words


def test_the_table_of_labels_counts_what_sets_give(hybrid_run, undrawn):
  written(hybrid_run)
  with (hybrid_run.run.workdir / "report" / "labels.csv").open(encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))
  sizes = metrics.best_f1_sizes(hybrid_run.ranking.scores)
  given = np.concatenate([ids[:size] for ids, size in zip(hybrid_run.ranking.ids, sizes)])
  for label, row in enumerate(rows):
    right, wrong, missed = (int(row[name]) for name in ("TP", "FP", "FN"))
    assert right + wrong == (given == label).sum() and right + missed == int(row["test_points"])
    shares = {
      "P": (right, right + wrong),
      "R": (right, right + missed),
      "F1": (2 * right, 2 * right + wrong + missed),
    }
    for name, (part, whole) in shares.items():
      assert row[name] == ("" if not whole else str(round(part / whole, 4)))


def test_the_page_sorts_labels_by_each_column_without_a_script(hybrid_run, undrawn):
  """The style of a row has its place in the order of each column, the largest number first."""
  text = written(hybrid_run).text
  table = re.search(r'<details class="sortable">.*?</details>', text, re.DOTALL)[0]
  names = [html.unescape(name).strip() for name in re.findall(r'type="radio"[^>]*>([^<]*)</label>', table)]
  rows = re.findall(r'<tr style="(.*?)">(.*?)</tr>', table, re.DOTALL)
  assert names[:2] == ["training", "test"] and names[-3:] == ["P", "R", "F1"] and len(rows) > 20
  places = np.array([re.findall(r"--\d+:(\d+);", style) for style, _ in rows], int)
  cells = [re.findall(r"<td>(.*?)</td>", row) for _, row in rows]
  for number in range(len(names)):
    by_place = [cells[row][number].replace(",", "") for row in np.argsort(places[:, number])]
    values = [-np.inf if cell == "–" else float(cell) for cell in by_place]
    assert values == sorted(values, reverse=True)
    assert f".sortable:has(#by-{number + 1}:checked) tbody tr {{ order: var(--{number + 1}); }}" in table
  mistakes = [int(row[names.index("FP")]) + int(row[names.index("FN")]) for row in cells]
  assert mistakes == sorted(mistakes, reverse=True)


def test_without_sets_labels_are_sorted_by_what_is_missed():
  numbers = {"training_points": [9, 1, 2, 5], "test_points": [4, 2, 0, 5], "R@5": [0.5, 0.0, np.nan, 1.0]}
  dataset = types.SimpleNamespace(label_names=["a", "b", "c", "d"])
  table = label_table.sortable(dataset, {name: np.array(values) for name, values in numbers.items()})
  assert table["head"] == ["label", "training", "test", "R@5"] and table["all"] == 4
  assert [row["cells"] for row in table["rows"]] == [
    ("a", "9", "4", "50"),
    ("b", "1", "2", "0"),
    ("d", "5", "5", "100"),
  ]
  assert [tuple(map(int, row["places"])) for row in table["rows"]] == [(0, 1, 1), (2, 2, 2), (1, 0, 0)]


def test_the_table_of_confusions_counts_what_sets_give_and_miss(hybrid_run, undrawn):
  page, dataset = written(hybrid_run), hybrid_run.run.dataset
  path = page.path.with_name("confusions.csv")
  assert path.name in page.text
  with path.open(encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))
  sizes = metrics.best_f1_sizes(hybrid_run.ranking.scores)
  expected = collections.Counter()
  for ids, size, true in zip(hybrid_run.ranking.ids, sizes, dataset.test.unfiltered_positives):
    given, true = set(ids[:size].tolist()), set(true.indices.tolist())
    expected.update(itertools.product(true - given, given - true))
  counts = [int(row["test_points"]) for row in rows]
  assert counts == sorted(expected.values(), reverse=True)[:1000] and max(counts) > 1
  names = [
    (sanitize.line(key), sanitize.line(text)) for key, text in zip(dataset.label_keys, dataset.labels.texts)
  ]
  for row in rows:
    pair = [names.index((row[f"{one}_key"], row[f"{one}_label"])) for one in ("missed", "given")]
    assert expected[tuple(pair)] == int(row["test_points"]) and row["share_broader"] == ""


def test_confused_labels_may_share_a_broader_concept():
  concepts = [json.dumps({"broader": broader}) for broader in (["x", "y"], ["y"], [])]
  test = types.SimpleNamespace(unfiltered_positives=sp.csr_matrix([[1, 0, 0], [1, 0, 0]]))
  of_labels = {"label_keys": ["a", "b\n", "c"], "label_names": ["A", "B", "C"], "label_concepts": concepts}
  concept = lambda label: json.loads(concepts[label])
  dataset = types.SimpleNamespace(test=test, concept=concept, **of_labels)
  rows = list(label_table.confusions(dataset, np.array([[1, 2], [1, -1]])))
  assert rows == [["a", "A", "b", "B", 2, 1], ["a", "A", "c", "C", 1, 0]]


def test_each_label_that_is_shown_has_its_reason(hybrid_run, undrawn):
  text = written(hybrid_run).text
  shown = [item for item in re.findall(r"<li.*?</li>", text, re.DOTALL) if "more true labels" not in item]
  assert len(shown) > 20 and all(item.count('class="why"') == 1 for item in shown)
  reasons = [html.unescape(found) for found in re.findall(r'class="why"><bdi>(.*?)</bdi>', text)]
  starts = "words of its name|the model learnt|\\d+ similar texts? ha|no single reason"
  assert all(re.match(starts, words) for words in reasons), reasons
  voters = {label for words in reasons for label in re.findall("«(.*)»", words)}
  texts = [" ".join(text.split()) for text in hybrid_run.run.dataset.train.texts]
  assert voters and all(any(text.startswith(voter.rstrip("…")) for text in texts) for voter in voters)


def test_reasons_of_strangers_do_nothing(hybrid_run, undrawn):
  def why(rows, ids):
    return [dict.fromkeys(labels[labels >= 0].tolist(), HOSTILE[0]) for labels in ids]

  page = written(hybrid_run._replace(why=why))
  assert HOSTILE[0] not in page.text and HOSTILE[0] in page.words


def test_two_views_and_all_sources(fused_run, undrawn):
  """A method with classifiers: its own scores stand beside those of all sources."""
  made = fused_run
  rankings, why = evaluate.rank_test(made.trained, made.queries, "hybrid")
  chosen, test = rankings.pop("hybrid"), made.run.dataset.test
  alone = {name: evaluate.score(made.run, test, found) for name, found in rankings.items()}
  evaluate.write_report(made.run, test, chosen, 6, alone, "_hybrid", probabilities=True)
  made = made._replace(ranking=chosen, why=why)
  words = written(made, scores="hybrid", suffix="_hybrid").words
  by = _part(words, "By other scores", "How it learnt")
  assert all(name in by for name in ("hybrid", "fused", "encoder", "classifier", "lexical labels"))
  assert "Whether the probabilities hold" in words
