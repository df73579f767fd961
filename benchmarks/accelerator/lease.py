"""Brings facts home from a device that is lent for some minutes, in order of worth.

  python -m benchmarks.accelerator.pack                      # here: what that machine lacks, into .packed/
  python -m benchmarks.accelerator.lease first --out=DIR     # there, 480 s: is it right, how fast is it
  python -m benchmarks.accelerator.lease second --out=DIR    # there, 360 s: a training to its end

Each fact is a line of DIR/facts.jsonl, written when it is known, so that a cut at any moment leaves what came
before. Parts (parts.py) run in processes of their own; one that fails is a fact, too. DIR/kernels.tar.xz
holds the kernels that XLA chose by timing them; as benchmarks/accelerator/kernels.tar.xz the next lease
starts with them. `--tiny` rehearses a command with small sizes, on any machine.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

from benchmarks import flags
from benchmarks.accelerator.facts import Facts

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = {"first": 480.0, "second": 360.0}
KERNELS = "kernels.tar.xz"
_PROGRAMS = "compiled"  # JAX's cache, below the folder that $XMC_JAX_CACHE names
_CHOSEN = "xla_gpu_per_fusion_autotune_cache_dir"  # XLA's own folder in it
_SPARE = 8.0  # seconds that the end takes
# Shares of the device's memory. Chunks are chosen for 0.75, so that kernels can be tuned beside a step.
_ALONE, _BESIDE = "0.9", "0.08"
_CPU = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
# The second command's training. A CPU takes 47 minutes for it; its test rows then have 45.2 P@1 as its paper
# ranks and 49.6 by the hybrid.
TRAINING, _EXPERIMENT = "rae_xmc", "rae_xmc.py:debian_minilm6"
_TINY_TRAINING = {
  "encoder.name": "bag",
  "encoder.num_layers": 0,
  "encoder.width": 16,
  "encoder.init_table": "",
  "encoder.tokenizer": "train",
  "encoder.embedding_dropout": 0.0,
  "train.num_epochs": 1,
  "train.batch_size": 1024,
}
_METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@5", "R@10", "R@100")


class Lease:
  """Runs parts in processes of their own until the time is over.

  Args:
    options: of the command line.
    folder: of files that all parts share: compiled programs, and what does not come home.
  """

  def __init__(self, options: argparse.Namespace, folder: pathlib.Path):
    self.facts = Facts(options.out, options.started)
    self.tiny, self.out, self.packed = options.tiny, options.out, options.packed
    self.folder, self._started = folder, options.started
    self._ends = options.started + (options.seconds or SECONDS[options.part]) - _SPARE
    path = [str(ROOT), str(_packages(options.packed)), *filter(None, [os.environ.get("PYTHONPATH")])]
    self._environment = {
      **os.environ,
      "PYTHONPATH": os.pathsep.join(path),
      "HF_HUB_OFFLINE": "1",
      "XMC_JAX_CACHE": str(folder),
      "JAX_COMPILATION_CACHE_DIR": str(folder / _PROGRAMS),
    }
    self._running: dict[str, subprocess.Popen] = {}

  def start(self, name: str, command: list[str], **environment: str) -> None:
    """Starts a module with its arguments; OUT/NAME.log gets what it prints."""
    with open(self.out / f"{name}.log", "a", encoding="utf-8") as log:
      self._running[name] = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=log,
        stderr=log,
        cwd=ROOT,
        env={**self._environment, **environment},
      )

  def start_part(self, name: str, **environment: str) -> None:
    """Starts a part of parts.py."""
    command = ["benchmarks.accelerator.parts", name, f"--out={self.out}", f"--packed={self.packed}"]
    command += [f"--there={self.folder}", f"--started={self._started}"] + ["--tiny"] * self.tiny
    self.start(name, command, **environment)

  def wait(self, name: str) -> bool:
    """Waits for a process until the time is over; returns whether it ended well, and records if not."""
    process = self._running.pop(name)
    try:
      status = process.wait(max(0.0, self._ends - time.time()))
    except subprocess.TimeoutExpired:
      status = None
    process.kill()
    process.wait()
    if status is None:
      self.facts.add(name, failed="cut: the time is over")
    elif status:
      said = (self.out / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip()
      last = said.rpartition("\n")[2]
      self.facts.add(name, failed=f"exit {status}: {last[:300]}")
    return status == 0

  def run_part(self, name: str, **environment: str) -> None:
    """Runs a part of parts.py to its end."""
    self.start_part(name, **environment)
    self.wait(name)

  def end(self) -> None:
    """Kills what still runs."""
    for process in self._running.values():
      process.kill()
      process.wait()


def first(lease: Lease) -> None:
  """Runs the step beside the CPU's references, PyTorch alone, 1.3M labels beside methods' first steps."""
  lease.start_part("references", **_CPU)
  lease.run_part("step", XLA_PYTHON_CLIENT_MEM_FRACTION=_ALONE)
  lease.run_part("peer", JAX_PLATFORMS="cpu")
  lease.start_part("methods", XLA_PYTHON_CLIENT_MEM_FRACTION=_BESIDE)
  lease.run_part("largest")
  lease.wait("methods")


def second(lease: Lease) -> None:
  """Runs a training, and records its test table."""
  weights = {"encoder.name": str(lease.packed / "model")} if (lease.packed / "model").exists() else {}
  values = {**weights, **(_TINY_TRAINING if lease.tiny else {})}
  run = lease.folder / TRAINING
  command = ["xmc_jax.main", f"--config=experiments/{_EXPERIMENT}", f"--workdir={run}"]
  command += [f"--config.{key}={value}" for key, value in values.items()]
  lease.start(TRAINING, command, XLA_PYTHON_CLIENT_MEM_FRACTION=_ALONE)
  if lease.wait(TRAINING):
    _report_test(lease.facts, run)


def _report_test(facts: Facts, run: pathlib.Path) -> None:
  """Records the test's table: a fact for each way to rank."""
  report = json.loads((run / "report" / "metrics.json").read_text(encoding="utf-8"))
  for source, metrics in {"hybrid": report["metrics"], **report["by_source"]}.items():
    facts.add(f"{TRAINING}_test", ranked_by=source, **{key: round(100 * metrics[key], 2) for key in _METRICS})


def _packages(packed: pathlib.Path) -> pathlib.Path:
  """Unpacks the wheels of pack.py where they lie; returns the folder of packages."""
  for wheel in sorted((packed / "wheels").glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
      archive.extractall(packed / "site")
  return packed / "site"


def main() -> None:
  folders = {"out": ROOT / "runs" / "lease", "packed": ROOT / ".packed"}
  options = flags.parse(__doc__, SECONDS, **folders, tiny=False, seconds=0.0)
  options.started, options.out, options.packed = time.time(), options.out.resolve(), options.packed.resolve()
  options.out.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as name:
    lease, programs = Lease(options, pathlib.Path(name)), pathlib.Path(name, _PROGRAMS)
    if (known := pathlib.Path(__file__).with_name(KERNELS)).exists():
      with tarfile.open(known) as archive:
        archive.extractall(programs, filter="data")
    try:
      {"first": first, "second": second}[options.part](lease)
    finally:
      lease.end()
    if (programs / _CHOSEN).is_dir():
      with tarfile.open(options.out / KERNELS, "w:xz") as archive:
        archive.add(programs / _CHOSEN, _CHOSEN)
  lease.facts.add("end", command=options.part)


if __name__ == "__main__":
  main()
