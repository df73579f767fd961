"""Baselines without training: tf-idf rankings, written to a run's folder as a training writes its results.

  python -m benchmarks.tfidf --kind=both --config=experiments/dexml.py --workdir=runs/both

A text is a vector of its words, weighted by 1 + log count and inverse document frequency, scaled to length 1.
Kinds:

  vote_all   ranks labels of the 20 nearest training points by the sum of the cosines of these points; the
             rows held out for validation vote too: more data than methods train on
  both       ranks by the vote, without these rows, plus the weighted cosine of the label's text; the weight
             is the best on these rows
  both_all   the same, but after the weight is chosen these rows vote too

The config's data, validation rows, seed, depth and propensities are used: rows, filters and metrics are those
of a training with the same config. Rows are ranked block by block, to limit memory. The test rows' labels go
to predictions/test.npz.
"""

import itertools
import json
import pathlib
import time
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from absl import app, flags
from ml_collections import config_flags
from sklearn.feature_extraction.text import TfidfVectorizer

from xmc_jax import config as configs
from xmc_jax import data, methods, metrics
from xmc_jax.cli import error_lines
from xmc_jax.data.dataset import unfiltered
from xmc_jax.distributed import runtime
from xmc_jax.retrieval.lexical import largest
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs import create, evaluate
from xmc_jax.storage import atomic

KINDS = ("vote_all", "both", "both_all")
NUM_NEIGHBOURS = 20
_WEIGHTS = (0.5, 0.1, 0.2, 1.0, 2.0)  # of the text's cosine; the first is used without validation rows
_KS = (1, 3, 5, 10, 100)
_MOST_SCORES = 1 << 25  # scores at once, if every text shared a word with every other: 400 MB


class Fitted(NamedTuple):
  """Holds the fitted vectorizer and the vectors of points and labels.

  Attributes:
    vectorizer: turns texts into CSR `[n, V]` with rows of unit length.
    points: CSR `[N, V]`, the training points that vote.
    labels: CSR `[L, V]`, the label texts.
    truth: CSR `[N, L]`, 1 for each label of a point, less filtered pairs.
  """

  vectorizer: TfidfVectorizer
  points: sp.csr_matrix
  labels: sp.csr_matrix
  truth: sp.csr_matrix


def fit(train: data.Split, labels: data.TextSet) -> Fitted:
  """Fits tf-idf to the texts of training points and labels; test texts are not used."""
  vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b", dtype=np.float32)
  vectorizer.fit(itertools.chain(train.texts, labels.texts))
  truth = sp.csr_matrix(train.unfiltered_positives > 0, dtype=np.float32)
  return Fitted(vectorizer, *map(vectorizer.transform, (train.texts, labels.texts)), truth)


def by_text(fitted: Fitted, queries: sp.csr_matrix) -> sp.csr_matrix:
  """Returns cosines of queries `[n, V]` and label texts as CSR `[n, L]`."""
  return (queries @ fitted.labels.T).tocsr()


def by_vote(fitted: Fitted, queries: sp.csr_matrix) -> sp.csr_matrix:
  """Returns CSR `[n, L]`: the share of a query's nearest points that have a label, weighted by cosine."""
  ids, cosines = largest((queries @ fitted.points.T).tocsr(), NUM_NEIGHBOURS)
  indptr = np.concatenate([[0], np.cumsum((ids >= 0).sum(1))])
  shares = cosines / np.maximum(cosines.sum(1, keepdims=True), np.finfo(np.float32).tiny)
  shape = (len(ids), fitted.points.shape[0])
  return sp.csr_matrix((shares[ids >= 0], ids[ids >= 0], indptr), shape) @ fitted.truth


def rank(fitted: Fitted, split: data.Split, k: int, weight: float) -> Ranking:
  """Ranks k labels of a split's points, by the vote plus `weight` times the cosine of the label's text.

  Filtered pairs and labels without a score are left out.
  """
  rows = max(1, _MOST_SCORES // max(fitted.points.shape[0], fitted.labels.shape[0]))
  ids, values = [np.zeros((0, k), np.int32)], [np.zeros((0, k), np.float32)]
  for start in range(0, len(split), rows):
    part = np.arange(start, min(start + rows, len(split)))
    queries = fitted.vectorizer.transform(split.texts[part])
    scores = by_vote(fitted, queries)
    if weight:
      scores = (scores + weight * by_text(fitted, queries)).tocsr()
    found = largest(unfiltered(scores, split.filter[part]), k)
    ids.append(found[0])
    values.append(np.where(found[0] >= 0, found[1], -np.inf).astype(np.float32))
  return Ranking(np.concatenate(ids), np.concatenate(values))


def run(kind: str, config, workdir: pathlib.Path) -> dict[str, float]:
  """Ranks the test rows; writes report/, predictions/ and metrics.jsonl as a training does.

  Returns:
    The test metrics.
  """
  dataset = create.load_data(config, None, "")
  config = create.fit_to_data(config, dataset)
  train, validation = data.hold_out(dataset.train, config.data.num_validation, config.train.seed)
  settings, weight, found = config.eval, 0.0 if kind == "vote_all" else _WEIGHTS[0], []
  ks = tuple(k for k in _KS if k <= settings.k)
  started = time.perf_counter()
  fitted = fit(dataset.train if kind == "vote_all" else train, dataset.labels)
  propensity = metrics.inverse_propensity(dataset.train.truth, settings.propensity_a, settings.propensity_b)

  def score(split: data.Split, ids: np.ndarray) -> dict[str, float]:
    return metrics.evaluate(ids, split.unfiltered_positives, ks=ks, inverse_propensity=propensity)

  if weight and len(validation):
    ranked = (rank(fitted, validation, settings.k, weight) for weight in _WEIGHTS)
    found = [score(validation, ranking.ids)[settings.metric] for ranking in ranked]
    weight = _WEIGHTS[int(np.argmax(found))]
  if kind == "both_all":
    fitted = fit(dataset.train, dataset.labels)
  trained = time.perf_counter()
  ranking = rank(fitted, dataset.test, settings.k, weight)
  ids, truth = ranking.ids, dataset.test.unfiltered_positives
  seconds = {"train": trained - started, "test": time.perf_counter() - trained}
  report = {
    "metrics": score(dataset.test, ids),
    "intervals_95": metrics.bootstrap_intervals(ids, truth, ks=ks, inverse_propensity=propensity, seed=0),
    "weights": dict(zip(map(str, _WEIGHTS), found)),
  }
  evaluate.save_predictions(ranking, dataset.label_keys, workdir / "predictions" / "test.npz")
  _write(workdir, report, {"memory/host_bytes": runtime.peak_memory()["host"]}, seconds)
  return report["metrics"]


def _write(workdir: pathlib.Path, report: dict, reading: dict, seconds: dict) -> None:
  """Writes the run's files; the times come last, because they mark the run as finished."""
  (workdir / "report").mkdir(parents=True, exist_ok=True)
  atomic.write_text(workdir / "metrics.jsonl", json.dumps(reading) + "\n")
  atomic.write_text(workdir / "report" / "metrics.json", json.dumps(report, indent=1) + "\n")
  atomic.write_text(workdir / "report" / "seconds.json", json.dumps(seconds, indent=1) + "\n")


def cli() -> None:
  config = config_flags.DEFINE_config_file("config", help_string="FILE.py[:preset]; --config.KEY=VALUE")
  kind = flags.DEFINE_enum("kind", "both", KINDS, "how labels are ranked")
  workdir = flags.DEFINE_string("workdir", None, "where report/ goes", required=True)

  def main(_: list[str]) -> None:
    methods.check_config(config.value)
    found = run(kind.value, config.value, pathlib.Path(workdir.value))
    print("  ".join(f"{name} {100 * found[name]:.2f}" for name in configs.METRICS if name in found))

  with error_lines.in_one_line():
    app.run(main)


if __name__ == "__main__":
  cli()
