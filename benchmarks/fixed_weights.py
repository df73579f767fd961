"""Makes xmc_jax/retrieval/fixed_weights.json: weights of the sources, for runs with few validation rows.

  python -m benchmarks.fixed_weights runs/dexml-debian runs/cpp runs/tate runs/wordnet

A logistic regression on the candidates of all runs' validation rows gives the weights; each run has the same
total weight. The strength of regularisation is chosen by leaving one run out: each run is ranked by weights
fitted to the others. For each strength, the metrics on validation rows are printed, averaged over runs. The
strength with the best mean of these metrics is used.
"""

import json
import pathlib
import sys

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks import flags
from benchmarks.hybrid_parts import Material, flat, in_order
from xmc_jax.retrieval import features
from xmc_jax.storage import atomic

_FILE = pathlib.Path(features.__file__).with_name("fixed_weights.json")
_STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # scikit-learn's C of standardised features
_SHOWN = ("P@1", "P@5", "PSP@1", "PSP@5", "R@10", "R@100")


def pooled(runs: list[tuple[np.ndarray, ...]], strength: float) -> np.ndarray:
  """Fits weights and intercept `[F + 1]` to runs' candidates: features `[n, F]`, and which are right."""
  sizes = [len(values) for values, _ in runs]
  each = np.repeat([np.mean(sizes) / size for size in sizes], sizes)
  values, right = (np.concatenate(arrays) for arrays in zip(*runs))
  center, scale = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
  unit = (values - center) / np.where(scale > 0, scale, 1)
  found = LogisticRegression(C=strength, max_iter=500).fit(unit, right, sample_weight=each)
  # The regularised weights give an order of candidates; a second regression turns it into probabilities
  # (Platt, 1999).
  order = (unit @ found.coef_[0])[:, None]
  joint = LogisticRegression().fit(order, right, sample_weight=each)
  weights = joint.coef_[0, 0] * found.coef_[0] / np.where(scale > 0, scale, 1)
  return np.append(weights, joint.intercept_[0] - weights @ center)


def travelled(materials: list[Material], candidates: list[tuple], strength: float) -> dict[str, float]:
  """Ranks each run's validation rows by weights fitted to the other runs; returns mean metrics over runs."""
  scores = []
  for out, material in enumerate(materials):
    weights = pooled([flat(found)[:2] for place, found in enumerate(candidates) if place != out], strength)
    ids, values, _, alike = candidates[out]
    log_odds = np.where((ids >= 0) & alike, values @ weights[:-1], -np.inf)
    scores.append(material.score_held_out(in_order(ids, log_odds)))
  return {name: float(np.mean([score[name] for score in scores])) for name in _SHOWN}


def main() -> None:
  materials = [Material(run) for run in flags.parse(__doc__, folders="runs").runs]
  names = {tuple(features.feature_names(material.fitting.names)) for material in materials}
  if len(names) > 1:
    sys.exit("all runs must have the same sources")
  candidates = [material.candidates(material.held_out, material.fitting) for material in materials]
  means = {}
  for strength in _STRENGTHS:
    score = travelled(materials, candidates, strength)
    print(f"C = {strength:g}:", "  ".join(f"{name} {100 * score[name]:.2f}" for name in _SHOWN))
    means[strength] = np.mean(list(score.values()))
  best = max(means, key=means.get)
  weights = pooled([flat(found)[:2] for found in candidates], best).round(5).tolist()
  content = {"intercept": weights[-1], "weights": dict(zip(names.pop(), weights))}
  atomic.write_text(_FILE, json.dumps(content, indent=1) + "\n")
  print(f"{_FILE}: C = {best:g}")


if __name__ == "__main__":
  main()
