"""Shows the test points whose rankings differ most between two runs."""

from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sp

from xmc_jax.metrics.hits import as_truth
from xmc_jax.metrics.ranking import earnings
from xmc_jax.report import examples
from xmc_jax.report.finished_runs import Finished
from xmc_jax.report.html import Markup, element, isolated, note

DEPTH = 5
_EACH = 3
_SEED = 0


def sections(runs: Sequence[Finished]) -> Iterator[Markup]:
  """Yields the comparison of each other run with the first: counts of better points, and examples."""
  test, first = runs[0].dataset.test, runs[0]
  truth = as_truth(test.unfiltered_positives)
  gained = [by_row(run, truth) for run in runs]
  yield note(f"By nDCG@{DEPTH} of each point; ties are drawn at random. ✓ is a true label, ✗ is not labelled "
             "as true, ○ is a true label that is missing above.")  # fmt: skip
  for other, values in zip(runs[1:], gained[1:]):
    gain = values - gained[0]
    better, worse = int(np.sum(gain > 0)), int(np.sum(gain < 0))
    names = f"{other.letter} {other.name}"[:80]
    yield element("h3", f"{first.letter} and {names}")
    same = len(gain) - better - worse
    yield note(
      f"{other.letter} ranks {better:,} points better than {first.letter}, {worse:,} worse, {same:,} as well."
    )
    for rows, winner in ((most(gain), other), (most(-gain), first)):
      if len(rows):
        yield note(f"Better by {winner.letter}:")
        yield element("div", *(_card(row, first, other) for row in rows.tolist()), css="stack")


def by_row(run: Finished, truth: sp.csr_matrix) -> np.ndarray:
  """Returns `[N]` nDCG@5 of each test point."""
  part = earnings(run.hits, truth, (DEPTH,))[f"nDCG@{DEPTH}"]
  return np.bincount(run.hits.rows, part.gains, minlength=len(truth.counts))


def most(gain: np.ndarray) -> np.ndarray:
  """Returns the few rows with the largest positive gain; orders ties at random."""
  shuffled = np.random.default_rng(_SEED).permutation(np.flatnonzero(gain > 0))
  return shuffled[np.argsort(-gain[shuffled], kind="stable")[:_EACH]]


def _card(row: int, first: Finished, other: Finished) -> Markup:
  test, names = first.dataset.test, first.dataset.labels.texts
  true = test.unfiltered_positives[row].indices
  sides = [
    element("div", element("h4", isolated(f"{run.letter} {run.name}", 80)),
            examples.labels(run.ranking, row, true, names, first.frequency))
    for run in (first, other)
  ]  # fmt: skip
  head = element("p", isolated(test.texts[row] or "(empty text)"))
  return element("div", head, element("div", *sides, css="sides"), css="card")
