"""A data set with the rows of other data as its test rows."""

import pytest
import sample_folders as samples

from tests.data.data_layouts_test import rows_of
from xmc_jax import data
from xmc_jax.errors import DataError


@pytest.fixture(scope="module")
def known(tmp_path_factory):
  folder = tmp_path_factory.mktemp("known")
  samples.write(folder / "train.csv", "text,labels\nmy dog,p\nthe zoo,a;d\n")
  samples.write(folder / "labels.csv", "id,title\np,poodle\nd,dogs\na,animals\n")
  tokenizer = data.train_tokenizer(["my dog the zoo"], 100)
  return data.load(folder, tokenizer=tokenizer, max_length=8, test_fraction=0, cache_dir=folder / "cache")


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
  path = samples.write(tmp_path / "new.jsonl", f'{{"text": "x", "labels": {labels}}}\n'.replace("'", '"'))
  assert rows_of(rows_from(known, path)[0].test.truth) == [[0, 2]]


def test_test_rows_of_a_folder_and_its_own_keys(known, tmp_path):
  samples.write(tmp_path / "other" / "labels.csv", "id,title\na,creatures\np,a dog\n")
  for split, label in (("train", "p"), ("test", "a")):
    samples.write(tmp_path / "other" / f"{split}.csv", f"text,labels\nrow,{label}\n")
  assert rows_of(rows_from(known, tmp_path / "other")[0].test.truth) == [[2]]


def test_texts_that_were_learnt_are_counted(known, tmp_path):
  path = samples.write(tmp_path / "new.csv", "text,labels\nmy dog,p\n,a\nbirds,a\n")
  assert rows_from(known, path)[1][-1] == "1 of 3 texts are among those that the run learnt from"


def test_data_with_other_labels_are_refused(known, tmp_path):
  path = samples.write(tmp_path / "new.csv", "text,labels\na cat,c\n")
  expected = "expected labels of this run, such as 'p', 'd', 'a', found only others, such as 'c'"
  with pytest.raises(DataError, match=expected):
    rows_from(known, path)
