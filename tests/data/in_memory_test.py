"""What `data.write` writes is read back as it was given: every text, label and relevance."""

import json

import numpy as np
import pandas
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from xmc_jax import data
from xmc_jax.data.label_sets import LabelSpace
from xmc_jax.data.label_values import Labels
from xmc_jax.errors import DataError

TEXTS = ["two\nlines\r\n", "", "  spaced\t", 'quotes " and \\n', "\u2028 \x85 \ufeff ünï 🐕"]
NAMES = [["b;|,\t", "a\nb"], [], ["a\nb"], ["é", "b;|,\t", ""], ["é"]]


@pytest.fixture
def reread(tmp_path):
  """Writes a data set, and returns it as it is loaded: (texts, sets of label texts, all labels) by split."""

  def through_files(*args, **keywords):
    folder = data.write(tmp_path / "set", *args, **keywords)
    found = data.load(folder, cache_dir=tmp_path / "cache")
    labels = list(found.labels.texts)
    sets = [[{labels[label] for label in row.indices} for row in truth] for truth in found.truth]
    return found, list(found.train.texts), sets, labels

  return through_files


any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@settings(max_examples=30)
@given(st.lists(st.tuples(any_text, st.sets(any_text, max_size=3)), min_size=1, max_size=6))
@example(list(zip(TEXTS, map(set, NAMES))))
def test_any_texts_and_names_come_back(tmp_path_factory, points):
  texts, names = zip(*points)
  folder = tmp_path_factory.mktemp("any")
  if not any(names):
    with pytest.raises(DataError, match="no text has a label"):
      data.write(folder / "set", texts, names)
    return
  found = data.load(data.write(folder / "set", texts, names), cache_dir=folder / "cache")
  labels = list(found.labels.texts)
  assert list(found.train.texts) == list(texts) and labels == sorted(set().union(*names))
  assert [{labels[label] for label in row.indices} for row in found.truth.train] == list(names)


def test_a_lone_surrogate_becomes_a_replacement(reread):
  _, texts, _, labels = reread(["a\ud800b", "c"], ["n\udfff", "m"])
  assert texts == ["a\ufffdb", "c"] and labels == ["m", "n\ufffd"]


IDS = [[1, 0], [], [0], [2, 1, 1], [2]]
DENSE = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1]])
LABELS = ["x", "y", "y"]  # two labels may have one text


@pytest.mark.parametrize(
  "labels",
  {
    "ids": IDS,
    "tuples": tuple(map(tuple, IDS)),
    "sets": [set(row) for row in IDS],
    "arrays": [np.array(row, np.int32) for row in IDS],
    "a column": pandas.Series(IDS),
    "bool array": DENSE.astype(bool),
    "float array": DENSE.astype(float),
    "csr": sp.csr_matrix(DENSE),
    "coo": sp.coo_matrix(DENSE.astype(np.int8)),
    "csc array": sp.csc_array(DENSE.astype(bool)),
  }.items(),
)
def test_ids_and_matrices_mean_the_same(labels, reread):
  found, *_, label_texts = reread(TEXTS, labels[1], label_texts=LABELS)
  np.testing.assert_array_equal(found.truth.train.toarray(), DENSE)
  assert label_texts == LABELS


@pytest.mark.parametrize("kind", [tuple, np.array, pandas.Series, lambda texts: np.array(texts, object)])
def test_kinds_of_sequences(kind, reread):
  assert reread(kind(TEXTS), NAMES)[1] == TEXTS


def test_one_label_for_each_text(reread):
  _, _, (sets, _), labels = reread(TEXTS, np.array(["v", "u", "v", "w", "u"]))
  assert labels == ["u", "v", "w"] and sets == [{"v"}, {"u"}, {"v"}, {"w"}, {"u"}]
  _, _, (sets, _), labels = reread(TEXTS, [7, 11, 7, 7, 7])
  assert labels == ["7", "11"] and sets == [{"7"}, {"11"}, {"7"}, {"7"}, {"7"}]


@pytest.mark.parametrize(
  "labels, sets",
  [
    ([["v"], None, ["u", "v"], float("nan"), []], [{"v"}, set(), {"u", "v"}, set(), set()]),
    (["v", None, "u", float("nan"), "v"], [{"v"}, set(), {"u"}, set(), {"v"}]),
    (pandas.Series([7, None, 8, 7, 8]), [{"7"}, set(), {"8"}, {"7"}, {"8"}]),  # floats, as pandas makes them
    (pandas.Series([7, None, 8, 7, 8], dtype="Int64"), [{"7"}, set(), {"8"}, {"7"}, {"8"}]),
  ],
)
def test_a_missing_value_is_a_text_without_labels(reread, labels, sets):
  assert reread(TEXTS, labels)[2][0] == sets


@pytest.mark.parametrize(
  "labels", [[[0], [1]], [[1, 0], [0, 1]], [[0, 1], [0]], [[0, 0], [2, 1]], [[-(2**63)], [2**63 - 1]]]
)
def test_ids_that_are_no_rows_of_a_matrix(labels):
  found = LabelSpace.of(Labels(labels, 2))
  assert found.classes.tolist() == sorted({label for row in labels for label in row})


def test_with_label_texts_a_list_of_0_and_1_is_ids():
  given = Labels([[1, 1], [0, 1]], 2)
  np.testing.assert_array_equal(LabelSpace.of(given, ["x", "y"]).encode(given).toarray(), [[0, 1], [1, 1]])


def test_columns_of_a_data_frame_are_label_texts(reread):
  frame = pandas.DataFrame({"red": [1, 0, 1], "blue": [False, False, True]}, dtype=float)
  _, _, (sets, _), labels = reread(TEXTS[:3], frame)
  assert labels == ["red", "blue"] and sets == [{"red"}, set(), {"red", "blue"}]
  space = LabelSpace.of(Labels(frame, 3))
  assert space.extended(["green"]).encode(Labels(frame, 3)).shape == (3, 3)
  with pytest.raises(DataError, match=r"^labels: expected column 'red', found 'blue'$"):
    space.encode(Labels(frame[["blue", "red"]], 3))


def test_relevances_are_kept(reread):
  found, *_ = reread(TEXTS, sp.csr_matrix(DENSE * 0.25))
  np.testing.assert_array_equal(found.truth.train.toarray(), DENSE * 0.25)


def test_a_test_split(reread):
  """Its names may be new; an earlier data set in the folder is replaced."""
  found, _, (sets, of_test), labels = reread(TEXTS, NAMES, test_texts=["t", "u\n"], test_labels=[["new"], []])
  assert list(found.test.texts) == ["t", "u\n"] and of_test == [{"new"}, set()] and "new" in labels
  assert sets == list(map(set, NAMES))
  assert len(reread(TEXTS, NAMES)[0].test) == 0


def test_other_files_in_the_folder_are_refused(tmp_path):
  """A list of filter pairs from elsewhere would be applied."""
  (tmp_path / "filter_labels_train.txt").write_text("0 0\n")
  with pytest.raises(DataError, match=r"other files \(filter_labels_train.txt\).*give a new folder"):
    data.write(tmp_path, TEXTS, NAMES)


def test_a_killed_write_leaves_no_mixture(tmp_path, monkeypatch):
  data.write(tmp_path, TEXTS, NAMES)
  monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    data.write(tmp_path, ["other"], [["o"]])
  monkeypatch.undo()
  with pytest.raises(DataError, match="no known layout"):
    data.load(tmp_path)


@pytest.mark.parametrize("name", ["lbl.json.tmp", "tst.json.tmp", "trn.json.tmp"])
def test_what_a_killed_write_left_does_not_hinder_the_next(name, tmp_path):
  (tmp_path / name).write_text('{"title": "ha')
  data.write(tmp_path, TEXTS, NAMES)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["lbl.json", "trn.json", "tst.json"]


REFUSED = {
  "lengths": ((TEXTS, NAMES[:3]), {}, "labels has 3 rows, and there are 5 texts"),
  "matrix": ((TEXTS, DENSE[:3]), {}, "labels has 3 rows, and there are 5 texts"),
  "text": ((["a", 3, "b"], ["x", "y", "z"]), {}, r"texts\[1\]: expected a text \(str\), found 3"),
  "one str": (("ab", ["x", "y"]), {}, "texts: expected a list, an array or a column, found 'ab'"),
  "table": ((np.array([["a"], ["b"]]), ["x", "y"]), {}, r"texts: .* shape \(2, 1\); give one column"),
  "float row": ((["a", "b"], [["x"], 1.5]), {}, r"labels\[1\]: expected a list, .* found 1.5"),
  "NaN cell": ((["a"], np.array([[0, np.nan]])), {}, r"labels\[0\]: expected 0 or 1, found nan"),
  "negative": ((["a"], sp.csr_matrix([[1.0, -1]])), {}, r"labels\[0\]: expected relevances of 0 or more"),
  "mixed": ((["a", "b"], [["x"], [1]]), {}, r"labels\[1\]: expected lists of names, found 1"),
  "float": ((["a"], [[1.5]]), {}, r"labels\[0\]: expected names \(str\) or ids \(int\), found 1.5"),
  "bool": ((["a"], [[True]]), {}, r"labels\[0\]: .* found True"),
  "no label": ((["a", "b"], [[], []]), {}, "no text has a label"),
  "no text": (([], []), {}, "no text has a label"),
  "id": ((["a", "b"], [[0], [2]]), {"label_texts": ["x", "y"]}, r"labels\[1\]: id 2 .* \(0 to 1\)"),
  "large id": ((["a", "b"], [[1], [2**64 - 1]]), {}, r"labels\[1\]: id 18446744073709551615 .* give names"),
  "rows of 0 and 1": ((["a", "b"], [[1, 0, 1], [0, 0, 1]]), {}, r"give np.array\(...\) for a matrix"),
  "two columns": ((["a", "b"], ((1, 0), (1, 1))), {}, r"labels: each row has 2 numbers, all 0 or 1"),
  "name": ((["a"], ["z"]), {"label_texts": ["x"]}, r"labels\[0\]: 'z' is not one of the 1 label_texts"),
  "label text": ((["a"], [[0]]), {"label_texts": [None]}, r"label_texts\[0\]: .* found None"),
  "columns": ((["a"], np.eye(2)[:1]), {"label_texts": ["x"]}, "has 1 texts, and labels has 2 columns"),
  "half a test": ((["a"], ["x"]), {"test_texts": ["b"]}, "test_texts and test_labels belong together"),
  "other kind": ((["a"], ["x"]), {"test_texts": ["b"], "test_labels": [[1]]}, "found lists of ids"),
  "not a list": ((["a"], iter(["x"])), {}, "labels: expected a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_input_is_refused_in_one_line(name, tmp_path):
  args, keywords, message = REFUSED[name]
  with pytest.raises(DataError, match=message) as refused:
    data.write(tmp_path / "set", *args, **keywords)
  assert "\n" not in str(refused.value)
  assert not (tmp_path / "set").exists()


FORMS = {"names": [["b", "a"], [], ["c"]], "ids": [[5, 3], [], [3]], "name": ["b", "a", "b"], "id": [5, 3, 5]}


@pytest.mark.parametrize("form", FORMS)
def test_labels_come_back_in_their_form(form):
  """Each row keeps its order, which for predictions is best first."""
  labels = Labels(FORMS[form], 3)
  space = LabelSpace.of(labels)
  found = space.encode(labels)
  has_label = [[key in np.atleast_1d(row) for key in space.classes] for row in FORMS[form]]
  np.testing.assert_array_equal(found.toarray(), has_label)
  best = np.array([row.indices[0] if row.nnz else -1 for row in found])
  back = space.decode(found, best)
  if form in ("name", "id"):
    assert isinstance(back, np.ndarray) and back.tolist() == FORMS[form]
  else:
    assert list(map(set, back)) == list(map(set, FORMS[form]))
    reversed_row = sp.csr_matrix(([1, 1], [1, 0], [0, 2]), (1, len(space.keys)))
    assert space.decode(reversed_row, best[:1]) == [[space.keys[1], space.keys[0]]]


@pytest.mark.parametrize("matrix", [DENSE, DENSE.astype(bool), sp.csr_matrix(DENSE), sp.csc_array(DENSE)])
def test_a_matrix_comes_back_as_one(matrix):
  labels = Labels(matrix, 5)
  space = LabelSpace.of(labels, ["a", "b", "c"])
  back = space.decode(space.encode(labels), np.zeros(5, int))
  assert back.dtype == matrix.dtype and sp.issparse(back) == sp.issparse(matrix)
  assert not sp.issparse(matrix) or back.format == "csr"
  np.testing.assert_array_equal(np.asarray(back.toarray() if sp.issparse(back) else back), DENSE)


def test_unknown_labels_of_a_test_are_columns_of_their_own():
  space = LabelSpace.of(Labels([["a", "b"]], 1))
  found = space.encode(Labels([["b", "z"], ["y"], ["z"]], 3), allow_unknown=True)
  np.testing.assert_array_equal(found.toarray(), [[0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 1, 0]])


@pytest.mark.parametrize(
  ("labels", "label_texts", "classes"),
  [
    ([["b", "a"]], None, ["a", "b", "new"]),
    ([[5, 3]], None, [3, 5, 6]),
    ([[1, 0]], ["x", "y"], ["x", "y", "new"]),
    (np.array([[1, 0]]), None, ["0", "1", "new"]),
  ],
)
def test_added_labels(labels, label_texts, classes):
  """They come last; an added id is the next number."""
  space = LabelSpace.of(Labels(labels, 1), label_texts).extended(["new"])
  assert space.classes.tolist() == classes and space.texts[-1] == "new"
  chosen = sp.csr_matrix([[0, 0, 1]])
  found = space.decode(chosen, np.array([2]))
  if isinstance(labels, np.ndarray):
    np.testing.assert_array_equal(found, [[0, 0, 1]])
  else:
    assert found == [[2 if label_texts else classes[2]]]
