"""Exported memories that are damaged, or forged: each is refused in one line that names the file."""

import json
import shutil

import numpy as np
import pytest

from tests.export import made_runs
from xmc_jax import export
from xmc_jax.errors import DataError
from xmc_jax.export import exported as exported_module
from xmc_jax.storage import checksums


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
  folder = made_runs.write_data(tmp_path_factory.mktemp("damaged"))
  workdir = made_runs.made(folder, "unidec", "hybrid")
  export.export(workdir)
  return workdir / "export"


@pytest.fixture
def copied(exported, tmp_path):
  return shutil.copytree(exported, tmp_path / "copied")


def refusal(folder) -> str:
  with pytest.raises(DataError) as caught:
    export.Exported.load(folder).predict(["x"], 1)
  assert "\n" not in str(caught.value) and "export again" in str(caught.value)
  return str(caught.value)


FILES = [
  *(
    f"memory/{name}"
    for name in ("points.npy", "points.jsonl", "point_labels.npy", "point_labels_offsets.npy")
  ),
  *("memory/hybrid.json", "memory/seal.json", "index/labels_encoder.npy", "index/labels_classifier.npy"),
]


@pytest.mark.parametrize("name", FILES)
def test_missing_and_cut_and_changed_files(copied, name):
  path = copied / name
  before = path.read_bytes()
  path.unlink()
  assert path.name in refusal(copied)
  path.write_bytes(before[: len(before) // 2])
  assert path.name in refusal(copied)
  path.write_bytes(before)
  if path.parent.name == "memory":
    path.write_bytes(before[:-3] + bytes([before[-3] ^ 1]) + before[-2:])
    assert path.name in refusal(copied)
    path.write_bytes(before)
  assert export.Exported.load(copied).predict(["x"], 1)[0].shape == (1, 1)


def change_array(name, change):
  def done(memory):
    np.save(memory / name, change(np.load(memory / name)))

  return name, done


def change_text(name, change):
  def done(memory):
    (memory / name).write_text(change((memory / name).read_text()))

  return name, done


def pickled(memory):
  np.save(memory / "points.npy", np.array([{"a": 1}], object), allow_pickle=True)


def first_set(value):
  def change(array):
    array[0] = value
    return array

  return change


def model_with(key, value):
  def change(text):
    content = {**json.loads(text), key: value}
    content.pop("sha256")
    from xmc_jax.retrieval import hybrid_model

    return json.dumps({**content, "sha256": hybrid_model._checksum(content)})

  return change


FORGED = [
  change_array("points.npy", lambda array: array[:-1]),
  change_array("points.npy", lambda array: array[:, :-1]),
  change_array("points.npy", lambda array: array.astype(np.float64)),
  change_array("points.npy", np.ravel),
  ("points.npy", pickled),
  change_text("points.jsonl", lambda text: text[: text.rindex("{")]),
  change_text("points.jsonl", lambda text: text.replace('"id": 3,', '"id": 4,')),
  change_text("points.jsonl", lambda text: "[" * 100_000),
  change_array("point_labels.npy", first_set(60)),
  change_array("point_labels.npy", first_set(-1)),
  change_array("point_labels.npy", lambda array: array.astype(np.float32)),
  change_array("point_labels.npy", lambda array: array[:-1]),
  change_array("point_labels_offsets.npy", first_set(1)),
  change_array("point_labels_offsets.npy", lambda array: array[::-1].copy()),
  change_array("point_labels_offsets.npy", lambda array: array[:-1]),
  ("point_votes.npy", lambda memory: np.save(memory / "point_votes.npy", np.zeros(3, np.float32))),
  change_text("hybrid.json", lambda text: "{}"),
  change_text("hybrid.json", model_with("features", ["a"])),
  change_text("hybrid.json", model_with("trees", 3)),
]


@pytest.mark.parametrize(("name", "change"), FORGED)
def test_what_is_sealed_anew_is_looked_at(copied, name, change):
  memory = copied / "memory"
  record = checksums.read_record(memory)
  change(memory)
  checksums.write_manifest(memory, record)
  assert name in refusal(copied)


@pytest.mark.parametrize(
  "record", [{}, {"temperature": 0}, {"temperature": "1"}, {"temperature": float("nan")}]
)
def test_a_forged_record(copied, record):
  checksums.write_manifest(copied / "memory", record)
  assert "seal.json" in refusal(copied)


def test_a_forged_seal(copied):
  path = copied / "memory" / "seal.json"
  for content in ({"files": {"points.npy": 3}, "record": {}}, {"files": [], "record": {}}, {"record": []}):
    path.write_text(json.dumps({**content, "sha256": checksums._own_checksum(content)}))
    assert "seal.json" in refusal(copied)


@pytest.mark.parametrize("views", ["x", [], ["classifier"], ["encoder", "../../x"], [1]])
def test_forged_facts(copied, views):
  path = copied / "export.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), "views": views}))
  assert "export.json" in refusal(copied)


def test_views_of_another_shape(copied):
  path = copied / "index" / "labels_encoder.npy"
  np.save(path, np.load(path)[:-1])
  assert path.name in refusal(copied)


def test_an_export_of_the_version_before_is_refused(copied):
  path = copied / "export.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), "version": 1}))
  assert "expected format version 2, found 1" in refusal(copied)
  assert exported_module.is_export(copied)  # so that a new export replaces it
