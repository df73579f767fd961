"""Measures how good a ranking is: means, their parts by label frequency, and their intervals.

Everything works on ranked label ids on the host, in numpy. `hits.py` finds the
predictions that are right, `ranking.py` computes what each of them adds to a metric; the
means, the slices and the intervals only sum these gains in different ways. `calibration.py`
measures something else: whether predicted probabilities are right as often as they claim.
"""

from xmc_jax.metrics.calibration import Reliability, reliability
from xmc_jax.metrics.hits import num_rows_without_labels
from xmc_jax.metrics.intervals import Difference, bootstrap_intervals, holm, paired_differences
from xmc_jax.metrics.label_sets import SetScores, best_f1_sizes, confusions, score_sets
from xmc_jax.metrics.propensity import inverse_propensity
from xmc_jax.metrics.ranking import FAMILIES, coverage, evaluate, lrap, ratio
from xmc_jax.metrics.slices import contributions, frequency_deciles, frequency_groups, head_torso_tail

__all__ = [
  "FAMILIES",
  "Difference",
  "Reliability",
  "SetScores",
  "best_f1_sizes",
  "bootstrap_intervals",
  "confusions",
  "contributions",
  "coverage",
  "evaluate",
  "frequency_deciles",
  "frequency_groups",
  "head_torso_tail",
  "holm",
  "inverse_propensity",
  "lrap",
  "num_rows_without_labels",
  "paired_differences",
  "ratio",
  "reliability",
  "score_sets",
]
