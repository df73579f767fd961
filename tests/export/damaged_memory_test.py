"""Exported memories that are damaged, or forged: each is refused in one line that names the file."""

import numpy as np
import pytest

from tests.export import made_runs
from xmc_jax import export
from xmc_jax.errors import UserError
from xmc_jax.storage import checksums


@pytest.fixture(scope="module")
def exported(folder):
  return made_runs.exported(folder, "unidec", "hybrid") / "export"


def refusal(folder) -> str:
  with pytest.raises(UserError) as caught:
    export.Exported.load(folder).predict(["x"], 1)
  assert "\n" not in str(caught.value) and "export again" in str(caught.value)
  return str(caught.value)


@pytest.mark.parametrize("name", ["memory/points.npy", "memory/manifest.json", "index/labels_encoder.npy"])
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
  else:  # has no checksum
    np.save(path, np.load(path)[:-1])
  assert path.name in refusal(copied)
  path.write_bytes(before)
  assert export.Exported.load(copied).predict(["x"], 1)[0].shape == (1, 1)


@pytest.mark.parametrize(
  ("name", "change"),
  [
    ("points.npy", lambda array: array[:-1]),
    ("point_labels.npy", lambda array: np.append(array[:-1], np.int32(60))),
    ("point_labels.npy", lambda array: np.append(array[:-1], np.int32(-1))),
    ("point_labels.npy", lambda array: array[:-1]),
    ("point_labels_offsets.npy", lambda array: array[:-1]),
  ],
)
def test_files_that_do_not_fit_each_other(copied, name, change):
  memory = copied / "memory"
  record = checksums.read_record(memory)
  np.save(memory / name, change(np.load(memory / name)))
  checksums.write_manifest(memory, record)
  assert name in refusal(copied)
