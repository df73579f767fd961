"""Trainings disturbed at random, and whether they end, bit by bit, like those that never were.

  python -m benchmarks.faults                          # every method, 20 of each fault
  python -m benchmarks.faults prime --trials=5 --seed=1

Each trial draws a stage that a training goes through (data, compilation, steps, refreshes, validation,
saving) and a moment in it. There the process is killed (-9), or asked to stop (SIGTERM), or killed and a file
of its newest checkpoint then cut short or changed by a bit. The same command goes on, and is disturbed again,
until a run has ended; it is compared with the undisturbed one. docs/results/faults.json keeps what came out.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / "docs" / "results" / "faults.json"
_KINDS = ("kill -9", "SIGTERM", "kill -9 and a damaged checkpoint")
_LEFT_ALONE = ("fuse", "test")  # after training: nothing there is saved but the result


def child() -> None:
  """The command line, which logs its stages' times and meets $FAULT = 'stage,entry,seconds,signal'."""
  from xmc_jax import main, report

  stage, entry, seconds, number = os.environ.get("FAULT", ",0,0,0").split(",")
  entered, original, log = collections.Counter(), report.Report.stage, os.environ.get("STAGES")

  @contextlib.contextmanager
  def watched(self, name, less=""):
    entered[name] += 1
    if name == stage and entered[name] == int(entry):
      timer = threading.Timer(float(seconds), os.kill, (os.getpid(), int(number)))
      timer.daemon = True
      timer.start()
    before = self.seconds[name]
    with original(self, name, less):
      yield
    if log:
      with open(log, "a") as file:
        file.write(json.dumps([name, self.seconds[name] - before]) + "\n")

  report.Report.stage = watched
  sys.argv = [sys.argv[0], *sys.argv[2:]]
  main.cli()


def run(config: pathlib.Path, workdir: pathlib.Path, **environment: str) -> subprocess.CompletedProcess:
  flags = [f"--config={config}", f"--workdir={workdir}"]
  command = [sys.executable, "-m", "benchmarks.faults", "--child", *flags]
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
  return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=600)


class Trials:
  """One method under one kind of fault.

  Args:
    config: its config file.
    folder: for its runs; `undisturbed` is there already.
    stages: how long each stage's entries took when nothing disturbed it.
    kind: one of _KINDS.
    rng: draws stages and moments.
  """

  def __init__(self, config, folder, stages, kind: str, rng: random.Random):
    self._config, self._folder, self._stages, self._kind, self._rng = config, folder, stages, kind, rng
    self.count, self.runs = 0, 0

  def run(self, count: int) -> None:
    """Disturbs runs until there were so many trials, and lets the last one end."""
    while self.count < count:
      workdir = self._folder / f"run-{self._kind.replace(' ', '_')}-{self.runs}"
      self.runs += 1
      while self.count < count and self._disturbed(workdir):
        self.count += 1
      ended = run(self._config, workdir)
      _expect(ended.returncode == 0, f"the last run ended with {ended.returncode}", ended)
      _compare(self._folder / "undisturbed", workdir)

  def _disturbed(self, workdir: pathlib.Path) -> bool:
    """One trial; whether the fault came before the run had ended."""
    stage = self._rng.choice(sorted(self._stages))
    entry = self._rng.randrange(min(8, len(self._stages[stage]))) + 1
    seconds = self._rng.uniform(0, self._stages[stage][entry - 1])
    number = signal.SIGTERM if self._kind == "SIGTERM" else signal.SIGKILL
    ended = run(self._config, workdir, FAULT=f"{stage},{entry},{seconds},{int(number)}")
    if ended.returncode == 0 and "written to" in ended.stdout:
      return False
    what = f"{self._kind} in entry {entry} of {stage}, after {seconds:.3f} s"
    _expect(ended.returncode == (0 if number == signal.SIGTERM else -9), what, ended)
    _expect("Traceback" not in ended.stderr, what, ended)
    if "damaged" in self._kind:
      self._damage(workdir)
    return True

  def _damage(self, workdir: pathlib.Path) -> None:
    """Hurts a file of the newest checkpoint; the next start must name it."""
    from xmc_jax.checkpoint import Checkpoints

    folder = workdir / "checkpoints"
    steps = Checkpoints(folder, read_only=True).steps.finished()
    if len(steps) < 2:
      return
    step = steps[-1]
    files = sorted(path for path in (folder / str(step)).rglob("*") if path.is_file() and path.stat().st_size)
    victim = self._rng.choice(files)
    content = bytearray(victim.read_bytes())
    if self._rng.random() < 0.5:
      content = content[: self._rng.randrange(len(content))]
    else:
      content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
    victim.unlink()  # data may be hard-linked
    victim.write_bytes(content)
    _expect(Checkpoints(folder, read_only=True).usable() != step, f"damage to {victim} went unnoticed")


def _compare(one: pathlib.Path, other: pathlib.Path) -> None:
  from same_runs import assert_same_runs

  assert_same_runs(one, other, newest=True)  # what was asked to stop has saved at other steps before


def _expect(holds: bool, what: str, ended: subprocess.CompletedProcess | None = None) -> None:
  if not holds:
    said = f"\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}" if ended else ""
    sys.exit(f"FAILED: {what}{said}")


def _settings() -> dict[str, dict]:
  """A tiny run of each method."""
  import tiny_runs

  often = {"checkpoint.every_epochs": 0.4, "train.num_epochs": 3}
  clusters = {"method.labels": "in_batch", "method.loss": "margin", "method.leaves_first_epoch": 1.0}
  fresh = {"method.labels": "in_batch", "method.num_fresh_negatives": 5}
  table = {"method.name": "ova", "method.loss": "binary", "method.labels": "table"}
  return {
    "dexml": often,
    "soft_top_k": {**often, "method.loss": "soft_top_k"},
    "dpr": {**often, "method.name": "dpr", "method.labels": "in_batch"},
    "ance": {**often, **fresh, "method.name": "ance", "method.shortlist_first_epoch": 0.0},
    "ova": {**often, **table},
    "ngame": {**often, **clusters, "method.name": "ngame"},
    "dexa": {**often, **clusters, "method.name": "dexa", "method.num_label_clusters": 8},
    "unidec": {**often, **tiny_runs.UNIDEC, "method.pool_size": 40},
    "prime": {**often, **tiny_runs.PRIME},
    "ramen": {**often, **tiny_runs.RAMEN},
  }


def main() -> None:
  sys.path.insert(0, str(_ROOT / "tests"))
  import tiny_runs

  settings = _settings()
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("methods", nargs="*", default=list(settings), help=f"of {', '.join(settings)}")
  parser.add_argument("--trials", type=int, default=20)
  parser.add_argument("--kinds", nargs="+", default=_KINDS, choices=_KINDS)
  parser.add_argument("--seed", type=int, default=0)
  given = parser.parse_args()
  rows = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
  with tempfile.TemporaryDirectory() as place:
    os.environ["XMC_JAX_CACHE"] = place + "/cache"
    data = tiny_runs.write_graphs(tiny_runs.write_data(pathlib.Path(place) / "data"))
    for method in given.methods:
      folder = pathlib.Path(place) / method
      folder.mkdir()
      config = tiny_runs.config_file(folder / "config.py", data, **settings[method])
      ended = run(config, folder / "undisturbed", STAGES=str(folder / "stages"))
      _expect(ended.returncode == 0, f"{method}, undisturbed", ended)
      stages = collections.defaultdict(list)
      for line in (folder / "stages").read_text().splitlines():
        name, seconds = json.loads(line)
        stages[name].append(seconds)
      stages = {name: entries for name, entries in stages.items() if name not in _LEFT_ALONE}
      for kind in given.kinds:
        trials = Trials(config, folder, stages, kind, random.Random(f"{given.seed} {method} {kind}"))
        trials.run(given.trials)
        print(f"{method}: {kind}: {trials.count} times in {trials.runs} runs; all ended alike", flush=True)
        rows.setdefault(kind, {})[method] = {"trials": trials.count, "runs": trials.runs}
        _RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
  child() if sys.argv[1:2] == ["--child"] else main()
