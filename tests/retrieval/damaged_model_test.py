"""A damaged or forged hybrid.json is refused in one line, or is what it was; it never ends the process."""

import json

import numpy as np
import pytest
from cases import each_case

from xmc_jax.errors import UserError
from xmc_jax.retrieval import hybrid_model
from xmc_jax.retrieval.hybrid_model import HybridModel, fit

NAMES = ["a", "b", "c"]
REFUSED = r"hybrid\.json: not readable \(.*\); delete it, and it is fitted anew, or give --scores=encoder$"


@pytest.fixture(scope="module")
def features():
  return np.random.default_rng(0).normal(size=(3000, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def text(features, tmp_path_factory):
  path = tmp_path_factory.mktemp("model") / "hybrid.json"
  right = features[:, 0] * features[:, 1] > 0.3
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(hybrid_model, "_NUM_TREES", 5)
    fit(NAMES, features, right, np.arange(3000) // 10).save(path)
  return path.read_text()


@pytest.fixture
def path(tmp_path):
  return tmp_path / "hybrid.json"


def assert_refused(path) -> str:
  with pytest.raises(UserError, match=REFUSED) as caught:
    HybridModel.load(path)
  assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
  return str(caught.value)


def forged(path, text: str, change) -> None:
  """Writes it with a change and a checksum that fits."""
  content = json.loads(text)
  del content["sha256"]
  change(content)
  path.write_text(json.dumps({**content, "sha256": hybrid_model._checksum(content)}))


def test_a_file_that_is_only_written_anew_is_read(path, text, features):
  path.write_text(text)
  expected = HybridModel.load(path).probabilities(features)
  forged(path, text, lambda content: None)
  assert HybridModel.load(path).probabilities(features).tobytes() == expected.tobytes()


def test_a_file_of_version_1_is_read_as_uncalibrated(path, text, features):
  def without_calibration(content):
    content.update(version=1)
    del content["calibration"]

  forged(path, text, without_calibration)
  found = HybridModel.load(path)
  log_odds = found.log_odds(features) @ found._joint[:2] + found._joint[2]
  np.testing.assert_allclose(found.probabilities(features), 1 / (1 + np.exp(-log_odds)), atol=1e-6)


# --- damage ---


def test_any_byte_that_changes(path, text, features):
  """Bits flipped, bytes gone and doubled, all along the file: refused, or of no meaning, as a space is."""
  path.write_text(text)
  expected = HybridModel.load(path).probabilities(features[:50]).tobytes()
  whole, rng, refused = text.encode(), np.random.default_rng(0), 0
  for place in range(0, len(whole), max(1, len(whole) // 120)):
    flipped = bytes([whole[place] ^ (1 << rng.integers(8))])
    for damaged in (flipped, b"", whole[place : place + 1] * 2, b"\xff", b"\0"):
      path.write_bytes(whole[:place] + damaged + whole[place + 1 :])
      try:
        found = HybridModel.load(path)
      except UserError as error:
        assert "\n" not in str(error)
        refused += 1
      else:
        assert found.probabilities(features[:50]).tobytes() == expected
  assert refused > 500


def test_any_end_that_is_missing(path, text):
  whole = text.encode()
  for length in [*range(0, len(whole) - 3, max(1, len(whole) // 200)), len(whole) - 3]:
    path.write_bytes(whole[:length])
    assert_refused(path)


@each_case(
  "content",
  [b"", b"\xff\xfe", b"[]", b"null", b"3", b'"hybrid"', b"{}", b"[" * 100_000, b"PK\x03\x04", b"1" * 5000],
  ids=lambda content: repr(content[:4]),
)
def test_other_files(path, content):
  path.write_bytes(content)
  assert_refused(path)


def test_a_folder_in_its_place(path):
  path.mkdir()
  assert_refused(path)


# --- forged, with a checksum that fits ---


@each_case("version", [0, 3, "1", None, {"a": "\n" * 50}])
def test_another_version(path, text, version):
  forged(path, text, lambda content: content.update(version=version))
  assert "format version" in assert_refused(path)


@each_case(
  "key, value",
  [
    ("format", "another"),
    ("features", NAMES[:2]),
    ("features", [*NAMES, "d"]),
    ("features", None),
    ("features", 3),
    ("features", "abc"),
    ("features", [1, 2, 3]),
    ("linear", []),
    ("linear", [0.0] * 3),
    ("linear", [0.0] * 5),
    ("linear", [[0.0] * 4]),
    ("linear", [0.0, 0.0, 0.0, float("nan")]),
    ("linear", [0.0, 0.0, float("-inf"), 0.0]),
    ("linear", [0.0, 0.0, 10**400, 0.0]),
    ("linear", ["x", 0.0, 0.0, 0.0]),
    ("linear", [None, 0.0, 0.0, 0.0]),
    ("linear", {"a": 1}),
    ("joint", [1.0, 1.0]),
    ("joint", [1.0, 1.0, float("nan")]),
    ("joint", 1.0),
    ("calibration", [1.0, 1.0]),
    ("calibration", [1.0, 1.0, float("nan")]),
    ("num_rows", "many"),
    ("num_rows", float("inf")),
    ("num_rows", float("nan")),
    ("num_rows", None),
    ("num_rows", []),
    ("trees", "tree\n"),
    ("trees", "\ud800"),
    ("trees", 5),
    ("trees", ["tree"]),
    ("trees", {"tree": 1}),
  ],
)
def test_values_that_cannot_be(path, text, key, value):
  forged(path, text, lambda content: content.update({key: value}))
  assert_refused(path)


@each_case("key", ["format", "version", "features", "linear", "joint", "trees", "num_rows"])
def test_values_that_are_missing(path, text, key):
  forged(path, text, lambda content: content.pop(key))
  assert_refused(path)


def test_no_checksum_or_a_wrong_one(path, text):
  for change in ({"sha256": None}, {"sha256": "0" * 64}, {"num_rows": 7}):
    path.write_text(json.dumps({**json.loads(text), **change}))
    assert "it was modified" in assert_refused(path)
  path.write_text(json.dumps({key: value for key, value in json.loads(text).items() if key != "sha256"}))
  assert_refused(path)


@each_case(
  "old, new",
  [
    ("left_child=", "left_child=0 "),  # one node more
    ("left_child=1 ", "left_child=0 "),  # to itself
    ("num_leaves=8", "num_leaves=9"),
    ("leaf_value=", "leaf_value=nan "),
    ("max_feature_idx=2", "max_feature_idx=3"),
    ("Tree=1\n", ""),
  ],
)
def test_trees_that_are_none(path, text, old, new):
  assert old in json.loads(text)["trees"]
  forged(path, text, lambda content: content.update(trees=content["trees"].replace(old, new, 1)))
  assert_refused(path)
