"""Prepared folders with damage that their files' sizes do not show: one line, or as good as whole."""

import io
import json
import os
import re
import shutil

import numpy as np
import pytest
import sample_folders as samples

from xmc_jax import data
from xmc_jax.errors import DataError


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  place = tmp_path_factory.mktemp("whole")
  tokenizer = data.train_tokenizer(["apple tree boat red view"], 80)
  return data.prepare(samples.index(place / "raw"), place / "out", tokenizer=tokenizer).folder


@pytest.fixture
def folder(whole, tmp_path):
  return shutil.copytree(whole, tmp_path / "out")


def refused(folder, match):
  with pytest.raises(DataError, match=match) as caught:
    data.load(folder).graphs  # noqa: B018 (opened when looked at)
  assert str(caught.value).endswith("; prepare the data again") and "\n" not in str(caught.value)
  assert len(str(caught.value).replace(str(folder), "")) < 400


def rewrite(folder, name, content):
  """Replaces a file, as if it had been prepared so."""
  (folder / name).write_bytes(content)
  manifest = json.loads((folder / "manifest.json").read_bytes())
  manifest["files"][name]["size"] = len(content)
  (folder / "manifest.json").write_text(json.dumps(manifest))


UNREADABLE = {"cut": '{"form', "list": "[]", "nested": "[" * 100_000, "not UTF-8": b'{"format": "\xff"}'}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_manifest_that_cannot_be_read(content, folder):
  samples.write(folder / "manifest.json", content)
  refused(folder, r"manifest\.json: expected JSON")


@pytest.mark.parametrize(
  ("changed", "said"),
  [
    ({"files": {"../raw/Y.txt": {"size": 1, "sha256": ""}}}, "the entry 'files' is damaged"),
    ({"version": 0}, "expected format version 1, found '0'"),
  ],
)
def test_manifest_of_another_content(changed, said, folder, whole):
  manifest = json.loads((folder / "manifest.json").read_bytes())
  (folder / "manifest.json").write_text(json.dumps({**manifest, **changed}))
  refused(folder, rf"manifest\.json: {said}")
  prepared = data.prepare(whole.parent / "raw", folder)
  assert "manifest.json" in prepared.why and data.load(folder).num_labels == 5


def npy(array: np.ndarray, header: bytes = b"") -> bytes:
  file = io.BytesIO()
  np.save(file, array)
  content = file.getvalue()
  return content[:10] + header.ljust(len(content[10:128]) - 1) + b"\n" + content[128:] if header else content


HUGE = b"{'descr': '<i8', 'fortran_order': False, 'shape': (9" + b"9" * 30 + b",), }"


@pytest.mark.parametrize("header", [b"{(", b"'''", HUGE, b"\xff" * 9])
def test_npy_with_a_damaged_header(header, folder):
  rewrite(folder, "train.truth.values.npy", npy(np.ones(5, np.float32), header))
  refused(folder, r"train\.truth\.values\.npy: not readable \(.*; prepare the data again")


SHAPE = "expected one dimension of type uint8, found uint8 of shape (3, 3)"
GROW = "expected offsets that grow from 0 to"
OF_ROWS = "columns_offsets.npy: expected offsets of 5 rows"


@pytest.mark.parametrize(
  ("name", "array", "said"),
  [
    ("labels.texts", np.zeros((3, 3), np.uint8), SHAPE),
    ("labels.texts", np.zeros(30, ">i4"), "expected one dimension of type uint8, found >i4"),
    ("labels.tokens", np.zeros(30, np.int64), "one dimension of type uint16 or int32, found int64"),
    ("labels.texts_offsets", np.zeros(0, np.int64), f"{GROW} 30"),
    ("labels.texts_offsets", np.array([0, 5, 99, 7, 19, 27]), GROW),
    ("labels.texts_offsets", np.array([1, 5, 9, 27]), GROW),
    ("test.truth.columns", np.zeros(1, np.int32), f"{GROW} 1, the length of test.truth"),
    ("test.truth.values", np.zeros(1, np.float32), "test.truth.values.npy: expected 3 values, found 1"),
    ("train.filter.columns_offsets", np.array([0, 2]), OF_ROWS),
    ("graph.kind.label_edges.columns_offsets", np.array([0, 3]), OF_ROWS),
  ],
)
def test_npy_of_another_content(name, array, said, folder):
  rewrite(folder, f"{name}.npy", npy(array))
  refused(folder, re.escape(said))


def test_fewer_token_rows_than_texts(folder):
  rewrite(folder, "labels.tokens_offsets.npy", npy(np.array([0, len(np.load(folder / "labels.tokens.npy"))])))
  refused(folder, "labels.tokens_offsets.npy: expected offsets of 5 rows, found 1")


def test_a_flipped_letter_costs_that_letter(folder):
  path = folder / "labels.texts.npy"
  content = path.read_bytes()
  path.write_bytes(content.replace("grün".encode(), b"gr\xff\xffn"))
  dataset = data.load(folder)
  assert list(dataset.labels.texts)[:2] == [dataset.labels.texts[0], "gr\ufffd\ufffdn"]


def test_names_that_are_not_utf8(tmp_path):
  """Python holds their bytes as lone surrogates, which the manifest must hold as well."""
  raw = samples.index(tmp_path / os.fsdecode(b"r\xffw"))
  for path in list(raw.glob("kind_*")):
    path.rename(raw / path.name.replace("kind", os.fsdecode(b"k\xe9nd")))
  dataset = data.load(raw, cache_dir=tmp_path / "cache")
  assert list(dataset.graphs) == [os.fsdecode(b"k\xe9nd")]
  assert data.prepare(raw, dataset.folder).why == ""
