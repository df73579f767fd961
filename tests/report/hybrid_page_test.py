"""A page of a run that ranks by all sources, or by one: one scale, reliability, reasons."""

import html
import json
import re

import numpy as np
import pytest
from page_runs import HOSTILE
from pages_test import check_page

from xmc_jax import report as page
from xmc_jax.metrics.hits import as_truth, find_hits
from xmc_jax.report import scores
from xmc_jax.runs import evaluate
from xmc_jax.runs.ranking import rank_test, ranker


def _written(made, **kwargs) -> tuple[str, str]:
  """The page, and its words."""
  path = page.write(
    made.run, made.ranking, made.queries, made.params, made.extra_state, why=made.why, **kwargs
  )
  text = path.read_text(encoding="utf-8")
  check_page(text)
  text = re.sub(r"data:image[^\"]*|<style>.*?</style>", "", text, flags=re.DOTALL)
  return text, " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def _part(words: str, first: str, behind: str) -> str:
  return words[words.index(f" {first} ") : words.index(f" {behind} ")]


def test_every_part_is_there(hybrid_run):
  text, words = _written(hybrid_run)
  folder = hybrid_run.run.workdir / "report"
  assert (folder / "reliability.png").exists() and text.count("<img ") == 7
  assert "ranked by all sources together, whose scores are probabilities" in words
  scored = _part(words, "What scores tell", "Whether the probabilities hold")
  assert "the ranking's own: probabilities that a label is right" in scored
  assert "random" not in scored.replace("drawn at random:", "")
  assert "Here the method's own vectors rank" in words and "memory regression: the same" in words
  assert "classifier" not in words  # a word that no table has gets no explanation
  assert "…" not in re.sub(r"«[^»]*»", "", _part(words, "What scores tell", "Examples"))


def test_the_section_on_scores_looks_at_no_vectors(hybrid_run, undrawn, monkeypatch):
  """Whatever vectors say, none of their scores is on the page."""
  before = _written(hybrid_run)[1]
  monkeypatch.setattr(scores, "score_labels", lambda *_: 1 / 0)
  assert _written(hybrid_run)[1] == before


def test_reliability_is_that_of_all_ranked_labels(hybrid_run, undrawn):
  report = json.loads((hybrid_run.run.workdir / "report" / "metrics.json").read_text())["calibration"]
  truth, ranking = hybrid_run.run.dataset.test.unfiltered_positives.toarray() > 0, hybrid_run.ranking
  pairs = [
    (float(score), bool(truth[row, label]), rank)
    for row, (ids, found) in enumerate(zip(ranking.ids, ranking.scores))
    for rank, (label, score) in enumerate(zip(ids, found))
    if label >= 0
  ]

  def error(some):
    inside = [
      [(score, right) for score, right, _ in some if low / 15 < score <= (low + 1) / 15] for low in range(15)
    ]
    apart = [abs(np.sum([right - score for score, right in part])) for part in inside]
    return sum(apart) / len(some)

  assert report["ece"] == pytest.approx(error(pairs), abs=1e-9)
  assert report["ece_first"] == pytest.approx(error([pair for pair in pairs if not pair[2]]), abs=1e-9)
  assert sum(found["pairs"] for found in report["bins"]) == len(pairs)
  _, words = _written(hybrid_run)
  said = f"error {100 * report['ece']:.2f} percentage points over all {len(pairs):,} ranked pairs"
  assert said in words and f", {100 * report['ece_first']:.2f} over the first label" in words
  # The last row of the table keeps everything.
  kept, right = len(pairs) / len(truth), np.mean([right for _, right, _ in pairs])
  assert re.search(rf" {kept:.2f}\s+{100 * right:.1f}\s+Examples", words)


def test_each_label_that_is_shown_has_its_reason(hybrid_run, undrawn):
  text, _ = _written(hybrid_run)
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

  text, words = _written(hybrid_run._replace(why=why))
  assert HOSTILE[0] not in text and HOSTILE[0] in words


@pytest.mark.parametrize("source", ["memory", "lexical_labels"])
def test_a_source_alone(hybrid_run, source, undrawn):
  """Its scores are no probabilities; it may find fewer labels than are asked for."""
  made, test = hybrid_run, hybrid_run.run.dataset.test
  rankings, why = rank_test(made.run, made.params, made.extra_state, made.queries, source)
  ranking = rankings[source]
  assert why is None
  evaluate.write_report(made.run, test, ranking, 6, suffix=f"_{source}")
  report = json.loads((made.run.workdir / "report" / f"metrics_{source}.json").read_text())
  assert "calibration" not in report
  made = made._replace(ranking=ranking, why=None)
  text, words = _written(made, scores=source, suffix=f"_{source}")
  assert f"ranked by the source {source.replace('_', ' ')} alone" in words
  assert "the larger, the higher a label is ranked" in words and 'class="why"' not in text
  assert "Whether the probabilities hold" not in words


def test_two_views_and_all_sources(fused_run, undrawn):
  """A method with classifiers: its own scores stand beside those of all sources."""
  made = fused_run
  rankings, why = rank_test(made.run, made.params, made.extra_state, made.queries, "hybrid")
  chosen, test = rankings.pop("hybrid"), made.run.dataset.test
  alone = {name: evaluate.score(made.run, test, found) for name, found in rankings.items()}
  evaluate.write_report(made.run, test, chosen, 6, alone, "_hybrid", probabilities=True)
  made = made._replace(ranking=chosen, why=why)
  _, words = _written(made, scores="hybrid", suffix="_hybrid")
  by = _part(words, "By other scores", "How it learnt")
  assert all(name in by for name in ("hybrid", "fused", "encoder", "classifier", "lexical labels"))
  assert "Whether the probabilities hold" in words


def test_a_ranking_by_vectors_shows_no_reliability(plain_run, undrawn):
  text, words = _written(plain_run)
  assert "Whether the probabilities hold" not in words and 'class="why"' not in text
  assert "above a random other one" in words


def test_names_of_scores():
  by_vectors = {"fused": True, "encoder": True, "classifier": True, "hybrid": False, "memory": False}
  assert {name: scores.are_of_vectors(name) for name in by_vectors} == by_vectors


def test_a_sample_of_a_ranking_by_loops(hybrid_run):
  made, test = hybrid_run, hybrid_run.run.dataset.test
  rank = ranker(
    made.run, made.params, made.extra_state, "lexical_memory"
  )  # of many texts it finds few labels
  ranking = evaluate.rank_split(made.run, rank, made.queries, test)
  hits = find_hits(ranking.ids, as_truth(test.unfiltered_positives))
  found = scores.sample(ranking, hits, test.unfiltered_positives, test.filter)
  true, wrong, beaten = [], [], []
  for row in found.rows:
    ranked = dict(zip(ranking.ids[row].tolist(), ranking.scores[row].tolist()))
    ranked.pop(-1, None)
    known = set(test.unfiltered_positives[row].indices) | set(test.filter[row].indices)
    others = [score for label, score in ranked.items() if label not in known]
    wrong += others[:1]
    for label in test.unfiltered_positives[row].indices:
      true += [ranked[label]] if label in ranked else []
      beaten.append(label in ranked and all(ranked[label] > score for score in others))
  np.testing.assert_array_equal(found.true, np.float32(true))
  np.testing.assert_array_equal(found.best_wrong, np.float32(wrong))
  assert np.isfinite(found.true).all() and len(found.true) < test.unfiltered_positives.nnz
  assert found.above_wrong == pytest.approx(np.mean(beaten)) and 0 < found.above_wrong < 1
  assert found.above_random is None and not len(found.random)
