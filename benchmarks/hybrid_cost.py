"""Cost of hybrid ranking at any size: memory, seconds to open and to fit, milliseconds per text.

  python -m benchmarks.hybrid_cost --labels=11438 --points=9914
  python -m benchmarks.hybrid_cost --labels=1305265 --points=2248619 --backend=scann
  python -m benchmarks.hybrid_cost --run=runs/dexml-debian     # a run's folder, opened as a user opens it

The data are made up: vectors are sampled around one centre per topic, texts hold words of their topic and
common words (Zipf), and a point has three labels on average. The model is fitted on 1,000 queries. Then texts
are ranked 1,024 at a time, as predict does, and one at a time, as a prompt does; in turn with a ranker that
has learnt the 1,000 queries, too. Results go to docs/results/hybrid_cost.json under the size and the backend.
"""

import json
import pathlib
import statistics
import time

import numpy as np
import scipy.sparse as sp

from benchmarks import children, flags
from benchmarks.paired_timing import seconds_of
from xmc_jax.ops.unit_rows import unit_rows
from xmc_jax.retrieval.grown import Rows
from xmc_jax.retrieval.hybrid import HybridRanker, fit_model
from xmc_jax.retrieval.sources import Corpus, Queries, Retriever
from xmc_jax.storage import atomic

_RESULTS = pathlib.Path(__file__).parents[1] / "docs" / "results" / "hybrid_cost.json"
_WORDS, _OF_TOPIC, _TOPICS = 200_000, 40, 2000
_LABELS_A_POINT = 3
_FITTED, _RANKED, _SINGLE, _BLOCK, _K = 1000, 4096, 100, 1024, 100
_NOISE = 0.6  # length of the noise, for centres of length 1


class World:
  """Generates texts, vectors `[n, width]` around the centres of their topics, and truth."""

  def __init__(self, width: int):
    self._rng = np.random.default_rng(0)
    self._centres = unit_rows(self._rng.normal(size=(_TOPICS, width)).astype(np.float32))
    self._own = self._rng.integers(0, _WORDS, (_TOPICS, _OF_TOPIC))
    self._names = np.array([f"w{number}" for number in range(_WORDS)])

  def topics(self, count: int) -> np.ndarray:
    return self._rng.integers(0, _TOPICS, count)

  def vectors(self, topics: np.ndarray) -> np.ndarray:
    out = np.empty((len(topics), self._centres.shape[1]), np.float32)
    scale = _NOISE / np.sqrt(out.shape[1])
    for start in range(0, len(topics), 65_536):
      part = topics[start : start + 65_536]
      noise = scale * self._rng.standard_normal((len(part), out.shape[1]), np.float32)
      out[start : start + len(part)] = unit_rows(self._centres[part] + noise)
    return out

  def texts(self, topics: np.ndarray) -> list[str]:
    out = []
    for start in range(0, len(topics), 65_536):
      part = topics[start : start + 65_536]
      own = self._own[part[:, None], self._rng.integers(0, _OF_TOPIC, (len(part), 4))]
      usual = np.minimum(self._rng.zipf(1.3, (len(part), 4)) - 1, _WORDS - 1)
      words = self._names[np.concatenate([own, usual], axis=1)]
      out += [" ".join(row) for row in words.tolist()]
    return out

  def truth(self, topics: np.ndarray, label_topics: np.ndarray) -> sp.csr_matrix:
    """Returns a truth matrix with three labels of each point's topic, sampled with replacement."""
    order = np.argsort(label_topics, kind="stable")
    starts = np.searchsorted(label_topics[order], np.arange(_TOPICS + 1))
    counts = np.maximum(np.diff(starts), 1)[topics]
    drawn = self._rng.random((len(topics), _LABELS_A_POINT)) ** 2 * counts[:, None]
    places = starts[topics][:, None] + drawn
    columns = order[np.minimum(places.astype(np.int64), len(order) - 1)]
    indptr = _LABELS_A_POINT * np.arange(len(topics) + 1)
    values = np.ones(columns.size, np.float32)
    made = sp.csr_matrix((values, columns.ravel(), indptr), (len(topics), len(label_topics)))
    made.sum_duplicates()
    made.data[:] = 1
    return made


def made_up(num_labels: int, num_points: int, width: int, backend: str) -> dict[str, float]:
  """Opens, fits and queries a hybrid ranker on made-up data; returns times and memory."""
  world = World(width)
  of_labels, of_points, of_fitted, of_asked = map(world.topics, (num_labels, num_points, _FITTED, _RANKED))
  labels = {"encoder": world.vectors(of_labels)}
  truth, vectors = world.truth(of_points, of_labels), world.vectors(of_points)
  corpus = Corpus(labels, vectors, truth, world.texts(of_points), world.texts(of_labels), 0.05)
  fitted = Queries(world.vectors(of_fitted), world.texts(of_fitted))
  asked = Queries(world.vectors(of_asked), world.texts(of_asked))
  answers = world.truth(of_fitted, of_labels)
  before, start = children.peak_bytes("self"), time.perf_counter()
  retriever = Retriever(corpus, backend=backend)
  opened = time.perf_counter()
  model = fit_model(retriever, fitted, answers)
  fit_seconds = time.perf_counter() - opened
  ranker = HybridRanker(retriever, model)
  begun = time.perf_counter()
  grown = ranker.remembering(Rows(fitted.vectors, fitted.texts, answers), np.arange(0))
  learnt = time.perf_counter() - begun
  costs, costs_then = asked_of([ranker.rank, grown.rank], asked)
  return {
    "open_seconds": opened - start,
    "fit_seconds": fit_seconds,
    **costs,
    "learn_1000_seconds": learnt,
    **{f"{what}_then": value for what, value in costs_then.items()},
    "data_GB": before / 1e9,
    "peak_GB": children.peak_bytes("self") / 1e9,
  }


def asked_of(rankers: list, queries: Queries) -> list[dict[str, float]]:
  """Returns each one's milliseconds per text, in blocks and one at a time; they take turns."""

  def seconds(start: int, size: int) -> list[float]:
    rows = Queries(queries.vectors[start : start + size], queries.texts[start : start + size])
    return [seconds_of(lambda rank=rank: rank(rows, _K)) / size for rank in rankers]

  seconds(0, _BLOCK)
  blocks = [seconds(start, _BLOCK) for start in range(0, _RANKED, _BLOCK)]
  alone = [seconds(start, 1) for start in range(_SINGLE)]
  timed = zip(np.median(blocks, axis=0).tolist(), np.median(alone, axis=0).tolist())
  return [{"ms_a_text": 1e3 * of_block, "ms_alone": 1e3 * one} for of_block, one in timed]


def opened_run(workdir: pathlib.Path) -> dict[str, float]:
  """Loads a run as a user does, and predicts 10 labels for each of its test rows; returns times."""
  from xmc_jax.runs.model import Model

  start = time.perf_counter()
  model = Model.load(workdir)
  loaded = time.perf_counter()
  texts = list(model.dataset.test.texts)
  model.predict(texts[:1], 10)  # compiles
  alone = [seconds_of(lambda text=text: model.predict([text], 10)) for text in texts[:_SINGLE]]
  rates = [len(texts) / seconds_of(lambda: model.predict(texts, 10)) for _ in range(5)]
  return {
    "open_seconds": loaded - start,
    "ms_alone": 1e3 * statistics.median(alone),
    "texts_a_second": statistics.median(rates),
    "peak_GB": children.peak_bytes("self") / 1e9,
  }


def main() -> None:
  given = flags.parse(__doc__, labels=11_438, points=9_914, width=384, backend="exact", run=pathlib.Path)
  if given.run:
    name, found = f"the run {given.run.name}", opened_run(given.run)
  else:
    name = f"{given.labels:,} labels, {given.points:,} points, {given.width} columns, {given.backend}"
    found = made_up(given.labels, given.points, given.width, given.backend)
  print(name, "  ".join(f"{what} {value:.3g}" for what, value in found.items()))
  kept = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
  kept[name] = {**found, "machine": children.machine()}
  atomic.write_text(_RESULTS, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
  main()
