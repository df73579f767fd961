"""Trainings disturbed at random, and whether they end, bit by bit, like those that never were.

  python -m benchmarks.faults                          # every method, 20 of each fault
  python -m benchmarks.faults prime --trials=5 --seed=1

Each trial draws a stage that a training goes through (preparing data, compilation, steps, refreshes,
validation, saving) and a moment in it. There the process is killed (-9), or asked to stop (SIGTERM), or
killed and a file of its newest checkpoint then cut short or changed by a bit. The same command goes on, and
is disturbed again, until a run has ended; it is compared with the undisturbed one. Two more kinds kill what
prepares data, and what writes predictions to a file. docs/results/faults.json keeps what came out.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / "docs" / "results" / "faults.json"
_AFTER_TRAINING = ("fuse", "test")  # nothing there is saved but the result
_TRIALS_OF_A_RUN = 7  # then a new one begins, with data to prepare
_NUM_TEXTS = 20_000


def command(*flags: str) -> list[str]:
  return [sys.executable, "-m", "benchmarks.watched", *flags]


def environment(cache: pathlib.Path, **more: str) -> dict[str, str]:
  return {**os.environ, "JAX_PLATFORMS": "cpu", "XMC_JAX_CACHE": str(cache), **more}


def expect(holds: bool, what: str, ended: subprocess.CompletedProcess | None = None) -> None:
  if not holds:
    said = f"\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}" if ended else ""
    sys.exit(f"FAILED: {what}{said}")


class Trials:
  """One method under faults of one kind.

  Args:
    config: its config file.
    folder: for its runs; `undisturbed` is there already.
    stages: by name, how long each entry took when nothing disturbed it.
    rng: draws stages and moments.

  Attributes:
    count, runs: trials so far, and in how many runs.
    lost: of each trial the steps that were begun and are not in what the next start goes on from.
  """

  signal, is_damaging = signal.SIGKILL, False

  def __init__(self, config: pathlib.Path, folder: pathlib.Path, stages: dict, rng: random.Random):
    self._config, self._folder, self._rng = config, folder, rng
    self._stages = {name: entries for name, entries in stages.items() if name not in _AFTER_TRAINING}
    self.count, self.runs, self.lost = 0, 0, []
    self._damaged: pathlib.Path | None = None  # a checkpoint that nobody has named yet

  def run(self, count: int) -> None:
    """Disturbs runs until there were so many trials; each is let end."""
    while self.count < count:
      workdir = self._folder / f"{type(self).__name__}-{self.runs}"
      self.runs += 1
      until = min(count, self.count + _TRIALS_OF_A_RUN)
      while self.count < until and self._disturbed(workdir):
        self.count += 1
      ended = self._start(workdir)
      expect(ended.returncode == 0, f"the last run ended with {ended.returncode}", ended)
      expect(self._damaged is None, f"{self._damaged} went unnoticed", ended)
      _compare(self._folder / "undisturbed", workdir)

  def _start(self, workdir: pathlib.Path, fault: str = ",0,0,0") -> subprocess.CompletedProcess:
    ended = start(self._config, workdir, FAULT=fault, STEPS=str(workdir) + ".steps")
    expect("Traceback" not in ended.stderr, f"a traceback, {fault}", ended)
    if self._damaged and (str(self._damaged) in ended.stderr or not self._damaged.exists()):
      self._damaged = None
    return ended

  def _disturbed(self, workdir: pathlib.Path) -> bool:
    """One trial; whether the fault came before the run had ended."""
    stage = self._rng.choice(sorted(self._stages))
    entry = self._rng.randrange(min(8, len(self._stages[stage]))) + 1
    seconds = self._rng.uniform(0, self._stages[stage][entry - 1])
    pathlib.Path(f"{workdir}.steps").unlink(missing_ok=True)
    ended = self._start(workdir, f"{stage},{entry},{seconds},{int(self.signal)}")
    if ended.returncode == 0 and "written to" in ended.stdout:
      return False
    what = f"{type(self).__name__} in entry {entry} of {stage}, after {seconds:.3f} s"
    expect(ended.returncode == (0 if self.signal == signal.SIGTERM else -9), what, ended)
    if self.is_damaging:
      self._damage(workdir)
    self.lost.append(self._lost(workdir))
    return True

  def _lost(self, workdir: pathlib.Path) -> int:
    log = pathlib.Path(f"{workdir}.steps")
    begun = log.read_text().split() if log.exists() else []
    return max(0, int(begun[-1] if begun else 0) - (_checkpoints(workdir).usable() or 0))

  def _damage(self, workdir: pathlib.Path) -> None:
    """Hurts a file of the newest checkpoint; the next start must name it."""
    steps = _checkpoints(workdir).steps.finished()
    if len(steps) < 2:
      return
    step = workdir / "checkpoints" / str(steps[-1])
    victim = self._rng.choice(
      sorted(path for path in step.rglob("*") if path.is_file() and path.stat().st_size)
    )
    content = bytearray(victim.read_bytes())
    if self._rng.random() < 0.5:
      content = content[: self._rng.randrange(len(content))]
    else:
      content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
    victim.unlink()  # data may be hard-linked
    victim.write_bytes(content)
    expect(_checkpoints(workdir).usable() != steps[-1], f"damage to {victim} went unnoticed")
    self._damaged = step


class Stopped(Trials):
  """Asked to stop."""

  signal = signal.SIGTERM


class Damaged(Trials):
  """Killed, and the newest checkpoint damaged."""

  is_damaging = True


class KilledPreparing(Trials):
  """Killed while data are prepared; every run has its own to prepare."""

  def __init__(self, config, folder, stages, rng):
    super().__init__(config, folder, {"prepare": stages["prepare"]}, rng)


class KilledPredicting(Trials):
  """Killed while predictions are written to a file: when it has so many bytes."""

  def run(self, count: int) -> None:
    run, texts = self._folder / "undisturbed", self._folder / "texts.txt"
    words = ["bake", "kelt", "loma", "mive", "nuxo", "pody", "rack", "sutha"]
    texts.write_text("".join(f"{words[n % 8]} {words[n // 8 % 8]} {n}\n" for n in range(_NUM_TEXTS)))
    whole = self._predict(run, texts, "whole.jsonl")
    while self.count < count:
      self.runs += 1
      until = min(count, self.count + _TRIALS_OF_A_RUN)
      while self.count < until and self._killed(run, texts, len(whole)):
        self.count += 1
      expect(self._predict(run, texts, "killed.jsonl") == whole, "predictions are others after a kill")
      (self._folder / "killed.jsonl").unlink()

  def _command(self, run, texts, name) -> dict:
    flags = ("--mode=predict", f"--workdir={run}", f"--input={texts}", f"--output={self._folder / name}")
    return {"args": command(*flags), "cwd": _ROOT, "env": environment(self._folder / "cache")}

  def _predict(self, run, texts, name) -> bytes:
    ended = subprocess.run(**self._command(run, texts, name), capture_output=True, text=True)
    expect(ended.returncode == 0 and "Traceback" not in ended.stderr, "predictions", ended)
    left = list(self._folder.glob("*.part*"))
    expect(not left, f"{left} left behind")
    return (self._folder / name).read_bytes()

  def _killed(self, run, texts, size: int) -> bool:
    part, whole = self._folder / "killed.jsonl.part", self._folder / "killed.jsonl"
    before = part.stat().st_size if part.exists() else 0
    moment, found = self._rng.uniform(before, size), before
    process = subprocess.Popen(
      **self._command(run, texts, "killed.jsonl"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and found < moment:
      time.sleep(0.0005)
      found = part.stat().st_size if part.exists() else before
    process.kill()
    process.wait()
    return not whole.exists()


KINDS = {
  "kill -9": Trials,
  "kill -9 while data are prepared": KilledPreparing,
  "kill -9 while predictions are written": KilledPredicting,
  "kill -9, then a damaged checkpoint": Damaged,
  "SIGTERM": Stopped,
}


def start(config: pathlib.Path, workdir: pathlib.Path, **more: str) -> subprocess.CompletedProcess:
  """A training, by its own cache."""
  flags = command(f"--config={config}", f"--workdir={workdir}")
  env = environment(pathlib.Path(f"{workdir}.cache"), **more)
  return subprocess.run(flags, cwd=_ROOT, env=env, capture_output=True, text=True, timeout=900)


def _checkpoints(workdir: pathlib.Path):
  from xmc_jax.checkpoint import Checkpoints

  return Checkpoints(workdir / "checkpoints", read_only=True)


def _compare(one: pathlib.Path, other: pathlib.Path) -> None:
  from same_runs import assert_same_runs

  assert_same_runs(one, other, newest=True)  # what was asked to stop has saved at other steps before


def settings() -> dict[str, dict]:
  """A tiny run of each method; prepared data go to $XMC_JAX_CACHE."""
  import tiny_runs

  often = {"checkpoint.every_epochs": 0.4, "train.num_epochs": 3, "data.cache_dir": ""}
  clusters = {"method.labels": "in_batch", "method.loss": "margin", "method.leaves_first_epoch": 1.0}
  hard = {"method.num_hard_negatives": 2, "method.shortlist_size": 8, "method.shortlist_first_epoch": 0.0}
  softmax = {"method.labels": "in_batch", "method.loss": "softmax"}
  table = {"method.name": "ova", "method.loss": "binary", "method.labels": "table"}
  made = {
    "dexml": {},
    "soft_top_k": {"method.loss": "soft_top_k"},
    "dpr": {**softmax, "method.name": "dpr"},
    "ance": {**softmax, **hard, "method.name": "ance"},
    "ova": table,
    "ngame": {**clusters, "method.name": "ngame"},
    "dexa": {**clusters, "method.name": "dexa", "method.num_label_clusters": 8},
    "unidec": {**tiny_runs.UNIDEC, "method.pool_size": 40},
    "prime": tiny_runs.PRIME,
    "ramen": tiny_runs.RAMEN,
  }
  return {name: {**often, **found} for name, found in made.items()}


def _undisturbed(config: pathlib.Path, folder: pathlib.Path) -> dict[str, list[float]]:
  """Trains it once; the seconds of each stage's entries."""
  ended = start(config, folder / "undisturbed", STAGES=str(folder / "stages"))
  expect(ended.returncode == 0, f"{folder.name}, undisturbed", ended)
  stages = collections.defaultdict(list)
  for line in (folder / "stages").read_text().splitlines():
    name, seconds = json.loads(line)
    stages[name].append(seconds)
  return stages


def _keep(kind: str, method: str, trials: Trials) -> None:
  lost = {"steps_lost": sum(trials.lost), "most": max(trials.lost)} if trials.lost else {}
  rows = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
  rows.setdefault(kind, {})[method] = {"trials": trials.count, "runs": trials.runs, **lost}
  _RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
  print(f"{method}: {kind}: {rows[kind][method]}; all ended alike", flush=True)


def main() -> None:
  sys.path.insert(0, str(_ROOT / "tests"))
  import tiny_runs

  made = settings()
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("methods", nargs="*", default=list(made), help=f"of {', '.join(made)}")
  parser.add_argument("--trials", type=int, default=20)
  parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
  parser.add_argument("--seed", type=int, default=0)
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as place:
    data = tiny_runs.write_graphs(tiny_runs.write_data(pathlib.Path(place) / "data"))
    for method in given.methods:
      folder = pathlib.Path(place) / method
      folder.mkdir()
      config = tiny_runs.config_file(folder / "config.py", data, **made[method])
      stages = _undisturbed(config, folder)
      for kind in given.kinds:
        trials = KINDS[kind](config, folder, stages, random.Random(f"{given.seed} {method} {kind}"))
        trials.run(given.trials)
        _keep(kind, method, trials)


if __name__ == "__main__":
  main()
