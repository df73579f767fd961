"""What docs/data.md shows is read and refused as it says, and docs/troubleshooting.md quotes the source."""

import ast
import pathlib
import re

import pytest

from tests.docs.documents_test import FENCED, ROOT
from xmc_jax import data
from xmc_jax.errors import DataError

GUIDE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
_FILE = re.compile(r"==> (\S+) <==\n(.*?)(?=^==> |\Z)", re.M | re.S)


def sections() -> dict[str, list[dict[str, str]]]:
  """The files of each section's blocks: [{name: text}, ...] by title."""
  found = {}
  for part in re.split(r"^## ", GUIDE, flags=re.M)[1:]:
    made = [dict(_FILE.findall(text)) for _, text in FENCED.findall(part) if text.startswith("==> ")]
    found[part.partition("\n")[0]] = made
  return found


def code_of(section: str) -> list[str]:
  """The Python blocks of a section."""
  part = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", GUIDE, re.M | re.S)
  return [text for language, text in FENCED.findall(part[1]) if language == "python"]


FILES = sections()
RAW = FILES["XMC repository, raw text"][0]


def read(folder: pathlib.Path, files: dict[str, str], **options) -> data.Dataset:
  folder.mkdir()
  for name, text in files.items():
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
  return data.load(folder, cache_dir=folder.with_name("cache"), **options)


def test_tables(tmp_path):
  train, test, lines, keyed = FILES["Tables"]
  found = read(tmp_path / "csv", train | test)
  assert (len(found.train), len(found.test), found.num_labels) == (3, 1, 4)
  assert list(found.train.truth.sum(1).flat) == [2, 2, 0]
  found = read(tmp_path / "jsonl", lines)
  assert (len(found.train), len(found.test), found.num_labels) == (4, 1, 4)
  found = read(tmp_path / "keyed", keyed)
  assert list(found.labels.texts) == ["sound and music", "desktop environments", "the X window system"]
  assert list(found.test.truth.toarray()[0]) == [1, 1, 0]


def test_a_parquet_table_and_matrices(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for block in (*code_of("Tables"), *code_of("DEXML and PECOS")):
    exec(block, {})
  assert data.load("train.parquet", cache_dir="cache", test_fraction=0).train.truth.nnz == 2
  index = FILES["XMC repository, index files"][0]
  (tmp_path / "Y.trn.npz").rename(tmp_path / "Y.tst.npz") and (tmp_path / "train.parquet").unlink()
  (tmp_path / "Y.trn.npz").write_bytes((tmp_path / "Y.tst.npz").read_bytes())
  for name in ("X.trn.txt", "X.tst.txt"):
    (tmp_path / name).write_text(index["trn_X.txt"])
  (tmp_path / "Y.txt").write_text(index["Y.txt"])
  assert data.load(tmp_path, cache_dir="cache").manifest["layout"] == "pecos"


def test_shards(tmp_path):
  found = read(tmp_path / "shards", FILES["Shards"][0])
  assert list(found.train.texts) == ["a window manager for X11", "plays music from the command line"]
  assert len(found.test) == 1 and found.num_labels == 4


def test_a_hugging_face_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  exec(*code_of("Hugging Face data sets"), {})
  for folder in ("debian", "debian/train"):
    found = data.load(folder, cache_dir="cache", test_fraction=0)
    assert list(found.labels.texts) == ["desktop", "x11", "audio"]
    assert found.train.truth.toarray().tolist() == [[1, 1, 0], [0, 0, 0]]


def test_label_descriptions_and_hierarchies(tmp_path):
  (files,) = FILES["Label descriptions and hierarchies"]
  settings = dict(re.findall(r"^\| `data\.(label_text|label_parent)=(\S+)`", GUIDE, re.M))
  found = read(tmp_path / "raw", files, test_fraction=0, **settings)
  assert found.labels.texts[2] == re.search(r"`p` has the text `(.*)`\.", GUIDE)[1]
  assert found.train.truth.toarray().tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
  plain = data.load(tmp_path / "raw", cache_dir=tmp_path / "cache")
  assert list(plain.labels.texts) == ["animals", "dogs", "poodle"]
  assert [note for note in plain.manifest["notices"] for name in settings if f"data.{name}=" in note]


def test_data_in_python(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for block in code_of("Data in Python"):
    exec(block, {})
  pandas, polars, csr = (data.load(f"from_{kind}", cache_dir="cache") for kind in ("pandas", "polars", "csr"))
  assert list(pandas.labels.texts) == list(polars.labels.texts) == ["audio", "desktop", "x11"]
  for found in (pandas, polars):
    assert found.train.truth.toarray().tolist() == [[0, 1, 1], [1, 0, 0]]
  assert polars.test.truth.toarray().tolist() == [[1, 1, 0]]
  assert csr.labels.texts[2] == "the X window system" and csr.train.truth.toarray()[0].tolist() == [1, 0, 1]


def test_index_files_filters_and_graphs(tmp_path):
  names = ("XMC repository, index files", "Filters", "Graphs")
  (index,), (filters,), (graph,) = (FILES[name] for name in names)
  for name, files in (("raw", RAW), ("index", index)):
    found = read(tmp_path / name, files | filters | graph)
    assert found.train.truth.toarray().tolist() == [[1, 0, 1], [0, 1, 0]] and found.train.filter.nnz == 2
    assert found.graphs["tags"].query_edges.shape == (2, 2) and found.graphs["tags"].label_edges.nnz == 3


def spoilt(files: dict[str, str], name: str, old: str, new: str) -> dict[str, str]:
  assert old in files[name]
  return files | {name: files[name].replace(old, new, 1)}


_SHARDS, _TREE = FILES["Shards"][0], FILES["Label descriptions and hierarchies"][0]
_INDEX, (_CSV, _TEST, *_) = FILES["XMC repository, index files"][0], FILES["Tables"]


@pytest.mark.parametrize(
  "files",
  [
    spoilt(RAW, "trn.json", RAW["trn.json"].splitlines()[1], '{"title": "moc'),
    spoilt(RAW, "trn.json", "[0, 2]", "[0, 7]"),
    spoilt(_INDEX, "trn_X_Y.txt", "0:1", "0:nan"),
    spoilt(_INDEX, "trn_X_Y.txt", "2 3", "3 3"),
    spoilt(_INDEX, "trn_X.txt", "audio player\n", "audio player\na third text\n"),
    spoilt(_CSV | _TEST, "train.csv", ',"audio;console"', ""),
    spoilt(_CSV | _TEST, "train.csv", '"edits pictures",', '"edits pictures,'),
    spoilt(_CSV | _TEST, "train.csv", "labels", "topic"),
    spoilt(RAW | FILES["Filters"][0], "filter_labels_train.txt", "0 1", "0 9"),
    {name: text for name, text in _SHARDS.items() if "00001-of" not in name or "test" in name},
    spoilt(_TREE, "labels.csv", 'bark",a', 'bark",x'),
    spoilt(_TREE, "labels.csv", "animals,,", "animals,,d"),
  ],
)
def test_what_is_refused_is_said_as_the_guide_says(tmp_path, files):
  options = {"label_parent": "parent"} if "parent" in files.get("labels.csv", "") else {}
  with pytest.raises(DataError) as refused:
    read(tmp_path / "raw", files, **options)
  assert f"| `{str(refused.value).replace(f'{tmp_path}/raw/', '')}` |" in GUIDE


@pytest.mark.parametrize(
  ("name", "old", "new"),
  [
    ("data-00000-of-00001.arrow", (1).to_bytes(8, "little") + bytes(8), (7).to_bytes(8, "little") + bytes(8)),
    ("data-00000-of-00001.arrow", b"\xff\xff\xff\xff\0\0\0\0", b""),
    ("state.json", b"data-00000-of-00001.arrow", b"../x.arrow"),
  ],
)
def test_what_is_refused_of_a_hugging_face_folder(tmp_path, monkeypatch, name, old, new):
  monkeypatch.chdir(tmp_path)
  exec(*code_of("Hugging Face data sets"), {})
  path = tmp_path / "debian" / "train" / name
  before, found, after = path.read_bytes().rpartition(old)
  assert found
  path.write_bytes(before + new + after)
  with pytest.raises(DataError) as refused:
    data.load("debian", cache_dir="cache")
  assert f"| `{str(refused.value).replace('debian/', '')}` |" in GUIDE


# --- messages ---


def texts_of_the_source() -> list[str]:
  """Every string of the package, what is put in it left out."""
  found = []
  for path in (ROOT / "xmc_jax").rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
        found.append("".join(parts))
      elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        found.append(node.value)
  return found


def quoted() -> list[str]:
  cells = re.findall(r"^\| (`.*?`.*?) \| ", TROUBLE, re.M)
  return [quote for cell in cells for quote in re.findall(r"`([^`]+)`", cell)]


def test_messages_are_still_ours():
  source = "\n".join(texts_of_the_source())
  pieces = [
    (quote, piece.strip(" .,;:'()?"))
    for quote in quoted()
    for piece in re.split(r"…|^expected |, found |set --config\.", quote)
    if len(piece.strip(" .,;:'()?")) > 3
  ]
  assert len(quoted()) >= 40
  assert set(quoted()) == {quote for quote, _ in pieces}, "a quote without fixed words"
  assert not [(quote, piece) for quote, piece in pieces if piece not in source]
