"""How label cells are written in files that people have, and what is said where a guess is doubtful."""

import pytest
import sample_folders as samples
from sample_folders import refused

from tests.data.data_layouts_test import rows_of
from xmc_jax import data


def table(path, cells):
  """Writes a table with these cells of labels."""
  return samples.table(path, [{"text": f"t{at}", "labels": cell} for at, cell in enumerate(cells)])


def read(path, **options):
  """Returns the label texts, the labels of each row, and the notes behind the one on columns."""
  found = data.load(path, test_fraction=0, **options)
  texts = list(found.labels.texts)
  _, *notices = found.manifest["notices"]
  return texts, [[texts[label] for label in row] for row in rows_of(found.train.truth)], notices


BITS = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
  ("kind", "cells"),
  [
    ("jsonl", BITS),
    ("parquet", [[bool(bit) for bit in row] for row in BITS]),
    ("parquet", [list(map(float, row)) for row in BITS]),
    ("csv", list(map(str, BITS))),
    ("csv", ["[1 0 1]", "[0. 0. 0.]", "[0 1 0]"]),
    ("csv", ["1 0 1", "0 0 0", "0 1 0"]),
  ],
)
def test_rows_of_0_and_1_are_columns_of_labels(kind, cells, tmp_path):
  """They were read as the two labels '0' and '1'."""
  path = table(tmp_path / f"train.{kind}", cells)
  assert read(path)[:2] == (["0", "1", "2"], [["0", "2"], [], ["1"]])
  samples.write(tmp_path / "labels.txt", "red\ngreen\nblue\n")
  note = "labels are rows of 3 numbers, 0 or 1, each the column of a label"
  assert read(tmp_path) == (["red", "green", "blue"], [["red", "blue"], [], ["green"]], [note])
  samples.write(tmp_path / "labels.txt", "red\ngreen\n")
  refused(tmp_path, "labels.txt: expected a label for each of the 3 numbers in a row ", "found 2")


def test_rows_of_0_and_1_of_classes_with_names(tmp_path):
  folder = samples.saved_split(tmp_path / "set", [("a", [1, 0, 1, 0, 0]), ("b", [0, 0, 0, 1, 0])])
  texts, rows, _ = read(folder)
  assert texts == samples.LABELS and rows == [[texts[0], texts[2]], [texts[3]]]


@pytest.mark.parametrize("cells", [[[0, 1], [0]], [[1], [0]], [[0, 1]] * 2, [[0, 1], []], [[0, 1], [1, 2]]])
def test_lists_of_ids_are_no_rows_of_0_and_1(cells, tmp_path):
  _, rows, _ = read(table(tmp_path / "train.jsonl", cells))
  assert list(map(sorted, rows)) == [[str(label) for label in cell] for cell in cells]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_labels_of_lists_are_stripped_like_those_of_cells(kind, tmp_path):
  path = table(tmp_path / f"train.{kind}", [["a ", "b", ""], ["b ", " "], [" a", None], None])
  assert read(path)[:2] == (["a", "b"], [["a", "b"], ["b"], ["a"], []])


@pytest.mark.parametrize(
  ("cells", "labels"),
  [
    (["['a', 'b c']", "[]", '["it\'s"]'], [["a", "b c"], [], ["it's"]]),
    (["['a' 'b c']", "['d'\n 'e']", "['f']"], [["a", "b c"], ["d", "e"], ["f"]]),
    (["['a\\'b', 'c\\\\d']", "[None, nan, 'x']"], [["a'b", "c\\d"], ["x"]]),
    (["[3, 1]", "[2 3]", "[]"], [["3", "1"], ["2", "3"], []]),
    (["<c++><.net>", "<r>"], [["c++", ".net"], ["r"]]),
    (["http://x/1 https://x/2", "http://x/2,3"], [["http://x/1 https://x/2"], ["http://x/2", "3"]]),
    (["http://x/1 https://x/2", "http://x/1"], [["http://x/1", "https://x/2"], ["http://x/1"]]),
    (["1.0", "", "12.0"], [["1"], [], ["12"]]),
    (["1.0 3.0", "2.0"], [["1", "3"], ["2"]]),
    (["1.0", "1.1"], [["1.0"], ["1.1"]]),
    (["007", "7"], [["007"], ["7"]]),
    (["7", "7.0", "x"], [["7"], ["7.0"], ["x"]]),
  ],
)
def test_cells_as_other_tools_write_them(cells, labels, tmp_path):
  assert list(map(sorted, read(table(tmp_path / "train.csv", cells))[1])) == list(map(sorted, labels))


@pytest.mark.parametrize("cell", ["['a'", "[a, b]", "['a''b']", "['\\d']", "[['a']]"])
def test_damaged_lists_end_in_one_line(cell, tmp_path):
  refused(table(tmp_path / "train.csv", [cell]), "train.csv, line 2: expected ", "labels")


def test_whole_numbers_with_gaps_are_the_same_in_all_files(tmp_path):
  names = {"train.csv": table(tmp_path / "train.csv", ["3.0", "", "1.0"])}
  names["a.parquet"] = table(tmp_path / "a.parquet", [3.0, None, 1.0])
  names["b.parquet"] = table(tmp_path / "b.parquet", [3, None, 1])
  names["c.jsonl"] = table(tmp_path / "c.jsonl", [3.0, None, 1])
  for path in names.values():
    assert read(path)[:2] == (["3", "1"], [["3"], [], ["1"]])
  refused(table(tmp_path / "d.parquet", [0.5]), "row 1: expected labels that are texts or whole", "'0.5'")


def test_the_separator_is_that_of_the_whole_file(tmp_path):
  """The first 8,192 rows were looked at, and those after them kept joined labels."""
  path = table(tmp_path / "train.csv", [*["a"] * 8200, *["a;b"] * 100])
  texts, rows, notices = read(path)
  assert texts == ["a", "b"] and rows[-1] == ["a", "b"]
  assert notices == ["labels split at ';' in 100 of 8,300 rows (change with --config.data.label_separator)"]


def test_what_makes_a_separator_doubtful_is_said(tmp_path):
  change = "(change with --config.data.label_separator)"
  cells = [f"a{at};b{at}, c" for at in range(12)] + [f"d{at};e" for at in range(12)]
  assert read(table(tmp_path / "a.csv", cells))[2] == [
    f"labels split at ';' in 24 of 24 rows {change}",
    "12 labels hold ',', such as 'b0, c'; if it separates labels, set --config.data.label_separator=','",
    f"a label is used 1.3 times on average: do cells hold several? {change}",
  ]
  assert read(table(tmp_path / "b.csv", [f"a b{at}" for at in range(24)]))[2] == [
    f"each cell is one label {change}",
    f"a label is used 1.0 times on average: do cells hold several? {change}",
  ]
  assert not read(table(tmp_path / "c.csv", cells), label_separator=";")[2]
  assert not read(table(tmp_path / "d.csv", ["a;b", "b;a"] * 20), label_separator=";")[2]


UNKNOWN = [*["x;y"] * 3, "new;x", *["old; newer"] * 2, "y"]


@pytest.mark.parametrize("name", ["labels.txt", "labels.csv"])
def test_labels_that_the_label_file_lacks_are_counted_and_dropped_or_kept(name, tmp_path):
  table(tmp_path / "train.csv", UNKNOWN)
  samples.write(tmp_path / name, "y\nx\n" if name == "labels.txt" else "uri,label\ny,Why\nx,Ex\n")
  lacks = "unknown labels: 3, such as 'new', 'old', 'newer'; uses: 5"
  refused(
    tmp_path, f"line 5: expected a label of {name}, found 'new' ({lacks}; ", "--config.data.unknown_labels="
  )
  known = ["y", "x"] if name == "labels.txt" else ["Why", "Ex"]
  texts, rows, notices = read(tmp_path, unknown_labels="drop")
  assert texts == known and rows[3:] == [[known[1]], [], [], [known[0]]]
  assert notices[-1] == f"{name}: {lacks}; left out"
  texts, rows, notices = read(tmp_path, unknown_labels="keep")
  assert texts == [*known, "new", "old", "newer"] and rows[3:5] == [[known[1], "new"], ["old", "newer"]]
  assert notices[-1] == f"{name}: {lacks}; added"
  keys = list(data.load(tmp_path, test_fraction=0, unknown_labels="keep").label_keys)
  assert keys == ["y", "x", "new", "old", "newer"]


def test_numbers_outside_a_file_of_texts_are_unknown_labels_too(tmp_path):
  table(tmp_path / "train.jsonl", [[0, 5], [2]])
  samples.write(tmp_path / "labels.txt", "x\ny\n")
  assert read(tmp_path, unknown_labels="drop")[:2] == (["x", "y"], [["x"], []])
  assert read(tmp_path, unknown_labels="keep")[:2] == (["x", "y", "5", "2"], [["x", "5"], ["2"]])


@pytest.mark.parametrize(
  "columns",
  ["uri,label", "URI,prefLabel", "label_id,label", "code,term", "nr,bezeichnung", "nr,id,bezeichnung"],
)
def test_files_of_labels_call_their_columns_differently(columns, tmp_path):
  table(tmp_path / "train.csv", ["a", "b", "Two"])
  other, options = ("0,", {"label_text": "bezeichnung"}) if columns.startswith("nr,id") else ("", {})
  samples.write(tmp_path / "labels.csv", f"{columns}\n{other}b,Two\n{other}a,One\n")
  assert read(tmp_path, **options)[:2] == (["Two", "One"], [["One"], ["Two"], ["Two"]])


@pytest.mark.parametrize(
  ("names", "cells", "rows"),
  [
    ("d7 d9 x", ["d7 d9", "x"], [["d7", "d9"], ["x"]]),
    ("a,b,a b", ["a b", "b"], [["a b"], ["b"]]),
    ("a,b c", ["a;b c"], [["a", "b c"]]),
    ("u3 u4 u5", ["u3 u4", "u4 u7", "u5"], [["u3", "u4"], ["u4"], ["u5"]]),
    ("a, b;c", ["a, b", "c;a, b"], [["a, b"], ["a, b", "c"]]),
  ],
)
def test_labels_that_are_known_tell_what_is_between(names, cells, rows, tmp_path):
  mark = next((mark for mark in ";," if mark in names), None)
  samples.write(tmp_path / "labels.txt", samples.lines(names.split(mark)))
  table(tmp_path / "train.csv", cells)
  assert read(tmp_path, unknown_labels="drop")[1] == rows


@pytest.mark.parametrize(
  ("rows", "cells", "labels"),
  [
    ("notation,prefLabel 003,A 005,B 000,C 001,D", ["003", "001;000"], [["A"], ["C", "D"]]),
    ("id,name,nr 1,A,x1 2,B,x2 3,C,x3", ["x3 x1", "x2"], [["A", "C"], ["B"]]),
    ("text,nr A,2.0 B,0.0 C,1.0", ["2", "0 1"], [["A"], ["B", "C"]]),
    ("bezeichnung,nr A,2.0 B,0.0 C,1.0", ["2", "0 1"], [["A"], ["B", "C"]]),
    ("text,uses A,1 B,1 C,1", ["1", "0 2"], [["B"], ["A", "C"]]),  # lines
    ("text,alt A,x B,A C,z", ["A", "B C"], [["A"], ["B", "C"]]),
  ],
)
def test_the_column_that_has_the_cells_labels_is_that_of_keys(rows, cells, labels, tmp_path):
  table(tmp_path / "train.csv", cells)
  samples.write(tmp_path / "labels.csv", samples.lines(rows.split(" ")))
  assert read(tmp_path)[1] == labels
  table(tmp_path / "train.csv", [*cells, "9"])
  keys = "nr" in rows or "notation" in rows
  column = f"keys are those of column '{'notation' if 'notation' in rows else 'nr'}')" if keys else ""
  refused(tmp_path, "found '9' ", column)


def test_a_tab_may_be_given_as_it_is_shown(tmp_path):
  path = table(tmp_path / "t.csv", ["a;b\tc"])
  assert read(path, label_separator=r"\t")[:2] == (["a;b", "c"], [["a;b", "c"]])


def test_keys_that_are_numbers_with_gaps(tmp_path):
  table(tmp_path / "train.parquet", [3.0, None, 1.0])
  samples.write(tmp_path / "labels.csv", "id,name,parent\n1.0,one,\n3.0,three,1.0\n")
  expected = ["one", "one > three"], [["one > three"], [], ["one"]]
  assert read(tmp_path, label_parent="parent")[:2] == expected
  assert list(data.load(tmp_path, label_parent="parent").label_keys) == ["1.0", "3.0"]
  samples.write(tmp_path / "labels.csv", "id,name,parent\n1,one,\n3,three,1.0\n")
  assert read(tmp_path, label_parent="parent")[:2] == expected


def test_a_label_that_stands_twice_in_a_label_file(tmp_path):
  table(tmp_path / "train.csv", ["a", "b", "0"])
  samples.write(tmp_path / "labels.csv", "id,text\na,one\nb,two\na,three\n")
  refused(tmp_path, "labels.csv: expected each key once in column 'id', found 'a' again (keys of ", " 1)")
  samples.write(tmp_path / "names.txt", "a\nb\na\n")
  found = data.load(tmp_path, label_file="names.txt", test_fraction=0)
  assert rows_of(found.train.truth) == [[0], [1], [0]]
  note = "names.txt: texts of several labels: 1, such as 'a'; in cells, they mean the first"
  assert note in found.manifest["notices"]


def test_texts_of_several_labels_are_said_if_cells_hold_them(tmp_path):
  table(tmp_path / "train.csv", ["bank|b", "bank", "bench"])
  samples.write(tmp_path / "labels.csv", "id,prefLabel\na,bank\nb,bank\nc,\nd,bench\n")
  _, rows, notices = read(tmp_path)
  assert rows == [["bank", "bank"], ["bank"], ["bench"]]
  assert notices[-1].startswith("labels.csv: texts of several labels: 1, such as 'bank'; uses: 2; in cells")
  empty = "labels.csv: labels with an empty text: 1, the first in row 3; predictions may hold them"
  assert empty in data.load(tmp_path).manifest["notices"]
  table(tmp_path / "train.csv", ["a|b", "d"])
  assert not any("several" in notice for notice in read(tmp_path)[2])


def test_rows_of_json_may_lack_a_text_but_not_all(tmp_path):
  rows = [{"title": 7.0}, {"labels": "a"}, {"title": "u"}]
  samples.table(tmp_path / "train.jsonl", rows)
  found = data.load(tmp_path, test_fraction=0)
  assert list(found.train.texts) == ["7", "", "u"] and rows_of(found.train.truth) == [[], [0], []]
  assert found.manifest["counts"]["train"]["empty_texts"] == 1
  samples.table(tmp_path / "validation.jsonl", [{"text": "v", "labels": "a"}])
  refused(tmp_path, "validation.jsonl: expected a column 'title', as in train.jsonl")


def test_texts_may_be_numbers(tmp_path):
  rows = [{"text": text, "labels": "a"} for text in (2019.0, None, 0.5)]
  samples.table(tmp_path / "train.parquet", rows)
  assert list(data.load(tmp_path, test_fraction=0).train.texts) == ["2019", "", "0.5"]


ONE_HOT = [("a", 1, 0, 0), ("b", 0, 0, 0), ("c", 1, 1, 0)]


def one_hot_csv(path, rows=ONE_HOT, header="comment,c++,a+b,other"):
  return samples.write(path, samples.lines([header, *(",".join(map(str, row)) for row in rows)]))


def test_columns_of_0_and_1_are_labels(tmp_path):
  path = one_hot_csv(tmp_path / "train.csv")
  expected = (["c++", "a+b", "other"], [["c++"], [], ["c++", "a+b"]])
  assert read(path, text="comment")[:2] == expected
  note = "labels from 3 columns of 0 and 1 (guessed; change with --config.data.label_column), such as 'c++'"
  assert note in data.load(path, text="comment").manifest["notices"][0]
  one_hot_csv(path, [("a", True, "", 0), ("b", "FALSE", 0.0, 0), ("c", "TRUE", 1, "")])
  assert read(path, text="comment")[:2] == expected
  rows = [("a", "true", "false", 0, ""), ("b", *"000", ""), ("c", *"110", "")]
  one_hot_csv(path, rows, "comment,c++,a+b,other,")
  one_hot_csv(tmp_path / "test.csv", [("d", 0, 1, 1)])
  assert read(tmp_path, text="comment")[:2] == expected
  assert rows_of(data.load(tmp_path, text="comment").test.truth) == [[1, 2]]
  samples.write(tmp_path / "labels.csv", "key,text\na+b,B\nc++,A\nother,C\n")
  assert read(tmp_path, text="comment")[:2] == (["B", "A", "C"], [["A"], [], ["B", "A"]])
  rows = [{"text": "a", "x": True, "when": 7, "z": 0}, {"text": "b", "x": False, "when": 8, "z": 2}]
  samples.table(tmp_path / "t.parquet", [{**row, "v": value} for row, value in zip(rows, (1.0, None))])
  assert read(tmp_path / "t.parquet")[:2] == (["x", "v"], [["x", "v"], []])
  samples.table(tmp_path / "u.parquet", rows)
  refused(tmp_path / "u.parquet", "row 2: expected 0 or 1 in column 'z', found '2'", label_column="x+z")


def test_columns_that_are_not_all_0_and_1(tmp_path):
  path = one_hot_csv(tmp_path / "a.csv", [*ONE_HOT * 3000, ("d", 1, 0, 2)])
  refused(path, "a.csv, line 9002: expected 0 or 1 in column 'other', found '2'", text="comment")
  path = one_hot_csv(tmp_path / "b.csv", [("a", 1, "x"), ("b", 0, "y")], ",text,flag")
  refused(path, "b.csv: expected a column of labels; set --config.data.label_column=", text="text")
