"""Fits and opens the rankers of a trained run: a scorer, its own scores joined, or all sources together."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np
import scipy.sparse as sp

from xmc_jax.console import say
from xmc_jax.distributed import runtime, split_table
from xmc_jax.errors import UserError
from xmc_jax.retrieval import boosted_trees
from xmc_jax.retrieval.features import feature_names
from xmc_jax.retrieval.fusion import Fusion, Tree
from xmc_jax.retrieval.hybrid import HybridRanker, fit_model
from xmc_jax.retrieval.hybrid_model import FEWEST_ROWS, HybridModel, fixed
from xmc_jax.retrieval.index import Index
from xmc_jax.retrieval.key_memory import ChosenWeight, KeyMemory
from xmc_jax.retrieval.search import Ranking, with_bias_column
from xmc_jax.retrieval.sources import Queries, source_names
from xmc_jax.runs import corpora, label_frequency
from xmc_jax.storage import run_folder

if TYPE_CHECKING:
  from xmc_jax.runs.run import Run
  from xmc_jax.runs.trained import Trained

_PATIENCE = 50  # queries that are ranked exactly before an index is built for more

Rank = Callable[..., Ranking]  # (Queries, k, exclude=CSR [n, L] or None) -> Ranking


def own_ranker(trained: "Trained", scores: str = "fused") -> Rank:
  """Opens a ranker that ranks labels as the method's paper does.

  Args:
    trained: the run.
    scores: one of the method's scorers, or 'fused': joined by the tree or the memory that was fitted, else
      their plain sum. A method without scorers has one kind of scores.
  """
  run, fitted = trained.run, trained.run.ranking_folder / run_folder.FUSION
  if scores == "fused" and run.method.key_temperature:
    path, every = run.ranking_folder / run_folder.KEY_WEIGHT, np.arange(len(run.dataset.train))
    chosen = ChosenWeight.load(path, most=1.0) if path.exists() else choose_key_weight(trained)
    rank: Callable[..., Ranking] = _key_memory(trained, every, chosen.weight).rank
  elif scores == "fused" and run.method.scorers and fitted.exists():
    if run.config.eval.backend == "scann":
      say("ranking: exact, as eval.backend = 'scann' ranks by one inner product, and the tree joins two")
    rank = _fusion(trained, Tree.load(fitted)).rank
  else:
    return by_products(trained, scores if scores in run.method.scorers else "")
  return lambda queries, k, exclude=None: rank(queries.vectors, k, exclude)


def by_products(trained: "Trained", scorer: str = "") -> Rank:
  """Opens a ranker by the inner products of a scorer's vectors; '' is the sum of all.

  Searches with `config.eval.backend`; an index is built once, for all calls and every k. With several
  processes the search is exact: each of them stops training by its own metrics, which must not differ, and
  they share the exact search. With `config.eval.log_frequency`, the encoder's scores include label frequency.
  """
  run = trained.run
  backend = run.config.eval.backend
  if backend == "scann" and not runtime.is_alone():
    say("ranking: exact, as eval.backend = 'scann' works only with a single process")
    backend = "exact"
  vectors = label_frequency.add_label_column(run, trained.labels(scorer), scorer)
  used = split_table.used_columns(vectors)  # a scorer may use only some of the columns
  name = f"{scorer} ranking" if scorer else "ranking"
  vectors = vectors if used.all() else split_table.columns(vectors, used)
  index = Index(vectors, backend=backend, devices=run.mesh, name=name, patience=_PATIENCE)

  def rank(queries: Queries, k: int, exclude: sp.csr_matrix | None = None) -> Ranking:
    vectors = with_bias_column(queries.vectors, len(used))
    vectors = vectors if used.all() else vectors[:, used]
    return index.search(vectors, k, exclude=exclude)

  return rank


def fit_own_scores(trained: "Trained") -> None:
  """Fits what a run's own scores are ranked by, and stores it in the run's folder.

  For two scorers that is a tree, fitted on training rows; for a memory of keys the weight of the points, and
  for an encoder the weight of label frequency, both chosen on validation rows.
  """
  path = trained.run.ranking_folder / run_folder.KEY_WEIGHT
  if trained.run.method.key_temperature:
    if not path.exists():
      chosen = choose_key_weight(trained)
      runtime.on_main_process(lambda: chosen.save(path), "key memory")
  elif trained.run.method.scorers:
    _fit_tree(trained)
  label_frequency.fit(trained)


def _fit_tree(trained: "Trained") -> None:
  run, settings = trained.run, trained.run.config.eval
  path = run.ranking_folder / run_folder.FUSION
  if settings.scores not in ("fused", "hybrid") or not settings.fusion_rows or path.exists():
    return
  rows = np.random.default_rng(run.config.train.seed).permutation(run.batches.rows)[: settings.fusion_rows]
  fusion = _fusion(trained)
  trained.freeze_queries()
  fusion.fit(
    trained.snapshot().queries[rows],
    run.data.train.unfiltered_positives[rows],
    run.data.train.filter[rows],
    depth=settings.fusion_depth,
  )
  tree = cast(Tree, fusion.tree)  # `fit` has set it
  runtime.on_main_process(lambda: tree.save(path), "fusion")


def _fusion(trained: "Trained", tree: Tree | None = None) -> Fusion:
  run = trained.run
  return Fusion(
    trained.labels("encoder"),
    trained.labels("classifier"),
    run.data.inverse_propensity,
    num_candidates=run.config.eval.num_candidates,
    devices=run.mesh,
    tree=tree,
  )


def choose_key_weight(trained: "Trained") -> ChosenWeight:
  """Chooses the weight of points by `config.eval.metric` on validation rows, which this memory lacks."""
  run = trained.run
  validation, metric = run.data.validation, run.config.eval.metric
  chosen = _key_memory(trained, run.data.train.row_numbers).choose_weight(
    trained.points[validation.row_numbers],
    validation.unfiltered_positives,
    metric,
    exclude=validation.filter,
    inverse_propensity=run.data.inverse_propensity,
  )
  score = "not chosen"
  if chosen.values:
    score = f"{100 * max(chosen.values):.2f} {metric} on {len(validation):,} rows"
  say(f"key memory: weight {chosen.weight:g} for points, {1 - chosen.weight:g} for label texts; {score}")
  return chosen


def _key_memory(trained: "Trained", rows: np.ndarray, weight: float = 0.0) -> KeyMemory:
  run = trained.run
  return KeyMemory(
    trained.points[rows],
    run.data.votes(rows),
    split_table.whole(trained.labels()),
    temperature=run.method.key_temperature,
    weight=weight,
    num_keys=run.config.eval.num_keys,
    backend=corpora.backend(run),
    devices=run.mesh,
  )


def check_installed(run: "Run") -> None:
  """Raises UserError before the first step if a package is missing that the training needs at its end."""
  if run.config.eval.scores == "hybrid" and len(run.data.validation) >= FEWEST_ROWS:
    boosted_trees.library()


def fit_hybrid(trained: "Trained") -> None:
  """Fits how all sources are joined, on the validation rows, and stores it in the run's folder.

  The memory lacks these rows during the fit. Does nothing if the model exists, or if the run does not rank
  by it.
  """
  run = trained.run
  if run.config.eval.scores == "hybrid" and not (run.ranking_folder / run_folder.HYBRID).exists():
    say("hybrid: learning on the held-out texts how to combine encoder, memory and words")
    _fitted(trained)


def hybrid(trained: "Trained") -> HybridRanker:
  """Opens the hybrid ranker of a run, with all labelled training rows in its memory; fits it if needed.

  Raises:
    UserError: its file is damaged, or it cannot be fitted again.
  """
  model = hybrid_model(trained)
  return HybridRanker(corpora.retriever(trained), model)


def sources(trained: "Trained") -> HybridRanker:
  """Opens the sources of a run, to rank by one of them or to explain rankings; fits nothing."""
  opened = corpora.retriever(trained)
  return HybridRanker(opened, fixed(feature_names(opened.names)))


def hybrid_model(trained: "Trained") -> HybridModel:
  """Opens the model that joins the sources of a run; fits it if needed.

  Raises:
    UserError: its file is damaged, or it cannot be fitted again.
  """
  path, members = trained.run.ranking_folder / run_folder.HYBRID, trained.members.values()
  is_refitted = any(member.run.is_refitted for member in members)  # no row is left that no encoder has seen
  anew = "give --scores=encoder, or train anew"
  if path.exists():
    model = HybridModel.load(path, **({"remedy": anew} if is_refitted else {}))
  elif is_refitted:
    raise UserError(
      f"{path} is missing, and cannot be fitted after train.refit, which trained on the validation rows; "
      f"{anew}"
    )
  else:
    model = _fitted(trained)
  expected = [feature_names(source_names(member.run.method.scorers)) for member in members]
  if [part.features for part in (model, *model.others)] != expected:
    raise UserError(f"{path}: was fitted on other features; delete it, and it is fitted anew")
  return model


def _fitted(trained: "Trained") -> HybridModel:
  run, held_out = trained.run, trained.run.data.validation
  points = [member.points[held_out.row_numbers] for member in trained.members.values()]
  queries = Queries(np.concatenate(points, axis=1), held_out.texts)
  without_held_out = corpora.retriever(trained, run.data.train.row_numbers)
  model = fit_model(without_held_out, queries, held_out.unfiltered_positives, held_out.filter)
  if not model.has_trees:
    few = (
      f"only {model.num_rows:,} held-out texts have labels that other texts have, too (under {FEWEST_ROWS})"
    )
    why = few if model.num_rows < FEWEST_ROWS else "held-out texts are too much alike"
    adapted = ", slightly adjusted" if model.num_rows else ""
    say(f"note: hybrid: {why}, so the combination learned on other data is used{adapted}")
  if runtime.is_main_process():
    with contextlib.suppress(UserError):  # in a read-only folder, it is fitted each time
      model.save(run.ranking_folder / run_folder.HYBRID)
  runtime.barrier("hybrid")
  return model


def gives_probabilities(scores: str) -> bool:
  """Returns whether scores of this name are probabilities that a label is right."""
  return scores == "hybrid"
