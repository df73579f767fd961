"""Labels with descriptions and parents: what their texts become, what is said of them, what is refused."""

import json
from pathlib import Path

import pytest
import sample_folders as samples
from sample_folders import refused

from tests.data.data_layouts_test import rows_of
from xmc_jax import data

ANIMALS = [
  {"id": "p", "title": "poodle", "description": "curly hair", "parent": "d"},
  {"id": "d", "title": "dogs", "description": "bark", "parent": "a"},
  {"id": "a", "title": "animals", "description": None, "parent": None},
]
PLAIN = ["poodle", "dogs", "animals"]
DESCRIBED = ["poodle curly hair", "dogs bark", "animals"]
PATHS = ["animals > dogs > poodle", "animals > dogs", "animals"]
BOTH = ["animals > dogs > poodle curly hair", "animals > dogs bark", "animals"]


def write_labels(folder: Path, kind: str, rows: list[dict]) -> Path:
  """Writes labels.KIND beside a table whose labels are called p and a."""
  samples.write(folder / "train.csv", "text,labels\nmy dog,p\nthe zoo,a;d\n")
  samples.table(folder / f"labels.{kind}", rows)
  return folder


def labels_of(folder: Path, **options) -> list[str]:
  return list(data.load(folder, test_fraction=0, **options).labels.texts)


@pytest.mark.parametrize("kind", ["csv", "tsv", "xlsx", "jsonl", "parquet"])
def test_descriptions_and_ancestors_join_the_text(kind, tmp_path):
  folder = write_labels(tmp_path, kind, ANIMALS)
  assert labels_of(folder) == PLAIN
  assert labels_of(folder, label_text="title+description") == DESCRIBED
  assert labels_of(folder, label_parent="parent") == PATHS
  assert labels_of(folder, label_text="title+description", label_parent="parent") == BOTH
  assert labels_of(folder, label_text="description") == ["curly hair", "bark", ""]
  found = data.load(folder, test_fraction=0, label_parent="parent")
  assert rows_of(found.train.truth) == [[0], [1, 2]]
  assert list(found.label_keys) == ["p", "d", "a"]


NUMBERED = [f"l{at}" for at in range(5)]


@pytest.mark.parametrize(
  "layout, keys",
  [
    ("raw_json", NUMBERED),
    ("index_maps", [f"B{at}" for at in range(5)]),
    ("dexml", list("01234")),
    ("index", samples.LABELS),
    ("jsonl", samples.LABELS),
  ],
)
def test_labels_keep_the_names_that_a_layout_gives_them(layout, keys, tmp_path):
  """Where there is no other name, it is the text."""
  found = data.load(getattr(samples, layout)(tmp_path / layout))
  assert list(found.label_keys) == keys and list(found.labels.texts) == samples.LABELS


def test_labels_that_are_added_have_keys(tmp_path):
  folder, tokens = write_labels(tmp_path, "csv", ANIMALS), data.train_tokenizer(["t"], 100)
  more = data.with_labels(data.load(folder, test_fraction=0, tokenizer=tokens), ["new"], 8)
  assert list(more.label_keys) == ["p", "d", "a", "new"]


def test_what_is_not_read_is_said_with_its_setting(tmp_path):
  folder = write_labels(tmp_path, "csv", ANIMALS)
  notes = [
    "labels.csv: column 'description' is not read; --config.data.label_text=title+description adds it to "
    "label texts",
    "labels.csv: column 'parent' is not read; --config.data.label_parent=parent puts ancestors before labels",
  ]
  assert data.load(folder).manifest["notices"][:2] == notes
  assert notes[1] in data.load(folder, label_text="title+description").manifest["notices"]
  given = {"label_text": "title+description", "label_parent": "parent"}
  assert not [note for note in data.load(folder, **given).manifest["notices"] if "not read" in note]


@pytest.mark.parametrize(
  ("columns", "options", "texts"),
  [
    ("name,description", {}, ["hairy", "loud"]),  # as before there was a setting
    ("name,description", {"label_text": "name+description"}, ["P hairy", "D loud"]),
    ("name,parent", {"label_parent": "parent"}, ["D > P", "D"]),
    ("label,broader", {"label_parent": "broader"}, ["D > P", "D"]),
    ("title,up", {"label_parent": "up"}, ["D > P", "D"]),  # no column of keys: parents by name
    ("title,up", {"label_parent": "up", "label_text": "title"}, ["D > P", "D"]),
  ],
)
def test_columns_of_label_files(columns, options, texts, tmp_path):
  rows = "P,hairy\nD,loud\n" if "description" in columns else "P,D\nD,\n"
  samples.write(tmp_path / "train.csv", "text,labels\nmy dog,P\n")
  samples.write(tmp_path / "labels.csv", f"{columns}\n{rows}")
  assert labels_of(tmp_path, **options) == texts


def test_labels_of_the_raw_layout(tmp_path):
  folder = samples.raw_json(tmp_path)
  rows = [{"uid": f"l{at}", "title": text, "content": "more"} for at, text in enumerate(samples.LABELS)]
  rows[3] |= {"parent": "l0", "description": "waves"}
  samples.write(folder / "lbl.json", samples.lines(json.dumps({"parent": None, **row}) for row in rows))
  assert labels_of(folder) == samples.LABELS
  assert "lbl.json: column 'parent' is not read" in data.load(folder).manifest["notices"][0]
  paths = labels_of(folder, label_parent="parent")
  assert paths == [*samples.LABELS[:3], "red apple > sea view", "nobody's"]
  more = labels_of(folder, label_parent="parent", label_text="title+content")
  assert more[3] == "red apple > sea view more" and more[0] == "red apple more"
  points = data.load(folder, label_text="title+content")
  assert points.labels.texts[4] == "nobody's more" and points.train.texts[0] == samples.TRAIN[0][0]


@pytest.mark.parametrize("layout", ["index", "pecos"])
def test_a_table_of_labels_for_index_files(layout, tmp_path):
  folder = samples.LAYOUTS[layout](tmp_path)
  rows = [f'k{at},"{text}",{"k0" if at == 3 else ""}' for at, text in enumerate(samples.LABELS)]
  samples.write(folder / "names.csv", samples.lines(["id,title,parent", *rows]))
  assert labels_of(folder, label_file="names.csv") == samples.LABELS
  named = labels_of(folder, label_file="names.csv", label_parent="parent")
  assert named[3] == "red apple > sea view" and len(named) == 5
  refused(folder, ".txt: has no columns of labels for --config.data.label_parent", label_parent="parent")


@pytest.mark.parametrize("name", ["labels.txt", None])
def test_settings_without_columns(name, tmp_path):
  samples.write(tmp_path / "train.csv", "text,labels\na,x\n")
  if name:
    samples.write(tmp_path / name, "x\n")
  refused(tmp_path, f"{name or 'train.csv'}: has no columns of labels for --config", label_text="title")


ENDLESS = "a parent that is not below the label itself, found"


@pytest.mark.parametrize(
  ("rows", "options", "said"),
  [
    ("p,poodle,d\nd,dogs,a\na,animals,p\n", {}, f", line 2: expected {ENDLESS} 'p > d > a > p'"),
    ("p,poodle,d\nd,dogs,a\na,animals,d\n", {}, f", line 3: expected {ENDLESS} 'd > a > d'"),
    ("p,poodle,\nd,dogs,d\n", {}, f", line 3: expected {ENDLESS} 'd > d'"),
    ("p,poodle,\n", {"label_parent": "up"}, ": expected a column 'up' of parents; set --config.data.label_p"),
    ("p,poodle,\n", {"label_text": "title+x"}, ": expected a column 'title+x' of label texts; set "),
    ("p,poodle,\n", {"label_text": "parent"}, ": expected a column 'parent' of label texts; set "),
    ("p,poodle,\np,dogs,\n", {}, ": expected each key once in column 'id', found 'p' again"),
  ],
)
def test_refusals(rows, options, said, tmp_path):
  samples.write(tmp_path / "train.csv", "text,labels\na,p\n")
  path = samples.write(tmp_path / "labels.csv", f"id,title,parent\n{rows}")
  refused(tmp_path, f"{path}{said}", **{"label_parent": "parent"} | options)


def test_json_lines_may_leave_parents_out(tmp_path):
  rows = [{key: value for key, value in row.items() if value is not None} for row in ANIMALS]
  assert labels_of(write_labels(tmp_path, "jsonl", rows[::-1]), label_parent="parent") == PATHS[::-1]
  refused(tmp_path, "labels.jsonl: expected a column 'up' of parents; set --config.data.l", label_parent="up")
  folder = samples.raw_json(tmp_path / "raw")
  refused(folder, "under the key 'x' (change with --config.data.label_text=NAME), fou", label_text="title+x")


def test_a_parent_that_is_no_key(tmp_path):
  for value in (True, 1.5, ["d"], {"d": 1}):
    write_labels(tmp_path, "jsonl", [ANIMALS[0] | {"parent": value}, *ANIMALS[1:]])
    refused(tmp_path, "labels.jsonl, line 1: expected the key of another label", label_parent="parent")


def test_long_chains_end_in_one_line(tmp_path):
  """A chain of n labels would become n² letters."""
  count = 3000
  rows = [f"{at},x,{at - 1 if at else ''}" for at in range(count)]
  samples.write(tmp_path / "train.csv", "text,labels\na,0\n")
  samples.write(tmp_path / "labels.csv", samples.lines(["id,title,parent", *rows]))
  refused(tmp_path, "labels.csv, line 1027: expected a path of at most 4,096 letters", label_parent="parent")
