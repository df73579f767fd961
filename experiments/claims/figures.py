"""Measures gradients, pools, similar labels and a sparse ranker, as figures and sections of the papers do.

  python -m experiments.claims.figures gradients            # DEXML, Figure 3
  python -m experiments.claims.figures pool_positives       # UniDEC, Figure 2b
  python -m experiments.claims.figures similar_labels       # DEXML, C.7
  python -m experiments.claims.figures sparse_ranker _cpp   # DEXML, C.8, on one set

The other arguments are sets, as the endings of claims' names; "" is LF-DebianTitles. Finished runs are not
trained again. Writes docs/results/claim_NAME*.json; `python docs/make_tables.py write` makes the tables.
"""

import argparse
import contextlib
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import orbax.checkpoint as ocp
import scipy.sparse as sp
from scipy.special import log_softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from xmc_jax import losses, metrics
from xmc_jax.experiments.claims import run as claims
from xmc_jax.experiments.claims.presets import get_config
from xmc_jax.retrieval.search import best_of, contained, search
from xmc_jax.runs import create, evaluate
from xmc_jax.runs import run as runs
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.storage import run_folder
from xmc_jax.training import loop

_FREQUENT = 100  # training points of a frequent label, at least
_RARE = 5  # training points of a rare label, at most
_NEAREST = 10  # other labels whose mean cosine says how similar a label is to others
_RANKED = 100  # first labels of a point that sparse classifiers rank again
_ROWS = 512
Rows = dict[str, dict[str, float]]  # metrics of the rows of a table


def gradients(ending: str, seed: int, folder: pathlib.Path) -> Rows:
  """Trains DEXML by two losses, and returns `spread` of their pulls after each epoch."""
  rows = {}
  for loss in ("decoupled_softmax", "softmax"):
    config = get_config(f"baselines{ending}-dexml")
    config.method.loss, config.train.seed, config.eval.every_epochs = loss, seed, 0.0
    rows[loss] = spread(*_pulls_by_epoch(config, folder / f"gradients{ending}" / f"{loss}-{seed}"))
  return rows


def _pulls_by_epoch(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> tuple[np.ndarray, np.ndarray]:
  """Returns `[T, nnz]` the pulls of points and their labels after each epoch, and `[nnz]` the labels."""
  files = [workdir / f"pulls_{epoch}.npy" for epoch in range(1, config.train.num_epochs + 1)]
  with contextlib.closing(MetricWriter(workdir)) as writer:
    run = create.create(config, workdir, writer)
    split = run.data.train
    for epoch, file in enumerate(files, 1):
      if file.exists():
        continue
      loop.train(run, writer, last_step=epoch * run.batches.steps_per_epoch)
      trained = run.trained(last=True)
      points, vectors = trained.queries(split.tokens), trained.labels()
      blocks = [
        pulls_of(
          config.method.loss,
          points[first : first + _ROWS] @ vectors.T / config.method.temperature,
          split.unfiltered_positives[first : first + _ROWS],
          split.filter[first : first + _ROWS],
        )
        for first in range(0, len(points), _ROWS)
      ]
      np.save(file, np.concatenate(blocks))
  return np.stack([np.load(file) for file in files]), split.unfiltered_positives.indices


def pulls_of(loss: str, scores: np.ndarray, truth: sp.csr_matrix, excluded: sp.csr_matrix) -> np.ndarray:
  """Returns `[nnz]`, minus the derivative of a loss by each positive's score; below 0 it pushes them apart.

  `loss` is a function of `losses`; scores are `[n, L]`, divided by the temperature; truth and the pairs that
  are left out of the loss, CSR `[n, L]`. Each positive weighs 1.
  """
  labels = (truth.toarray() > 0).astype(np.float32)
  where = excluded.toarray() == 0
  of_scores = lambda scores: getattr(losses, loss)(scores, labels, weights=labels, where=where).sum()
  return -np.asarray(jax.grad(of_scores)(jnp.asarray(scores)))[labels > 0]


def spread(pulls: np.ndarray, labels: np.ndarray, at_least: int = _FREQUENT) -> dict[str, float]:
  """Returns the mean pull of a label, its standard deviation, and how often it is below 0: means over labels.

  `pulls` are `[T, nnz]`, of each pair at several times, `labels` `[nnz]`; `at_least` pairs let a label count.
  """
  counts = np.bincount(labels)
  chosen = counts >= at_least

  def mean(values: np.ndarray) -> np.ndarray:
    return (np.bincount(labels, values.mean(axis=0)) / np.maximum(counts, 1))[chosen]

  means = mean(pulls)
  deviations = np.sqrt(np.maximum(mean(pulls**2) - means**2, 0))
  return {
    "pull": float(means.mean()),
    "deviation": float(deviations.mean()),
    "pushed_apart": float(mean(pulls < 0).mean()),
  }


def pool_positives(ending: str, seed: int, folder: pathlib.Path) -> Rows:
  """Trains UniDEC, and returns the share of the points' labels that are in their batch's pool, by β and η.

  Clusters and shortlists are those of the last refresh; pools have no limit.
  """
  claims.train(f"both_heads{ending}", "decoupled", seed, folder, [])
  workdir = folder / f"both_heads{ending}" / f"decoupled-{seed}"
  run = runs.reopen(workdir)
  _, step = run.saved.to_use(last=True)
  with ocp.StandardCheckpointer() as reader:
    refreshed = reader.restore((workdir / run_folder.NEWEST / str(step) / "refreshed").absolute())
  num_labels = run.data.train.unfiltered_positives.nnz
  rows = {}
  for sampled, hard in itertools.product((1, 3, 5), (0, 6)):
    sizes = {"num_positives": sampled, "num_hard_negatives": hard, "pool_size": 0, "shortlist_size": 30}
    run.config.method.update(sizes)
    batches = runs.Run(run.config, workdir, run.dataset).batches
    built = (batches.build(step, refreshed) for step in range(batches.steps_per_epoch))
    in_pool = sum((batch.positives >= 0).sum() for batch in built)
    rows[f"{sampled}_sampled_{hard}_hard"] = {"share": in_pool / num_labels}
  return rows


def similar_labels(ending: str, seed: int, folder: pathlib.Path) -> Rows:
  """Returns by how much DEXML beats one-vs-all in P@5, by thirds of the labels, least similar ones first."""
  rows = ("dexml", "one_vs_all")
  workdirs = [folder / f"baselines{ending}" / f"{row}-{seed}" for row in rows]
  for row in rows:
    claims.train(f"baselines{ending}", row, seed, folder, [])
  run = runs.reopen(workdirs[0])
  similarities = similarity(run.trained(last=True).labels())
  truth, counts = run.dataset.test.unfiltered_positives, run.label_counts
  hits = [
    hits_by_label(evaluate.read_predictions(workdir / "predictions" / "test_last.npz", 5).ids, truth)
    for workdir in workdirs
  ]
  return {
    "all_labels": by_thirds(*hits, similarities, counts > 0),
    f"labels_with_{_RARE}_points_at_most": by_thirds(*hits, similarities, (counts > 0) & (counts <= _RARE)),
  }


def similarity(labels: np.ndarray, nearest: int = _NEAREST) -> np.ndarray:
  """Returns `[L]`, the mean cosine of each label `[L, D]` with the labels nearest to it."""
  unit = labels / np.linalg.norm(labels, axis=1, keepdims=True)
  return search(unit, unit, nearest, exclude=sp.eye(len(unit), format="csr")).scores.mean(axis=1)


def hits_by_label(ids: np.ndarray, truth: sp.csr_matrix) -> np.ndarray:
  """Returns `[L]`, how often each label was predicted rightly; ids `[n, k]`, truth CSR `[n, L]`."""
  return np.bincount(ids[contained(ids, truth)], minlength=truth.shape[1])


def by_thirds(
  ours: np.ndarray, others: np.ndarray, similarities: np.ndarray, chosen: np.ndarray
) -> dict[str, float]:
  """Returns how many more hits we have than others, as a share of theirs, by thirds of the chosen labels.

  All are `[L]`: hits, the similarities that cut labels into thirds, and whether a label is chosen.
  """
  ordered = np.flatnonzero(chosen)[np.argsort(similarities[chosen], kind="stable")]
  thirds = zip(("least_similar", "middle", "most_similar"), np.array_split(ordered, 3))
  return {name: ours[ids].sum() / others[ids].sum() - 1 for name, ids in thirds if others[ids].sum()}


def sparse_ranker(ending: str, seed: int, folder: pathlib.Path) -> Rows:
  """Trains DEXML, ranks its first labels again by linear classifiers of words and vectors, and tests both."""
  claims.train(f"baselines{ending}", "dexml", seed, folder, [])
  run = runs.reopen(folder / f"baselines{ending}" / f"dexml-{seed}")
  trained, known, asked = run.trained(last=True), run.data.train, run.dataset.test
  labels, words = trained.labels(), TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(known.texts)
  rankings, features = [], []
  for split in (known, asked):
    points = trained.queries(split.tokens)
    rankings.append(search(points, labels, _RANKED, exclude=split.filter))
    features.append(sp.hstack([words.transform(split.texts), normalize(points)], "csr"))
  truth, found = asked.unfiltered_positives, rankings[1]
  margins = margins_of(*features, known.unfiltered_positives, rankings[0].ids, found.ids)
  shares = log_softmax(found.scores / run.config.method.temperature, axis=1)
  again = best_of(found.ids, shares - np.maximum(1 - margins, 0) ** 3, _RANKED)  # PECOS's share of a margin
  ks = (1, 3, 5)
  return {
    "dexml": metrics.evaluate(found.ids, truth, ks=ks),
    "with_sparse_ranker": metrics.evaluate(again.ids, truth, ks=ks),
  }


def margins_of(
  known: sp.csr_matrix, asked: sp.csr_matrix, truth: sp.csr_matrix, negatives: np.ndarray, ids: np.ndarray
) -> np.ndarray:
  """Fits a linear classifier a label, with its points against those that have it among their first labels.

  Args:
    known, asked: CSR `[N, V]` features to learn from, `[n, V]` to classify.
    truth: CSR `[N, L]`.
    negatives: `[N, k]` first labels of each known point, -1 for none.
    ids: `[n, k]` labels to tell the margin of, -1 for none.

  Returns:
    `[n, k]` margins; 0 of labels whose classifier would have one class only.
  """
  margins = np.zeros(ids.shape)
  positives, num_labels = truth.tocsc(), truth.shape[1]
  listed, wanted = _by_label(negatives, num_labels), _by_label(ids, num_labels)
  for label in np.unique(ids[ids >= 0]):
    right = positives.indices[positives.indptr[label] : positives.indptr[label + 1]]
    rows = np.union1d(right, listed.indices[listed.indptr[label] : listed.indptr[label + 1]])
    is_right = np.isin(rows, right)
    if is_right.all() or not is_right.any():
      continue
    columns = np.unique(known[rows].indices)
    classifier = LinearSVC(random_state=0).fit(known[rows][:, columns], is_right)
    at = wanted.indices[wanted.indptr[label] : wanted.indptr[label + 1]]
    row, place = np.nonzero(ids[at] == label)
    margins[at[row], place] = classifier.decision_function(asked[at[row]][:, columns])
  return margins


def _by_label(ids: np.ndarray, num_labels: int) -> sp.csc_matrix:
  """Returns CSC `[n, L]`, which rows have each label; ids `[n, k]`, -1 for none."""
  rows, places = np.nonzero(ids >= 0)
  return sp.csc_matrix((np.ones(len(rows), bool), (rows, ids[rows, places])), (len(ids), num_labels))


FIGURES = {figure.__name__: figure for figure in (gradients, pool_positives, similar_labels, sparse_ranker)}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("figure", choices=FIGURES)
  parser.add_argument("endings", nargs="*", metavar="SET", default=["_cpp", "", "_tate"])
  parser.add_argument("--seeds", type=int, default=1)
  parser.add_argument("--runs", type=pathlib.Path, default=claims.RUNS)
  flags = parser.parse_args()
  for ending in flags.endings:
    of_seeds = [FIGURES[flags.figure](ending, seed, flags.runs) for seed in range(flags.seeds)]
    rows = {row: [{"last": of_seed[row]} for of_seed in of_seeds] for row in of_seeds[0]}
    claims.keep(f"{flags.figure}{ending}", rows)
    print(ending or "_debian", json.dumps(rows, default=float), flush=True)


if __name__ == "__main__":
  main()
