"""Bad input: one line that names the file, the line and what was expected."""

import errno
import gzip
import io
import json
import os
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import sample_folders as samples
import scipy.sparse
from sample_folders import refused

from xmc_jax import data
from xmc_jax.data import arrays
from xmc_jax.data.formats import lines, separated
from xmc_jax.errors import ConfigError, DataError, UserError


def json_row(**changes) -> str:
  row = {"uid": "u", "title": "t", "target_ind": [0], "target_rel": [1.0]}
  return json.dumps({**row, **changes}) + "\n"


GOOD = json_row()
ID = "an id in [0, 5), found"
ONE_LABEL = "at least one label, found none"
TEXT_KEY = "a text under the key 'title'"

# Besides those of docs/data.md, which tests/docs tries.
# The layout, the damaged file and its content; the line (0: none), and what was expected there and found.
CASES = [
  ("raw_json", "trn.json", GOOD + '{"title": ' + "[" * 9000 + "\n", 2, "one JSON object"),
  ("raw_json", "trn.json", GOOD * 2 + "\n \n" * 15 + "x\n", 33, "one JSON object, found 'x'"),
  ("raw_json", "lbl.json", "[1]\n", 1, "one JSON object, found '[1]'"),
  ("raw_json", "lbl.json", '{"name": "x"}\n', 1, TEXT_KEY, "config.data.text=NAME), found 'keys name'"),
  ("raw_json", "lbl.json", '{"title": [7]}\n', 1, TEXT_KEY, "'[7]'"),
  ("raw_json", "tst.json", '{"title": "x"}\n', 1, "a list of whole", "'target_ind'"),
  ("raw_json", "trn.json", json_row(target_ind=[-1]), 1, ID, "'-1'"),
  ("raw_json", "trn.json", json_row(target_ind=[10**30]), 1, "whole numbers in"),
  ("raw_json", "trn.json", json_row(target_ind=[True]), 1, "whole numbers", "True"),
  ("raw_json", "trn.json", json_row(target_rel=[float("inf")]), 1, "numbers"),
  ("raw_json", "trn.json", json_row(target_rel=[-0.5]), 1, "a relevance", "-0.5"),
  ("raw_json", "trn.json", json_row(target_rel=[]), 1, "as many numbers"),
  ("raw_json", "lbl.json", "", 0, ONE_LABEL),
  ("index", "trn_X_Y.txt", "0:1\n", 1, "a header \"rows columns\", found '0:1'"),
  ("index", "trn_X_Y.txt", "", 1, "a header"),
  ("index", "trn_X_Y.txt", "9" * 5000 + " 5\n", 1, 'a header "rows'),
  ("index", "trn_X_Y.txt", "9 5\n0:1\n\n", 1, "a header that counts 2 rows", "'9'"),
  ("index", "tst_X_Y.txt", "3 5\n0:1\n\n\n1:1\n", 5, "the end"),
  ("index", "trn_X_Y.txt", "5 4\n\n\n\n\n\n", 1, "5 columns, one for each label", "'4'"),
  ("index", "tst_X_Y.txt", "3 5\n\n1.0:1\n\n", 3, "entries", "'1.0:1'"),
  ("index", "tst_X_Y.txt", "3 5\n\n\n0:1 1\n", 4, "entries", "found '1'"),
  ("index", "tst_X_Y.txt", "3 5\n\n0:1 5:1\n\n", 3, f"{ID} '5'"),
  ("index", "tst_X_Y.txt", "3 5\n\n0:1\n1_0:1\n", 4, "entries", "'1_0:1'"),
  ("index", "tst_X_Y.txt", "3 5\n\n0:1e300\n\n", 3, "a relevance that is finite", "inf"),
  ("index", "tst_X_Y.txt", "3 5\n\n" + "9" * 40 + ":1\n\n", 3, "entries", "'9999"),
  ("index", "trn_filter_labels.txt", "\n5 0\n", 2, "a row in [0, 5)", "'5 0'"),
  ("index", "trn_filter_labels.txt", "0 1\n-1 0\n", 2, "a row in [0, 5)", "'-1 0'"),
  ("index", "trn_filter_labels.txt", "0 1\n0 x\n", 2, "two whole numbers", "'0 x'"),
  ("index", "Y.txt", "", 0, ONE_LABEL),
  ("index", "Y.txt", "x\n".encode("utf-16-le"), 1, "UTF-8 (is it UTF-16?"),
  ("index_maps", "label_map.txt", "a\tb\nc\n", 2, "an id"),
  ("index", "kind_lbl_X_Y.txt", "4 3\n\n\n\n\n", 1, "5 rows, one for each label"),
  ("index", "kind_trn_X_Y.txt", "5 2\n" + "\n" * 5, 1, "3 columns, one for each line of kind_an"),
  ("index", "kind_anchors.txt", "", 0, "at least one anchor, found none"),
  ("pecos", "Y.trn.npz", b"PK\x03\x04 no matrix", 0, "a matrix saved by scipy"),
  ("csv", "labels.txt", "", 0, ONE_LABEL),
  ("csv", "train.csv", "title,title,tags\na,b,0\n", 0, "one column 'title', found 2; rename one"),
  ("csv", "train.csv", "", 1, "at least one row"),
  (
    "csv",
    "train.csv",
    "x,labels\na,b\n",
    0,
    "a column of texts; set --config.data.text=NAME (columns: 'x', ",
  ),
  ("csv", "train.csv", "foo,bar\na,b\n", 0, "a column of texts and a column of labels", "called 1, 2, ..."),
  ("csv", "train.csv", "title,labels\na,b\n", 2, "a label of labels.txt, found 'b'"),
  ("tsv", "train.tsv", 'title\ttags\n"a"\t0\na\t"b\n', 3, "a quoted cell to end", "data.quoting=none"),
  ("jsonl", "train.jsonl", '{"text": "a", "labels": [5]}\n', 1, "an id in [0, 5)"),
  ("jsonl", "train.jsonl", '{"text": "a", "labels": "-1"}\n', 1, "an id in [0, 5)"),
  ("jsonl", "train.jsonl", '{"text": "a", "labels": [{}]}\n', 1, "labels that are texts"),
  ("jsonl", "train.jsonl", '{"text": "a", "labels": "[1"}\n', 1, "a JSON list of labels"),
  ("parquet", "trn.parquet", "nonsense", 0, "a parquet file"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_refusal(case, tmp_path):
  layout, name, content, line, *said = case
  folder = samples.LAYOUTS[layout](tmp_path)
  samples.write(folder / name, content)
  where = f"{folder / name}, line {line}" if line else f"{folder / name}"
  refused(folder, f"{where}: expected {said[0]}", *said[1:])


def test_anchors_without_links(tmp_path):
  samples.write(samples.index(tmp_path) / "odd_anchors.txt", "a\n")
  refused(tmp_path, "odd_anchors.txt: odd_trn_X_Y.txt or odd_lbl_X_Y.txt, its links, are missing")


def npz_of(**changes) -> bytes:
  """A CSR of 3 rows and 5 labels, as save_npz writes it, but for these members."""
  matrix = scipy.sparse.csr_matrix(np.eye(3, 5, dtype=np.float32))
  members = {"indices": matrix.indices, "indptr": matrix.indptr, "data": matrix.data, "shape": matrix.shape}
  file = io.BytesIO()
  np.savez(file, **{"format": np.array(b"csr"), **members, **changes})
  return file.getvalue()


ONE_DIMENSION = {"format": b"coo", "_is_array": True, "coords": np.zeros((1, 3), int), "shape": [5]}


@pytest.mark.parametrize(
  "changes, said",
  [
    ({"indptr": [0, 2, 1, 3]}, ": expected a matrix saved by scipy.sparse.save_npz (indptr decreases)"),
    ({"indptr": [0, 2, 3, -(2**31)]}, "(indptr decreases)"),
    ({"data": [1j, 1j, 1j]}, "(2 dimensions, data of type complex128)"),
    (ONE_DIMENSION, "(1 dimensions, data of type float"),
    ({"indices": [0, 1, 5]}, ": expected a matrix saved by scipy.sparse.save_npz ("),
    ({"data": [1, 1e300, 1]}, ", row 2: expected a relevance that is finite"),
  ],
)
def test_npz_refusal(changes, said, tmp_path):
  folder = samples.pecos(tmp_path)
  samples.write(folder / "Y.tst.npz", npz_of(**changes))
  refused(folder, "Y.tst.npz", said)


@pytest.mark.parametrize("form", ["csc", "coo", "bsr", "dia"])
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


def test_parquet_without_rows_and_labels(tmp_path):
  pyarrow.parquet.write_table(pyarrow.table({"query": pyarrow.array([], "string")}), tmp_path / "trn.parquet")
  refused(tmp_path, "trn.parquet: expected a column of labels; set --config.data.label_column=NAME")


def test_parquet_that_python_cannot_hold(tmp_path):
  folder = samples.parquet(tmp_path)
  years = pyarrow.array([2**62] * 5).cast(pyarrow.timestamp("us"))  # beyond the year 9999
  table = pyarrow.table({"query": ["x"] * 5, "label": years})
  pyarrow.parquet.write_table(table, folder / "trn.parquet")
  refused(folder, "trn.parquet, after row 0: expected more parquet data")


def test_long_lines(tmp_path, monkeypatch):
  folder = samples.raw_json(tmp_path)
  monkeypatch.setattr(lines, "MAX_LINE_BYTES", 128)
  samples.write(folder / "trn.json", GOOD + "x" * 200)
  refused(folder, "trn.json, line 2: expected lines of at most 0 MiB")


def test_long_rows_of_tables(tmp_path, monkeypatch):
  folder = samples.separated(tmp_path)
  monkeypatch.setattr(separated, "MAX_LINE_BYTES", 128)
  samples.write(folder / "train.csv", 'title,tags\na,b\n\n"c' + "\nlong" * 50 + '",d\n')
  refused(folder, "train.csv, line 4: expected a row of at most 0 MiB (is a quote never closed?)")


def test_what_unpacks_to_much(tmp_path, monkeypatch):
  folder = samples.pecos(tmp_path)
  monkeypatch.setattr(lines, "_MOST_RATIO", 0)
  monkeypatch.setattr(lines, "_MOST_UNPACKED", 9)
  refused(folder, ".npz: expected a matrix saved by scipy", "bytes packed in")


def test_small_chunks_give_the_same(tmp_path, monkeypatch):
  """Texts and targets are taken by bytes, each by its own: rows still meet."""
  for layout in ("raw_json", "index", "pecos", "csv", "parquet"):
    folder = samples.LAYOUTS[layout](tmp_path / layout)
    if layout == "raw_json":
      row, *others = (folder / "tst.json").read_text().splitlines()
      samples.write(folder / "tst.json", samples.lines([row, *["", " "] * 15, *others, ""]))
    whole = data.load(folder, cache_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
      for module in (lines, separated):
        patch.setattr(module, "CHUNK_BYTES", 9)
      pieces = data.load(folder, cache_dir=tmp_path / "pieces")
    for split in ("train", "test"):
      found, wanted = getattr(pieces, split), getattr(whole, split)
      assert list(found.texts) == list(wanted.texts)
      np.testing.assert_array_equal(found.truth.toarray(), wanted.truth.toarray())


@pytest.mark.parametrize(
  ("layout", "name", "said"),
  [
    ("raw_json", "tst.json", "tst.json (or .gz) is missing beside trn.json"),
    ("index", "tst_X_Y.txt", "tst_X_Y.txt or tst_X_Y.npz (or .gz) is missing beside trn_X_Y.txt"),
    ("index", "Y.txt", "Y.txt or "),
  ],
)
def test_missing_file(layout, name, said, tmp_path):
  folder = samples.LAYOUTS[layout](tmp_path)
  (folder / name).unlink()
  refused(folder, said, "is missing")


def test_missing_folder(tmp_path):
  why = "no such file or folder; give a folder or a table that is there (--config.data.path=PATH)"
  for path in (tmp_path / "nowhere", samples.write(tmp_path / "file", "") / "below"):
    with pytest.raises(DataError) as caught:
      data.load(path)
    assert str(caught.value) == f"{path}: {why}"
  there = samples.write(tmp_path / "recipes.csv", "")
  refused(tmp_path / "recipe.csv", f"recipe.csv: no such file or folder; did you mean {there}?")
  said = "names.csv: no such file (--config.data.label_file=names.csv)"
  refused(samples.jsonl(tmp_path), said, label_file="names.csv")


def test_table_whose_labels_are_all_empty(tmp_path):
  path = samples.write(tmp_path / "t.csv", "text,labels\na,\nb, \n")
  said = "set another with --config.data.label_column=NAME (columns: 'text', 'labels')"
  refused(path, f"{path}: expected at least one label in column 'labels', found none", said)


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"text": "headlin"}, "a column 'headlin' of texts; set --config.data.text=NAME (columns: 'title', "),
    (
      {"text": "main titel"},
      "a column 'main titel' of texts; set --config.data.text='main title' (columns: ",
    ),
    ({"label_column": "tag"}, "a column 'tag' of labels; set --config.data.label_column=tags (columns: "),
    ({"text": "tags", "label_column": "tags"}, "texts and labels in two columns, found 'tags' for both"),
  ],
)
def test_columns_that_are_named_wrongly(options, said, tmp_path):
  path = samples.write(tmp_path / "t.csv", "title,tags,main title\na,b,c\n")
  refused(path, f"{path}: expected {said}", **options)


def test_many_and_odd_columns_make_a_short_line(tmp_path):
  columns = ['"odd\nname"', *(f"c{at}" for at in range(500))]
  path = samples.write(tmp_path / "t.csv", ",".join(columns) + "\n" + ",".join("x" * 501) + "\n")
  refused(path, "(columns: 'odd\\nname', 'c0', ", "'c10', ...); without")


def test_label_table_without_texts(tmp_path):
  path = samples.write(tmp_path / "t.csv", "title,tags\na,b\n")
  samples.write(tmp_path / "names.csv", "id,foo,bar\nb,B,C\n")
  said = "names.csv: expected a column of label texts; set --config.data.label_text=NAME (columns: 'id', "
  refused(path, said, "or call one 'text'", label_file="names.csv")


def test_truncated_gzip(tmp_path):
  folder = samples.raw_json(tmp_path, ".gz")
  noise = samples.lines(json_row(title=os.urandom(40).hex(), target_ind=[0]).strip() for _ in range(3000))
  packed = gzip.compress(noise.encode())
  (folder / "trn.json.gz").write_bytes(packed[: len(packed) // 2])
  refused(folder, "trn.json.gz, after line ", ": expected more gzip data, found the end")


def test_damaged_gzip(tmp_path):
  folder = samples.raw_json(tmp_path, ".gz")
  (folder / "lbl.json.gz").write_bytes(b"no gzip at all")
  refused(folder, "lbl.json.gz", ": expected intact gzip data")


def test_no_permission(tmp_path, monkeypatch):
  folder = samples.index(tmp_path)
  error = PermissionError(errno.EACCES, "Permission denied")
  monkeypatch.setattr("builtins.open", mock.Mock(side_effect=error))
  refused(folder, "_X_Y.txt: no permission to read this file")


def test_disk_refuses(tmp_path, monkeypatch):
  folder = samples.index(tmp_path)
  error = OSError(errno.ENOSPC, "No space left on device")
  monkeypatch.setattr(arrays.ArrayFile, "append", mock.Mock(side_effect=error))
  said = "out: cannot be written (No space left on device); set --config.data.cache_dir or $XMC_JAX_CACHE to"
  refused(folder, said, error=UserError)


def test_tokenizer_that_cannot_work(tmp_path):
  tokenizer = data.train_tokenizer(["some text"], 100)
  with pytest.raises(ConfigError, match="tokenizer=str: expected a tokenizers"):
    data.encode_texts("bert", ["x"], 5)
  with pytest.raises(ConfigError, match=r"max_length=2: expected more than the 2 special tokens"):
    data.load(samples.index(tmp_path), tokenizer=tokenizer, max_length=2)
