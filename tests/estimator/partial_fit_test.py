"""What XMCClassifier learns after its training: texts and their labels, by `learn` and by `partial_fit`."""

import copy
import pickle

import made_texts
import numpy as np
import pytest
import scipy.sparse as sp

from xmc_jax.data.label_sets import LabelSpace
from xmc_jax.data.label_values import Labels
from xmc_jax.errors import DataError, UserError
from xmc_jax.estimator import fitted as fitting

TEXTS, LABELS = made_texts.make()
ZEBRA = "zebra crossing"  # no text has it
CLASSES = [ZEBRA, *reversed(made_texts.NAMES)]
NAMES = [*made_texts.NAMES, ZEBRA]  # sorted
NEW, ALIKE = "mive nuxo pond", "nuxo pond mive"


@pytest.fixture(scope="module")
def content():
  """A pickle of an estimator after its first `partial_fit`."""
  return pickle.dumps(made_texts.estimator(num_epochs=2).partial_fit(TEXTS, LABELS, CLASSES))


@pytest.fixture
def made(content):
  return pickle.loads(content)


@pytest.fixture(scope="module")
def unchanged(content):
  """For tests in which nothing is learnt."""
  return pickle.loads(content)


def answers(made, texts=(NEW, ALIKE, *TEXTS[:9])):
  return made.predict_proba(list(texts), k=len(NAMES)).toarray()


def test_what_is_learnt_is_predicted_until_it_is_unlearnt(made):
  before = answers(made)
  label = NAMES[int(before[1].argmin())]
  numbers = made.learn([NEW], [[label]])
  assert numbers.tolist() == [0] and numbers.dtype == np.int64
  assert made.predict([NEW])[0][0] == made.predict([ALIKE])[0][0] == label
  assert list(made.classes_) == NAMES
  made.unlearn(numbers)
  np.testing.assert_array_equal(answers(made), before)
  made.learn([NEW, ALIKE], [[label], [NAMES[0]]])
  assert made.undo() == 2
  np.testing.assert_array_equal(answers(made), before)


def test_pickles_and_copies_have_what_was_learnt(made):
  """Each its own: what one forgets, the other keeps."""
  number = made.learn([NEW], [[NAMES[3]]])
  expected = answers(made)
  read, other = pickle.loads(pickle.dumps(made)), copy.deepcopy(made)
  made.unlearn(number)
  for each in (read, other):
    np.testing.assert_array_equal(answers(each), expected)
  assert read.learn(["more"], [[NAMES[4]]]).tolist() == [1]
  read.unlearn(number)
  assert other.predict([NEW])[0][0] == NAMES[3]


def test_a_class_without_texts_is_predicted_by_its_name_and_learnt(made):
  assert list(made.classes_) == NAMES
  assert made.predict([ZEBRA])[0][0] == ZEBRA
  assert made.partial_fit([NEW], [[ZEBRA]]) is made
  assert made.predict([ALIKE])[0][0] == ZEBRA


def test_partial_fit_is_fit_and_then_learn(made, monkeypatch):
  """The first call trains what `fit` would; the second one gives what `learn` gives."""
  given = []

  def train(config, texts, space, truth, workdir):
    given.append((config.to_dict(), texts, space.texts, space.keys, truth.toarray().tolist(), workdir))
    return fitting.Fitted(made._fitted._run, space)

  monkeypatch.setattr(fitting, "train", train)
  made_texts.estimator().fit(TEXTS, LABELS)
  made_texts.estimator().partial_fit(TEXTS, LABELS)
  assert given[0] == given[1]
  other = copy.deepcopy(made)
  more = TEXTS[:2] + [NEW], [[NAMES[0]], [], [NAMES[1], NAMES[2]]]
  other.learn(*more)
  made.partial_fit(*more, classes=np.array(CLASSES, object))
  np.testing.assert_array_equal(answers(made), answers(other))


def indicator(labels):
  return made_texts.indicator(labels, NAMES)


# Each makes lists of names into labels of one form, and the classes of that form.
FORMS = {
  "csr": (lambda names: sp.csr_matrix(indicator(names)), NAMES),
  "one name": (lambda names: [row[0] if row else None for row in names], CLASSES),
  "ids": (lambda names: [[7 * NAMES.index(name) for name in row] for row in names], range(0, 112, 7)),
}


@pytest.mark.parametrize("form", FORMS)
def test_labels_of_each_form(made, form, monkeypatch):
  """Without training again: the run is that of names, whose columns are the same."""
  like, classes = FORMS[form]
  first = [row[:1] for row in LABELS] if form == "one name" else LABELS

  def train(config, texts, space, truth, workdir):
    np.testing.assert_array_equal(truth.toarray(), indicator(first))
    return fitting.Fitted(made._fitted._run, space)

  monkeypatch.setattr(fitting, "train", train)
  other = made_texts.estimator().partial_fit(TEXTS, like(LABELS), classes)
  other.partial_fit([NEW, TEXTS[0]], like([[NAMES[6]], []]), classes)
  assert other.top_k([ALIKE], k=1)[0].tolist() == [[6]]
  made.learn([NEW, TEXTS[0]], [[NAMES[6]], []])
  np.testing.assert_array_equal(answers(other), answers(made))


REFUSED = {
  "a name": ([["nix"]], None, "labels: 'nix' is not one of the 16 classes; new_labels=True adds names"),
  "an id": ([[5]], None, "labels: expected lists of names, found lists of ids"),
  "a matrix": (np.ones((1, 16)), None, "labels: expected lists of names, found a matrix"),
  "rows": ([[], []], None, "labels has 2 rows, and there are 1 texts"),
  "another class": ([[]], [*CLASSES, "nix"], "classes: 'nix' is not one of the 16 until now"),
  "a class less": ([[]], CLASSES[1:], "classes: 'zebra crossing' is missing; give those of the first call"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_the_first_call(unchanged, case):
  """As scikit-learn wants it, by a ValueError, which is an error of this package, too; nothing is learnt."""
  labels, classes, message = REFUSED[case]
  for kind in (ValueError, UserError):
    with pytest.raises(kind, match=message):
      unchanged.partial_fit([NEW], labels, classes)
  if classes is None:
    with pytest.raises(ValueError, match=message):
      unchanged.learn([NEW], labels)
  with pytest.raises(UserError, match="nothing was learnt"):
    unchanged.undo()


def test_matrices_of_another_width(made):
  made._fitted.space = LabelSpace.of(Labels(indicator(LABELS), len(LABELS)), NAMES)
  for width in (15, 17):
    with pytest.raises(ValueError, match=f"labels: expected 16 columns, found {width}"):
      made.learn([NEW], np.ones((1, width), int))


@pytest.mark.parametrize(
  ("labels", "classes", "message"),
  [
    ([["nix"]], CLASSES, "labels: 'nix' is not one of the 16 classes; new_labels=True adds names"),
    ([3], [1, 2], "labels: 3 is not one of the 2 classes"),
    (np.ones((1, 3)), ["a", "b"], "classes has 2 names, and labels has 3 columns"),
    (np.ones((1, 2)), [0, 1], r"classes\[0\]: expected a text \(str\), found 0"),
    ([["a"]], "a", "classes: expected a list, an array or a column, found 'a'"),
  ],
)
def test_classes_that_do_not_go_with_the_labels(labels, classes, message):
  with pytest.raises(DataError, match=message):
    made_texts.estimator().partial_fit([NEW], labels, classes)


def test_classes_with_one_text_cannot_be_told_apart(made):
  """The run knows labels by their texts."""
  made._fitted.space = LabelSpace.of(Labels([[0]], 1), [*NAMES[:14], NAMES[2], NAMES[2]])
  made.learn([NEW], [[2]])
  with pytest.raises(ValueError, match=f"labels: several classes are called '{NAMES[2]}'"):
    made.learn([NEW], [[14]])


def test_names_may_be_new(made):
  """They become classes, the last ones, if that is asked for; what takes them back takes the classes back."""
  made.set_params(new_labels=True)
  made.partial_fit([NEW, ALIKE], [["yak", NAMES[2]], ["gnu"]], CLASSES)
  assert list(made.classes_) == [*NAMES, "yak", "gnu"]
  made.partial_fit([NEW], [["yak"]], CLASSES).partial_fit([NEW], [["yak"]], made.classes_)
  for one in (made, pickle.loads(pickle.dumps(made))):
    assert one.predict(["yak", NEW]) == [["yak"], ["yak"]] and one.predict_proba([NEW]).shape == (1, 18)
  with pytest.raises(UserError, match=r"labels were learnt, .*; add labels by their texts before"):
    made.add_labels(["an okapi"])
  assert [made.undo() for _ in range(3)] == [1, 1, 2] and list(made.classes_) == NAMES


def test_new_names_at_the_first_call(made, monkeypatch):
  train = lambda config, texts, space, truth, workdir: fitting.Fitted(made._fitted._run, space)
  monkeypatch.setattr(fitting, "train", train)
  other = made_texts.estimator(new_labels=True).partial_fit([NEW], [["yak"]], ["zebra", "gnu"])
  assert list(other.classes_) == ["gnu", "yak", "zebra"]


def test_two_estimators_of_one_folder(made):
  """Each sees what the other learns and forgets, at its next call; columns keep their names."""
  first, second = made.set_params(new_labels=True), copy.copy(made)
  second._fitted = object.__new__(fitting.Fitted)  # a copy would have a folder of its own
  vars(second._fitted).update(vars(made._fitted), _models={})
  second.predict([NEW])
  first.learn([NEW], [["gnu"]])
  assert second.learn([ALIKE], [["okapi"]]).tolist() == [1]
  assert [labels[0] for labels in first.predict([NEW, ALIKE])] == ["gnu", "okapi"]
  assert second.predict([NEW, ALIKE]) == first.predict([NEW, ALIKE])
  for one in (first, second):
    assert list(one.classes_) == [*NAMES, "gnu", "okapi"] and one.predict_proba([NEW]).shape == (1, 18)
  first.undo()
  columns, _, names = second.top_k([NEW], 17)
  assert columns.max() == 16 and names[0][0] == "gnu" and list(second.classes_) == [*NAMES, "gnu"]
  first.undo()
  assert second.predict_proba([NEW], 17).shape == (1, 16) and list(second.classes_) == NAMES
  with pytest.raises(ValueError, match="' gnu' has spaces around it"):
    first.learn([NEW], [[" gnu"]])
