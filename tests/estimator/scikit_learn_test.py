"""XMCClassifier in the hands of scikit-learn: its own checks, pipelines, searches, clones."""

import os
import pathlib
import re
import subprocess
import sys
import warnings

import made_texts
import numpy as np
import pytest
import sklearn
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

import xmc_jax

TEXTS, LABELS = made_texts.make()
_NUMBERS = "is about matrices of numbers; texts are no numbers"
_ERRORS = "wants a ValueError; bad input raises a DataError"
EXPECTED_TO_FAIL = {
  "check_fit_score_takes_y": "wants the second argument to be named y; here it is labels",
  "check_n_features_in": "texts have no number of features",
  "check_n_features_in_after_fitting": "texts have no number of features",
  "check_requires_y_none": _ERRORS,
  "check_complex_data": _ERRORS,
  **dict.fromkeys(
    (
      "check_estimators_empty_data_messages",
      "check_estimators_nan_inf",
      "check_estimator_sparse_array",
      "check_estimator_sparse_matrix",
      "check_fit1d",
      "check_fit2d_predict1d",
    ),
    _NUMBERS,
  ),
}


class OfNumbers(xmc_jax.XMCClassifier):
  """Reads a row of numbers as a text of words, because scikit-learn has checks for numbers only."""

  def fit(self, texts, labels, *, label_texts=None):
    return super().fit(in_words(texts), labels, label_texts=label_texts)

  def top_k(self, texts, k=5):
    return super().top_k(in_words(texts), k)

  def score(self, texts, labels):
    return super().score(in_words(texts), labels)

  def __sklearn_tags__(self):
    tags = super().__sklearn_tags__()
    tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
    return tags


def in_words(rows):
  if isinstance(rows, list) and rows and isinstance(rows[0], str):
    return rows
  rows = np.asarray(rows).reshape(len(rows), -1)
  return [" ".join(f"{column}x{number:.1f}" for column, number in enumerate(row)) for row in rows.real]


def of_numbers():
  return OfNumbers("dexml", num_epochs=1, max_length=16, settings={**made_texts.SETTINGS, "encoder.width": 8})


def test_the_tags_say_texts():
  """So scikit-learn has no check of its own for it, as for its own estimators of texts."""
  tags = sklearn.utils.get_tags(xmc_jax.XMCClassifier())
  assert tags.input_tags.string and not tags.input_tags.two_d_array
  assert tags.target_tags.required and tags.target_tags.multi_output and tags.classifier_tags.multi_label


def check_all():
  """Those that are expected to fail do, and no others."""
  options = {"expected_failed_checks": EXPECTED_TO_FAIL, "on_fail": None, "on_skip": None}
  found = estimator_checks.check_estimator(of_numbers(), **options)
  failed = {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"}
  assert not failed, failed
  assert {each["check_name"] for each in found if each["status"] == "xfail"} == set(EXPECTED_TO_FAIL)
  assert sum(each["status"] == "passed" for each in found) >= 25


@pytest.mark.slow
def test_all_checks():
  """In a process with other kernels: by OpenBLAS's for AMD's Zen a row's last bits depend on its place."""
  command = [sys.executable, "-W", "ignore", "-c", "import scikit_learn_test as test; test.check_all()"]
  here = pathlib.Path(__file__).parent
  own = {"OPENBLAS_CORETYPE": "SANDYBRIDGE", "PYTHONPATH": f"{here}:{here.parents[1]}"}
  ended = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=900)
  assert not ended.returncode, ended.stderr


def test_the_page_lists_the_checks_that_do_not_apply():
  page = pathlib.Path(__file__).parents[2].joinpath("docs", "sklearn.md").read_text(encoding="utf-8")
  assert set(re.findall(r"`(check_\w+)`", page)) == set(EXPECTED_TO_FAIL)


def test_parameters_and_clones():
  made = made_texts.estimator(threshold=0.3)
  assert made.get_params()["threshold"] == 0.3 and made.set_params(num_epochs=2).num_epochs == 2
  other = sklearn.clone(made)
  assert other.get_params() == made.get_params() and other is not made
  assert repr(xmc_jax.XMCClassifier(threshold=0.3)) == "XMCClassifier(threshold=0.3)"


def lower(texts):
  return [text.lower() for text in texts]


def pipeline():
  return Pipeline([("lower", FunctionTransformer(lower)), ("labels", made_texts.estimator(num_epochs=2))])


def test_a_pipeline():
  """It prepares texts for training and for predictions; the estimator's own methods are there."""
  whole = pipeline().fit([text.upper() for text in TEXTS], LABELS)
  shouted = [text.upper() for text in TEXTS[:20]]
  last = whole.named_steps["labels"]
  assert whole.predict(shouted) == last.predict(TEXTS[:20])
  assert abs(whole.predict_proba(shouted) - last.predict_proba(TEXTS[:20])).nnz == 0
  assert whole.score(shouted, LABELS[:20]) == last.score(TEXTS[:20], LABELS[:20])


def test_cross_validation():
  """Lists of labels are the target; each fold is scored on texts that it was not trained on."""
  found = cross_val_score(made_texts.estimator(num_epochs=2), TEXTS, LABELS, cv=2)
  assert found.shape == (2,) and (found > 0.1).all()


@pytest.mark.slow
def test_a_grid_search():
  """Over a step of a pipeline, by P@1; and by another metric, for which a matrix is the target."""
  grid = {"labels__num_epochs": [1, 6], "labels__learning_rate": list(np.array([0.02]))}
  search = GridSearchCV(pipeline(), grid, cv=2).fit(TEXTS, LABELS)
  assert search.best_params_["labels__num_epochs"] == 6
  assert set(search.predict(TEXTS[:5])[0]) <= set(made_texts.NAMES)
  dense = np.array([[name in names for name in made_texts.NAMES] for names in LABELS], int)
  scoring = make_scorer(f1_score, average="micro", zero_division=0)
  search = GridSearchCV(made_texts.estimator(), {"threshold": [0.2, 0.9]}, cv=2, scoring=scoring)
  search.fit(TEXTS, dense, label_texts=made_texts.NAMES)
  assert search.cv_results_["mean_test_score"].shape == (2,) and search.best_score_ > 0.2


def test_metadata_routing():
  """With routing on, label texts and classes are asked for by the estimator."""
  with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
    made = made_texts.estimator().set_fit_request(label_texts=True).set_partial_fit_request(classes=True)
    routed = made.get_metadata_routing()
    assert routed.fit.requests == {"label_texts": True} and routed.partial_fit.requests == {"classes": True}
