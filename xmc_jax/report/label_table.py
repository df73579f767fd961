"""Writes a table of all labels: how often each was seen, and how well it is found."""

import csv
import pathlib

import numpy as np

from xmc_jax import sanitize
from xmc_jax.data import Dataset
from xmc_jax.metrics.hits import Hits
from xmc_jax.metrics.ranking import ratio
from xmc_jax.storage import atomic

_HEAD = ("key", "label", "training_points", "test_points", "R@1", "R@5", "mean_reciprocal_rank")


def write(path: pathlib.Path, dataset: Dataset, hits: Hits, frequency: np.ndarray) -> None:
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
