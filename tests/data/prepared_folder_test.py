"""Prepared folders: reused while they fit, rebuilt when they do not, whole or not there at all."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import sample_folders as samples

from xmc_jax import data
from xmc_jax.config import cache_root
from xmc_jax.data import prepared
from xmc_jax.errors import DataError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tokenizer():
  return data.train_tokenizer(["apple tree boat water green grün red view pear dunes nothing"], 120)


@pytest.fixture
def folder(tmp_path):
  return samples.index(tmp_path / "raw")


def files_of(folder: Path) -> dict:
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_reused_while_nothing_changed(folder, tmp_path, tokenizer):
  out = tmp_path / "out"
  first = data.prepare(folder, out, tokenizer=tokenizer, tokenizer_name="tiny")
  assert first.why == "not prepared yet" and first.folder == out
  before = {path.name: path.stat().st_ino for path in out.iterdir()}
  again = data.prepare(folder, out, tokenizer=tokenizer, tokenizer_name="tiny")
  assert again.why == "" and again.manifest == first.manifest
  assert {path.name: path.stat().st_ino for path in out.iterdir()} == before
  os.utime(folder / "Y.txt")
  moved = folder.rename(tmp_path / "moved")
  assert data.prepare(moved, out, tokenizer=tokenizer, tokenizer_name="tiny").why == ""


def test_manifest(folder, tmp_path, tokenizer):
  manifest = data.prepare(folder, tmp_path / "out", tokenizer=tokenizer, tokenizer_name="tiny").manifest
  assert manifest["tokenizer"]["name"] == "tiny" and manifest["tokenizer"]["max_length"] == 32
  assert {entry["name"] for entry in manifest["sources"]} == {path.name for path in folder.iterdir()}
  for name, entry in manifest["files"].items():
    assert (tmp_path / "out" / name).stat().st_size == entry["size"]
    assert entry["sha256"] == prepared.sha256(tmp_path / "out" / name)
  assert manifest == data.read_manifest(tmp_path / "out")


def test_title_says_what_the_tokenizer_is(folder, tmp_path, tokenizer):
  def title(**options):
    return data.summary(data.prepare(folder, tmp_path / "out", **options).manifest).split("\n")[0]

  tokens = r"raw \(index layout; tokens of {}, at most 16 a text\)"
  named = title(tokenizer=tokenizer, tokenizer_name="tiny", max_length=16)
  assert re.fullmatch(tokens.format("tiny"), named)
  unnamed = title(tokenizer=tokenizer, max_length=16)
  assert re.fullmatch(tokens.format("tokenizer [0-9a-f]{8}"), unnamed)
  assert title() == "raw (index layout; no tokens)"


def test_same_input_same_bytes(folder, tmp_path, tokenizer):
  for name in ("a", "b"):
    data.prepare(folder, tmp_path / name, tokenizer=tokenizer)
  one, two = files_of(tmp_path / "a"), files_of(tmp_path / "b")
  for content in (one, two):
    content.pop("manifest.json")
  assert one == two


@pytest.mark.parametrize("settled", [False, True])
def test_changed_source_is_noticed(settled, folder, tmp_path):
  if settled:  # old time stamps allow the shortcut by size and time
    for path in folder.iterdir():
      os.utime(path, (1e9, 1e9))
  data.prepare(folder, tmp_path / "out")
  samples.write(folder / "tst_X.txt", "PEAR\ndunes\nnothing\n")
  assert data.prepare(folder, tmp_path / "out").why == "tst_X.txt has changed"
  assert data.load_prepared(tmp_path / "out").test.texts[0] == "PEAR"


def test_added_source_is_noticed(folder, tmp_path):
  data.prepare(folder, tmp_path / "out")
  (folder / "trn_filter_labels.txt").unlink()
  assert data.prepare(folder, tmp_path / "out").why == "there are other source files now"


def test_other_options_are_noticed(folder, tmp_path, tokenizer):
  def why(**options):
    return data.prepare(folder, tmp_path / "out", **options).why

  why(tokenizer=tokenizer)
  assert why(tokenizer=tokenizer, max_length=8) == "prepared with another tokenizer"
  assert why(tokenizer=data.train_tokenizer(["xyz"], 50), max_length=8) == "prepared with another tokenizer"
  assert why() == "prepared with another tokenizer"
  assert why(split_seed=3) == "prepared with another options"


@pytest.mark.parametrize("name, how", [("train.texts.npy", "cut"), ("labels.texts_offsets.npy", "missing")])
def test_damaged_folder_is_rebuilt_never_used(name, how, folder, tmp_path):
  out = tmp_path / "out"
  data.prepare(folder, out)
  whole = (out / name).read_bytes()
  (out / name).unlink()
  if how == "cut":
    (out / name).write_bytes(whole[:-1])
  with pytest.raises(DataError, match=rf"{name} .*; prepare the data again"):
    data.load_prepared(out)
  assert data.prepare(folder, out).why.startswith(name)
  assert (out / name).read_bytes() == whole


VERSION_0 = json.dumps({"format": prepared.FORMAT, "version": 0})


@pytest.mark.parametrize(
  ("content", "said"),
  [
    ('{"form', "expected JSON"),
    (b'{"format": "\xff"}', "expected JSON"),
    (VERSION_0, "expected format version 1, found '0'"),
  ],
)
def test_manifest_that_cannot_be_used(content, said, folder, tmp_path):
  out = data.prepare(folder, tmp_path / "out").folder
  samples.write(out / "manifest.json", content)
  with pytest.raises(DataError, match=rf"manifest\.json: {said}; prepare the data again$"):
    data.load(out)
  assert "manifest.json" in data.prepare(folder, out).why and data.load(out).num_labels == 5


def test_damage_that_leaves_sizes(folder, tmp_path):
  """A letter costs that letter; a header, one line."""
  path = data.prepare(folder, tmp_path / "out").folder / "labels.texts.npy"
  path.write_bytes(path.read_bytes().replace("grün".encode(), b"gr\xff\xffn"))
  assert list(data.load(path.parent).labels.texts)[:2] == [samples.LABELS[0], "gr\ufffd\ufffdn"]
  path.write_bytes(path.read_bytes().replace(b"descr", b"'''''"))
  with pytest.raises(DataError, match=r"labels\.texts\.npy: not readable \(.*\); prepare the data again$"):
    data.load(path.parent)


def test_names_that_are_not_utf8(tmp_path):
  """Python holds their bytes as lone surrogates, which the manifest must hold as well."""
  raw = samples.index(tmp_path / os.fsdecode(b"r\xffw"))
  for path in list(raw.glob("kind_*")):
    path.rename(raw / path.name.replace("kind", os.fsdecode(b"k\xe9nd")))
  dataset = data.load(raw, cache_dir=tmp_path / "cache")
  assert list(dataset.graphs) == [os.fsdecode(b"k\xe9nd")]
  assert data.prepare(raw, dataset.folder).why == ""


def test_foreign_folder_is_left_alone(folder, tmp_path):
  samples.write(tmp_path / "out" / "thesis.tex", "years of work")
  with pytest.raises(DataError, match=r"out: not a prepared folder \(it holds thesis\.tex\), so it is left"):
    data.prepare(folder, tmp_path / "out")
  assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


CHILD = """
import os, signal, sys
from xmc_jax import data
folder, out, stage = sys.argv[1:]
def progress(now, done, total):
  if now == stage and done == total:
    os.kill(os.getpid(), signal.SIGKILL)
print(data.prepare(folder, out, progress=progress).why)
"""


def child(*args) -> subprocess.Popen:
  command = [sys.executable, "-c", CHILD, *map(str, args)]
  return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("why", ["not prepared yet", "tst_X.txt has changed"])
def test_killed_before_the_rename_leaves_nothing_half_and_what_was_there(why, folder, tmp_path):
  out, before = tmp_path / "place" / "out", None
  if why != "not prepared yet":
    before = files_of(data.prepare(folder, out).folder)
    samples.write(folder / "tst_X.txt", "other\ntexts\nhere\n")
  killed = child(folder, out, "checksums")
  killed.communicate()
  assert killed.returncode == -signal.SIGKILL
  assert any("building" in path.name for path in out.parent.iterdir())
  assert (files_of(out) if out.exists() else None) == before
  assert data.prepare(folder, out).why == why
  assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_two_processes_at_once(folder, tmp_path):
  out = tmp_path / "place" / "out"
  running = [child(folder, out, "") for _ in range(3)]
  reasons = [process.communicate()[0].strip() for process in running]
  assert [process.returncode for process in running] == [0, 0, 0]
  assert sorted(reasons) == ["", "", "not prepared yet"]
  assert list(data.load_prepared(out).test.texts) == [text for text, _ in samples.TEST]
  assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_open_dataset_outlives_a_rebuild(folder, tmp_path):
  old = data.load(folder, cache_dir=tmp_path / "cache")
  samples.write(folder / "tst_X.txt", "other\ntexts\nhere\n")
  new = data.load(folder, cache_dir=tmp_path / "cache")
  assert old.folder == new.folder
  assert old.test.texts[0] == "pear" and new.test.texts[0] == "other"


def test_load_keeps_one_folder_for_each_way_of_reading(folder, tmp_path, tokenizer):
  options = ({}, {"tokenizer": tokenizer}, {"tokenizer": tokenizer, "max_length": 8}, {})
  opened = [data.load(folder, cache_dir=tmp_path / "cache", **each) for each in options]
  assert len({dataset.folder for dataset in opened}) == 3
  assert opened[0].folder == opened[3].folder
  assert data.load(opened[1].folder).train.tokens is not None


def test_default_cache(folder, monkeypatch, tmp_path):
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path / "mine"))
  assert data.load(folder).folder.parent == tmp_path / "mine"
  monkeypatch.delenv("XMC_JAX_CACHE")
  assert cache_root() == Path.home() / ".cache" / "xmc_jax"


def test_progress_and_reading_without_writing(folder, tmp_path):
  seen = []
  data.prepare(folder, tmp_path / "out", progress=lambda *step: seen.append(step))
  assert ("train", 5, 5) in seen and ("labels", 5, None) in seen and seen[-1][0] == "checksums"
  seen.clear()
  data.prepare(folder, tmp_path / "out", progress=lambda *step: seen.append(step))
  assert seen == []


@pytest.mark.parametrize("linked", [True, False])
def test_link_into(linked, folder, tmp_path, monkeypatch):
  if not linked:
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(18, "another disk")))
  source = data.prepare(folder, tmp_path / "out").folder
  run = data.link_into(source, tmp_path / "run" / "data")
  assert files_of(run) == files_of(source)
  name = "train.texts.npy"
  assert (run / name).samefile(source / name) == linked
  stamp = (run / name).stat().st_ino
  data.link_into(source, run)
  assert (run / name).stat().st_ino == stamp
  (run / name).unlink()
  data.link_into(source, run)
  for path in source.iterdir():
    path.unlink()
  assert len(data.load_prepared(run).train) == 5
  with pytest.raises(DataError, match="not a prepared folder"):
    data.link_into(source, run)


def test_flat_arrays_are_memory_mapped(folder, tmp_path):
  dataset = data.load_prepared(data.prepare(folder, tmp_path / "out").folder)
  with pytest.raises(ValueError, match="read-only"):
    dataset.train.truth.data[0] = 2
  assert isinstance(dataset.train.truth[np.array([2, 0])].indices, np.ndarray)


def test_import_is_quick():
  heavy = ("jax", "flax", "pyarrow")
  code = f"import sys, xmc_jax.data; print([name for name in {heavy} if name in sys.modules])"
  start = time.perf_counter()
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
  assert done.stdout.strip() == "[]"
  assert time.perf_counter() - start < 10
