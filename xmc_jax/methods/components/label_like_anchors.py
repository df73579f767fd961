"""Finds the links of a metadata graph whose anchor is named like a label that is not the point's (RAMEN)."""

import re

import numpy as np
import scipy.sparse as sp

from xmc_jax.data.arrays import Texts

_WORD = re.compile(r"\w+")


def same_words(labels: Texts, anchors: Texts) -> sp.csr_matrix:
  """Returns CSR `[L, A]` bool, which labels and anchors have the same set of words."""
  numbers: dict[str, int] = {}
  of_labels, of_anchors = (
    np.fromiter((numbers.setdefault(_words(text), len(numbers)) for text in texts), np.int64, len(texts))
    for texts in (labels, anchors)
  )
  return (_one_hot(of_labels, len(numbers)) @ _one_hot(of_anchors, len(numbers)).T).tocsr()


def label_like(edges: sp.csr_matrix, truth: sp.csr_matrix, same: sp.csr_matrix) -> np.ndarray:
  """Returns which links have an anchor named like some label, but like none of the point's.

  Args:
    edges: CSR `[N, A]`, the links of points.
    truth: CSR `[N, L]`, their labels.
    same: CSR `[L, A]`, as `same_words` returns it.

  Returns:
    `[nnz]` bool, in the order of `edges.indices`.
  """
  found = (np.bincount(same.indices, minlength=edges.shape[1]) > 0)[edges.indices]
  places = np.flatnonzero(found)
  if not len(places):
    return found
  rows = np.searchsorted(edges.indptr, places, side="right") - 1
  found[places] = ~np.asarray((truth.astype(bool) @ same)[rows, edges.indices[places]]).ravel()
  return found


def _words(text: str) -> str:
  """Returns a text's words, each once, in alphabetical order; the text itself if it has none."""
  return " ".join(sorted(set(_WORD.findall(text.lower())))) or text


def _one_hot(columns: np.ndarray, width: int) -> sp.csr_matrix:
  """Returns CSR `[n, width]` bool with one column a row."""
  ends = np.arange(len(columns) + 1)
  return sp.csr_matrix((np.ones(len(columns), bool), columns, ends), shape=(len(columns), width))
