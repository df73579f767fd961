"""Kinds of faults: what is done to a process, and what must hold after the fault and at the end."""

import functools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

_ROOT = pathlib.Path(__file__).parents[1]
_AFTER_TRAINING = {"fuse", "test"}  # stages that save only their result
_TRIALS_OF_A_RUN = 7  # then a new run begins, which prepares its data again
_NUM_TEXTS = 20_000


def command(*flags: str) -> list[str]:
  return [sys.executable, "-m", "benchmarks.instrumented_main", *flags]


def environment(cache: pathlib.Path, **more: str) -> dict[str, str]:
  return {**os.environ, "JAX_PLATFORMS": "cpu", "XMC_JAX_CACHE": str(cache), **more}


def expect(holds: bool, what: str, ended: subprocess.CompletedProcess | None = None) -> None:
  if not holds:
    said = f"\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}" if ended else ""
    sys.exit(f"FAILED: {what}{said}")


class Trials:
  """Runs trials of one kind of fault on one method.

  Args:
    config: its config file.
    folder: where its runs are written; the run `undisturbed` must be there already.
    stages: by name, the seconds of each entry into the stage in an undisturbed run.
    rng: chooses stages and moments.
    name: begins the names of the runs' folders.
    number: the signal.
    damages: whether the newest checkpoint is damaged after the signal.
    stage: the only stage that is disturbed; '' is any of the training.

  Attributes:
    count, runs: number of trials so far, and of runs.
    lost: for each trial, the number of started steps that are not in the checkpoint to resume from.
  """

  def __init__(
    self,
    config: pathlib.Path,
    folder: pathlib.Path,
    stages: dict,
    rng: random.Random,
    name: str = "killed",
    number: signal.Signals = signal.SIGKILL,
    damages: bool = False,
    stage: str = "",
  ):
    self._config, self._folder, self._rng = config, folder, rng
    self._name, self._signal, self._damages = name, number, damages
    names = [stage] if stage else stages.keys() - _AFTER_TRAINING
    self._stages = {name: stages[name] for name in names}
    self.count, self.runs, self.lost = 0, 0, []
    self._damaged: pathlib.Path | None = None  # a damaged checkpoint that no error message has named yet

  def run(self, count: int) -> None:
    """Disturbs runs until there were `count` trials; then lets each run end and compares it."""
    while self.count < count:
      workdir = self._folder / f"{self._name}-{self.runs}"
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
    """Runs one trial; returns whether the fault came before the run had ended."""
    stage = self._rng.choice(sorted(self._stages))
    entry = self._rng.randrange(min(8, len(self._stages[stage]))) + 1
    seconds = self._rng.uniform(0, self._stages[stage][entry - 1])
    pathlib.Path(f"{workdir}.steps").unlink(missing_ok=True)
    ended = self._start(workdir, f"{stage},{entry},{seconds},{int(self._signal)}")
    if ended.returncode == 0 and "written to" in ended.stdout:
      return False
    what = f"{self._name} in entry {entry} of {stage}, after {seconds:.3f} s"
    expect(ended.returncode == (0 if self._signal == signal.SIGTERM else -9), what, ended)
    if self._damages:
      self._damage(workdir)
    self.lost.append(self._lost(workdir))
    return True

  def _lost(self, workdir: pathlib.Path) -> int:
    log = pathlib.Path(f"{workdir}.steps")
    begun = log.read_text().split() if log.exists() else []
    return max(0, int(begun[-1] if begun else 0) - (_checkpoints(workdir).latest_valid() or 0))

  def _damage(self, workdir: pathlib.Path) -> None:
    """Damages a file of the newest checkpoint; the next start must name the checkpoint."""
    steps = _checkpoints(workdir).finished()
    if len(steps) < 2:
      return
    step = workdir / "checkpoints" / str(steps[-1])
    files = [path for path in step.rglob("*") if path.is_file() and path.stat().st_size]
    victim = self._rng.choice(sorted(files))
    content = bytearray(victim.read_bytes())
    if self._rng.random() < 0.5:
      content = content[: self._rng.randrange(len(content))]
    else:
      content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
    victim.unlink()  # data may be hard-linked
    victim.write_bytes(content)
    expect(_checkpoints(workdir).latest_valid() != steps[-1], f"damage to {victim} went unnoticed")
    self._damaged = step


class KilledWriting:
  """Kills a process while it writes the results of a finished run, after a random number of bytes."""

  mode, name = "", ""  # the command's mode, and the name of what it writes

  def __init__(self, config: pathlib.Path, folder: pathlib.Path, stages: dict, rng: random.Random):
    self._run, self._folder, self._rng = folder / "undisturbed", folder, rng
    self.count, self.runs, self.lost = 0, 0, []

  def run(self, count: int) -> None:
    """Kills `count` writers; checks that the final result equals that of an undisturbed writer."""
    whole = self._folder / f"whole-{self.name}"
    self._write(whole)
    while self.count < count:
      killed = self._folder / f"killed-{self.name}"
      self.runs += 1
      until = min(count, self.count + _TRIALS_OF_A_RUN)
      while self.count < until and self._killed(killed, _size(whole)):
        self.count += 1
        self.check_killed(killed)
      self._write(killed)
      for path in (whole, *whole.rglob("*")):
        other = killed / path.relative_to(whole)
        expect(path.is_dir() or other.read_bytes() == path.read_bytes(), f"{other} is another after kills")
      self.remove(killed)

  def check_killed(self, place: pathlib.Path) -> None:
    """Checks what a killed process has left; subclasses may override it."""

  def remove(self, place: pathlib.Path) -> None:
    place.unlink()

  def flags(self, place: pathlib.Path) -> tuple[str, ...]:
    return f"--mode={self.mode}", f"--workdir={self._run}", f"--output={place}"

  def _command(self, place: pathlib.Path) -> dict:
    env = environment(self._folder / "cache")
    return {"args": command(*self.flags(place)), "cwd": _ROOT, "env": env}

  def _write(self, place: pathlib.Path) -> None:
    ended = subprocess.run(**self._command(place), capture_output=True, text=True)
    expect(ended.returncode == 0 and "Traceback" not in ended.stderr, self.mode, ended)
    left = [*self._folder.glob("*.part*"), *self._folder.glob(f".{place.name}.*")]
    expect(not left, f"{left} left behind")

  def _killed(self, place: pathlib.Path, size: int) -> bool:
    """Runs one trial; returns whether the kill came before everything was written."""
    part, done = place.with_name(f"{place.name}.part"), _stamp(place)
    before = _size(part)  # a file is continued, a folder is written from the start
    moment, found = self._rng.uniform(before, size), before
    process = subprocess.Popen(**self._command(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.time()
    while process.poll() is None and found < moment:
      time.sleep(0.0005)
      parts = part, *place.parent.glob(f".{place.name}.building-*")
      found = sum(_size(each, began) for each in parts) or before
    process.kill()
    process.wait()
    return _stamp(place) == done


class KilledPredicting(KilledWriting):
  """Kills the process while it writes predictions to a file; the next process continues the file."""

  mode, name = "predict", "predictions.jsonl"

  def flags(self, place):
    texts = self._folder / "texts.txt"
    if not texts.exists():
      words = ["bake", "kelt", "loma", "mive", "nuxo", "pody", "rack", "sutha"]
      texts.write_text("".join(f"{words[n % 8]} {words[n // 8 % 8]} {n}\n" for n in range(_NUM_TEXTS)))
    return *super().flags(place), f"--input={texts}"


class KilledExporting(KilledWriting):
  """Kills the process while it exports a run; in every second case an earlier export exists."""

  mode, name = "export", "export"

  def check_killed(self, place):
    import tiny_runs

    from xmc_jax import export
    from xmc_jax.errors import UserError

    try:
      found = export.Exported.load(place).labels
    except UserError:
      found = ()
    expected = tiny_runs.NUM_LABELS if self.runs % 2 == 0 else 0
    expect(len(found) == expected, f"{len(found)} labels after a kill, not {expected}")

  def remove(self, place):
    if self.runs % 2 == 0:
      shutil.rmtree(place)


def _size(place: pathlib.Path, since: float = 0.0) -> int:
  """Returns the bytes of a file, or of a folder's files, modified since a time; 0 if there is none."""
  try:
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    found = [path.stat() for path in files]
  except FileNotFoundError:
    return 0
  return sum(each.st_size for each in found if each.st_mtime >= since)


def _stamp(place: pathlib.Path) -> int:
  return place.stat().st_ino if place.exists() else 0


KINDS = {
  "kill -9": Trials,
  "kill -9 while data are prepared": functools.partial(Trials, name="preparing", stage="prepare"),
  "kill -9 while predictions are written": KilledPredicting,
  "kill -9 while a run is exported": KilledExporting,
  "kill -9, then a damaged checkpoint": functools.partial(Trials, name="damaged", damages=True),
  "SIGTERM": functools.partial(Trials, name="stopped", number=signal.SIGTERM),
}


def start(config: pathlib.Path, workdir: pathlib.Path, **more: str) -> subprocess.CompletedProcess:
  """Runs a training with its own cache of prepared data."""
  flags = command(f"--config={config}", f"--workdir={workdir}")
  env = environment(pathlib.Path(f"{workdir}.cache"), **more)
  return subprocess.run(flags, cwd=_ROOT, env=env, capture_output=True, text=True, timeout=900)


def _checkpoints(workdir: pathlib.Path):
  from xmc_jax.storage.checkpoints import StepFolder

  return StepFolder(workdir / "checkpoints", read_only=True)


def _compare(one: pathlib.Path, other: pathlib.Path) -> None:
  from same_runs import assert_same_runs

  assert_same_runs(one, other, newest=True)  # a stop request saves at other steps, so older ones differ
