"""Fits the model that joins sources: it maps features of candidates to the probability of a right label.

Logistic regression and gradient-boosted trees (LightGBM; Ke et al., 2017) are fitted on the same rows. The
regression has a prior around weights that were fitted on other data. A second regression joins the two
(stacking; Wolpert, 1992). It is fitted on the log-odds that both give for rows that they were not fitted on,
so that it prefers the one that does better on this data. Nearly all candidates are wrong, so its fit is bad
for the few that are likely: beta calibration (Kull et al., 2017) corrects their probabilities.
"""

import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from xmc_jax.errors import DataError
from xmc_jax.retrieval import boosted_trees, cpu_cores
from xmc_jax.retrieval.boosted_trees import Trees
from xmc_jax.storage import atomic, checksums

FEWEST_ROWS = 50  # queries that trees need; with fewer there is only the regression
_TRUST = 30.0  # strength of the prior around weights that were fitted on other data
_ROUNDING = 1e-6  # of float32 features, relative to their largest value
_WEIGHT_TRUST = 100.0  # strength of the prior around equal weights of several encoders
_CALIBRATION_TRUST = 10.0  # strength of the prior around probabilities as they are
_UNCHANGED = (1.0, 1.0, 0.0)
_LIMITS = np.finfo(np.float32).tiny, np.nextafter(np.float32(1), np.float32(0))  # no label is certain
_FORMAT, _VERSION = "xmc_jax hybrid", 4
_FOLDS = 3
_TREES = {
  "objective": "binary",
  "learning_rate": 0.08,
  "min_data_in_leaf": 50,
  "lambda_l2": 10.0,  # right candidates are few: without it, leaves of one or two are certain
  "seed": 0,
  "deterministic": True,
  "force_row_wise": True,
  "verbose": -1,
}
_NUM_TREES = 100
_FIXED_WEIGHTS = pathlib.Path(__file__).with_name("fixed_weights.json")


class HybridModel:
  """Predicts the probability that a candidate label is right.

  With several encoders there is one for the features by each; a mean of their log-odds is calibrated.

  Args:
    features: names of the F features.
    linear: `[F + 1]` float64 weights of the raw features, and the intercept.
    trees: gradient-boosted trees; None means no trees.
    joint: `[3]` weights of the log-odds by `linear` and by `trees`, and the intercept.
    num_rows: number of queries that it was fitted on; 0 for weights that were fitted on other data.
    calibration: `[3]` weights a, b, c: probability p becomes σ(a ln p - b ln(1 - p) + c).
    weight: that of its log-odds in the weighted mean.
    others: models of the features by other encoders, which follow; their own calibrations do not count.
  """

  def __init__(
    self,
    features: Sequence[str],
    linear: np.ndarray | Sequence[float],
    trees: Trees | None = None,
    joint: np.ndarray | Sequence[float] = (1.0, 0.0, 0.0),
    num_rows: int = 0,
    calibration: np.ndarray | Sequence[float] = _UNCHANGED,
    weight: float = 1.0,
    others: Sequence["HybridModel"] = (),
  ):
    self.features, self.num_rows = list(features), num_rows
    self.linear, self._trees = np.asarray(linear, np.float64), trees
    self._joint, self._calibration = np.asarray(joint, np.float64), np.asarray(calibration, np.float64)
    self.has_trees, self.weight, self.others = trees is not None, weight, others

  def probabilities(self, features: np.ndarray) -> np.ndarray:
    """Returns the probabilities `[n]` float32, between 0 and 1, of candidates' features `[n, F]`."""
    each = (self, *self.others)
    parts = _split(features, (model.features for model in each))
    joined = [_joined(model.log_odds(part), model._joint) for model, part in zip(each, parts)]
    mean = np.average(joined, axis=0, weights=[model.weight for model in each])
    calibrated = _sigmoid(_joined(_beta_inputs(mean), self._calibration))
    return np.clip(calibrated.astype(np.float32), *_LIMITS)

  def log_odds(self, features: np.ndarray) -> np.ndarray:
    """Returns the log-odds `[n, 2]` float64 by the regression and by the trees (0 without trees)."""
    out = np.zeros((len(features), 2))
    out[:, 0] = features.astype(np.float64) @ self.linear[:-1] + self.linear[-1]
    if self._trees:
      out[:, 1] = self._trees.predict(features)
    return out

  def save(self, path: pathlib.Path) -> None:
    """Writes a JSON file, whole or not at all."""
    others = {"others": [model._content() for model in self.others]} if self.others else {}
    content = {"format": _FORMAT, "version": _VERSION, **self._content(), **others}
    atomic.write_text(path, checksums.to_json(content))

  def _content(self) -> dict[str, Any]:
    return {
      "features": self.features,
      "num_rows": self.num_rows,
      "linear": self.linear.tolist(),
      "joint": self._joint.tolist(),
      "calibration": self._calibration.tolist(),
      "trees": self._trees and {"nodes": self._trees.nodes, "values": self._trees.values},
      "weight": self.weight,
    }

  @classmethod
  def load(
    cls, path: pathlib.Path, remedy: str = "delete it, and it is fitted anew, or give --scores=encoder"
  ) -> "HybridModel":
    """Reads what `save` wrote.

    Raises:
      DataError: the file is damaged, or of another version; `remedy` says what to do.
    """
    try:
      content = checksums.from_json(path)
      written = content.pop("format"), content.pop("version")
      if written != (_FORMAT, _VERSION):
        raise ValueError(f"format version {written[1]!r:.20}, and this program reads {_VERSION}")
      others = [cls._of_content(other) for other in content.pop("others", ())]
      return cls._of_content({**content, "others": others})
    except (OSError, ValueError, KeyError) as error:
      why = (str(error).splitlines() or [type(error).__name__])[0][:200]
      raise DataError(f"{path}: not readable ({why}); {remedy}") from None

  @classmethod
  def _of_content(cls, content: dict[str, Any]) -> "HybridModel":
    trees = content.pop("trees")
    content.pop("threshold", None)  # of runs until 2026-11-29
    return cls(**content, trees=trees and Trees(**trees))


def fit(
  names: Sequence[str],
  features: np.ndarray,
  right: np.ndarray,
  rows: np.ndarray,
  others: Sequence[Sequence[str]] = (),
) -> HybridModel:
  """Fits the model on candidates of queries that are not in the memory.

  Args:
    names: names of the features.
    features: `[n, F]` float32 of n candidates.
    right: `[n]` bool, whether each candidate is right.
    rows: `[n]` int, the query of each candidate.
    others: names of the features by other encoders, which follow; F names in all.

  Returns:
    The model, the same with any number of threads. It has no trees if there are fewer than 50 queries, or if
    two of the three folds have only right, or only wrong, candidates. If all folds do, it is that of `fixed`.
  """
  if right.all() or not right.any():
    return fixed(names, others)
  queries = np.unique(rows)
  shuffled = np.random.default_rng(0).permutation(queries)
  folds = [np.isin(rows, shuffled[fold::_FOLDS]) for fold in range(_FOLDS)]
  if any(right[~out].all() or not right[~out].any() for out in folds):
    folds = []
  has_trees = len(queries) >= FEWEST_ROWS and bool(folds)
  each = (names, *others)
  with cpu_cores.one_thread_per_product:  # the last bits of a product depend on the number of threads
    fitted = [_stacked(own, part, right, folds, has_trees) for own, part in zip(each, _split(features, each))]
    models, unseen = zip(*fitted)
    weights = _weights(np.stack(unseen, axis=1), right) if folds else np.ones(len(models))
    log_odds, calibration = np.average(unseen, axis=0, weights=weights), np.array(_UNCHANGED)
    if folds:
      inputs = _beta_inputs(log_odds)
      calibration = _regression_from(inputs, right, calibration, np.full(3, _CALIBRATION_TRUST), least=0.01)
    for model, weight in zip(models, weights):
      model.weight = float(weight)
    model, *others = models
    model.num_rows, model.others = len(queries), others
    model._calibration = calibration
    return model


def fixed(names: Sequence[str], others: Sequence[Sequence[str]] = ()) -> HybridModel:
  """Returns a model with weights fitted on several other data sets; unknown features get weight 0."""
  content = json.loads(_FIXED_WEIGHTS.read_text(encoding="utf-8"))
  linear = [*(content["weights"].get(name, 0.0) for name in names), content["intercept"]]
  return HybridModel(names, linear, others=[fixed(other) for other in others])


def _split(features: np.ndarray, each: Iterable[Sequence[str]]) -> list[np.ndarray]:
  """Splits features `[n, F]` into those by each encoder, which have these names."""
  return np.split(features, np.cumsum([len(names) for names in each])[:-1], axis=1)


def _stacked(
  names: Sequence[str], features: np.ndarray, right: np.ndarray, folds: Sequence[np.ndarray], has_trees: bool
) -> tuple[HybridModel, np.ndarray]:
  """Fits the model of one encoder's features, without calibration.

  Returns:
    The model, and the log-odds `[n]` of rows that it was not fitted on; without folds, of all as fitted.
  """
  joint, unseen = np.array([1.0, 0.0, 0.0]), np.zeros((len(right), 2))
  for out in folds:
    models = _fitted_models(names, features[~out], right[~out], has_trees)
    unseen[out] = HybridModel(names, *models).log_odds(features[out])
  if has_trees:
    joint = _joint(unseen, right)
  model = HybridModel(names, *_fitted_models(names, features, right, has_trees), joint)
  return model, _joined(unseen if folds else model.log_odds(features), joint)


def _fitted_models(
  names: Sequence[str], features: np.ndarray, right: np.ndarray, has_trees: bool
) -> tuple[np.ndarray, Trees | None]:
  """Fits both models; returns the regression's weights `[F + 1]` and the trees, if any."""
  trees = boosted_trees.fitted(features, right, _TREES, _NUM_TREES) if has_trees else None
  return _fitted_regression(names, features, right), trees


def _fitted_regression(names: Sequence[str], features: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Fits a logistic regression with a prior around the weights of `fixed`; returns weights `[F + 1]`.

  The strength of the prior is for features of variance 1. The intercept has no prior.
  """
  center, scale = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
  # A feature that differs only by rounding keeps its prior weight; divided by its deviation it would get a
  # huge one.
  scale = np.where(scale > _ROUNDING * np.abs(features).max(axis=0), scale, 1)
  prior = fixed(names).linear
  start = np.append(prior[:-1] * scale, prior[-1] + prior[:-1] @ center)
  trust = np.append(np.full(len(scale), _TRUST), 0)
  scaled = _regression_from((features - center) / scale, right, start, trust)
  return np.append(scaled[:-1] / scale, scaled[-1] - scaled[:-1] @ (center / scale))


def _regression_from(
  features: np.ndarray, right: np.ndarray, start: np.ndarray, trust: np.ndarray, least: float | None = None
) -> np.ndarray:
  """Fits a logistic regression; returns its weights, of at least `least`, and the intercept, `[F + 1]`.

  Adds to the loss `trust` / 2 times the squared distance of each weight to `start`: a normal prior.
  """
  from scipy.optimize import minimize

  inputs = np.append(features, np.ones((len(features), 1)), axis=1)

  def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
    log_odds, offset = inputs @ weights, weights - start
    value = (np.logaddexp(0, log_odds) - right * log_odds).sum() + trust / 2 @ offset**2
    return value, inputs.T @ (_sigmoid(log_odds) - right) + trust * offset

  bounds = [*[(least, None)] * features.shape[1], (None, None)]
  return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200}).x


def _joined(log_odds: np.ndarray, joint: np.ndarray) -> np.ndarray:
  return log_odds @ joint[:2] + joint[2]


def _beta_inputs(log_odds: np.ndarray) -> np.ndarray:
  """Returns ln p and -ln(1 - p), `[n, 2]`, of the probabilities with log-odds `[n]`."""
  return np.stack([-np.logaddexp(0, -log_odds), np.logaddexp(0, log_odds)], axis=1)


def _sigmoid(log_odds: np.ndarray) -> np.ndarray:
  return 1 / (1 + np.exp(-np.clip(log_odds, -80, 80)))


def _joint(log_odds: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Fits the weights that join log-odds `[n, 2]`; a model whose weight would be negative gets 0."""
  return _regression_from(log_odds, right, np.zeros(3), np.array([1.0, 1.0, 0.0]), least=0.0)


def _weights(log_odds: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Fits the weights `[M]` of a mean of log-odds `[n, M]`: none is negative, and they add up to 1."""
  even = np.full(log_odds.shape[1], 1 / log_odds.shape[1])
  start, trust = np.append(even, 0), np.append(np.full(len(even), _WEIGHT_TRUST), 0)
  found = _regression_from(log_odds, right, start, trust, least=0.0)[:-1]
  return found / found.sum() if found.any() else even
