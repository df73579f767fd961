"""Small corpora of made-up texts and vectors, for the tests of everything that ranks by them."""

import numpy as np
import scipy.sparse as sp

from xmc_jax.retrieval.sources import Corpus, Queries

_WORDS = [a + b for a in ("ba", "ke", "lo", "mi", "nu", "po", "ra") for b in ("rn", "lt", "ma", "ve", "xo")]
DIM = 6


def texts(rng: np.random.Generator, count: int, longest: int = 6) -> list[str]:
  """Texts of two to so many words."""
  return [" ".join(rng.choice(_WORDS, rng.integers(2, longest + 1))) for _ in range(count)]


def pairs(rng: np.random.Generator, shape: tuple[int, int], share: float) -> sp.csr_matrix:
  """CSR of random ones."""
  return sp.csr_matrix((rng.random(shape) < share).astype(np.float32))


def vectors(rng: np.random.Generator, count: int) -> np.ndarray:
  """`[count, DIM]` of lengths from about 1 to 3."""
  return rng.normal(size=(count, DIM)).astype(np.float32)


def unit(table: np.ndarray) -> np.ndarray:
  """The rows in float64, of length 1; zeros stay."""
  table = table.astype(np.float64)
  lengths = np.linalg.norm(table, axis=-1, keepdims=True)
  return table / np.where(lengths > 0, lengths, 1)


def unit_vectors(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Random float32 vectors of length 1."""
  return unit(rng.normal(size=shape)).astype(np.float32)


def regression(features: np.ndarray, right: np.ndarray, start: np.ndarray, trust: float) -> np.ndarray:
  """The logistic regression with a normal prior around the weights of `start`, by Newton's method in float64.

  Its weights and, without a prior, its intercept.
  """
  inputs = np.append(features.astype(np.float64), np.ones((len(features), 1)), axis=1)
  precision, weights = trust * np.diag([*np.ones(len(start)), 0]), np.zeros(len(start) + 1)
  for _ in range(50):
    odds = 1 / (1 + np.exp(-inputs @ weights))
    slope = inputs.T @ (odds - right) + precision @ (weights - np.append(start, 0))
    curve = (inputs * (odds * (1 - odds))[:, None]).T @ inputs + precision
    weights -= np.linalg.solve(curve, slope)
  return weights


def few_columns(*tables: sp.csr_matrix) -> list[sp.csr_matrix]:
  """Without the columns that no table uses, so that they fit into memory as dense arrays."""
  used = np.unique(np.concatenate([table.indices for table in tables]))
  return [table[:, used] for table in tables]


def corpus(num_labels: int = 40, num_points: int = 150, *, classifier: bool = True, seed: int = 0) -> Corpus:
  """Random vectors and texts; with classifiers, each view looks at some of the columns, as UniDEC's do."""
  rng = np.random.default_rng(seed)
  by = {"encoder": vectors(rng, num_labels)}
  if classifier:
    by["encoder"][:, 4:] = 0
    by["classifier"] = vectors(rng, num_labels)
    by["classifier"][:, :3] = 0
  truth = pairs(rng, (num_points, num_labels), min(1, 2 / num_labels))
  return Corpus(by, vectors(rng, num_points), truth, texts(rng, num_points), texts(rng, num_labels, 4), 0.5)


def queries(count: int, seed: int = 1) -> Queries:
  """As many queries, none of which is in a corpus."""
  rng = np.random.default_rng(seed)
  return Queries(vectors(rng, count), texts(rng, count))
