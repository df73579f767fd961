"""One small data set, written in each of the layouts."""

import csv
import functools
import gzip
import io
import json
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse

from xmc_jax import data
from xmc_jax.errors import DataError

LABELS = ["red apple", "grün", "", "sea view", "nobody's"]
TRAIN = [("apple on a tree", [0]), ("", []), ("a green, apple", [0, 1]), ("boat ±", [3]), ("plain", [])]
TEST = [("pear", [1]), ("dunes", [3, 0]), ("nothing", [])]
FILTERS = {"train": [(0, 0), (3, 3)], "test": [(1, 0)]}
ANCHORS = ["fruit", "", "water"]
QUERY_EDGES = [[0], [], [0, 1], [2], []]
LABEL_EDGES = [[0], [], [], [2, 1], []]


def write(path: Path, text: str | bytes) -> Path:
  """Writes a file, packed where its name ends in .gz."""
  path.parent.mkdir(parents=True, exist_ok=True)
  content = text if isinstance(text, bytes) else text.encode()
  path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
  return path


def refused(path: Path, *said: str, error: type = DataError, **options) -> None:
  """Checks that data end in one short line with these words, and that nothing is left behind."""
  beside = path if path.is_dir() else path.parent
  before = {file.name for file in beside.iterdir()}
  with pytest.raises(error) as caught:
    data.prepare(path, beside / "out", **options)
  message = str(caught.value)
  assert [words for words in said if words not in message] == [], message
  assert "\n" not in message and len(message.replace(str(path), "")) < 600
  assert {file.name for file in beside.iterdir()} == before


class Trap:
  """Leaves a file behind when it is unpickled."""

  def __init__(self, path: Path):
    self._path = path

  def __reduce__(self):
    return open, (str(self._path), "w")


def lines(rows) -> str:
  return "".join(f"{row}\n" for row in rows)


def table(path: Path, rows: list[dict]) -> Path:
  """Writes rows as .csv, .tsv, .xlsx, .jsonl or .parquet, whichever the name says."""
  if path.suffix == ".jsonl":
    return write(path, lines(map(json.dumps, rows)))
  if path.suffix == ".parquet":
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
  if path.suffix == ".xlsx":
    book = openpyxl.Workbook()
    for row in (list(rows[0]), *(list(row.values()) for row in rows)):
      book.active.append(row)
    book.save(path)
    return path
  return write(path, separated_text(rows, "\t" if path.suffix == ".tsv" else ","))


def separated_text(rows: list[dict], mark: str) -> str:
  text = io.StringIO()
  writer = csv.DictWriter(text, list(rows[0]), delimiter=mark)
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()


def index_text(rows, num_columns: int) -> str:
  body = lines(" ".join(f"{column}:1.0" for column in row) for row in rows)
  return f"{len(rows)} {num_columns}\n{body}"


def npz(path: Path, rows, num_columns: int) -> None:
  matrix = scipy.sparse.lil_matrix((len(rows), num_columns), dtype=np.float32)
  for row, columns in enumerate(rows):
    matrix[row, columns] = 1
  scipy.sparse.save_npz(path, matrix.tocsr())


def add_filters(folder: Path, names=("filter_labels_train.txt", "filter_labels_test.txt")) -> None:
  for name, pairs in zip(names, FILTERS.values()):
    write(folder / name, lines(f"{row} {label}" for row, label in pairs))


def add_graph(folder: Path) -> None:
  write(folder / "kind_anchors.txt", lines(ANCHORS))
  write(folder / "kind_trn_X_Y.txt", index_text(QUERY_EDGES, 3))
  write(folder / "kind_lbl_X_Y.txt", index_text(LABEL_EDGES, 3))


def raw_json(folder: Path, end: str = "") -> Path:
  for name, points in (("trn", TRAIN), ("tst", TEST)):
    rows = [
      {"uid": f"u{at}", "title": text, "content": "", "target_ind": ids, "target_rel": [1.0] * len(ids)}
      for at, (text, ids) in enumerate(points)
    ]
    write(folder / f"{name}.json{end}", lines(map(json.dumps, rows)))
  labels = [{"uid": f"l{at}", "title": text, "content": "more"} for at, text in enumerate(LABELS)]
  write(folder / f"lbl.json{end}", lines(map(json.dumps, labels)))
  add_filters(folder)
  add_graph(folder)
  return folder


def index(folder: Path, end: str = "") -> Path:
  for name, points in (("trn", TRAIN), ("tst", TEST)):
    write(folder / f"{name}_X.txt{end}", lines(text for text, _ in points))
    write(folder / f"{name}_X_Y.txt{end}", index_text([ids for _, ids in points], len(LABELS)))
  write(folder / f"Y.txt{end}", lines(LABELS))
  add_filters(folder, ("trn_filter_labels.txt", "tst_filter_labels.txt"))
  add_graph(folder)
  return folder


def _renamed(folder: Path, end: str, names: dict[str, str], line: str) -> Path:
  """Gives files of texts other names, and each of their lines a form with its number."""
  for old, new in names.items():
    texts = (folder / f"{old}.txt").read_text().split("\n")[:-1]
    (folder / f"{old}.txt").unlink()
    write(folder / f"{new}.txt{end}", lines(line.format(at, text) for at, text in enumerate(texts)))
  return folder


def index_maps(folder: Path, end: str = "") -> Path:
  names = {"trn_X": "train_map", "tst_X": "test_map", "Y": "label_map"}
  return _renamed(index(folder), end, names, "B{}\t{}")


def index_raw(folder: Path, end: str = "") -> Path:
  """Writes the files of OAK and MOGIC: an id before each text, also of anchors; PRIME's labels have none."""
  names = {"trn_X": "train", "tst_X": "test", "kind_anchors": "kind"}
  names = {old: f"raw_data/{new}.raw" for old, new in names.items()}
  _renamed(index(folder), end, names, "B{}->{}")
  return _renamed(folder, end, {"Y": "raw_data/lbl.raw"}, "{1}")


def pecos(
  folder: Path, end: str = "", texts: str = "X.{}", labels: str = "output-items", line: str = "{1}"
) -> Path:
  for name, points in (("trn", TRAIN), ("tst", TEST)):
    write(folder / f"{texts.format(name)}.txt{end}", lines(text for text, _ in points))
    npz(folder / f"Y.{name}.npz", [ids for _, ids in points], len(LABELS))
  write(folder / f"{labels}.txt{end}", lines(line.format(at, text) for at, text in enumerate(LABELS)))
  add_filters(folder)
  write(folder / "kind.raw.txt", lines(ANCHORS))
  npz(folder / "kind_trn_X_Y.npz", QUERY_EDGES, 3)
  npz(folder / "kind_lbl_X_Y.npz", LABEL_EDGES, 3)
  return folder


def dexml(folder: Path, end: str = "") -> Path:
  return pecos(folder, end, "raw/{}_X", "raw/Yf", "{}->{}")


def jsonl(folder: Path, end: str = "") -> Path:
  for name, points in (("train", TRAIN), ("test", TEST)):
    rows = [{"text": text, "labels": ids} for text, ids in points]
    write(folder / f"{name}.jsonl{end}", lines(map(json.dumps, rows)))
  return _with_label_file(folder)


def separated(folder: Path, end: str = "", kind: str = "csv") -> Path:
  for name, points in (("train", TRAIN), ("test", TEST)):
    cells = [(text, "|".join(map(str, ids))) for text, ids in points]
    rows = [{"id": at, "Title": text, "tags": tags} for at, (text, tags) in enumerate(cells)]
    write(folder / f"{name}.{kind}{end}", separated_text(rows, "\t" if kind == "tsv" else ","))
  return _with_label_file(folder)


def parquet(folder: Path, end: str = "") -> Path:
  folder.mkdir(parents=True, exist_ok=True)
  for name, points in (("trn", TRAIN), ("tst", TEST)):
    table(folder / f"{name}.parquet", [{"query": text, "label": ids} for text, ids in points])
  return _with_label_file(folder)


def class_features(names=tuple(LABELS)) -> dict:
  """`Features` of the `datasets` library as JSON: a column of texts, and lists of classes."""
  classes = {"feature": {"names": list(names), "_type": "ClassLabel"}, "_type": "List"}
  return {"query": {"dtype": "string", "_type": "Value"}, "label": classes}


def class_table(points, features: dict):
  fields = [("query", pa.string()), ("label", pa.list_(pa.int64()))]
  metadata = {"huggingface": json.dumps({"info": {"features": features}})}
  columns = [[text for text, _ in points], [ids for _, ids in points]]
  return pa.table(columns, pa.schema(fields, metadata))


def arrow_stream(path: Path, table: pa.Table) -> None:
  """Writes a table as `datasets` does."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with pa.ipc.new_stream(path, table.schema) as out:
    out.write_table(table, max_chunksize=2)


def saved_split(folder: Path, points, num_shards: int = 1) -> Path:
  """What `Dataset.save_to_disk(folder, num_shards=num_shards)` of datasets 5.2 writes, if it is read."""
  features = class_features()
  names = [f"data-{at:05}-of-{num_shards:05}.arrow" for at in range(num_shards)]
  size = -(-len(points) // num_shards)
  for at, name in enumerate(names):
    rows = points[at * size : (at + 1) * size]
    arrow_stream(folder / name, class_table(rows, features))
  state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f6d2", "_split": None}
  write(folder / "state.json", json.dumps(state, indent=2, sort_keys=True))
  write(folder / "dataset_info.json", json.dumps({"features": features, "license": ""}, indent=2))
  return folder


def huggingface(folder: Path, end: str = "") -> Path:
  """What `DatasetDict.save_to_disk` writes."""
  saved_split(folder / "train", TRAIN, 2)
  saved_split(folder / "test", TEST)
  write(folder / "dataset_dict.json", json.dumps({"splits": ["train", "test"]}))
  return _with_label_file(folder)


def parquet_shards(folder: Path, end: str = "") -> Path:
  """What the hub's repositories hold."""
  (folder / "data").mkdir(parents=True, exist_ok=True)
  for name, points in (("train", TRAIN[:2]), ("train", TRAIN[2:]), ("test", TEST)):
    number = len(list(folder.glob(f"data/{name}-*")))
    path = folder / "data" / f"{name}-{number:05}-of-{2 if name == 'train' else 1:05}.parquet"
    pyarrow.parquet.write_table(class_table(points, class_features()), path)
  return _with_label_file(folder)


def _with_label_file(folder: Path) -> Path:
  write(folder / "labels.txt", lines(LABELS))
  add_filters(folder)
  add_graph(folder)
  return folder


_MAKERS = (raw_json, index, index_maps, index_raw, pecos, dexml, jsonl, parquet, parquet_shards, huggingface)
LAYOUTS = {make.__name__: make for make in _MAKERS}
LAYOUTS |= {kind: functools.partial(separated, kind=kind) for kind in ("csv", "tsv")}
