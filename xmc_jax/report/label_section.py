"""Shows how well labels of each frequency are found, and writes a table of all labels."""

import csv
import pathlib

import numpy as np
import scipy.sparse as sp

from xmc_jax import metrics, sanitize
from xmc_jax.data import Dataset
from xmc_jax.metrics.hits import Hits
from xmc_jax.metrics.ranking import ratio
from xmc_jax.report import figures, tables
from xmc_jax.report.html import Markup, element, note
from xmc_jax.report.score_section import Draw
from xmc_jax.retrieval.search import Ranking
from xmc_jax.storage import atomic

_HEAD = ("key", "label", "training_points", "test_points", "R@1", "R@5", "mean_reciprocal_rank")
_SHARES = (5, 100)  # k: the share of true labels among the first k


def write_table(path: pathlib.Path, dataset: Dataset, hits: Hits, frequency: np.ndarray) -> None:
  """Writes a line for each label; its shares are of the test points that have it, empty if there are none.

  Args:
    path: the CSV file.
    dataset: the labels and the test points.
    hits: the true pairs of a ranking of the test points.
    frequency: `[L]` number of training points of each label.
  """
  num_labels = dataset.num_labels
  true = np.bincount(dataset.test.unfiltered_positives.indices, minlength=num_labels)
  first, five, reciprocal = (
    ratio(np.bincount(hits.labels, weights, minlength=num_labels), true).round(4).tolist()
    for weights in (hits.ranks < 1, hits.ranks < 5, 1 / (hits.ranks + 1))
  )
  with atomic.written_whole(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
    table = csv.writer(file)
    table.writerow(_HEAD)
    for label, (key, text) in enumerate(zip(dataset.label_keys, dataset.labels.texts)):
      shares = (first[label], five[label], reciprocal[label]) if true[label] else ("", "", "")
      table.writerow((sanitize.line(key), sanitize.line(text), frequency[label], true[label], *shares))


def section(
  ranking: Ranking, hits: Hits, truth: sp.csr_matrix, frequency: np.ndarray, draw: Draw
) -> list[Markup]:
  """Shows what labels of each frequency add to metrics, and how many of them are found.

  Args:
    ranking: the ranking of N test points.
    hits: its true pairs.
    truth: CSR `[N, L]` true labels.
    frequency: `[L]` number of training points of each label.
    draw: puts figures on the page.
  """
  groups, depth = metrics.frequency_groups(frequency), ranking.ids.shape[1]
  parts = metrics.contributions(ranking.ids, truth, groups, ks=(1, 5))
  count = int(groups.max(initial=-1)) + 1
  true = np.bincount(groups[truth.indices], minlength=count)
  shares = {
    f"first {k}": np.bincount(groups[hits.labels[hits.ranks < k]], minlength=count) / np.maximum(true, 1)
    for k in dict.fromkeys(min(k, depth) for k in _SHARES)
  }
  left = "What labels of each frequency add to a metric: the parts add up to it."
  right = "The share of their true (point, label) pairs that is among the first labels."
  return [
    element("h2", "On frequent and on rare labels"),
    note("By the number of training points of a label. The file labels.csv beside this page has each label."),
    *draw(
      ("frequencies", lambda: figures.frequencies(parts), left),
      ("found", lambda: figures.found(shares), right),
    ),
    tables.frequencies(groups, true, parts, shares),
  ]
