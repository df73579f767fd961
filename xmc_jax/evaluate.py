"""From parameters to a ranking, and from a ranking to the metrics."""

import json
import pathlib

import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax import data, metrics, runtime
from xmc_jax.contract import Array, PyTree
from xmc_jax.refresh.search import Ranking, search
from xmc_jax.report import Progress
from xmc_jax.run import Run

SHOWN = configs.METRICS
_KS = (1, 3, 5, 10, 100)


def rank_split(run: Run, params: PyTree, aux: PyTree, split: data.Split, label_vectors: Array) -> Ranking:
  """The ranking of a split's points, `config.eval.k` labels deep."""
  bar = Progress("evaluate", len(split), unit="text")
  queries = run.embed_queries(params, aux, split.tokens, bar.update)
  bar.close()
  return search(queries, label_vectors, run.config.eval.k, exclude=split.filter, devices=run.mesh)


def score(run: Run, split: data.Split, ranking: Ranking) -> dict[str, float]:
  """Every metric, at every k of 1, 3, 5, 10, 100 that `config.eval.k` reaches, as fractions."""
  truth, ks = split.counted, _depths(run)
  found = metrics.evaluate(ranking.ids, truth, ks=ks, inverse_propensity=run.inverse_propensity)
  return {**found, **metrics.coverage(ranking.ids, truth, ks=ks)}


def shown(means: dict[str, float]) -> dict[str, float]:
  """Those of `SHOWN` that are there: what the console prints."""
  return {name: means[name] for name in SHOWN if name in means}


def _depths(run: Run) -> tuple[int, ...]:
  return tuple(k for k in _KS if k <= run.config.eval.k)


def write_report(run: Run, split: data.Split, ranking: Ranking, step: int) -> dict[str, float]:
  """Scores the test rows and writes report/metrics.json and predictions/test.npz.

  metrics.json holds the means, their bootstrap 95 % intervals (coverage has none),
  and the parts of the metrics at 1 and 5 by label frequency.

  Returns:
    The means.
  """
  means, truth = score(run, split, ranking), split.counted
  frequency = np.asarray((run.dataset.train.truth > 0).sum(0)).ravel()
  intervals = metrics.bootstrap_intervals(
    ranking.ids, truth, ks=_depths(run), inverse_propensity=run.inverse_propensity, seed=0
  )
  report = {
    "step": step,
    "rows": len(split),
    "rows_without_labels": metrics.num_rows_without_labels(truth),
    "metrics": means,
    "intervals_95": {name: list(map(float, pair)) for name, pair in intervals.items()},
    "slices": _slices(ranking.ids, truth, frequency),
  }
  if not runtime.is_main_process():
    return means
  folder = run.workdir / "report"
  folder.mkdir(exist_ok=True)
  (folder / "metrics.json").write_text(json.dumps(report, indent=2) + "\n")
  save_predictions(ranking, run.dataset.num_labels, run.workdir / "predictions" / "test.npz")
  return means


def _slices(ids: np.ndarray, truth, frequency: np.ndarray) -> dict[str, dict[str, list[float]]]:
  """What labels contribute to the metrics at 1 and 5, by frequency; each list adds up to the total."""
  groups = {
    "deciles": metrics.frequency_deciles(frequency),
    "head_torso_tail": metrics.head_torso_tail(frequency),
  }
  return {
    name: {
      metric: list(map(float, parts))
      for metric, parts in metrics.contributions(ids, truth, group, ks=(1, 5)).items()
    }
    for name, group in groups.items()
  }


def save_predictions(ranking: Ranking, num_labels: int, path: pathlib.Path) -> None:
  """Writes a ranking as CSR `[N, L]` of scores; a row's entries stand best first."""
  path.parent.mkdir(parents=True, exist_ok=True)
  real = ranking.ids >= 0
  indptr = np.concatenate([[0], np.cumsum(real.sum(1))])
  matrix = sp.csr_matrix((ranking.scores[real], ranking.ids[real], indptr), shape=(len(real), num_labels))
  beside = path.with_name(path.name + ".tmp.npz")
  sp.save_npz(beside, matrix)
  beside.replace(path)


def examples(run: Run, split: data.Split, ranking: Ranking, count: int) -> str:
  """A few points in words, with their first labels; a tick marks the true ones."""
  truth = split.counted
  lines = []
  for row in np.random.default_rng(0).permutation(len(split))[:count]:
    true = set(truth[row].indices.tolist())
    lines.append(f"  {split.texts[row]}")
    for label in ranking.ids[row, :3]:
      if label >= 0:
        lines.append(f"    {'✓' if label in true else '·'} {run.dataset.labels.texts[label]}")
  return "\n".join(lines)
