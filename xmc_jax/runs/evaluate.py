"""Ranks and scores a split: computes metrics, writes their report, and shows examples."""

import contextlib
import functools
import json
import pathlib
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax import data, metrics, sanitize
from xmc_jax.console import Progress, say
from xmc_jax.distributed import runtime
from xmc_jax.metrics.hits import as_truth, find_hits
from xmc_jax.retrieval.explanations import line as as_line
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.search import Ranking, padding
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs import corpora
from xmc_jax.runs.best_labels import BEST_F1, is_given, reasons
from xmc_jax.runs.ranking import Rank, by_products, hybrid, hybrid_model, own_ranker
from xmc_jax.runs.run import Run
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import atomic

_KS = (1, 3, 5, 10, 100)
_LABELS_SHOWN = 3  # labels of an example
_LONGEST = 200  # characters of its text
_LARGE_ERROR = 0.05  # a calibration error to warn of, if it is also 1.5 times that by chance

# (rows [n], labels [n, k] padded with -1) -> for each row, a line of text by label
Why = Callable[[np.ndarray, np.ndarray], list[dict[int, str]]]


def embed_split(trained: Trained, split: data.Split) -> np.ndarray:
  """Embeds the points of a split; returns `[n, D]`."""
  with contextlib.closing(Progress("evaluate", len(split) * len(trained.members), unit="text")) as bar:
    if trained.run.members:  # whose tokens may be others
      return trained.embed(split.texts, bar.update)
    return trained.queries(split.tokens, bar.update)


def rank_split(run: Run, rank: Rank, queries: np.ndarray, split: data.Split) -> Ranking:
  """Ranks labels for the embedded points of a split, `config.eval.k` labels deep."""
  return rank(Queries(queries, split.texts), run.config.eval.k, exclude=split.filter)


def rank_test(trained: Trained, vectors: np.ndarray, chosen: str) -> tuple[dict[str, Ranking], Why | None]:
  """Ranks the embedded test rows by the chosen scores, and by each of their parts alone.

  The parts of 'hybrid' are the paper's own ranking and each source, or, if runs are combined, each of them;
  the parts of 'fused' are the scorers.
  Lets go of the vectors of `trained`.

  Returns:
    The rankings by name, the chosen one first, and their reasons; None if the ranking gives none.
  """
  test, k, scorers = trained.run.dataset.test, trained.run.config.eval.k, trained.run.method.scorers
  queries = Queries(vectors, test.texts)
  if chosen != "hybrid":
    kinds = dict.fromkeys([chosen, *scorers])
    rankings = {kind: trained.ranker(kind)(queries, k, test.filter) for kind in kinds}
    trained.release()
    return rankings, None
  if trained.run.members:
    return _rank_combined(trained, queries)
  opened = hybrid(trained)
  own = {"fused": own_ranker(trained)(queries, k, test.filter)} if scorers else {}
  trained.release()  # before the longest search
  joined, alone = opened.rank_with_sources(queries, k, test.filter)
  return {"hybrid": joined, **own, **alone}, functools.partial(_why, opened, vectors, test)


def _rank_combined(trained: Trained, queries: Queries) -> tuple[dict[str, Ranking], Why]:
  """Ranks by combined runs and, if they are several, by each of them alone; says how fast each is."""
  test, retriever = trained.run.dataset.test, corpora.combined(trained)
  opened = HybridRanker(retriever, hybrid_model(trained))
  rankers = {"hybrid": (opened, queries)}
  parts = zip(retriever.by_encoder.items(), retriever.split(queries)) if len(trained.members) > 1 else ()
  for (name, alone), own in parts:
    rankers[f"{name} alone"] = HybridRanker(alone, hybrid_model(trained.members[name])), own
  trained.release()
  rankings, speeds = {}, []
  for name, (ranker, own) in rankers.items():
    start = time.perf_counter()
    rankings[name] = ranker.rank(own, trained.run.config.eval.k, test.filter)
    speeds.append(f"{name} {len(test) / (time.perf_counter() - start):,.0f}")
  say(f"texts ranked a second, embedding left out: {', '.join(speeds)}")
  return rankings, functools.partial(_why, opened, queries.vectors, test)


def _why(
  opened: HybridRanker, vectors: np.ndarray, test: data.Split, rows: np.ndarray, ids: np.ndarray
) -> list[dict[int, str]]:
  explained = reasons(opened, Queries(vectors[rows], test.texts[rows]), ids, test.filter[rows])
  lines = (map(as_line, of_row) for of_row in explained)
  return [dict(zip(labels[labels >= 0].tolist(), of_row)) for labels, of_row in zip(ids, lines)]


def score(run: Run, split: data.Split, ranking: Ranking) -> dict[str, float]:
  """Computes LRAP and, at each k of 1, 3, 5, 10 and 100 up to `config.eval.k`, every metric as a fraction."""
  truth, ks = split.unfiltered_positives, _depths(run)
  means = metrics.evaluate(ranking.ids, truth, ks=ks, inverse_propensity=run.data.inverse_propensity)
  return {**means, **metrics.coverage(ranking.ids, truth, ks=ks), "LRAP": metrics.lrap(ranking.ids, truth)}


def validate(trained: Trained) -> dict[str, float]:
  """Returns the `score` of the validation rows, ranked without fusion."""
  run, validation = trained.run, trained.run.data.validation
  rank = by_products(trained)
  trained.release()
  queries = embed_split(trained, validation)
  return score(run, validation, rank_split(run, rank, queries, validation))


def shown(means: dict[str, float]) -> dict[str, float]:
  """Returns the metrics that the console prints: those of `configs.METRICS` that were computed."""
  return {name: means[name] for name in configs.METRICS if name in means}


def _depths(run: Run) -> tuple[int, ...]:
  return tuple(k for k in _KS if k <= run.config.eval.k)


def write_report(
  run: Run,
  split: data.Split,
  ranking: Ranking,
  step: int,
  by_source: Mapping[str, dict[str, float]] = MappingProxyType({}),
  suffix: str = "",
  probabilities: bool = False,
  means: dict[str, float] | None = None,
) -> dict[str, float]:
  """Scores the test rows; writes report/metrics.json and predictions/test.npz.

  metrics.json holds the means, their bootstrap 95 % intervals (coverage and LRAP have none), and the parts of
  the metrics at 1 and 5 by label frequency. `by_source` holds the means of other rankings, stored as it is.
  `suffix` is appended to the files' names. If scores are `probabilities`, 'calibration' compares them with
  the truth: `ece` and `bins` of all ranked labels, `ece_first` of the first label of each row, and a `note`
  if that is large; 'sets' measures the sets with the best expected F1. `means` is the result of `score`, if
  it was computed already.

  Returns:
    The means.
  """
  means, truth = means or score(run, split, ranking), split.unfiltered_positives
  frequency = np.asarray((run.dataset.train.truth > 0).sum(0)).ravel()
  intervals = metrics.bootstrap_intervals(
    ranking.ids, truth, ks=_depths(run), inverse_propensity=run.data.inverse_propensity, seed=0
  )
  report = {
    "step": step,
    "rows": len(split),
    "rows_without_labels": metrics.num_rows_without_labels(truth),
    "metrics": means,
    "intervals_95": {name: list(map(float, pair)) for name, pair in intervals.items()},
    "slices": _slices(ranking.ids, truth, frequency),
    **(_of_probabilities(ranking, truth) if probabilities else {}),
    **({"by_source": dict(by_source)} if by_source else {}),
  }
  if not runtime.is_main_process():
    return means
  folder = run.workdir / "report"
  with atomic.writing(folder):
    folder.mkdir(exist_ok=True)
  atomic.write_json(folder / f"metrics{suffix}.json", report)
  save_predictions(ranking, run.dataset.label_keys, run.workdir / "predictions" / f"test{suffix}.npz")
  return means


def _of_probabilities(ranking: Ranking, truth: sp.csr_matrix) -> dict[str, Any]:
  sets = metrics.score_sets(best_sets(ranking), truth)._asdict()
  means = {name: sets[name] for name in ("sample_f1", "micro_f1", "macro_f1", "mean_size")}
  return {"calibration": calibration(ranking, truth), "sets": means}


def best_sets(ranking: Ranking) -> np.ndarray:
  """Returns the sets with the best expected F1 of a ranking by probability: its `[N, K]` ids, or -1."""
  return np.where(is_given(ranking.scores, BEST_F1), ranking.ids, -1)


def calibration(ranking: Ranking, truth: sp.csr_matrix) -> dict[str, object]:
  """Compares the probabilities of a ranking with the truth, CSR `[N, L]`; returns JSON for metrics.json."""
  hits = find_hits(ranking.ids, as_truth(truth))
  right, real = np.zeros(ranking.ids.shape, bool), ranking.ids >= 0
  right[hits.rows, hits.ranks] = True
  every, first = (
    metrics.reliability(ranking.scores[:, :depth][real[:, :depth]], right[:, :depth][real[:, :depth]])
    for depth in (ranking.ids.shape[1], 1)
  )
  note = (
    f"probabilities of first labels are {100 * first.ece:.0f} points off on the test rows, where chance "
    f"explains {100 * first.by_chance:.0f}: more validation rows (data.num_validation) calibrate them better"
  )
  large = first.ece > max(_LARGE_ERROR, 1.5 * first.by_chance)
  bins = [each._asdict() for each in every.bins]
  return {"ece": every.ece, "ece_first": first.ece, "note": note if large else "", "bins": bins}


def stored_report(workdir: pathlib.Path, suffix: str, step: int) -> dict[str, Any]:
  """Reads what `write_report` wrote; {} if there is none, or if it is of another step."""
  try:
    report = json.loads((workdir / "report" / f"metrics{suffix}.json").read_text(encoding="utf-8"))
  except (OSError, ValueError):
    return {}
  return report if report["step"] == step else {}


def _slices(
  ids: np.ndarray, truth: sp.csr_matrix, frequency: np.ndarray
) -> dict[str, dict[str, list[float]]]:
  """Returns what labels contribute to the metrics at 1 and 5, by frequency; a list adds up to its metric."""
  groups = {
    "deciles": metrics.frequency_deciles(frequency),
    "head_torso_tail": metrics.head_torso_tail(frequency),
  }
  return {
    name: {
      metric: list(map(float, parts))
      for metric, parts in metrics.contributions(ids, truth, group, ks=(1, 5)).items()
    }
    for name, group in groups.items()
  }


def save_predictions(ranking: Ranking, keys: Sequence[str], path: pathlib.Path) -> None:
  """Writes a ranking as CSR `[N, L]` of scores; the entries of a row are in ranked order, best first.

  Beside the matrix, `keys.json` in the file lists the keys of its L columns:
  `json.loads(numpy.load(path)["keys.json"])`.
  """
  real = ranking.ids >= 0
  indptr = np.concatenate([[0], np.cumsum(real.sum(1))])
  matrix = sp.csr_matrix((ranking.scores[real], ranking.ids[real], indptr), shape=(len(real), len(keys)))
  with atomic.writing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
  with atomic.written_whole(path) as beside:
    with beside.open("wb") as file:
      sp.save_npz(file, matrix)
    with zipfile.ZipFile(beside, "a") as archive:
      # ZipInfo has a fixed date, so that the same predictions are the same bytes.
      archive.writestr(zipfile.ZipInfo("keys.json"), json.dumps(list(keys)), zipfile.ZIP_DEFLATED)


def read_predictions(path: pathlib.Path, k: int) -> Ranking:
  """Reads the first k labels of each row that `save_predictions` wrote."""
  with path.open("rb") as file:  # which SciPy leaves open if it is damaged
    stored = sp.csr_matrix(sp.load_npz(file))
  place, ranking = np.arange(k), padding(stored.shape[0], k)
  real = place < np.diff(stored.indptr)[:, None]
  entries = (stored.indptr[:-1, None] + place)[real]
  ranking.ids[real], ranking.scores[real] = stored.indices[entries], stored.data[entries]
  return ranking


def examples(run: Run, split: data.Split, ranking: Ranking, count: int, why: Why | None = None) -> str:
  """Returns a few points as text, with their first labels.

  Half of the points have a right first label, half a wrong one. A tick marks true labels, a ring missed ones.
  With `why`, a line explains why the first label was ranked.
  """
  rows = _right_and_wrong(split.unfiltered_positives, ranking.ids[:, :1], count)
  explained = why(rows, ranking.ids[rows, :1]) if why and count else [{}] * len(rows)
  truth, lines = split.unfiltered_positives, []
  for row, reason in zip(rows, explained):
    true = set(truth[row].indices.tolist())
    lines.append(f"  {sanitize.line(split.texts[row], _LONGEST)}")
    ranked = [label for label in ranking.ids[row, :_LABELS_SHOWN].tolist() if label >= 0]
    missed = sorted(true - set(ranked))[:_LABELS_SHOWN]
    marks = [*("✓" if label in true else "·" for label in ranked), *("○" for _ in missed)]
    for mark, label in zip(marks, ranked + missed):
      lines.append(f"    {mark} {sanitize.line(run.dataset.label_names[label], _LONGEST)}")
    lines += [f"      why the first: {words}" for words in reason.values()]
  return "\n".join(lines)


def _right_and_wrong(truth: sp.csr_matrix, firsts: np.ndarray, count: int) -> np.ndarray:
  """Returns `count` random rows; half of them, rounded up, have a true first label, if there are so many."""
  is_right = np.zeros(len(firsts), bool)
  is_right[find_hits(firsts, as_truth(truth)).rows] = True
  rows = np.random.default_rng(0).permutation(len(firsts))
  right, wrong = rows[is_right[rows]], rows[~is_right[rows]]
  num_right = min(len(right), max(-(-count // 2), count - len(wrong)))
  return np.concatenate([right[:num_right], wrong[: count - num_right]])
