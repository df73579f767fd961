"""Measures what each part of the hybrid ranking contributes, for docs/hybrid.md.

  python -m benchmarks.hybrid_parts sources --run=runs/dexml-debian
  python -m benchmarks.hybrid_parts rows --run=runs/rows           # trained with data.num_validation=3000

No encoder is trained: the hybrid ranking of a finished run is fitted again with each source left out, with
fewer validation rows. Writes docs/results/hybrid_parts/SET_PART.json. Parts:

  sources   all, and all but one, on the test rows
  rows      fitted on 0, 20, 50, 100, 300, 1,000 and 3,000 validation rows, if there are so many
"""

import json
import pathlib

import numpy as np

from benchmarks import flags
from xmc_jax import metrics
from xmc_jax.retrieval import features, hybrid, hybrid_model
from xmc_jax.retrieval.search import Ranking
from xmc_jax.retrieval.sources import Queries, Retriever
from xmc_jax.runs import corpora, evaluate
from xmc_jax.runs import run as runs
from xmc_jax.storage import atomic

_RESULTS = pathlib.Path(__file__).parents[1] / "docs" / "results" / "hybrid_parts"
_KS = (1, 3, 5, 10, 100)
_MOST_TEST_ROWS = 4000
_ROWS = (20, 50, 100, 300, 1000, 3000)


class Material:
  """Opens a finished run twice: without its validation rows in the memory, and with them.

  Attributes:
    held_out, test: the rows to fit on, and the rows to test on.
    fitting, testing: the Retriever for each.
  """

  def __init__(self, workdir: pathlib.Path):
    self._run = run = runs.reopen(workdir)
    trained = run.trained()
    rows = np.sort(np.random.default_rng(0).permutation(len(run.dataset.test))[:_MOST_TEST_ROWS])
    self.name, self.held_out, self.test = run.dataset.name, run.data.validation, run.dataset.test.rows(rows)
    queries = lambda split: Queries(trained.queries(split.tokens), split.texts)
    self._queries = {split: queries(split) for split in (self.held_out, self.test)}
    self.fitting = corpora.retriever(trained, run.data.train.row_numbers)
    self.testing = corpora.retriever(trained)

  def fit(self, rows: np.ndarray) -> hybrid_model.HybridModel:
    """Fits the model on some validation rows."""
    split = self.held_out.rows(rows)
    queries = Queries(self._queries[self.held_out].vectors[rows], split.texts)
    return hybrid.fit_model(self.fitting, queries, split.unfiltered_positives, split.filter)

  def rank(self, model: hybrid_model.HybridModel) -> Ranking:
    """Ranks the test rows."""
    return hybrid.HybridRanker(self.testing, model).rank(self._queries[self.test], 100, self.test.filter)

  def candidates(self, split, retriever: Retriever) -> tuple[np.ndarray, ...]:
    """Returns a split's candidates: ids `[N, C]`, features, which are right, which are like at test time."""
    parts = []
    for block in retriever.blocks(self._queries[split], 100, 64, split.filter):
      found = features.candidates(block, retriever.names, 100)
      parts.append((found.ids, found.features))
    width = max(ids.shape[1] for ids, _ in parts)
    pads = [(0, width - ids.shape[1]) for ids, _ in parts]
    ids = [np.pad(ids, ((0, 0), pad), constant_values=-1) for (ids, _), pad in zip(parts, pads)]
    values = [np.pad(found, ((0, 0), pad, (0, 0))) for (_, found), pad in zip(parts, pads)]
    ids = np.concatenate(ids)
    labels, rows = hybrid.like_test_time(retriever, split.unfiltered_positives)
    right = hybrid.contained(ids, split.unfiltered_positives) & (ids >= 0)
    return ids, np.concatenate(values), right, labels[ids] & rows[:, None]

  def score(self, split, ids: np.ndarray) -> dict[str, float]:
    """Returns the metrics that are shown, as fractions."""
    return self._shown(ids, split.unfiltered_positives)

  def score_held_out(self, ids: np.ndarray) -> dict[str, float]:
    """Returns the same for held-out rows, with only the rows and labels of `hybrid.like_test_time`."""
    labels, rows = hybrid.like_test_time(self.fitting, self.held_out.unfiltered_positives)
    truth = self.held_out.unfiltered_positives[rows].multiply(labels).tocsr()
    return self._shown(ids[rows], truth)

  def _shown(self, ids: np.ndarray, truth) -> dict[str, float]:
    inverse = self._run.data.inverse_propensity
    return evaluate.shown(metrics.evaluate(ids, truth, ks=_KS, inverse_propensity=inverse))


def without_sources(material: Material) -> dict[str, dict]:
  """Measures the ranking by all sources, and by all but one."""
  every, rows = material.fitting.names, {}
  for left_out in (None, *every):
    names = tuple(name for name in every if name != left_out)
    material.fitting.names = material.testing.names = names
    ranked = material.rank(material.fit(np.arange(len(material.held_out))))
    rows["all" if left_out is None else f"without {left_out}"] = material.score(material.test, ranked.ids)
  material.fitting.names = material.testing.names = every
  return rows


def by_rows(material: Material) -> dict[str, dict]:
  """Measures the ranking fitted on no validation rows, and on increasing numbers of them."""
  order, rows = np.random.default_rng(0).permutation(len(material.held_out)), {}
  fixed = hybrid_model.fixed(features.feature_names(material.fitting.names))
  rows["no rows"] = material.score(material.test, material.rank(fixed).ids)
  for count in (count for count in _ROWS if count <= len(order)):
    model = material.fit(np.sort(order[:count]))
    rows[f"{count:,} rows"] = material.score(material.test, material.rank(model).ids)
  return rows


_PARTS = {"sources": without_sources, "rows": by_rows}


def flat(found: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
  """Returns the candidates that are like at test time: features `[n, F]`, which are right, their rows."""
  ids, values, right, alike = found
  rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
  return tuple(array[(ids >= 0) & alike] for array in (values, right, rows))


def in_order(ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
  """Sorts candidates' ids by descending score; returns the first 100."""
  order = np.lexsort((ids, -scores), axis=-1)[:, :100]
  return np.take_along_axis(ids, order, axis=1)


def main() -> None:
  given = flags.parse(__doc__, _PARTS, run=pathlib.Path)
  material = Material(given.run)
  rows = _PARTS[given.part](material)
  path = _RESULTS / f"{material.name}_{given.part}.json"
  path.parent.mkdir(parents=True, exist_ok=True)
  found = {"set": material.name, "validation_rows": len(material.held_out), "rows": rows}
  atomic.write_text(path, json.dumps(found, indent=1) + "\n")
  for what, score in rows.items():
    shown = (f"{name} {100 * value:.2f}" for name, value in score.items())
    print(f"{what:32}", "  ".join(shown))


if __name__ == "__main__":
  main()
