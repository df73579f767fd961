"""From parameters to a ranking, and from a ranking to the metrics."""

import contextlib
import json
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax import data, disk, methods, metrics, plain, run_folder, runtime
from xmc_jax.contract import PyTree
from xmc_jax.fusion import Fusion, Tree
from xmc_jax.refresh.index import Index
from xmc_jax.refresh.search import Ranking
from xmc_jax.report import Progress, say
from xmc_jax.retrieval.key_memory import KeyMemory, KeyWeight
from xmc_jax.run import Run

SHOWN = configs.METRICS
_KS = (1, 3, 5, 10, 100)
_SHOWN = 3  # labels of an example
_PATIENCE = 50  # queries that are ranked exactly before an index is built for more


Rank = Callable[..., Ranking]  # (queries [n, D], k, exclude=CSR [n, L] or None) -> Ranking


def ranker(run: Run, params: PyTree, aux: PyTree, scores: str = "") -> Rank:
  """What ranks all labels of a run for embedded points.

  Args:
    run: the run.
    params, aux: as trained.
    scores: 'fused' or one of the method's views; '' is `config.eval.scores`. Where nothing was fitted to fuse
      by, it is the plain sum. A method without views has one kind of scores; one with a memory of keys fuses
      by that.

  Raises:
    UserError: the method has no such scores.
  """
  chosen, fitted = scores or run.config.eval.scores, run.workdir / run_folder.FUSION
  methods.check_scores(chosen, run.config, run.method)
  if run.method.key_temperature and chosen == "fused":
    return key_memory(run, params, aux).rank
  if run.method.views and chosen == "fused" and fitted.exists():
    if run.config.eval.backend == "scann":
      say("ranking: exact, as eval.backend = 'scann' ranks by one inner product, and a tree fuses two")
    return fusion(run, params, aux, Tree.load(fitted)).rank
  return plain_ranker(run, params, aux, chosen if chosen in run.method.views else "")


def plain_ranker(run: Run, params: PyTree, aux: PyTree, view: str = "") -> Rank:
  """What ranks by one view's inner products; by default by the sum of all views.

  `config.eval.backend` says how. What is built for it is built once, and kept for all calls and every k. With
  several processes it is exact: each of them stops training by its own metrics, which must not differ, and
  they share the exact search.
  """
  backend = run.config.eval.backend
  if backend == "scann" and not runtime.is_alone():
    say("ranking: exact, as eval.backend = 'scann' is for one process")
    backend = "exact"
  vectors = run.embed_labels(params, run.aux_to_rank(params, aux), view)
  used = vectors.any(axis=0)  # a view may have no more than a part of the columns
  name = f"{view} ranking" if view else "ranking"
  vectors = vectors if used.all() else vectors[:, used]
  index = Index(vectors, backend=backend, devices=run.mesh, name=name, patience=_PATIENCE)
  if used.all():
    return index.search
  return lambda queries, k, exclude=None: index.search(queries[:, used], k, exclude=exclude)


def fusion(run: Run, params: PyTree, aux: PyTree, tree: Tree | None = None) -> Fusion:
  """The two views of a run, to be ranked by both."""
  return Fusion(
    run.embed_labels(params, aux, "encoder"),
    run.embed_labels(params, aux, "classifier"),
    run.inverse_propensity,
    num_candidates=run.config.eval.num_candidates,
    devices=run.mesh,
    tree=tree,
  )


def key_memory(run: Run, params: PyTree, aux: PyTree) -> KeyMemory:
  """The memory of all training points, held-out ones too, with the weight that was chosen for it.

  Where none was kept in the run's folder, it is chosen.
  """
  path = run.workdir / run_folder.KEY_WEIGHT
  found = KeyWeight.load(path) if path.exists() else choose_key_weight(run, params, aux)
  return _memory_of(run, params, aux, run.dataset.train, found.weight)


def choose_key_weight(run: Run, params: PyTree, aux: PyTree) -> KeyWeight:
  """How much points weigh: by `config.eval.metric` on the rows held out, which are then in no memory."""
  held, metric = run.validation, run.config.eval.metric
  found = _memory_of(run, params, aux, run.train).choose_weight(
    run.embed_queries(params, aux, held.tokens),
    held.counted,
    metric,
    exclude=held.filter,
    inverse_propensity=run.inverse_propensity,
  )
  earned = f"{100 * max(found.values):.2f} {metric} on {len(held):,} rows" if found.values else "not chosen"
  say(f"key memory: points weigh {found.weight:g}, label texts {1 - found.weight:g}; {earned}")
  return found


def _memory_of(run: Run, params: PyTree, aux: PyTree, points: data.Split, weight: float = 0.0) -> KeyMemory:
  return KeyMemory(
    run.embed_queries(params, aux, points.tokens),
    points.counted,
    run.embed_labels(params, run.aux_to_rank(params, aux)),
    temperature=run.method.key_temperature,
    weight=weight,
    num_keys=run.config.eval.num_keys,
    backend=run.config.eval.backend if runtime.is_alone() else "exact",
    devices=run.mesh,
  )


def fit_fusion(run: Run, params: PyTree, aux: PyTree) -> None:
  """Fits how the scores of a run's views are fused, on training rows, and keeps it in the run's folder.

  Of a memory of keys it is the weight of its points, chosen on validation rows.
  """
  settings, path = run.config.eval, run.workdir / run_folder.FUSION
  if run.method.key_temperature:
    return _fit_key_memory(run, params, aux)
  if not run.method.views or settings.scores != "fused" or not settings.fusion_rows or path.exists():
    return
  rows = np.random.default_rng(run.config.train.seed).permutation(run.batches.rows)[: settings.fusion_rows]
  fused = fusion(run, params, aux)
  run.freeze_queries(params, aux)
  queries = run.snapshot(params, aux, 0).queries[rows]
  fused.fit(queries, run.train.counted[rows], run.train.filter[rows], depth=settings.fusion_depth)
  if runtime.is_main_process():
    fused.tree.save(path)
  runtime.barrier("fusion")


def _fit_key_memory(run: Run, params: PyTree, aux: PyTree) -> None:
  path = run.workdir / run_folder.KEY_WEIGHT
  if path.exists():
    return
  found = choose_key_weight(run, params, aux)
  if runtime.is_main_process():
    found.save(path)
  runtime.barrier("key memory")


def embed_split(run: Run, params: PyTree, aux: PyTree, split: data.Split) -> np.ndarray:
  """`[n, D]` embeddings of a split's points."""
  with contextlib.closing(Progress("evaluate", len(split), unit="text")) as bar:
    return run.embed_queries(params, aux, split.tokens, bar.update)


def rank_split(run: Run, rank: Rank, queries: np.ndarray, split: data.Split) -> Ranking:
  """The ranking of a split's embedded points, `config.eval.k` labels deep."""
  return rank(queries, run.config.eval.k, exclude=split.filter)


def score(run: Run, split: data.Split, ranking: Ranking) -> dict[str, float]:
  """Every metric, at every k of 1, 3, 5, 10, 100 that `config.eval.k` reaches, as fractions."""
  truth, ks = split.counted, _depths(run)
  found = metrics.evaluate(ranking.ids, truth, ks=ks, inverse_propensity=run.inverse_propensity)
  return {**found, **metrics.coverage(ranking.ids, truth, ks=ks)}


def validate(run: Run, params: PyTree, aux: PyTree) -> dict[str, float]:
  """What `score` says of the rows held out, ranked without fusion."""
  rank = plain_ranker(run, params, aux)
  queries = embed_split(run, params, aux, run.validation)
  return score(run, run.validation, rank_split(run, rank, queries, run.validation))


def shown(means: dict[str, float]) -> dict[str, float]:
  """Those of `SHOWN` that are there: what the console prints."""
  return {name: means[name] for name in SHOWN if name in means}


def _depths(run: Run) -> tuple[int, ...]:
  return tuple(k for k in _KS if k <= run.config.eval.k)


def write_report(
  run: Run,
  split: data.Split,
  ranking: Ranking,
  step: int,
  by_view: Mapping[str, dict[str, float]] = MappingProxyType({}),
  suffix: str = "",
) -> dict[str, float]:
  """Scores the test rows; writes report/metrics.json and predictions/test.npz, `suffix` behind their names.

  metrics.json holds the means, their bootstrap 95 % intervals (coverage has none),
  and the parts of the metrics at 1 and 5 by label frequency; `by_view`, the means of each view alone, goes
  there as it is.

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
    **({"by_view": dict(by_view)} if by_view else {}),
  }
  if not runtime.is_main_process():
    return means
  folder = run.workdir / "report"
  folder.mkdir(exist_ok=True)
  disk.write_text(folder / f"metrics{suffix}.json", json.dumps(report, indent=2) + "\n")
  save_predictions(ranking, run.dataset.num_labels, run.workdir / "predictions" / f"test{suffix}.npz")
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
  """A few points in words, with their first labels; a tick marks the true ones, a ring those missed."""
  truth = split.counted
  lines = []
  for row in np.random.default_rng(0).permutation(len(split))[:count]:
    true = set(truth[row].indices.tolist())
    lines.append(f"  {plain.line(split.texts[row])}")
    found = [label for label in ranking.ids[row, :_SHOWN].tolist() if label >= 0]
    missed = sorted(true - set(found))[:_SHOWN]
    marks = [*("✓" if label in true else "·" for label in found), *("○" for _ in missed)]
    for mark, label in zip(marks, found + missed):
      lines.append(f"    {mark} {plain.line(run.dataset.labels.texts[label])}")
  return "\n".join(lines)
