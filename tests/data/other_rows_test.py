"""A data set with the rows of other data as its test rows."""

import copy
from pathlib import Path

import pytest
import sample_folders as samples

from tests.data.data_layouts_test import rows_of
from xmc_jax import data
from xmc_jax.data.prepared import options_for
from xmc_jax.errors import DataError


@pytest.fixture(scope="module")
def known(tmp_path_factory):
  folder = tmp_path_factory.mktemp("known")
  samples.write(folder / "train.csv", "text,labels\nmy dog,p\nthe zoo,a;d\n")
  samples.write(folder / "labels.csv", "id,title\np,poodle\nd,dogs\na,animals\n")
  return loaded(folder)


def loaded(folder):
  """A training table of some words, read with a tokenizer of its own."""
  words = data.train_tokenizer(["t"], 100)
  return data.load(folder, tokenizer=words, max_length=8, test_fraction=0, cache_dir=folder / "cache")


def rows_from(known, path):
  return data.with_test_rows(known, path, 8, path.parent / "cache")


def test_labels_are_matched_by_key_and_what_is_new_is_said(known, tmp_path):
  path = samples.write(tmp_path / "new.csv", "text,labels\na cat,a;c\na dog,d;p\nbirds,b\nnone,\n")
  found, notes = rows_from(known, path)
  assert rows_of(found.test.truth) == [[2], [0, 1], [], []] and found.test.texts[0] == "a cat"
  assert len(found.test.tokens) == 4 and found.truth.test is found.test.truth and len(known.test) == 0
  assert notes[-1] == "labels that the run lacks are left out: 2 ('c', 'b'), in 2 of 5 label pairs"


@pytest.mark.parametrize("labels", [["poodle", "animals"], ["0", "2"]])
def test_other_layouts_match_by_text_and_numbers_by_row(known, tmp_path, labels):
  """In data of layouts whose labels are numbered."""
  known = copy.copy(known)
  known.manifest = known.manifest | {"read_by": {}}
  path = samples.write(tmp_path / "new.jsonl", f'{{"text": "x", "labels": {labels}}}\n'.replace("'", '"'))
  assert rows_of(rows_from(known, path)[0].test.truth) == [[0, 2]]


@pytest.mark.parametrize(("cells", "keys"), [("0 2", False), ("a", False), ("a", True), ("0", True)])
def test_numbers_are_rows_only_if_the_runs_own_are(tmp_path, cells, keys):
  samples.table(tmp_path / "train.csv", [{"text": "t", "labels": cells}])
  rows = [{**({"id": name} if keys else {}), "text": name} for name in ("0a" if keys else "bac")]
  samples.table(tmp_path / "labels.csv", rows)
  own = loaded(tmp_path)
  path = samples.write(tmp_path / "new" / "new.jsonl", '{"text": "x", "labels": [1]}\n')
  if cells == "0 2":
    assert rows_of(rows_from(own, path)[0].test.truth) == [[1]]
    return
  with pytest.raises(DataError, match="found only others, such as '1'"):
    rows_from(own, path)


@pytest.mark.parametrize(
  ("labels", "cells", "new", "truth"),
  [
    ("id,text\n7.0,a\n9.0,b\n", ["7.0", "9.0"], ["9", "7"], [[1], [0]]),
    ("id,text\nx ,a \ny ,b \n", ["x", "y"], ["y", "a"], [[1], [0]]),
    ('text\n"a, b"\n"c, d"\n', ["a, b", "c, d"], ["c, d"], [[1]]),
    ("text\n0\n1\n2\n", ["0 1 2"], ["0 1", "1 0"], [[0, 1], [0, 1]]),
  ],
)
def test_cells_mean_the_labels_that_they_mean_in_training(tmp_path, labels, cells, new, truth):
  samples.write(tmp_path / "labels.csv", labels)
  for name, rows in (("train.csv", cells), ("new/new.csv", new)):
    samples.table(tmp_path / name, [{"text": f"t{at}", "labels": cell} for at, cell in enumerate(rows)])
  own = loaded(tmp_path)
  found, notes = rows_from(own, tmp_path / "new" / "new.csv")
  assert rows_of(found.test.truth) == truth and not any("to split at" in note for note in notes)


def test_test_rows_of_a_folder_and_its_own_keys(known, tmp_path):
  samples.write(tmp_path / "other" / "labels.csv", "id,title\na,creatures\np,a dog\n")
  for split, label in (("train", "p"), ("test", "a")):
    samples.write(tmp_path / "other" / f"{split}.csv", f"text,labels\nrow,{label}\n")
  assert rows_of(rows_from(known, tmp_path / "other")[0].test.truth) == [[2]]


@pytest.mark.parametrize(
  ("given", "text", "truth"),
  [
    ({}, "a cat", [[1, 2], []]),
    ({"text": "title", "label_column": "label", "label_separator": "|"}, "no", [[0], [0]]),
  ],
)
def test_what_was_guessed_is_not_guessed_again(known, tmp_path, given, text, truth):
  """The file has a column that comes first in a guess."""
  rows = ["no,a cat,p,a;d", 'nor,a dog,p,"x,y"']
  path = samples.write(tmp_path / "new.csv", samples.lines(["title,text,label,labels", *rows]))
  found, _ = data.with_test_rows(known, path, 8, tmp_path / "cache", given)
  assert found.test.texts[0] == text and rows_of(found.test.truth) == truth


@pytest.mark.parametrize("name, expected", [("a.tsv", "none"), ("a.txt", "none"), ("a.csv", "auto")])
def test_quotation_marks_are_what_they_were_in_tables_of_one_kind(tmp_path, name, expected):
  mark, text = ("\t", '"a" b') if not name.endswith(".csv") else (",", "a b")
  path = samples.write(tmp_path / name, f"text{mark}labels\n{text}{mark}x|y\n")
  manifest = data.load(path, test_fraction=0, cache_dir=tmp_path / "cache").manifest
  found = [options_for(manifest, Path(other)) for other in ("new.tsv", "new.csv", "new.txt")]
  assert [options.quoting for options in found] == [expected, "auto", "auto"]
  assert [options.label_column for options in found] == ["labels", "labels", ""]


def test_columns_that_were_guessed_are_those_of_a_txt_table(known, tmp_path):
  path = samples.write(tmp_path / "new.txt", "title\ttext\n")
  assert options_for(known.manifest, path).text == "text"
  assert options_for(known.manifest, samples.write(path, "__label__a text\n")).text == "title"


def test_settings_without_a_guess_stay_what_they_are(tmp_path):
  path = samples.write(tmp_path / "train.csv", "text,a,b\nx y,1,0\nz,0,1\n")
  given = {"label_column": "a+b", "label_separator": ";"}
  manifest = data.load(path, test_fraction=0, cache_dir=tmp_path / "cache", **given).manifest
  assert options_for(manifest, path)._asdict().items() >= {**given, "text": "text"}.items()


def test_texts_that_were_learnt_are_counted(known, tmp_path):
  path = samples.write(tmp_path / "new.csv", "text,labels\nmy dog,p\n,a\nbirds,a\n")
  assert rows_from(known, path)[1][-1] == "1 of 3 texts are among those that the run learnt from"


def test_data_with_other_labels_are_refused(known, tmp_path):
  path = samples.write(tmp_path / "new.csv", "text,labels\na cat,c\n")
  expected = "expected labels of this run, such as 'p', 'd', 'a', found only others, such as 'c'"
  with pytest.raises(DataError, match=expected):
    rows_from(known, path)
