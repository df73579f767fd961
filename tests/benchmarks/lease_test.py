"""A lease, rehearsed with small sizes: facts come in order of worth, and a cut leaves what came before."""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks.accelerator import dexml_step, facts, lease, operations, pack
from tests import versions

ROOT = pathlib.Path(__file__).parents[2]
_OUT = ROOT / "docs" / "results" / "lease" / "h100.jsonl"
# What the machine has that this project needs; versions are those that it told. PyTorch is there, too.
_THERE = ("jax", "flax", "optax", "orbax-checkpoint", "transformers", "tokenizers", "numpy", "scipy")
_ANY_VERSION = ("scikit-learn", "matplotlib", "tqdm", "safetensors", "threadpoolctl", "flatbuffers", "jinja2")
_OPERATIONS = 15


def _options(folder: pathlib.Path, **changes):
  usual = {"part": "first", "out": folder, "packed": folder, "tiny": True, "seconds": 60.0}
  return argparse.Namespace(**{**usual, "started": time.time(), **changes})


def test_a_kill_at_any_moment_leaves_whole_facts(tmp_path):
  program = (
    "import pathlib; from benchmarks.accelerator.facts import Facts\n"
    f"found, number = Facts(pathlib.Path({str(tmp_path)!r}), 0), 0\n"
    "while True: found.add('long', number=(number := number + 1), text='x' * 5000)"
  )
  times, written = random.Random(0), 0
  for kill in range(10):
    command, silent = [sys.executable, "-c", program], {"stdout": subprocess.DEVNULL}
    writers = [subprocess.Popen(command, cwd=ROOT, **silent) for _ in range(2)]
    file = tmp_path / facts.FILE
    while not file.exists() or file.stat().st_size == written:
      time.sleep(0.01)
    time.sleep(times.uniform(0, 0.1))
    for writer in writers:
      writer.kill()
      writer.wait()
    found = facts.read(file)
    assert {len(one["text"]) for one in found} == {5000}
    lines = sum(map(bool, file.read_bytes().split(b"\n")))
    assert lines - 2 * (kill + 1) <= len(found) <= lines  # of each writer at most its last one is cut
    written = file.stat().st_size


def test_a_fact_that_was_cut_does_not_spoil_the_next_one(tmp_path):
  (tmp_path / facts.FILE).write_text('{"fact": "whole"}\n{"fact": "cu')
  facts.Facts(tmp_path, 0).add("next")
  assert [one["fact"] for one in facts.read(tmp_path / facts.FILE)] == ["whole", "next"]


def test_a_part_that_fails_or_outlasts_the_time_is_a_fact(tmp_path):
  one = lease.Lease(_options(tmp_path, seconds=lease._SPARE + 3), tmp_path)
  one.start("broken", ["no_such_module"])
  assert not one.wait("broken")
  one.start("endless", ["timeit", "-n", "1", "while True: pass"])
  assert not one.wait("endless")
  broken, endless = facts.read(tmp_path / facts.FILE)
  assert broken["fact"] == "broken" and "No module named no_such_module" in broken["failed"]
  assert endless["fact"] == "endless" and endless["failed"] == "cut: the time is over" and endless["at"] >= 3


def test_model_flops_are_those_of_real_tokens():
  """By hand: DistilBERT has 6 layers 768 wide, of whose last CLS pooling reads one token alone."""

  def forward(tokens):
    layer = 2 * tokens * (4 * 768**2 + 2 * 768 * 3072) + 2 * 2 * tokens**2 * 768
    last = 2 * tokens * 2 * 768**2 + 2 * (2 * 768**2 + 2 * 768 * 3072) + 2 * 2 * tokens * 768
    return 5 * layer + last

  config = dexml_step.config_of("lf_amazontitles_131k")
  by_hand = 3 * (4096 * forward(16) + 131_072 * forward(12) + 2 * 4096 * 131_072 * 768)
  assert dexml_step.flops(config) == pytest.approx(by_hand)
  assert by_hand < 489.5e12  # what XLA's program does, which encodes most labels twice


def test_an_operation_that_differs_from_float64_is_seen(tmp_path, monkeypatch):
  """References hold one operation; the other result of it is a tenth too long."""
  of = operations.problems(*operations.TINY)["softmax"]
  monkeypatch.setattr(operations, "problems", lambda *sizes, dtype=np.float32: {"softmax": of})
  operations.write(file := tmp_path / "references.npz", operations.TINY)
  assert dict(operations.differences(file, operations.TINY)) == {"softmax": pytest.approx(0, abs=1e-7)}
  arrays = dict(np.load(file))
  np.savez(file, **{**arrays, "softmax/1/value": 1.1 * arrays["softmax/1/value"]})
  (share,) = dict(operations.differences(file, operations.TINY)).values()
  assert share > operations.MOST


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
  """Returns a Python with the lent machine's packages, and the folder that pack.py fills, without weights."""
  if not versions.is_installed("3.12"):
    pytest.skip("the lent machine has Python 3.12, and uv finds none here")
  folder = tmp_path_factory.mktemp("machine")
  there = facts.read(_OUT)[0]["versions"]
  pinned = [f"{name}=={there[name]}" for name in _THERE]
  versions.uv("venv", "--no-python-downloads", "--python", "3.12", folder / "environment")
  versions.uv("pip", "install", "--python", folder / "environment", *pinned, *_ANY_VERSION)
  pack.wheels(folder / "packed" / "wheels", "3.12")
  command = [sys.executable, "-m", "benchmarks.accelerator.operations", "--tiny"]
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
  file = folder / "packed" / "references_tiny.npz"
  subprocess.run([*command, str(file)], check=True, cwd=ROOT, env=environment)
  return folder / "environment" / "bin" / "python", folder / "packed"


def _rehearsed(machine, command: str, out: pathlib.Path) -> list[dict]:
  python, packed = machine
  arguments = [command, "--tiny", f"--out={out}", f"--packed={packed}", "--seconds=900"]
  flags = os.environ["XLA_FLAGS"].replace("--xla_cpu_use_fusion_emitters=false", "")  # unknown to that jaxlib
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
  lines = [python, "-m", "benchmarks.accelerator.lease", *arguments]
  subprocess.run(lines, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
  return facts.read(out / facts.FILE)


@pytest.mark.slow
def test_the_first_command_on_that_machines_packages(machine, tmp_path):
  found = _rehearsed(machine, "first", tmp_path)
  failed = [one for one in found if "failed" in one]
  assert [one["fact"] for one in failed] == ["peer"] and "No module named 'torch'" in failed[0]["failed"]
  of = {one["fact"]: one for one in found}
  names = [*dict.fromkeys(one["fact"] for one in found if one["fact"] not in ("operation", "method", "peer"))]
  assert names[:3] == ["device", "rates", "dexml_131k_traced"] and names[-1] == "end"
  assert sum(one["fact"] == "operation" for one in found) == _OPERATIONS
  assert [one["name"] for one in found if one["fact"] == "method"] == ["ngame", "dexa"]
  for name in ("dexml_131k", "dexml_1_3m", "soft_top_5_1_3m"):
    assert of[name]["step_seconds"] > 0 and np.all(np.diff(of[name]["losses"]) < 0)
  assert (tmp_path / lease.KERNELS).stat().st_size > 0


@pytest.mark.slow
def test_the_second_command_on_that_machines_packages(machine, tmp_path):
  found = _rehearsed(machine, "second", tmp_path)
  assert not [one for one in found if "failed" in one]
  tested = {one["ranked_by"]: one["P@1"] for one in found if one["fact"] == "rae_xmc_test"}
  assert tested["hybrid"] > tested["fused"] > 0
