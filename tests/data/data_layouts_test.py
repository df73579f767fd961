"""Every layout, holding the same content, becomes the same Dataset."""

import bz2
import csv
import json
import lzma
import re
import zipfile

import numpy as np
import openpyxl
import pytest
import sample_folders as samples
import scipy.sparse
from sample_folders import refused
from tokenizers import Tokenizer, models, pre_tokenizers

from xmc_jax import data
from xmc_jax.data.formats import lines, table_files
from xmc_jax.data.formats.source import Options
from xmc_jax.errors import ConfigError


def rows_of(matrix) -> list[list[int]]:
  return [matrix[row].indices.tolist() for row in range(matrix.shape[0])]


def check_content(dataset):
  for name, points in (("train", samples.TRAIN), ("test", samples.TEST)):
    split = getattr(dataset, name)
    assert list(split.texts) == [text for text, _ in points]
    assert rows_of(split.truth) == [sorted(ids) for _, ids in points]
    assert split.truth.dtype == np.float32 and (split.truth.data == 1).all()
    assert split.filter.dtype == bool
    assert list(zip(*split.filter.nonzero())) == samples.FILTERS[name]
    assert split.truth.shape == split.filter.shape == (len(points), 5)
  assert list(dataset.labels.texts) == samples.LABELS
  assert dataset.num_labels == len(dataset.labels) == 5
  graph = dataset.graphs["kind"]
  assert list(graph.anchors.texts) == samples.ANCHORS
  assert rows_of(graph.query_edges) == [sorted(row) for row in samples.QUERY_EDGES]
  assert rows_of(graph.label_edges) == [sorted(row) for row in samples.LABEL_EDGES]


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("layout", samples.LAYOUTS)
def test_layouts_agree(layout, end, tmp_path):
  dataset = data.load(samples.LAYOUTS[layout](tmp_path / "set", end))
  check_content(dataset)
  assert dataset.name == "set"


def test_counts(tmp_path):
  manifest = data.load(samples.raw_json(tmp_path / "set")).manifest
  counts = manifest["counts"]
  texts = {"texts": 5, "empty_texts": 1, "repeated_texts": 0, "without_labels": 2}
  pairs = {"pairs": 4, "duplicates": 0, "zeros": 0, "filter_pairs": 2, "filter_duplicates": 0}
  assert counts["train"] == texts | pairs
  assert counts["labels"] == {"texts": 5, "empty_texts": 1, "without_points": 2}
  assert counts["graphs"]["kind"]["label_edges"] == 3
  table = data.summary(manifest)
  assert "points without labels               2     1" in table
  assert "labels without training points                    2" in table
  assert len({line.rstrip() for line in table.split("\n")}) == len(table.split("\n"))


def test_layout_can_be_named(tmp_path):
  folder = samples.index(samples.raw_json(tmp_path))
  assert data.load(folder).manifest["layout"] == "raw_json"
  assert data.load(folder, layout="index").manifest["layout"] == "index"
  refused(folder, "data.layout=indx: expected ", "mean 'index'?", error=ConfigError, layout="indx")


def test_unknown_layout_lists_what_was_looked_for(tmp_path):
  samples.write(tmp_path / "readme.md", "hello")
  refused(tmp_path, "no known layout", "trn.json", "trn_X_Y.txt", "Y.trn", "found readme.md")
  refused(tmp_path / "readme.md", "expected a folder, or a table in")
  samples.write(tmp_path / "a.csv", "title,labels\nx,y\n")
  refused(tmp_path / "a.csv", "a.csv: expected a folder for --config.data.layout=index", layout="index")
  for name in "bcde":
    (tmp_path / f"{name}.csv").touch()
  several = "several tables, a.csv, b.csv, c.csv, d.csv, ..., none of them train.*; take one with --config."
  refused(tmp_path, f"{several}data.path=FILE")


def test_text_of_several_fields(tmp_path):
  folder = samples.raw_json(tmp_path)
  labels = data.load(folder, text="title+content").labels.texts
  assert list(labels) == ["red apple more", "grün more", "more", "sea view more", "nobody's more"]


def test_relevance_is_kept_and_cleaned(tmp_path):
  folder = samples.raw_json(tmp_path)
  row = {"uid": "", "title": "t", "target_ind": [3, 1, 3, 0], "target_rel": [0.25, 2, 0.5, 0]}
  samples.write(folder / "tst.json", json.dumps(row) + "\n\n")
  samples.write(folder / "filter_labels_test.txt", "0 1\n\n0 1\n")
  test, counts = (lambda d: (d.test, d.manifest["counts"]["test"]))(data.load(folder))
  assert test.truth.toarray().tolist() == [[0, 2, 0, 0.5, 0]]
  assert test.filter.toarray().tolist() == [[False, True, False, False, False]]
  assert counts["duplicates"] == 1 and counts["zeros"] == 1 and counts["filter_duplicates"] == 1


def test_equal_texts_are_the_filter_where_no_file_is(tmp_path):
  rows = [("red", "red;blue"), ("blue", "red"), ("plain", "blue")]
  path = samples.table(tmp_path / "a.csv", [{"title": text, "labels": labels} for text, labels in rows])
  found = data.load(path, filter_equal_texts=True, test_fraction=0.0)
  train, pairs = found.train, zip(*found.train.filter.nonzero())
  pairs = {(train.texts[row], found.labels.texts[label]) for row, label in pairs}
  assert pairs == {("red", "red"), ("blue", "blue")}
  told = "no filter file of train: 2 pairs of a point and a label with the same text are left out"
  assert any(notice.startswith(told) for notice in found.manifest["notices"])
  assert not data.load(path, test_fraction=0.0).train.filter.nnz
  folder = samples.raw_json(tmp_path / "set")
  check_content(data.load(folder, filter_equal_texts=True))  # by its files
  (folder / "filter_labels_train.txt").unlink()
  assert not data.load(folder, filter_equal_texts=True).train.filter.nnz  # empty texts are like no other


def test_unsorted_npz_of_half_precision(tmp_path):
  folder = samples.pecos(tmp_path)
  values = np.array([1.0, 2.0, 3.0], np.float16)
  matrix = scipy.sparse.csr_matrix((values, [4, 0, 4], [0, 3, 3, 3]), shape=(3, 5))
  scipy.sparse.save_npz(folder / "Y.tst.npz", matrix)
  dataset = data.load(folder)
  assert dataset.test.truth.toarray()[0].tolist() == [2, 0, 0, 0, 3]
  assert dataset.manifest["counts"]["test"]["duplicates"] == 1


@pytest.mark.parametrize("missing", ["trn", "lbl"])
def test_missing_and_empty_filters_and_a_graph_with_one_side(missing, tmp_path):
  folder = samples.index(tmp_path)
  (folder / "trn_filter_labels.txt").unlink()
  samples.write(folder / "tst_filter_labels.txt", "")
  (folder / f"kind_{missing}_X_Y.txt").unlink()
  dataset = data.load(folder)
  graph = dataset.graphs["kind"]
  assert dataset.train.filter.nnz == dataset.test.filter.nnz == 0
  assert (graph.query_edges is None) == (missing == "trn")
  assert (graph.label_edges is None) == (missing == "lbl")


def test_links_without_anchors_are_left_out_with_a_note(tmp_path):
  """One stray matrix does not keep a method from its data that reads no graph."""
  folder = samples.index(tmp_path)
  samples.write(folder / "odd_trn_X_Y.txt", "no matrix\n")
  found = data.load(folder)
  check_content(found)
  why = "as odd_anchors.txt or odd.raw.txt (or .gz), the anchors' texts, is missing"
  assert f"not read: odd_trn_X_Y.txt, {why}" in found.manifest["notices"]


def test_tables_with_graphs_say_which_row_is_which(tmp_path):
  """Rows held out at random, and labels numbered as they come, would be linked to whatever stands there."""
  samples.write(tmp_path / "train.csv", "text,labels\na b,x\nc d,y\ne f,x;y\n")
  samples.write(tmp_path / "kind_anchors.txt", "one\ntwo\n")
  samples.write(tmp_path / "kind_trn_X_Y.txt", "3 2\n0:1\n1:1\n\n")
  refused(tmp_path, "kind_trn_X_Y.txt: which of its rows ", " put test.csv beside, or set --c")
  assert rows_of(data.load(tmp_path, test_fraction=0.0).graphs["kind"].query_edges) == [[0], [1], []]
  samples.write(tmp_path / "test.csv", "text,labels\na b,x\n")
  samples.write(tmp_path / "kind_lbl_X_Y.txt", "2 2\n0:1\n1:1\n")
  refused(tmp_path, "kind_lbl_X_Y.txt: ", " put labels.txt beside")
  samples.write(tmp_path / "labels.txt", "y\nx\n")
  found = data.load(tmp_path)
  assert list(found.labels.texts) == ["y", "x"]
  assert rows_of(found.graphs["kind"].label_edges) == [[0], [1]]


def test_several_graphs(tmp_path):
  folder = samples.index(tmp_path)
  samples.write(folder / "by_year.raw.txt.gz", "1999\n2000\n")
  samples.write(folder / "by_year_lbl_X_Y.txt.gz", samples.index_text([[0], [1], [], [0, 1], []], 2))
  graphs = data.load(folder).graphs
  assert sorted(graphs) == ["by_year", "kind"]
  assert graphs["by_year"].label_edges.shape == (5, 2)


def test_windows_letters_are_read_and_said_once(tmp_path):
  folder = samples.index(tmp_path)
  samples.write(folder / "tst_X.txt", "caf\xe9\n“d\xfcnes” – 5\xa0€\nplain\n".encode("cp1252"))
  dataset = data.load(folder)
  assert list(dataset.test.texts) == ["café", "“dünes” – 5\xa0€", "plain"]
  (notice,) = dataset.manifest["notices"]
  assert notice.startswith("tst_X.txt: not UTF-8 from line 1 on; such lines read as Windows' cp1252 (change")
  assert notice.endswith("--config.data.encoding)") and f"note: {notice}" in data.summary(dataset.manifest)
  samples.write(folder / "tst_X.txt", b"caf\x81\n\nplain\n")
  assert list(data.load(folder).test.texts) == ["caf\x81", "", "plain"]


@pytest.mark.parametrize(("end", "pack"), [(".bz2", bz2.compress), (".xz", lzma.compress), (".zip", None)])
def test_packed_files(end, pack, tmp_path):
  content = b"title,label\nx,a\n"
  path = tmp_path / f"train.csv{end}"
  if pack:
    path.write_bytes(pack(content))
  else:
    with zipfile.ZipFile(path, "w") as archive:
      archive.writestr("a.csv", content)
      archive.writestr("b.csv", content)
    refused(tmp_path, "train.csv.zip: expected one file in the archive, found 2; unpack it")
    with zipfile.ZipFile(path, "w") as archive:
      archive.writestr("any name.csv", content)
  assert list(data.load(tmp_path, test_fraction=0).train.texts) == ["x"]
  path.write_bytes(path.read_bytes()[:-9])
  refused(path, f"train.csv{end}", ": expected ", " data")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "gb18030"])
def test_other_encodings(encoding, tmp_path):
  path = samples.write(tmp_path / "t.csv", 'title,label\r\n"番茄, \u2028 x\ny",a\r\n'.encode(encoding))
  read = data.load(path, test_fraction=0, encoding="" if encoding == "utf-16" else encoding)
  assert list(read.train.texts) == ["番茄, \u2028 x\ny"]


def test_encodings_that_cannot_be(tmp_path):
  path = samples.write(tmp_path / "t.csv", "title,label\nx,a\n".encode("utf-16-le"))
  refused(path, "t.csv, line 1: expected UTF-8 (is it UTF-16? --config.data.enc")
  samples.write(path, b"title,label\n\xff,a\n")
  refused(path, "t.csv, after line 0: expected text in the encoding of --config.data.enc", encoding="utf-8")
  for name in ("klingon", "base64", "a\0b"):
    refused(path, "--config.data.encoding=", ": expected an encoding", error=ConfigError, encoding=name)


_CELLS = ("plain", '"peloton best', '"oven" choose', '"Heroes"', "x", "y", 'seeds heron"', "z")


@pytest.mark.parametrize("num", range(2, len(_CELLS) + 1))
def test_quotation_marks_that_are_letters_swallow_no_row(num, tmp_path):
  rows = samples.lines(f"{cell}\ta" for cell in _CELLS[:num])
  path = samples.write(tmp_path / "t.tsv", f"title\tlabel\n{rows}")
  read = data.load(path, test_fraction=0)
  assert list(read.train.texts) == list(_CELLS[:num])
  assert any("t.tsv: quotation marks are letters" in notice for notice in read.manifest["notices"])


@pytest.mark.parametrize(
  ("text", "texts"),
  [
    ('title\tlabel\n"a ""b"""\ta\n"c"\ta\n', ['a "b"', "c"]),
    ('title\tlabel\n"a\nb"\ta\n"c"\ta\n', ["a\nb", "c"]),
    ('label\ttitle\na\t"a\nb"\n', ["a\nb"]),
    ('label\ttitle\na\t"a\tb"\n', ["a\tb"]),
  ],
)
def test_quotes_round_whole_cells_are_not_letters(text, texts, tmp_path):
  path = samples.write(tmp_path / "t.tsv", text)
  assert list(data.load(path, test_fraction=0).train.texts) == texts


def test_quoting_can_be_set(tmp_path):
  path = samples.write(tmp_path / "t.tsv", 'title\tlabel\n"a"\tb\n')
  assert list(data.load(path, test_fraction=0).train.texts) == ["a"]
  assert list(data.load(path, test_fraction=0, quoting="none").train.texts) == ['"a"']
  samples.write(path, 'title\tlabel\n"a\tb\n')
  refused(path, "if quotation marks are letters, --config.data.quoting=none", quoting="minimal")


def test_a_quote_that_swallows_rows_is_said(tmp_path):
  rows = [*(f"text {at},label" for at in range(4)), '"Herring and cod,trade', *["a, b,", "c,d"] * 2]
  rows += [*(f"text {at},label" for at in range(4, 9)), 'Pipe of 5",fish', "x,y"]
  path = samples.write(tmp_path / "t.csv", "title,label\n" + samples.lines(rows))
  said = "t.csv: line 6 seems to begin a cell that holds 8 more rows; close its quotation mark, or set"
  assert any(notice.startswith(said) for notice in data.load(path, test_fraction=0).manifest["notices"])


@pytest.mark.parametrize("text", ["Dear Anna,\nall well, thanks,\nBert", "1, 2\n3, 4", "a\nb,c\nd"])
def test_prose_of_several_lines_swallows_no_row(text, tmp_path):
  path = samples.table(tmp_path / "t.csv", [{"title": text, "label": "x"}])
  assert not any("quoting" in notice for notice in data.load(path, test_fraction=0).manifest["notices"])


@pytest.mark.parametrize(
  ("mark", "rows"),
  [
    (";", ["Titel;Preis, EUR;Tags", "Bier;3;x", "Wein, rot;3,50;y"]),
    (";", ["Titel;Preis, EUR;Tags", "Bier;3,50;x"]),
    (";", ['"Titel, kurz";Tags', '"Bier, hell\n";x', '"Wein;""";y']),
    (",", ["title;x,price|y,tags", "a;b,3|4,x", '"a, b",c,x']),
    (",", ["title;x,tags", "a;b,x", "c;d,y", "e,z"]),
  ],
)
def test_the_separator_gives_all_rows_as_many_columns(mark, rows, tmp_path):
  path = samples.write(tmp_path / "t.csv", samples.lines(rows))
  names = table_files.column_names(path, [], Options())
  assert names == next(csv.reader(rows[:1], delimiter=mark))


@pytest.mark.parametrize("first", ["title;label", "sep=;\ntitle;label", "title\tlabel", "title|label"])
def test_columns_separated_otherwise(first, tmp_path):
  mark = next(mark for mark in ";\t|" if mark in first)
  path = samples.write(tmp_path / "t.csv", f"{first}\nx{mark}a, b\ny, z{mark}c\n")
  read = data.load(path, test_fraction=0)
  assert list(read.train.texts) == ["x", "y, z"] and list(read.labels.texts) == ["a", "b", "c"]
  assert read.manifest["notices"][0] == f"t.csv: columns are separated by {mark!r}"


def test_byte_order_mark_and_windows_line_ends(tmp_path):
  folder = samples.index(tmp_path)
  samples.write(folder / "tst_X.txt", b"\xef\xbb\xbfone\r\ntwo\r\nthree")
  assert list(data.load(folder).test.texts) == ["one", "two", "three"]


def test_single_table_is_split_by_fraction_and_seed(tmp_path):
  rows = samples.lines(f"t{i},a;b{i}" for i in range(50))
  path = samples.write(tmp_path / "posts.csv", "title,labels\n" + rows)
  dataset = data.load(path, test_fraction=0.3)
  train, test = list(dataset.train.texts), list(dataset.test.texts)
  assert len(test) == 15 and sorted(train + test) == sorted(f"t{i}" for i in range(50))
  assert train == sorted(train, key=lambda text: int(text[1:]))
  assert list(data.load(path, test_fraction=0.3).test.texts) == test
  assert list(data.load(path, test_fraction=0.3, split_seed=1).test.texts) != test
  assert len(data.load(path, test_fraction=0).test) == 0
  assert list(dataset.labels.texts)[:3] == ["a", "b0", "b1"]
  columns, separator = dataset.manifest["notices"]
  assert columns.startswith("posts.csv: texts from column 'title', labels from column 'labels' (guessed; ")
  assert columns.endswith("such as 'a', 'b0', 'b1'") and separator.startswith("labels split at ';' in 50 of ")
  for row, text in enumerate(dataset.test.texts):
    assert [dataset.labels.texts[i] for i in dataset.test.truth[row].indices] == ["a", f"b{text[1:]}"]
  refused(path, "--config.data.test_fraction=1.5: expected a share", error=ConfigError, test_fraction=1.5)


@pytest.mark.parametrize(
  ("name", "text"),
  [
    ("t.json", '\ufeff [{"title": "x",\n "label": ["a", "b"]},\n\n {"title": "y"}]'),
    ("t.json", '{"title": "x", "label": ["a", "b"]}\n\n{"title": "y"}\n'),
    ("t.txt", "__label__a __label__b x\n__label__b y\n"),
    ("t.json", '[{"title": "x", "label": ["a", "b"]}, {"title": "y"}]'.encode("utf-16")),
    ("t.csv", '"title", label\nx,a;b\ny,b\n'),
    ("t.tsv", "x\ta;b\ny\tb\n"),
  ],
)
def test_tables_of_other_kinds(name, text, tmp_path):
  path = samples.write(tmp_path / name, text)
  columns = {"text": "1", "label_column": "2"} if name == "t.tsv" else {}
  read = data.load(path, test_fraction=0, **columns)
  assert list(read.train.texts) == ["x", "y"] and list(read.labels.texts) == ["a", "b"]
  assert rows_of(read.train.truth)[0] == [0, 1]
  assert ("config.data.label_column" in read.manifest["notices"][0]) == (name not in ("t.txt", "t.tsv"))


@pytest.mark.parametrize("row, is_said", [("titel,thema", True), ("a text,x", False)])
def test_a_row_of_names_that_is_read_as_data_is_said(row, is_said, tmp_path):
  path = samples.write(tmp_path / "t.csv", f"{row}\na,b\n")
  notices = data.load(path, test_fraction=0, text="1", label_column="2").manifest["notices"]
  assert ("t.csv: the first row is read as data: 'titel', 'thema'" in notices) == is_said


def test_text_of_excel_is_a_table_with_tabs(tmp_path):
  content = 'Text\tTags\r\n"a, ""b"""\tx\r\n'.encode("utf-16")
  read = data.load(samples.write(tmp_path / "t.txt", content), test_fraction=0)
  assert list(read.train.texts) == ['a, "b"'] and list(read.labels.texts) == ["x"]


def test_a_workbook_gives_the_cells_of_csv(tmp_path, monkeypatch):
  book = openpyxl.Workbook()
  for row in (["title", "tags", "n"], [], ["a\nb", "x;y", 7.0], [None, "x", True], ["c", None, 0.5, None]):
    book.active.append(row)
  book.create_sheet("notes").append(["not read"])
  book.save(path := tmp_path / "t.xlsx")
  read = data.load(path, text="title+n", test_fraction=0)
  assert list(read.train.texts) == ["a\nb 7", "True", "c 0.5"] and list(read.labels.texts) == ["x", "y"]
  assert rows_of(read.train.truth) == [[0, 1], [0], []]
  assert "t.xlsx: only the first of 2 sheets is read, 'Sheet'" in read.manifest["notices"]
  refused(path, "; t.xlsx: only the first of 2 sheets is read, 'Sheet'", text="x")
  book.active.append([*["d"] * 3, "e"])
  book.save(path)
  refused(path, "t.xlsx, row 6: expected 3 columns, as in the header, found '4'")
  monkeypatch.setattr(lines, "_MOST_RATIO", 0)
  monkeypatch.setattr(lines, "_MOST_UNPACKED", 9)
  refused(path, "t.xlsx: expected an Excel workbook (", " bytes packed in")
  refused(samples.write(path, "title,tags\n"), "t.xlsx: expected an Excel workbook (File is not a zip file)")


def test_an_array_of_json_has_the_encoding_that_is_set(tmp_path):
  path = samples.write(tmp_path / "t.json", '[{"title": "ä", "label": ["x"]}]'.encode("cp1252"))
  assert list(data.load(path, test_fraction=0, encoding="cp1252").train.texts) == ["ä"]
  refused(path, "t.json: expected a JSON array of objects (unknown encoding: x)", encoding="x")


def test_lines_of_text2text(tmp_path):
  samples.write(tmp_path / "train.txt", "0,2\tx y\n\tz\n1\t3\n")
  samples.write(tmp_path / "output-labels.txt", "a\nb\nc\n")
  read = data.load(tmp_path, test_fraction=0)
  assert list(read.train.texts) == ["x y", "z", "3"] and list(read.labels.texts) == ["a", "b", "c"]
  assert rows_of(read.train.truth) == [[0, 2], [], [1]]
  samples.write(tmp_path / "train.txt", "a plain text\n")
  refused(tmp_path, "train.txt, line 1: expected labels and a text, as '__label__NAME text' or")


def test_arrays_that_cannot_be_read(tmp_path):
  path = samples.write(tmp_path / "t.json", '[{"title": "x", "label": "a"}, 1]')
  refused(path, "t.json, item 2: expected one JSON object, found '1'")
  path = samples.write(tmp_path / "t.json", '[{"title": "x", "label": "a"}')
  refused(path, "t.json: expected a JSON array of objects (Expecting ',' delimiter")


def test_settings_beside_a_table_are_no_tables(tmp_path):
  samples.write(tmp_path / "posts.csv", "title,label\nx,a\n")
  samples.write(tmp_path / "package.json", "{}")
  assert list(data.load(tmp_path, test_fraction=0).train.texts) == ["x"]


@pytest.mark.parametrize("with_test", [True, False])
def test_a_validation_file_is_held_out(with_test, tmp_path):
  for stem, num in (("train", 10), ("validation", 3), *([("test", 2)] if with_test else [])):
    samples.write(tmp_path / f"{stem}.csv", "title,label\n" + "".join(f"{stem}{i},a\n" for i in range(num)))
  samples.write(tmp_path / "validation.csv", (tmp_path / "validation.csv").read_text() + "none,\n")
  read = data.load(tmp_path)
  assert read.num_validation == 3 and len(read.train) == 14 - 2 * (not with_test) and len(read.test) == 2
  rest, held_out = data.hold_out(read.train, 3, 0, read.num_validation)
  assert list(held_out.texts) == ["validation0", "validation1", "validation2"] and "none" in rest.texts
  assert len(set(data.hold_out(read.train, 4, 0, read.num_validation)[1].texts)) == 4
  assert not any("not read" in notice for notice in read.manifest["notices"])


def test_beir(tmp_path):
  rows = ('{"_id": "d1", "title": "red", "text": "apple"}', '{"_id": "7", "text": "sea"}')
  samples.write(tmp_path / "corpus.jsonl", samples.lines(rows))
  queries = [{"_id": f"q{i}", "text": f"t{i}"} for i in range(3)]
  samples.table(tmp_path / "queries.jsonl", queries)
  head = "query-id\tcorpus-id\tscore\n"
  samples.write(tmp_path / "qrels" / "train.tsv", head + "q2\td1\t1\nq0\t7\t2\nq2\t7\t1\n")
  samples.write(tmp_path / "qrels" / "test.tsv", head + "q1\td1\t1\n")
  read = data.load(tmp_path)
  assert read.manifest["layout"] == "beir" and list(read.labels.texts) == ["red apple", "sea"]
  assert list(read.train.texts) == ["t2", "t0"] and list(read.test.texts) == ["t1"]
  assert read.train.truth.toarray().tolist() == [[1, 1], [0, 2]]
  wrong = {"q2\tx\t1": "in the corpus, found 'x'", "q9\t7\t1": "a query of q", "q0\t7\tx": "a score"}
  for line, message in wrong.items():
    samples.write(tmp_path / "qrels" / "train.tsv", f"{head}q0\t7\t1\n{line}\n")
    refused(tmp_path, "train.tsv, line 3: expected ", message)
  samples.write(tmp_path / "corpus.jsonl", samples.lines(rows[:1] * 2))
  refused(tmp_path, "corpus.jsonl, line 2: expected an _id that no other document has, found 'd1'")
  (tmp_path / "qrels" / "train.tsv").unlink()
  refused(tmp_path, "train.tsv (or .gz) is missing beside corpus.jsonl")


def _pairs(num: int) -> str:
  """Returns a table of `num` texts with two labels each, one row a pair; the second rows come last."""
  return "title,label\n" + "".join(f"t{i},{label}{i}\n" for label in "ab" for i in range(num))


def test_rows_of_one_text_are_merged(tmp_path):
  path = samples.write(tmp_path / "t.csv", _pairs(20) + ",c\n,d\n")
  read = data.load(path)
  texts = [*read.train.texts, *read.test.texts]
  assert sorted(texts) == sorted(["", "", *(f"t{i}" for i in range(20))]) and len(read.test) == 4
  for split in (read.train, read.test):
    for text, row in zip(split.texts, split.truth):
      if text:
        assert [read.labels.texts[i] for i in row.indices] == [f"a{text[1:]}", f"b{text[1:]}"]
  assert read.manifest["notices"][-1].startswith("t.csv: 20 of 42 rows repeat an earlier text")


def test_an_empty_text_is_in_no_other_file(tmp_path):
  for name in ("train", "test"):
    samples.write(tmp_path / f"{name}.csv", f"title,label\n,a\n{name},a\n")
  assert data.load(tmp_path).manifest["counts"]["test"]["in_train"] == 0


def test_rows_of_one_text_stay_on_one_side(tmp_path):
  read = data.load(samples.write(tmp_path / "t.csv", _pairs(20)), merge_texts=False)
  assert len(read.train) == 32 and len(read.test) == 8
  assert not set(read.train.texts) & set(read.test.texts)
  assert read.manifest["counts"]["train"]["repeated_texts"] == 16


def test_rows_that_another_file_counts_are_not_merged(tmp_path):
  samples.write(tmp_path / "train.csv", _pairs(2))
  samples.write(tmp_path / "test.csv", _pairs(2))
  samples.write(tmp_path / "filter_labels_train.txt", "3 1\n")
  read = data.load(tmp_path)
  assert len(read.train) == 4 and len(read.test) == 4
  assert read.manifest["notices"][-1].startswith("4 of 4 test texts are also in train: the scores of a test")
  assert re.search(r"texts that are also in train +4\n", data.summary(read.manifest))


def test_cut_texts_and_unknown_words_are_said(tmp_path):
  path = samples.write(tmp_path / "t.csv", "title,label\nx y z,y\nx,y\nx y,y\n")
  tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "y": 1}, "[UNK]"))
  tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
  read = data.load(path, test_fraction=0, tokenizer=tokenizer, max_length=2)
  cut, unknown = read.manifest["notices"][-2:]
  assert cut == "1 of 3 texts are cut at 2 tokens (change with --config.data.max_length)"
  assert unknown.startswith("60% of the tokens of train are unknown to this vocabulary; take an encoder")
  whole = data.load(path, test_fraction=0, tokenizer=tokenizer, max_length=3)
  assert not whole.manifest["counts"]["train"]["cut"]


def test_label_strings_and_a_label_table(tmp_path):
  samples.write(tmp_path / "train.jsonl", '{"q": "one", "y": ["x", "z"]}\n{"q": "two", "y": null}\n')
  samples.write(tmp_path / "test.tsv", 'q\ty\n"a ""b""\nc"\tz\n')
  plain = data.load(tmp_path, text="q")
  assert list(plain.labels.texts) == ["x", "z"]
  assert list(plain.test.texts) == ['a "b"\nc']
  assert plain.test.truth.toarray().tolist() == [[0, 1]]
  samples.write(tmp_path / "names.csv", "id,name\nz,Zebra\nx,Xylophone\nw,Wolf\n")
  found = data.load(tmp_path, text="q", label_file="names.csv")
  assert list(found.labels.texts) == ["Zebra", "Xylophone", "Wolf"]
  assert found.train.truth.toarray().tolist() == [[1, 1, 0], [0, 0, 0]]


def test_separators(tmp_path):
  path = samples.write(tmp_path / "t.tsv", "title\tlabel\nx\tSan Jose, CA\ny\tRome\n")
  assert list(data.load(path, test_fraction=0).labels.texts) == ["San Jose", "CA", "Rome"]
  one = data.load(path, test_fraction=0, label_separator="|")
  assert list(one.labels.texts) == ["San Jose, CA", "Rome"]
  path = samples.write(tmp_path / "n.csv", 'title,label\nx,3 1\ny,"[""3"", 7]"\n')
  assert list(data.load(path, test_fraction=0).labels.texts) == ["3", "1", "7"]


@pytest.mark.parametrize(
  ("cells", "separator", "said"),
  [
    (["a b", "c d", "e, f"], "", "labels split at ',' in 1 of 3 rows"),
    (["a b", "c d", "e"], "", "each cell is one label"),
    (["a b", "c d", "e"], "|", "no row has labels to split at '|'"),
    (["3 1", "2", ""], "", "labels split at ' ' in 1 of 3 rows"),
    (["3", "1"], "", ""),
    (["a", "b"], "", ""),
    (["a|b", "c"], "|", ""),
    ([["a b", "c"], ["d"]], "", ""),
    ([["a b", "c"], ["d"]], "|", ""),
  ],
)
def test_what_is_said_of_the_separator_is_true(cells, separator, said, tmp_path):
  rows = samples.lines(json.dumps({"title": f"t{row}", "labels": cell}) for row, cell in enumerate(cells))
  path = samples.write(tmp_path / "t.jsonl", rows)
  _, *notices = data.load(path, label_separator=separator).manifest["notices"]
  assert notices == ([f"{said} (change with --config.data.label_separator)"] if said else [])


def test_summary_says_which_columns_were_taken(tmp_path):
  samples.write(tmp_path / "train.csv", "Query,kind,tags\nx,k,1\n")
  samples.write(tmp_path / "test.csv", "query,tags\ny,0\n")
  samples.write(tmp_path / "labels.txt", "red\n\ngreen\n")
  change = "guessed; change with --config.data."
  taken = f"texts from column {{}} ({change}text), labels from column 'tags' ({change}label_column)"
  assert data.summary(data.load(tmp_path).manifest).split("\n")[-2:] == [
    f"note: train.csv: {taken.format(repr('Query'))}, such as 'red', 'green' in labels.txt",
    f"note: test.csv: {taken.format(repr('query'))}",
  ]
  given = data.load(tmp_path / "train.csv", text="Query+tags", label_column="kind", test_fraction=0)
  note = "train.csv: texts from column 'Query' and 'tags', labels from column 'kind', such as 'k'"
  assert given.manifest["notices"] == [note]


def test_the_column_named_as_text_is_not_guessed_for_labels(tmp_path):
  path = samples.write(tmp_path / "t.csv", "label,category\nsome text,c\n")
  assert list(data.load(path, text="label", test_fraction=0).labels.texts) == ["c"]
