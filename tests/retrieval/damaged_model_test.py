"""A damaged hybrid.json is refused in one line, or is what it was."""

import json

import numpy as np
import pytest

from xmc_jax.errors import UserError
from xmc_jax.retrieval import hybrid_model
from xmc_jax.retrieval.hybrid_model import HybridModel, fit
from xmc_jax.storage import checksums

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


def forged(path, text: str, **changes) -> None:
  """Writes it with changes and a checksum that fits."""
  content = json.loads(text) | changes
  del content["sha256"]
  path.write_text(checksums.to_json(content))


def test_a_file_that_is_only_written_anew_is_read(path, text, features):
  path.write_text(text)
  expected = HybridModel.load(path).probabilities(features)
  forged(path, text)
  assert HybridModel.load(path).probabilities(features).tobytes() == expected.tobytes()


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


@pytest.mark.parametrize(
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


# --- other programs, with a checksum that fits ---


@pytest.mark.parametrize("version", [3, 5, "4", None, {"a": "\n" * 50}])
def test_another_version(path, text, version):
  forged(path, text, version=version)
  assert "format version" in assert_refused(path)
