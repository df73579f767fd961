"""Data sets of Hugging Face: folders of `save_to_disk`, shards of the hub, and the names of classes in both.

`sample_folders.huggingface` writes what datasets 5.2 writes: equal Arrow schemas, metadata and rows; of its
JSON files, what is read.
"""

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import sample_folders as samples
from sample_folders import refused

from tests.data.data_layouts_test import rows_of
from xmc_jax import data


def saved(folder: Path, points=(("apple", [0]), ("pear", [1, 0])), **files) -> Path:
  """One saved data set; `files` are its JSON files with other contents."""
  samples.saved_split(folder, list(points))
  for name, content in files.items():
    samples.write(folder / f"{name}.json", content if isinstance(content, str) else json.dumps(content))
  return folder


def features(**columns) -> dict:
  return {"features": columns}


def test_a_folder_without_label_file_has_the_classes_as_labels(tmp_path):
  (samples.huggingface(tmp_path / "set") / "labels.txt").unlink()
  for name in ("trn", "lbl"):
    (tmp_path / "set" / f"kind_{name}_X_Y.txt").unlink()
  (tmp_path / "set" / "kind_anchors.txt").unlink()
  found = data.load(tmp_path / "set")
  assert list(found.labels.texts) == samples.LABELS and found.manifest["layout"] == "huggingface"
  assert rows_of(found.train.truth) == [sorted(ids) for _, ids in samples.TRAIN]
  taken, classes = found.manifest["notices"]
  assert taken.startswith("train/data-00000-of-00002.arrow and 1 more: texts from column 'query' (guessed")
  assert classes == "numbers of labels stand for the 5 class names in the tables' metadata"


def test_one_data_set_is_split_like_a_table(tmp_path):
  points = [(f"t{at}", [at % 5]) for at in range(20)]
  found = data.load(saved(tmp_path / "set", points), test_fraction=0.25)
  assert (len(found.train), len(found.test)) == (15, 5)
  assert data.load(tmp_path / "set", test_fraction=0).train.texts[7] == "t7"


def test_other_splits_are_left_out_and_named(tmp_path):
  folder = samples.huggingface(tmp_path / "set")
  samples.write(folder / "dataset_dict.json", json.dumps({"splits": ["train", "test", "extra"]}))
  assert data.load(folder).manifest["notices"][0] == "not read: split 'extra'"
  samples.write(folder / "dataset_dict.json", json.dumps({"splits": ["validation"]}))
  refused(folder, "dataset_dict.json: expected a split 'train', found ", "'validation'", "/SPLIT")


def test_a_split_to_validate_on_is_held_out(tmp_path):
  samples.saved_split(tmp_path / "train", [(f"t{at}", [at % 5]) for at in range(9)])
  samples.saved_split(tmp_path / "dev", [("v", [1]), ("w", [])])
  samples.write(tmp_path / "dataset_dict.json", json.dumps({"splits": ["train", "dev"]}))
  found = data.load(tmp_path, test_fraction=0)
  assert found.num_validation == 1 and list(found.train.texts)[-2:] == ["v", "w"]


def test_shards_are_read_in_the_order_of_the_state(tmp_path):
  folder = samples.saved_split(tmp_path / "set", samples.TRAIN, 2)
  state = json.loads((folder / "state.json").read_text())
  state["_data_files"].reverse()
  samples.write(folder / "state.json", json.dumps(state))
  texts = [text for text, _ in samples.TRAIN]
  assert list(data.load(folder, test_fraction=0).train.texts) == texts[3:] + texts[:3]


_CLASS = {"names": ["no", "yes"], "_type": "ClassLabel"}


@pytest.mark.parametrize(
  "feature",
  [
    _CLASS,
    {"num_classes": 2, "names": ["no", "yes"], "id": None, "_type": "ClassLabel"},
    {"feature": _CLASS, "length": -1, "_type": "Sequence"},
    {"feature": _CLASS, "_type": "LargeList"},
    [_CLASS],
  ],
)
def test_classes_in_the_forms_of_all_versions(feature, tmp_path):
  samples.saved_split(tmp_path / "set", [("a", [1]), ("b", [])])
  info = features(query={"dtype": "string", "_type": "Value"}, label=feature)
  samples.write(tmp_path / "set" / "dataset_info.json", json.dumps(info))
  found = data.load(tmp_path / "set", test_fraction=0)
  assert list(found.labels.texts) == ["no", "yes"] and rows_of(found.train.truth) == [[1], []]


def test_one_class_a_row_and_rows_without_a_known_one(tmp_path):
  schema = pa.schema([("text", pa.large_string()), ("label", pa.int64())])
  table = pa.table([["a", None, "c"], [1, -1, None]], schema)
  folder = saved(tmp_path / "set", dataset_info=features(label=_CLASS))
  samples.arrow_stream(folder / "data-00000-of-00001.arrow", table)
  found = data.load(folder, test_fraction=0)
  assert rows_of(found.train.truth) == [[1], [], []] and list(found.train.texts) == ["a", "", "c"]
  said = "rows whose label is -1, for unknown, count as rows without labels: 1"
  assert found.manifest["notices"][-1] == said


@pytest.mark.parametrize(
  ("label_file", "texts", "notice"),
  [
    ("id,text\nyes,Agreed\nno,Refused\nor,Open\n", ["Agreed", "Refused", "Open"], "as keys of labels.csv"),
    ("id,text\n1,One\n0,Zero\n", ["One", "Zero"], "are not all in labels.csv, so labels are read as numbers"),
  ],
)
def test_a_file_of_labels_describes_classes_by_name_or_by_number(label_file, texts, notice, tmp_path):
  folder = saved(tmp_path / "set", [("a", [1]), ("b", [0])], dataset_info=features(label=_CLASS))
  samples.write(folder / "labels.csv", label_file)
  found = data.load(folder, test_fraction=0)
  assert list(found.labels.texts) == texts and rows_of(found.train.truth) == [[0], [1]]
  assert found.manifest["notices"][-1].endswith(notice)


def test_tables_may_number_their_classes_differently(tmp_path):
  """Numbers of the test table mean its own names."""
  for name, names in (("train", ["red", "green"]), ("test", ["green", "blue", "red"])):
    table = samples.class_table([("x", [0])], samples.class_features(names=names))
    pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
  found = data.load(tmp_path)
  assert list(found.labels.texts) == ["red", "green", "blue"]
  assert rows_of(found.train.truth) == [[0]] and rows_of(found.test.truth) == [[1]]


def test_illegible_metadata_leaves_numbers(tmp_path):
  table = samples.class_table([("x", [3])], {"label": {"names": ["a", "a"], "_type": "ClassLabel"}})
  for metadata in (table.schema.metadata, {"huggingface": "["}, {"huggingface": '{"info": [1]}'}):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
    assert list(data.load(path, test_fraction=0).labels.texts) == ["3"]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv.gz"])
@pytest.mark.parametrize("place", ["", "data"])
def test_shards_in_the_order_of_their_numbers(place, suffix, tmp_path):
  for number in range(12):
    path = tmp_path / place / f"train-{number:05}-of-00012.{suffix}"
    path.parent.mkdir(exist_ok=True)
    if suffix == "parquet":
      pyarrow.parquet.write_table(pa.table({"text": [f"t{number}"], "labels": [["x"]]}), path)
    else:
      row = f'{{"text": "t{number}", "labels": ["x"]}}\n'
      samples.write(path, f"text,labels\nt{number},x\n" if suffix == "csv.gz" else row)
  found = data.load(tmp_path, test_fraction=0)
  assert list(found.train.texts) == [f"t{number}" for number in range(12)]
  assert len(found.manifest["sources"]) == 12
  samples.write(tmp_path / place / "validation.jsonl", '{"text": "v", "labels": ["x"]}')
  found = data.load(tmp_path, test_fraction=0.5)
  assert found.num_validation == 1 and found.train.texts[-1] == "v" and len(found.test) == 6


def test_a_table_in_the_folder_comes_before_those_in_data(tmp_path):
  samples.write(tmp_path / "posts.csv", "text,labels\nhere,x\n")
  samples.write(tmp_path / "data" / "train.csv", "text,labels\nthere,x\n")
  assert list(data.load(tmp_path, test_fraction=0).train.texts) == ["here"]


def shards(folder: Path, *names: str) -> Path:
  for name in names:
    samples.write(folder / name, "text,labels\na,x\n")
  return folder


TWO_SETS = "belong to two sets of shards; remove one"


@pytest.mark.parametrize(
  ("names", "said"),
  [
    ("0-of-00003.csv 2-of-00003.csv", "set: expected 3 shards, such as train-00001-of-00003.csv, found 2"),
    ("0-of-00001.csv 1-of-00001.csv", "set: expected 1 shards, "),
    ("0-of-00001.csv 0-of-00002.csv", TWO_SETS),
    ("0-of-00002.csv 1-of-00002.tsv", TWO_SETS),
    ("0-of-00001.csv 0-of-00001-0123456789abcdef.csv", "1 shards, such as train-00000-of-00001.csv, found 2"),
  ],
)
def test_shards_that_do_not_fit(names, said, tmp_path):
  refused(shards(tmp_path / "set", *(f"train-0000{name}" for name in names.split())), said)


def test_a_table_and_shards_of_one_split(tmp_path):
  folder = shards(tmp_path / "set", "train.csv", "train-00000-of-00001.csv")
  refused(folder, "train.csv and train-00000-of-00001.csv are the same split")


def test_a_shard_with_other_columns(tmp_path):
  folder = shards(tmp_path / "set", "train-00000-of-00002.csv", "train-00001-of-00002.csv")
  samples.write(folder / "train-00001-of-00002.csv", "title,labels\na,x\n")
  refused(folder, "train-00001-of-00002.csv: expected a column 'text', as in train-00000", " (columns: 'ti")


NAMES = "state.json: expected names without folders in '_data_files', found"


@pytest.mark.parametrize(
  ("files", "said"),
  [
    ({"state": "{"}, "state.json: expected one JSON object, as `datasets` writes it"),
    ({"state": "[" * 5000}, "state.json: expected one JSON object"),
    ({"dataset_info": "[]"}, "dataset_info.json: expected one JSON object"),
    ({"state": {}}, f"{NAMES} 'None'"),
    ({"state": {"_data_files": []}}, "state.json: expected at least one file in '_data_files'"),
    ({"state": {"_data_files": [{"filename": "gone.arrow"}]}}, "gone.arrow: is missing beside state"),
    ({"state": {"_data_files": [{"filename": "state.json"}]}}, "expected files that end in .arrow, found 's"),
    ({"state": {"_indices_data_files": [1]}}, "rows are chosen by an index; save again after flatten_ind"),
  ],
)
def test_refusals_of_json_files(files, said, tmp_path):
  refused(saved(tmp_path / "set", **files), said)


@pytest.mark.parametrize(
  "name", ["../x.arrow", "/x.arrow", "a/x.arrow", "..", "", "x\0.arrow", "..\\x.arrow", 7]
)
def test_names_do_not_lead_out_of_the_folder(name, tmp_path):
  folder = saved(tmp_path / "set", state={"_data_files": [{"filename": name}]})
  samples.write(tmp_path / "x.arrow", (folder / "data-00000-of-00001.arrow").read_bytes())
  refused(folder, NAMES)
  samples.write(tmp_path / "sets" / "dataset_dict.json", json.dumps({"splits": ["train", name]}))
  refused(tmp_path / "sets", "dataset_dict.json: expected names without folders in 'splits', found")


@pytest.mark.parametrize(
  ("change", "said"),
  [
    (lambda content: b"", ": expected the mark that ends an Arrow stream"),
    (lambda content: content[-8:], ": expected an Arrow stream ("),
    (lambda content: content[:-100] + content[-8:], ", after row 0: expected more Arrow data ("),
    (lambda content: content.replace(b"apple", b"\xff" * 5), ", after row 0: expected more Arrow data ("),
  ],
)
def test_damaged_streams(change, said, tmp_path):
  path = saved(tmp_path / "set") / "data-00000-of-00001.arrow"
  path.write_bytes(change(path.read_bytes()))
  refused(tmp_path / "set", said)


OTHER = "arrow, row 1: expected labels that are texts or whole numbers, found"


@pytest.mark.parametrize(
  ("label", "said"),
  [
    (pa.array([{"a": 1}]), f"{OTHER} \"{{'a': 1}}\""),
    (pa.array([[[1]]]), f"{OTHER} '[1]'"),
    (pa.array([b"x"]), f"{OTHER} 'x'"),
  ],
)
def test_columns_of_other_types(label, said, tmp_path):
  folder = saved(tmp_path / "set")
  table = pa.table({"query": ["a"], "label": label})
  samples.arrow_stream(folder / "data-00000-of-00001.arrow", table)
  refused(folder, said)


@pytest.mark.parametrize("layout", ["arrow", "parquet"])
def test_a_pickled_extension_type_is_not_loaded(layout, tmp_path):
  """As in CVE-2023-47248: the name of pyarrow's own type, and a pickle behind it."""
  payload = pickle.dumps(samples.Trap(tmp_path / "sprung"))
  metadata = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": payload}
  fields = [pa.field("query", pa.string(), metadata=metadata), pa.field("label", pa.list_(pa.int64()))]
  table = pa.table([["apple"], [[0]]], pa.schema(fields))
  if layout == "arrow":
    samples.arrow_stream(saved(tmp_path / "set") / "data-00000-of-00001.arrow", table)
  else:
    (tmp_path / "set").mkdir()
    pyarrow.parquet.write_table(table, tmp_path / "set" / "train.parquet")
  assert list(data.load(tmp_path / "set", test_fraction=0).train.texts) == ["apple"]
  assert not (tmp_path / "sprung").exists()
