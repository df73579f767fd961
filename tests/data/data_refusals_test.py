"""Bad input: one line that names the file, the line and what was expected."""
# ruff: noqa: E501 (the table of cases reads best with one case a line)

import errno
import gzip
import io
import json
import os

import numpy as np
import pytest
import sample_folders as samples
import scipy.sparse
from cases import each_case

from xmc_jax import data
from xmc_jax.data import arrays
from xmc_jax.data.formats import lines, separated
from xmc_jax.errors import ConfigError, DataError, UserError


def json_row(**changes) -> str:
  row = {"uid": "u", "title": "t", "target_ind": [0], "target_rel": [1.0]}
  return json.dumps({**row, **changes}) + "\n"


GOOD = json_row()

# layout, file, its content, what the one line must say
CASES = {
  "broken JSON": (
    "raw_json",
    "trn.json",
    GOOD + '{"title": "x\n',
    r"trn\.json, line 2: expected one JSON object",
  ),
  "a column twice": (
    "csv",
    "train.csv",
    "title,title,tags\na,b,0\n",
    r"train\.csv: expected one column 'title', found 2; rename one",
  ),
  "no object": (
    "raw_json",
    "lbl.json",
    "[1]\n",
    r"lbl\.json, line 1: expected one JSON object, found '\[1\]'",
  ),
  "no title": (
    "raw_json",
    "lbl.json",
    '{"name": "x"}\n',
    r"line 1: expected a text under the key 'title' \(change with --config\.data\.text=NAME\), found 'keys name'",
  ),
  "title no text": (
    "raw_json",
    "lbl.json",
    '{"title": [7]}\n',
    r"line 1: expected a text under the key 'title'.*'\[7\]'",
  ),
  "no targets": (
    "raw_json",
    "tst.json",
    '{"title": "x"}\n',
    r"line 1: expected a list of whole.*'target_ind'",
  ),
  "target too large": (
    "raw_json",
    "trn.json",
    GOOD + json_row(target_ind=[5]),
    r"line 2: expected an id in \[0, 5\), f.*'5'",
  ),
  "target negative": (
    "raw_json",
    "trn.json",
    json_row(target_ind=[-1]),
    r"line 1: expected an id in \[0, 5\), f.*'-1'",
  ),
  "target huge": (
    "raw_json",
    "trn.json",
    json_row(target_ind=[10**30]),
    r"line 1: expected whole numbers in",
  ),
  "target no integer": (
    "raw_json",
    "trn.json",
    json_row(target_ind=[1.5]),
    r"line 1: expected whole numbers.*'1\.5'",
  ),
  "target a boolean": (
    "raw_json",
    "trn.json",
    json_row(target_ind=[True]),
    r"line 1: expected whole numbers.*True",
  ),
  "relevance NaN": (
    "raw_json",
    "trn.json",
    json_row(target_rel=[float("nan")]),
    r"line 1: expected a relevance.*nan",
  ),
  "relevance infinite": (
    "raw_json",
    "trn.json",
    json_row(target_rel=[float("inf")]),
    r"line 1: expected numbers",
  ),
  "relevance negative": (
    "raw_json",
    "trn.json",
    json_row(target_rel=[-0.5]),
    r"line 1: expected a relevance.*-0\.5",
  ),
  "relevances too few": (
    "raw_json",
    "trn.json",
    json_row(target_rel=[]),
    r"line 1: expected as many numbers",
  ),
  "header": (
    "index",
    "trn_X_Y.txt",
    "0:1\n",
    r"trn_X_Y\.txt, line 1: expected a header \"rows columns\", found '0:1'",
  ),
  "no header": ("index", "trn_X_Y.txt", "", r"trn_X_Y\.txt, line 1: expected a header"),
  "header huge": (
    "index",
    "trn_X_Y.txt",
    "9" * 5000 + " 5\n",
    r"trn_X_Y\.txt, line 1: expected a header \"rows",
  ),
  "header claims much": (
    "index",
    "trn_X_Y.txt",
    f"{10**12} 5\n0:1\n",
    r"line 1: expected a header that counts 1 rows",
  ),
  "header too long": (
    "index",
    "trn_X_Y.txt",
    "9 5\n0:1\n\n",
    r"line 1: expected a header that counts 2 rows.*'9'",
  ),
  "header too short": (
    "index",
    "tst_X_Y.txt",
    "3 5\n0:1\n\n\n1:1\n",
    r"tst_X_Y\.txt, line 5: expected the end",
  ),
  "columns": (
    "index",
    "trn_X_Y.txt",
    "5 4\n\n\n\n\n\n",
    r"line 1: expected 5 columns, one for each label.*'4'",
  ),
  "texts too few": (
    "index",
    "trn_X.txt",
    "one\n",
    r"trn_X\.txt, line 2: expected another text, as trn_X_Y.txt has 5",
  ),
  "texts too many": ("index", "tst_X.txt", "1\n" * 4, r"tst_X\.txt, line 4: expected the end of the file"),
  "index no integer": (
    "index",
    "tst_X_Y.txt",
    "3 5\n\n1.0:1\n\n",
    r"tst_X_Y\.txt, line 3: expected entries.*'1\.0:1'",
  ),
  "index no colon": (
    "index",
    "tst_X_Y.txt",
    "3 5\n\n\n0:1 1\n",
    r"tst_X_Y\.txt, line 4: expected entries.*found '1'",
  ),
  "two colons": (
    "index",
    "tst_X_Y.txt",
    "3 5\n\n\n0:1:1 1\n",
    r"tst_X_Y\.txt, line 4: expected entries.*'0:1:1'",
  ),
  "index too large": (
    "index",
    "tst_X_Y.txt",
    "3 5\n\n0:1 5:1\n\n",
    r"line 3: expected an id in \[0, 5\), found '5'",
  ),
  "index underscore": (
    "index",
    "tst_X_Y.txt",
    "3 5\n\n0:1\n1_0:1\n",
    r"tst_X_Y\.txt, line 4: expected entries.*'1_0:1'",
  ),
  "index zero byte": ("index", "tst_X_Y.txt", "3 5\n\n1\0:1\n\n", r"tst_X_Y\.txt, line 3: expected entries"),
  "index too large a number": (
    "index",
    "tst_X_Y.txt",
    "3 5\n\n0:1e300\n\n",
    r"line 3: expected a relevance that is finite.*inf",
  ),
  "index NaN": (
    "index",
    "tst_X_Y.txt",
    "3 5\n\n0:nan\n\n",
    r"line 3: expected a relevance that is finite.*nan",
  ),
  "index negative": (
    "index",
    "tst_X_Y.txt",
    "3 5\n\n0:-1\n\n",
    r"line 3: expected a relevance that is finite.*-1",
  ),
  "long garbage": (
    "index",
    "tst_X_Y.txt",
    "3 5\n" + "0:1 " * 9 + "x" * 300_000 + ":1\n\n\n",
    r"line 2: expected entries",
  ),
  "id too long": (
    "index",
    "tst_X_Y.txt",
    "3 5\n\n" + "9" * 40 + ":1\n\n",
    r"line 3: expected entries.*'9999",
  ),
  "filter huge": (
    "index",
    "tst_filter_labels.txt",
    "0 1\n0 " + "9" * 40 + "\n",
    r"line 2: expected two whole",
  ),
  "filter label": (
    "index",
    "tst_filter_labels.txt",
    "0 1\n2 5\n",
    r"labels\.txt, line 2: expected a label in \[0, 5\).*'2 5'",
  ),
  "filter row": (
    "index",
    "trn_filter_labels.txt",
    "\n5 0\n",
    r"labels\.txt, line 2: expected a row in \[0, 5\).*'5 0'",
  ),
  "filter underscore": (
    "index",
    "trn_filter_labels.txt",
    "0 1\n1_0 1\n",
    r"line 2: expected two whole numbers.*'1_0 1'",
  ),
  "filter words": (
    "index",
    "trn_filter_labels.txt",
    "0 1\n0 x\n",
    r"line 2: expected two whole numbers.*'0 x'",
  ),
  "filter three": ("index", "trn_filter_labels.txt", "0 1 2\n", r"line 1: expected two whole numbers"),
  "no labels": ("index", "Y.txt", "", r"Y\.txt: expected at least one label, found none$"),
  "no labels in JSON": ("raw_json", "lbl.json", "", r"lbl\.json: expected at least one label, found none$"),
  "empty label file": ("csv", "labels.txt", "", r"labels\.txt: expected at least one label, found none$"),
  "UTF-16": (
    "index",
    "Y.txt",
    "x\n".encode("utf-16-le"),
    r"Y\.txt, line 1: expected UTF-8 \(is it UTF-16\?",
  ),
  "map without key": ("index_maps", "label_map.txt", "a\tb\nc\n", r"label_map\.txt, line 2: expected an id"),
  "graph rows": (
    "index",
    "kind_lbl_X_Y.txt",
    "4 3\n\n\n\n\n",
    r"kind_lbl_X_Y\.txt, line 1: expected 5 rows, one for each label",
  ),
  "graph columns": (
    "index",
    "kind_trn_X_Y.txt",
    "5 2\n" + "\n" * 5,
    r"line 1: expected 3 columns, one for each line of kind_an",
  ),
  "graph without anchors": (
    "index",
    "kind_anchors.txt",
    "",
    r"kind_anchors\.txt: expected at least one anchor, found none$",
  ),
  "anchors without links": (
    "index",
    "odd_anchors.txt",
    "a\n",
    r"odd_anchors\.txt: odd_trn_X_Y\.txt or odd_lbl_X_Y\.txt, its links, are",
  ),
  "npz": ("pecos", "Y.trn.npz", b"PK\x03\x04 no matrix", r"Y\.trn\.npz: expected a matrix saved by scipy"),
  "csv columns": ("csv", "train.csv", "title,tags\na,b\nc\n", r"train\.csv, line 3: expected 2 columns.*'1'"),
  "csv quotes": (
    "csv",
    "train.csv",
    'title,tags\na,"b\n',
    r"train\.csv, line 2: expected separated columns",
  ),
  "tsv quotes, some closed": (
    "tsv",
    "train.tsv",
    'title\ttags\n"a"\t0\na\t"b\n',
    r"train\.tsv, line 3: expected a quoted cell to end with a quotation mark; set --config\.data\.quoting=none",
  ),
  "csv empty": ("csv", "train.csv", "", r"train\.csv, line 1: expected at least one row"),
  "no label column": (
    "csv",
    "train.csv",
    "title,x\na,b\n",
    r"train\.csv: expected a column of labels; set --config\.data\.label_column=NAME \(columns: 'title', 'x'\)$",
  ),
  "no text column": (
    "csv",
    "train.csv",
    "x,labels\na,b\n",
    r"train\.csv: expected a column of texts; set --config\.data\.text=NAME \(columns: 'x', 'labels'\)$",
  ),
  "neither column": (
    "csv",
    "train.csv",
    "foo,bar\na,b\n",
    r"expected a column of texts and a column of labels; set --config\.data\.text=NAME and --config\.data\.label_column=NAME \(columns: 'foo', 'bar'\); without a header, columns are called 1, 2, \.\.\.$",
  ),
  "unknown label": (
    "csv",
    "train.csv",
    "title,labels\na,b\n",
    r"line 2: expected a label of labels\.txt, found 'b'",
  ),
  "label id too large": (
    "jsonl",
    "train.jsonl",
    '{"text": "a", "labels": [5]}\n',
    r"line 1: expected an id in \[0, 5\)",
  ),
  "label id huge": (
    "jsonl",
    "train.jsonl",
    '{"text": "a", "labels": [1' + "0" * 40 + "]}\n",
    r"line 1: expected a label of labels",
  ),
  "label id negative": (
    "jsonl",
    "train.jsonl",
    '{"text": "a", "labels": "-1"}\n',
    r"line 1: expected an id in \[0, 5\)",
  ),
  "label no text": (
    "jsonl",
    "train.jsonl",
    '{"text": "a", "labels": [{}]}\n',
    r"line 1: expected labels that are texts",
  ),
  "label cell nested": (
    "jsonl",
    "train.jsonl",
    '{"text": "a", "labels": "' + "[" * 9000 + '"}\n',
    r"line 1: expected a JSON list",
  ),
  "JSON nested": (
    "raw_json",
    "trn.json",
    GOOD + '{"title": ' + "[" * 9000 + "\n",
    r"trn\.json, line 2: expected one JSON object",
  ),
  "label cell": (
    "jsonl",
    "train.jsonl",
    '{"text": "a", "labels": "[1"}\n',
    r"line 1: expected a JSON list of labels",
  ),
  "parquet": ("parquet", "trn.parquet", "nonsense", r"trn\.parquet: expected a parquet file"),
}


def refused(folder, match, error=DataError, **options):
  with pytest.raises(error, match=match) as caught:
    data.prepare(folder, folder / "out", **options)
  assert "\n" not in str(caught.value)
  assert len(str(caught.value)) < 500
  assert not (folder / "out").exists()
  assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


@each_case("case", CASES)
def test_refusal(case, tmp_path):
  layout, name, content, match = CASES[case]
  folder = samples.LAYOUTS[layout](tmp_path)
  samples.write(folder / name, content)
  refused(folder, match)


def test_excerpts_are_short(tmp_path):
  folder = samples.raw_json(tmp_path)
  samples.write(folder / "trn.json", "x" * 10_000)
  with pytest.raises(DataError) as caught:
    data.prepare(folder, tmp_path / "out")
  assert len(str(caught.value)) < len(str(folder)) + 150


def test_rows_of_npz_are_counted_from_one(tmp_path):
  folder = samples.pecos(tmp_path)
  scipy.sparse.save_npz(
    folder / "Y.tst.npz", scipy.sparse.csr_matrix(np.array([[0] * 5, [0, -1, 0, 0, 0], [0] * 5]))
  )
  refused(folder, r"Y\.tst\.npz, row 2: expected a relevance that is finite and not negative, found '-1")


def npz_of(**changes) -> bytes:
  """A CSR of 3 rows and 5 labels, as save_npz writes it, but for these members."""
  matrix = scipy.sparse.csr_matrix(np.eye(3, 5, dtype=np.float32))
  members = {"indices": matrix.indices, "indptr": matrix.indptr, "data": matrix.data, "shape": matrix.shape}
  file = io.BytesIO()
  np.savez(file, **{"format": np.array(b"csr"), **members, **changes})
  return file.getvalue()


NPZ_CASES = {
  "indptr decreases": (
    {"indptr": [0, 2, 1, 3]},
    r"matrix saved by scipy\.sparse\.save_npz \(indptr decreases\)$",
  ),
  "indptr outside": ({"indptr": [0, 1, 2, 9]}, r"matrix saved by scipy"),
  "ids no integers": ({"indices": [0.0, 1.5, 2.0]}, r"\(indices of type float64\)$"),
  "ids too large": ({"indices": [0, 1, 5]}, r", row 3: expected an id in \[0, 5\), found '5'"),
  "values too large": ({"data": [1, 1e300, 1]}, r", row 2: expected a relevance that is finite.*inf"),
  "values complex": ({"data": [1j, 1j, 1j]}, r"\(data of type complex128\)$"),
  "one dimension": (
    {"format": b"coo", "_is_array": True, "coords": np.zeros((1, 3), int), "shape": [5]},
    r"matrix saved by .*\(1 dimensions\)$",
  ),
  "many dimensions": ({"shape": np.arange(999)}, r"matrix saved by .*\.\.\.\)$"),
  "claims rows": ({"shape": [10**12, 5]}, r"matrix saved by scipy"),
}


@each_case("case", NPZ_CASES)
def test_npz_refusal(case, tmp_path):
  changes, match = NPZ_CASES[case]
  folder = samples.pecos(tmp_path)
  samples.write(folder / "Y.tst.npz", npz_of(**changes))
  refused(folder, rf"Y\.tst\.npz.*{match}")


@each_case("form", ["csc", "coo", "bsr", "dia"])
def test_npz_in_any_form(form, tmp_path):
  folder = samples.pecos(tmp_path)
  before = data.load(folder)
  for name in ("Y.trn.npz", "Y.tst.npz", "kind_trn_X_Y.npz", "kind_lbl_X_Y.npz"):
    scipy.sparse.save_npz(folder / name, scipy.sparse.load_npz(folder / name).asformat(form))
  after = data.load(folder)
  for found, wanted in zip(after.truth, before.truth):
    np.testing.assert_array_equal(found.toarray(), wanted.toarray())
  found, wanted = (dataset.graphs["kind"].query_edges.toarray() for dataset in (after, before))
  np.testing.assert_array_equal(found, wanted)


class Trap:
  """Leaves a file behind when it is unpickled."""

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return open, (str(self._path), "w")


@each_case("member", ["data", "shape", "format", "indices"])
def test_a_pickle_in_npz_is_not_run(member, tmp_path):
  folder = samples.pecos(tmp_path)
  trap = np.array([Trap(tmp_path / "sprung")] * 3, object)
  samples.write(folder / "Y.tst.npz", npz_of(**{member: trap}))
  refused(folder, r"Y\.tst\.npz: expected a matrix saved by scipy")
  assert not (tmp_path / "sprung").exists()


def test_parquet_that_python_cannot_hold(tmp_path):
  import pyarrow
  import pyarrow.parquet

  folder = samples.parquet(tmp_path)
  years = pyarrow.array([2**62] * 5).cast(pyarrow.timestamp("us"))  # beyond the year 9999
  table = pyarrow.table({"query": ["x"] * 5, "label": years})
  pyarrow.parquet.write_table(table, folder / "trn.parquet")
  refused(folder, r"trn\.parquet, after row 0: expected more parquet data")


def test_parquet_in_damaged_gzip(tmp_path):
  folder = samples.parquet(tmp_path)
  packed = bytearray(gzip.compress((folder / "trn.parquet").read_bytes()))
  packed[15:25] = b"\xff" * 10
  (folder / "trn.parquet").unlink()
  (folder / "trn.parquet.gz").write_bytes(packed)
  refused(folder, r"trn\.parquet\.gz: expected a parquet file")


def test_lists_just_too_deep_to_be_shown(tmp_path):
  """Somewhere near Python's limit JSON can still be read, and its refusal cannot show it."""
  folder = samples.raw_json(tmp_path)
  for depth in range(800, 1000):
    samples.write(folder / "trn.json", '{"title": ' + "[" * depth + "]" * depth + "}\n")
    with pytest.raises(
      DataError, match=r"trn\.json, line 1: expected (a text under the key|one JSON object)"
    ):
      data.prepare(folder, folder / "out")


@each_case(
  ("name", "text", "match"),
  [
    ("trn.json", GOOD + "x" * 200, r"trn\.json, line 2: expected lines of at most 0 MiB"),
    ("filter_labels_test.txt", "0 0\n" + " " * 200, r"test\.txt, line 2: expected lines of at most"),
    ("kind_trn_X_Y.txt", "5 3\n\n\n" + "0:1 " * 50, r"kind_trn_X_Y\.txt, line 4: expected lines of at most"),
  ],
)
def test_long_lines(name, text, match, tmp_path, monkeypatch):
  folder = samples.raw_json(tmp_path)
  monkeypatch.setattr(lines, "MAX_LINE_BYTES", 128)
  samples.write(folder / name, text)
  refused(folder, match)


def test_long_rows_of_tables(tmp_path, monkeypatch):
  folder = samples.separated(tmp_path, "csv")
  monkeypatch.setattr(separated, "MAX_LINE_BYTES", 128)
  samples.write(folder / "train.csv", 'title,tags\na,b\n\n"c' + "\nlong" * 50 + '",d\n')
  refused(
    folder, r"train\.csv, line 4: expected a row of at most 0 MiB \(is a quote never closed\?\), found 'long'"
  )


def test_blank_lines_are_skipped_in_any_chunk(tmp_path, monkeypatch):
  folder = samples.raw_json(tmp_path)
  samples.write(folder / "filter_labels_train.txt", "")
  (folder / "kind_trn_X_Y.txt").unlink()
  for size in (9, 99, lines.CHUNK_BYTES):
    monkeypatch.setattr(lines, "CHUNK_BYTES", size)
    samples.write(folder / "trn.json", GOOD * 2 + "\n \n" * 30 + GOOD + "\n")
    assert len(data.load(folder, cache_dir=tmp_path / f"{size}").train) == 3
    samples.write(folder / "trn.json", GOOD * 2 + "\n" * 30 + "x\n")
    refused(folder, r"trn\.json, line 33: expected one JSON object, found 'x'")


def test_small_chunks_give_the_same(tmp_path, monkeypatch):
  """Texts and targets are taken by bytes, each by its own: rows still meet."""
  for layout in ("raw_json", "index", "pecos", "csv", "parquet"):
    folder = samples.LAYOUTS[layout](tmp_path / layout)
    if layout == "raw_json":
      samples.write(folder / "tst.json", (folder / "tst.json").read_text() + "\n" * 30)  # legal at the end
    whole = data.load(folder, cache_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
      for module in (lines, separated):
        patch.setattr(module, "CHUNK_BYTES", 9)
      pieces = data.load(folder, cache_dir=tmp_path / "pieces")
    for split in ("train", "test"):
      found, wanted = getattr(pieces, split), getattr(whole, split)
      assert list(found.texts) == list(wanted.texts)
      np.testing.assert_array_equal(found.truth.toarray(), wanted.truth.toarray())


@each_case(
  ("layout", "name", "match"),
  [
    ("raw_json", "tst.json", r"tst\.json \(or \.gz\) is missing beside trn\.json"),
    ("raw_json", "lbl.json", r"lbl\.json \(or \.gz\) is missing"),
    ("index", "tst_X_Y.txt", r"tst_X_Y\.txt or tst_X_Y\.npz \(or \.gz\) is missing beside trn_X_Y\.txt"),
    ("index", "Y.txt", r"Y\.txt or .* is missing"),
    ("pecos", "Y.tst.npz", r"Y\.tst\.npz .*is missing"),
  ],
)
def test_missing_file(layout, name, match, tmp_path):
  folder = samples.LAYOUTS[layout](tmp_path)
  (folder / name).unlink()
  refused(folder, match)


def test_missing_folder(tmp_path):
  why = "no such file or folder; give a folder or a table that is there (--config.data.path=PATH)"
  for path in (tmp_path / "nowhere", samples.write(tmp_path / "file", "") / "below"):
    with pytest.raises(DataError) as caught:
      data.load(path)
    assert str(caught.value) == f"{path}: {why}"
  there = samples.write(tmp_path / "recipes.csv", "")
  with pytest.raises(DataError, match=rf"recipe\.csv: no such file or folder; did you mean {there}\?"):
    data.load(tmp_path / "recipe.csv")
  with pytest.raises(DataError, match=r"names\.csv: no such file \(--config\.data\.label_file=names\.csv\)$"):
    data.load(samples.jsonl(tmp_path), label_file="names.csv")


def test_table_whose_labels_are_all_empty(tmp_path):
  path = samples.write(tmp_path / "t.csv", "text,labels\na,\nb, \n")
  with pytest.raises(DataError) as caught:
    data.load(path, cache_dir=tmp_path)
  assert str(caught.value) == (
    f"{path}: expected at least one label in column 'labels', found none; "
    "set another with --config.data.label_column=NAME (columns: 'text', 'labels')"
  )


@each_case(
  ("options", "said"),
  [
    (
      {"text": "headlin"},
      "a column 'headlin' of texts; set --config.data.text=NAME (columns: 'title', 'tags')",
    ),
    (
      {"label_column": "tag"},
      "a column 'tag' of labels; set --config.data.label_column=tags (columns: 'title', 'tags')",
    ),
    ({"text": "tags", "label_column": "tags"}, "texts and labels in two columns, found 'tags' for both"),
  ],
)
def test_columns_that_are_named_wrongly(options, said, tmp_path):
  path = samples.write(tmp_path / "t.csv", "title,tags\na,b\n")
  with pytest.raises(DataError) as caught:
    data.load(path, **options)
  assert str(caught.value) == f"{path}: expected {said}"


def test_many_and_odd_columns_make_a_short_line(tmp_path):
  columns = ['"odd\nname"', *(f"c{at}" for at in range(500))]
  path = samples.write(tmp_path / "t.csv", ",".join(columns) + "\n" + ",".join("x" * 501) + "\n")
  with pytest.raises(DataError) as caught:
    data.load(path)
  assert "(columns: 'odd\\nname', 'c0', " in str(caught.value) and "'c10', ...); without" in str(caught.value)
  assert "\n" not in str(caught.value)


def test_label_table_without_texts(tmp_path):
  path = samples.write(tmp_path / "t.csv", "title,tags\na,b\n")
  samples.write(tmp_path / "names.csv", "id,foo,bar\nb,B,C\n")
  said = (
    r"names\.csv: expected a column of label texts; set --config\.data\.label_text=NAME \(columns: 'id', 'f"
    r"oo', 'bar'\), or call one 'text'$"
  )
  with pytest.raises(DataError, match=said):
    data.load(path, label_file="names.csv")


@each_case("name", ["trn.json.gz", "lbl.json.gz"])
def test_truncated_gzip(name, tmp_path):
  folder = samples.raw_json(tmp_path, ".gz")
  noise = samples.lines(json_row(title=os.urandom(40).hex(), target_ind=[0]).strip() for _ in range(3000))
  packed = gzip.compress(noise.encode())
  (folder / name).write_bytes(packed[: len(packed) // 2])
  refused(folder, rf"{name}, after line \d+: expected more gzip data, found the end")


def test_damaged_gzip(tmp_path):
  folder = samples.raw_json(tmp_path, ".gz")
  (folder / "lbl.json.gz").write_bytes(b"no gzip at all")
  refused(folder, r"lbl\.json\.gz.*: expected intact gzip data")


def test_no_permission(tmp_path, monkeypatch):
  folder = samples.index(tmp_path)

  def refuse(path, *_, **__):
    raise PermissionError(errno.EACCES, "Permission denied")

  monkeypatch.setattr("builtins.open", refuse)
  with pytest.raises(DataError, match=r"trn_X_Y\.txt|Y\.txt: no permission to read this file"):
    data.prepare(folder, tmp_path / "out")


@each_case(
  ("number", "match"),
  [
    (
      errno.ENOSPC,
      r"out: cannot be written \(No space left on device\); set --config\.data\.cache_dir or \$XMC_JAX_CACHE to",
    ),
    (errno.EACCES, r"out: cannot be written \(Permission denied\); set --config\.data\.cache_dir or \$XMC"),
  ],
)
def test_disk_refuses(number, match, tmp_path, monkeypatch):
  folder = samples.index(tmp_path)

  def fail(self, array):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(arrays.ArrayFile, "append", fail)
  refused(folder, match, UserError)


def test_tokenizer_that_cannot_work(tmp_path):
  tokenizer = data.train_tokenizer(["some text"], 100)
  with pytest.raises(ConfigError, match="tokenizer=str: expected a tokenizers"):
    data.encode_texts("bert", ["x"], 5)
  with pytest.raises(ConfigError, match=r"max_length=2: expected more than the 2 special tokens"):
    data.load(samples.index(tmp_path), tokenizer=tokenizer, max_length=2)
