"""XMCClassifier: what it learns, returns, prints, leaves behind and refuses."""

import gc
import tempfile

import made_texts
import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.exceptions import NotFittedError

import xmc_jax
from xmc_jax import metrics
from xmc_jax.data.label_sets import LabelSpace
from xmc_jax.data.label_values import Labels
from xmc_jax.errors import ConfigError, DataError, UserError
from xmc_jax.estimator import fitted as fitting
from xmc_jax.estimator import settings
from xmc_jax.training import auto, train

pytestmark = pytest.mark.slow

TEXTS, LABELS = made_texts.make()
indicator = made_texts.indicator
TRAIN, TEST = slice(0, 120), slice(120, None)


@pytest.fixture(scope="module")
def fitted():
  return made_texts.estimator().fit(TEXTS[TRAIN], LABELS[TRAIN])


@pytest.fixture
def temporary(tmp_path, monkeypatch):
  """The folder for temporary files, so that a test sees what is left in it."""
  folder = tmp_path / "temporary"
  folder.mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(folder))
  return folder


def test_it_learns(fitted):
  """Better than the most frequent label; the score is the share of texts whose best label is right."""
  truth = indicator(LABELS)
  found = fitted.score(TEXTS[TEST], LABELS[TEST])
  assert found > truth[TEST].mean(axis=0).max() + 0.2
  best = fitted.predict_proba(TEXTS[TEST], k=3).toarray().argmax(axis=1)
  assert found == pytest.approx(truth[TEST][np.arange(len(best)), best].mean())
  assert list(fitted.classes_) == made_texts.NAMES


def test_predictions_are_the_labels_above_the_threshold(fitted):
  every = len(made_texts.NAMES)
  probabilities = fitted.predict_proba(TEXTS[TEST], k=every).toarray()
  assert ((probabilities >= 0) & (probabilities <= 1)).all()
  for threshold in (0.05, 0.5, 1.0, 0.0):
    expected = probabilities >= threshold
    expected[np.arange(len(expected)), probabilities.argmax(axis=1)] = True
    predicted = with_threshold(fitted, threshold).predict(TEXTS[TEST])
    np.testing.assert_array_equal(indicator(predicted), expected)
    for row, names in zip(probabilities, predicted):  # best first
      values = [row[made_texts.NAMES.index(name)] for name in names]
      assert values == sorted(values, reverse=True)


def test_without_a_threshold_each_text_gets_the_set_with_the_best_expected_f1(fitted):
  ids, probabilities, _ = fitted.top_k(TEXTS[TEST], k=len(made_texts.NAMES))
  sizes = metrics.best_f1_sizes(probabilities)
  assert len(set(sizes)) > 1
  expected = [[made_texts.NAMES[label] for label in row[:size]] for row, size in zip(ids, sizes)]
  assert fitted.threshold is None and fitted.predict(TEXTS[TEST]) == expected


def with_threshold(fitted, threshold):
  """The same trained model with another threshold."""
  other = made_texts.estimator(threshold=threshold)
  other._fitted, other.classes_ = fitted._fitted, fitted.classes_
  return other


def test_a_low_threshold_looks_beyond_the_first_labels(fitted, monkeypatch):
  monkeypatch.setattr("xmc_jax.estimator.classifier._DEPTH", 2)
  other = with_threshold(fitted, 0.0)
  assert all(sorted(names) == made_texts.NAMES for names in other.predict(TEXTS[:5]))


def test_decisions_are_the_log_odds(fitted):
  odds, probabilities = fitted.decision_function(TEXTS[:9], k=4), fitted.predict_proba(TEXTS[:9], k=4)
  np.testing.assert_array_equal(odds.indices, probabilities.indices)
  np.testing.assert_allclose(1 / (1 + np.exp(-odds.data)), probabilities.data, rtol=1e-5)
  assert np.isfinite(odds.data).all() and odds.shape == (9, len(made_texts.NAMES))


def test_the_best_k(fitted):
  ids, scores, names = fitted.top_k(TEXTS[:9], k=4)
  assert (np.diff(scores) <= 0).all() and ids.shape == (9, 4)
  assert names == [[made_texts.NAMES[label] for label in row] for row in ids]
  rows = np.arange(9)[:, None]
  np.testing.assert_array_equal(fitted.predict_proba(TEXTS[:9], k=4).toarray()[rows, ids], scores)
  assert fitted.embed(TEXTS[:9]).shape == (9, 16)


def test_no_texts(fitted):
  assert fitted.predict([]) == [] and fitted.predict_proba([]).shape == (0, len(made_texts.NAMES))


# Each makes lists of names into labels of one form; predictions have the same.
FORMS = {
  "array": lambda names: np.array([np.array(row) for row in names], object),
  "csr": lambda names: sp.csr_matrix(indicator(names)),
  "one id": lambda names: np.array([made_texts.NAMES.index(row[0]) for row in names]),
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_come_back_as_they_came(fitted, form, monkeypatch):
  """Without training again: the run is that of names, whose columns are the same."""
  train = lambda config, texts, space, truth, workdir: fitting.Fitted(fitted._fitted._run, space)
  monkeypatch.setattr(fitting, "train", train)
  given, names = FORMS[form](LABELS), None if form == "array" else made_texts.NAMES
  other = made_texts.estimator().fit(TEXTS, given, label_texts=names)
  found, by_name = other.predict(TEXTS[TEST]), fitted.predict(TEXTS[TEST])
  expected = by_name if form == "array" else FORMS[form](by_name)
  assert type(found) is type(expected) and getattr(found, "dtype", None) == getattr(expected, "dtype", None)
  np.testing.assert_equal(*(each.toarray() if form == "csr" else each for each in (found, expected)))
  assert other.score(TEXTS, given) >= (0.3 if form == "one id" else fitted.score(TEXTS, LABELS) - 1e-9)


def test_labels_that_were_not_there_count_as_missed(fitted):
  assert fitted.score(TEXTS[:4], [["never seen"]] * 4) == 0
  half = fitted.score(TEXTS[:8], [*LABELS[:4], *[["never seen"]] * 4])
  assert half == pytest.approx(fitted.score(TEXTS[:4], LABELS[:4]) / 2)


def test_it_prints_nothing_and_leaves_nothing(temporary, tmp_path, monkeypatch, capfd):
  """While it lives its files are in one temporary folder, without the raw texts."""
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path / "cache"))
  made = made_texts.estimator(num_epochs=1).fit(np.array(TEXTS), LABELS)
  made.predict(TEXTS[:3])
  made.predict(TEXTS[:100])
  assert capfd.readouterr() == ("", "")
  (folder,) = temporary.iterdir()
  assert [path.name for path in folder.iterdir()] == ["run"]
  assert not (folder / "run" / "metrics.jsonl").exists()
  assert not (tmp_path / "cache").exists()
  del made
  gc.collect()
  assert not list(temporary.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError("a full disk"), RuntimeError, SystemExit])
def test_nothing_is_left_if_fit_fails(error, temporary, monkeypatch):
  def failing(*_, **__):
    assert any(temporary.rglob("trn.json"))
    raise error

  monkeypatch.setattr("xmc_jax.training.loop.train", failing)
  with pytest.raises(error if isinstance(error, type) else type(error)):
    made_texts.estimator().fit(TEXTS, LABELS)
  assert not list(temporary.iterdir())


def test_scores_that_are_no_probabilities(capfd):
  """They rank; the best label is predicted. Progress is printed if that is asked for."""
  made = made_texts.estimator(scores="encoder", verbose=1).fit(TEXTS[TRAIN], LABELS[TRAIN])
  said = capfd.readouterr()
  assert "texts to learn from" in said.err and "held-out texts: P@1" in said.err and not said.out
  assert not hasattr(made, "predict_proba")
  with pytest.raises(AttributeError, match="has no attribute 'predict_proba'") as refused:
    made.predict_proba(TEXTS)
  assert "scores='encoder' gives no probabilities; set scores='hybrid'" in str(refused.value.__cause__)
  ids, scores, _ = made.top_k(TEXTS[:5], k=3)
  found = made.decision_function(TEXTS[:5], k=3).toarray()
  np.testing.assert_array_equal(found[np.arange(5)[:, None], ids], scores)
  assert made.predict(TEXTS[:5]) == [[made_texts.NAMES[row[0]]] for row in ids]
  made.set_params(scores="hybrid")  # fitted to the validation rows now
  assert made.score(TEXTS[TEST], LABELS[TEST]) > 0.3 and hasattr(made, "predict_proba")


def test_not_fitted():
  made = xmc_jax.XMCClassifier()
  of_texts = ("predict", "predict_proba", "decision_function", "top_k", "embed", "add_labels", "unlearn")
  calls = [(name, TEXTS) for name in of_texts]
  for name, *arguments in (*calls, ("score", TEXTS, LABELS), ("learn", TEXTS, LABELS), ("undo",)):
    with pytest.raises(NotFittedError, match="not fitted yet"):
      getattr(made, name)(*arguments)


def test_the_best_in_the_time_given(monkeypatch):
  """As `--config=experiments/auto.py`: that training is replaced by a quick one on the same data."""

  def quick(config, workdir):
    assert config.auto.minutes == 3.0
    made = settings.make("dexml", "bag", {"num_epochs": 4, "learning_rate": 0.02}, made_texts.SETTINGS)
    made.data = config.data
    return train.train_and_test(made, workdir)

  monkeypatch.setattr(auto, "train_and_test", quick)
  found = xmc_jax.XMCClassifier(minutes=3).fit(TEXTS, LABELS)
  assert found.score(TEXTS, LABELS) > 0.8


REFUSED = {
  "epochs": ({"num_epochs": -1}, r"num_epochs = -1 is less than 0; set num_epochs=0 or more"),
  "method": ({"method": "dexm"}, "method = 'dexm' is not one of .*; did you mean method='dexml'"),
  "classifier": ({"method": "dexa_classifier"}, "method = 'dexa_classifier' is not one of"),
  "not auto's": (
    {"method": "auto", "settings": None, "learning_rate": None, "num_epochs": 3},
    "num_epochs = 3: auto chooses it; leave it out",
  ),
  "minutes of a method": ({"minutes": 3}, "minutes = 3: more than 0 goes with method='auto'"),
  "no minutes": ({"method": "auto", "minutes": 0}, "minutes = 0: more than 0 goes"),
  "scores": ({"scores": "encodr"}, "scores = 'encodr' is not one of .*; did you mean scores='encoder'"),
  "encoder": ({"encoder": None}, "encoder = None is not a text; for instance encoder='bag'"),
  "no encoder": ({"encoder": "not-there"}, "encoder 'not-there' is no directory.*with encoder='bag'"),
  "seed": ({"random_state": "x"}, "random_state = 'x' is not a whole number; for instance random_state=0"),
  "workdir": ({"workdir": 3}, "workdir = 3 is not a path"),
  "seeds": (
    {"random_state": np.random.RandomState(3), "workdir": "/dev/null/run"},
    "random_state: a RandomState gives each fit another seed, .* give a number, such as random_state=0",
  ),
  "threshold": ({"threshold": 1.5}, "threshold = 1.5 is not a probability; set 0 to 1"),
  "settings": ({"settings": "x"}, "settings = 'x' is not a dict"),
  "typo": ({"settings": {"method.los": "softmax"}}, "no key 'method.los'; did you mean 'method.loss'"),
  "value": ({"settings": {"method.loss": "x"}}, r"set settings=\{'method.loss': 'decoupled_softmax'\}"),
  "own": (
    {"settings": {"train.num_epochs": 3}},
    r"settings\['train.num_epochs'\] .*: give it as num_epochs=...",
  ),
  "depth": ({"settings": {"eval.k": 999}}, r"eval.k = 999 is more .*; set settings=\{'eval.k': 15\} or less"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_parameter_that_cannot_work_is_named(name):
  parameters, message = REFUSED[name]
  with pytest.raises(UserError, match=message) as refused:
    made_texts.estimator(**parameters).fit(TEXTS, LABELS)
  assert "\n" not in str(refused.value) and "--config" not in str(refused.value)


def test_texts_and_labels_that_cannot_work(fitted):
  with pytest.raises(DataError, match="labels has 3 rows, and there are 160 texts"):
    made_texts.estimator().fit(TEXTS, LABELS[:3])
  with pytest.raises(DataError, match="no text has a label"):
    made_texts.estimator().fit(TEXTS[:2], [[], []])
  for method in ("predict", "predict_proba", "top_k", "embed"):
    with pytest.raises(DataError, match=r"texts\[1\]: expected a text \(str\), found nan"):
      getattr(fitted, method)(["a", float("nan")])
  with pytest.raises(DataError, match="labels: expected lists of names, found one id per text"):
    fitted.score(TEXTS[:2], [1, 2])
  with pytest.raises(UserError, match="k = 99: there are 15 labels"):
    fitted.top_k(TEXTS[:2], k=99)
  with pytest.raises(ConfigError, match="threshold"):
    with_threshold(fitted, "half").predict(TEXTS[:2])


def test_a_random_state_is_the_seed():
  """RandomStates give their next number; equal seeds give equal parameters."""
  given = [made_texts.estimator(random_state=np.random.RandomState(3)) for _ in range(2)]
  seeds = [each._config().train.seed for each in given]
  assert seeds[0] == seeds[1] == np.random.RandomState(3).randint(2**31 - 1)
  assert given[0]._config().train.seed != seeds[0]
  assert sklearn.clone(made_texts.estimator(random_state=np.int64(7)))._config().train.seed == 7


def test_the_smallest_data():
  """One text, one label; nothing is held out."""
  made = made_texts.estimator(num_epochs=1).fit(["a text"], [["a label"]])
  assert made.predict(["another"]) == [["a label"]]
  space = LabelSpace.of(Labels([["a label"]], 1))
  assert space.texts == list(made.classes_)
