"""Annif's corpora: short texts in TSV files, and folders of documents."""

import pytest
from sample_folders import refused, write

from tests.data.data_layouts_test import rows_of
from xmc_jax import data

VOCABULARY = "<http://a/1>\tone\n<http://a/2>\ttwo\n"


@pytest.fixture
def folder(tmp_path):
  write(tmp_path / "vocabulary.tsv", VOCABULARY)
  return tmp_path


def names(split, dataset):
  labels = ([dataset.label_names[at] for at in row] for row in rows_of(split.truth))
  return list(zip(split.texts, labels))


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("prefix", ["", "set-"])
def test_splits_of_short_texts(prefix, end, folder):
  write(folder / f"{prefix}train.tsv{end}", "a\t<http://a/1>\n\nb\tc\t<http://a/2> <http://a/1>\n")
  write(folder / f"{prefix}validate.tsv{end}", "d\t<http://a/2>\n")
  write(folder / f"{prefix}test.tsv{end}", "e\t\nf\t<http://a/2>\n")
  found = data.load(folder)
  assert names(found.train, found) == [("a", ["one"]), ("b\tc", ["one", "two"]), ("d", ["two"])]
  assert names(found.test, found) == [("e", []), ("f", ["two"])]
  assert found.num_validation == 1


def test_several_files_are_one_split(folder):
  for name in ("b-train", "a-train", "a-test"):
    write(folder / f"{name}.tsv", f"{name}\t<http://a/1>\n")
  assert [list(split.texts) for split in (data.load(folder).train, data.load(folder).test)] == [
    ["a-train", "b-train"],
    ["a-test"],
  ]


def test_lines_that_are_no_short_texts(folder):
  write(folder / "train.tsv", "a\t<http://a/1>\n" * 100 + "b\thttp://a/1\n")
  refused(folder, "train.tsv, line 101: expected a text, a tab and URIs in angle brackets, found 'b")
  write(folder / "train.tsv", "text\tlabels\na\t<http://a/1>\n")  # a table
  assert list(data.load(folder, test_fraction=0).train.texts) == ["a"]


def documents(folder):
  write(folder / "b.txt", "first\nsecond\n")
  write(folder / "b.tsv", "<http://a/2>\ttwo\n<http://a/1>\n")
  write(folder / "a.txt", "third")
  write(folder / "a.key", "two\n\n")
  write(folder / "c.txt", "fourth")


def test_folders_of_documents(folder):
  documents(folder / "train")
  write(folder / "validate" / "a.txt", "fifth")
  write(folder / "validate" / "a.key", "one\n")
  write(folder / "test" / "a.txt", "sixth")
  write(folder / "test" / "a.tsv", "<http://a/2>\t\n")
  found = data.load(folder)
  in_train = [("third", ["two"]), ("first\nsecond", ["one", "two"]), ("fourth", []), ("fifth", ["one"])]
  assert names(found.train, found) == in_train and names(found.test, found) == [("sixth", ["two"])]
  assert found.num_validation == 1
  note = "train: texts without a .tsv or .key have no labels: 1 of 3, such as 'c.txt'"
  assert note in found.manifest["notices"]
  write(folder / "train" / "a.key", "one\n")  # what was prepared is stale
  assert names(data.load(folder).train, found)[0] == ("third", ["one"])
  write(folder / "train" / "d.key", "one\n")
  refused(folder, "train/d.key: expected its text beside it, in d.txt")
  (folder / "train" / "d.key").unlink()
  write(folder / "train" / "b.tsv", "<http://a/2>\ttwo\none\n")
  refused(folder, "train/b.tsv, line 2: expected a URI in angle brackets, found 'one'")


def test_subject_corpora(folder):
  """A file has a concept's URI and name in its first line."""
  write(folder / "train" / "a.txt", "\ufeffhttp://a/2 two\nfirst\nsecond\n")
  write(folder / "train" / "b.txt", "<http://a/1>\tone, or more\r\nthird\r\n")
  write(folder / "train" / "c.txt", "http://a/1 one\n")
  write(folder / "test" / "x.txt", "fourth")
  write(folder / "test" / "x.tsv", "<http://a/1>\n")
  found = data.load(folder)
  rows = [("first\nsecond", ["two"]), ("third", ["one"]), ("", ["one"])]
  assert names(found.train, found) == rows and names(found.test, found) == [("fourth", ["one"])]
  for number in range(100):
    write(folder / "train" / f"b{number:02}.txt", "http://a/1 one\n")
  write(folder / "train" / "z.txt", "one\nfourth\n")
  expected = "train/z.txt, line 1: expected a URI and a name, as in other files of this folder, found 'one'"
  refused(folder, expected)


def test_texts_that_are_no_subject_corpora(folder):
  """Neither a README beside a table, nor texts whose first line is not a URI and a name."""
  write(folder / "data.csv", "text,label\na,one\n")
  write(folder / "SOURCE.txt", "https://a/1 downloaded in 2024\n")
  (folder / "x.txt").mkdir()
  (folder / "y.txt").symlink_to("nowhere")
  assert list(data.load(folder, test_fraction=0).train.texts) == ["a"]
  write(folder / "train" / "a.txt", "http://a/1 one\n")
  write(folder / "train" / "b.txt", "Licence:CC-BY one\n")
  assert list(data.load(folder, test_fraction=0).train.texts) == ["a"]


def test_subject_corpora_of_another_encoding(folder):
  (folder / "train").mkdir()
  (folder / "train" / "a.txt").write_bytes("\ufeffhttp://a/2 two\nå\n".encode("utf-16-le"))
  (folder / "train" / "b.txt").write_bytes("\ufeffhttp://a/1 one\nä\n".encode("utf-16-le"))
  found = data.load(folder, test_fraction=0)
  assert names(found.train, found) == [("å", ["two"]), ("ä", ["one"])]


def test_one_folder_of_documents_is_split(folder):
  documents(folder)
  found = data.load(folder, test_fraction=0.34)
  assert (len(found.train), len(found.test), found.num_labels) == (2, 1, 2)


def test_other_short_texts_are_matched_by_uri(folder, tmp_path):
  write(folder / "train.tsv", "a\t<http://a/1>\nb\t<http://a/2>\n")
  write(tmp_path / "other" / "rows.tsv", "c\t<http://a/2> <http://a/9>\n")
  tokenizer = data.train_tokenizer(["a b c"], 30)
  trained = data.load(folder, tokenizer=tokenizer, test_fraction=0, cache_dir=tmp_path / "cache")
  tested, notes = data.with_test_rows(trained, tmp_path / "other" / "rows.tsv", 8, tmp_path / "rows")
  assert names(tested.test, tested) == [("c", ["two"])]
  assert notes[-1].startswith("labels that the run lacks are left out: 1 ('http://a/9'), in 1 of 2")


def test_other_tables_call_labels_as_the_vocabulary_does(tmp_path):
  """By notation, or by a name in another language than what is shown."""
  write(
    tmp_path / "own" / "v.csv",
    "uri,notation,label_fi,label_sv\nhttp://a/1,59,eläin,djur\nhttp://a/2,60,koira,hund",
  )
  write(tmp_path / "own" / "a-train.tsv", "eläin koira\t<http://a/1> <http://a/2>\n")
  write(tmp_path / "rows.csv", "text,labels\nc,59;hund\n")
  options = {"test_fraction": 0, "language": "fi", "cache_dir": tmp_path / "cache"}
  trained = data.load(tmp_path / "own", tokenizer=data.train_tokenizer(["a b c"], 30), **options)
  tested, _ = data.with_test_rows(trained, tmp_path / "rows.csv", 8, tmp_path / "rows")
  assert names(tested.test, tested) == [("c", ["eläin", "koira"])]
