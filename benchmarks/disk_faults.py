"""Training, preparing and predicting on disks that fill up at a random moment, and on read-only disks.

  python -m benchmarks.disk_faults --trials=10

Needs Linux and `unshare` (util-linux): it mounts a small disk of its own. In each trial something else fills
the disk. The command must end with an error of one line, or succeed if it needed no more space. Once there is
space again, the same command must give the results of an undisturbed one. docs/results/disks.json holds the
outcomes.
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import flags
from benchmarks.fault_kinds import command, environment, expect
from benchmarks.faults import settings

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / "docs" / "results" / "disks.json"
_SIZE = "size=96m"
_SECONDS = 0.5  # the longest time from the random amount written to the full disk
_OWN = "XMC_JAX_OWN_MOUNTS"  # set in the process that is allowed to mount


class Task(NamedTuple):
  """Holds a command that writes to a disk.

  Attributes:
    name: what the command does.
    flags: returns the command's flags for a disk.
    compare: asserts that two disks hold the same results.
    cache: the folder of prepared data; None is a folder on the disk.
  """

  name: str
  flags: Callable[[pathlib.Path], list[str]]
  compare: Callable[[pathlib.Path, pathlib.Path], None]
  cache: pathlib.Path | None

  def begin(self, disk: pathlib.Path) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = environment(self.cache or disk / "cache")
    return subprocess.Popen(command(*self.flags(disk)), cwd=_ROOT, env=env, **pipes)

  def end(self, process: subprocess.Popen) -> subprocess.CompletedProcess:
    out, err = process.communicate(timeout=900)
    ended = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    expect("Traceback" not in err, f"{self.name}: a traceback", ended)
    return ended

  def whole(self, disk: pathlib.Path) -> None:
    """Runs the command on a disk with enough space; it must succeed."""
    ended = self.end(self.begin(disk))
    expect(ended.returncode == 0, f"{self.name}, with room", ended)


def full(task: Task, disk: pathlib.Path, num_bytes: float, seconds: float) -> str:
  """Runs one trial: fills the disk `seconds` after the command has written `num_bytes`.

  Returns:
    The command's error message; '' if it succeeded.
  """
  process, filler = task.begin(disk), disk / "filler"
  with open(filler, "wb", buffering=0) as file:
    while process.poll() is None and shutil.disk_usage(disk).used < num_bytes:
      time.sleep(0.002)
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(seconds)
    while process.poll() is None:
      try:
        file.write(bytes(1 << 20))
      except OSError:  # the disk is full; space that becomes free is filled, too
        time.sleep(0.02)
    ended = task.end(process)
  filler.unlink()
  return _said(task, ended, ("No space left", "left; free some", "the disk is full"))


def read_only(task: Task, disk: pathlib.Path) -> str:
  """Runs one trial: starts the command on a read-only disk. Returns its error message."""
  _mount("remount,ro", disk)
  ended = task.end(task.begin(disk))
  expect(ended.returncode != 0, f"{task.name} ended well on a read-only disk", ended)
  _mount(f"remount,rw,{_SIZE}", disk)
  return _said(task, ended, ("Read-only file system",))


def _said(task: Task, ended: subprocess.CompletedProcess, expected: tuple[str, ...]) -> str:
  if not ended.returncode:
    return ""
  last = ended.stderr.strip().splitlines()[-1]
  expect(any(words in last for words in expected), f"{task.name} said {last!r}", ended)
  return last


def _mount(options: str, place: pathlib.Path) -> None:
  subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)


def _same_runs(one: pathlib.Path, other: pathlib.Path) -> None:
  from same_runs import assert_same_runs

  assert_same_runs(one / "run", other / "run", newest=True)


def _same_files(pattern: str) -> Callable[[pathlib.Path, pathlib.Path], None]:
  """Returns a function that compares all files of a pattern, except manifests, which hold times and paths."""

  def content(disk: pathlib.Path) -> dict[pathlib.Path, bytes]:
    files = {path.relative_to(disk): path for path in disk.glob(pattern) if path.is_file()}
    return {name: b"" if name.suffix == ".json" else path.read_bytes() for name, path in files.items()}

  def compare(one: pathlib.Path, other: pathlib.Path) -> None:
    before, after = content(one), content(other)
    differing = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    assert before and not differing, differing

  return compare


def _tasks(place: pathlib.Path) -> list[Task]:
  """Returns the tasks of training, preparing and predicting, for one tiny data set."""
  import tiny_runs

  data, texts = tiny_runs.write_data(place / "data", num_train=3000), place / "texts.txt"
  texts.write_text("".join(f"bake kelt {n}\n" for n in range(20_000)))
  config = tiny_runs.config_file(place / "config.py", data, **settings()["dexml"], **{"encoder.width": 64})
  given, run = f"--config={config}", place / "undisturbed" / "run"
  predict = ["--mode=predict", f"--workdir={run}", f"--input={texts}"]
  return [
    Task("training", lambda disk: [given, f"--workdir={disk}/run"], _same_runs, place / "cache"),
    Task("preparing", lambda _: ["--mode=prepare", given], _same_files("cache/*-*/**/*"), None),
    Task("predicting", lambda disk: [*predict, f"--output={disk}/out"], _same_files("out*"), place / "cache"),
  ]


def _used(folder: pathlib.Path) -> int:
  return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _trials(task: Task, place: pathlib.Path, count: int, rng: random.Random) -> dict:
  undisturbed, lines = place / "undisturbed", []
  undisturbed.mkdir(exist_ok=True)
  before = _used(undisturbed)
  task.whole(undisturbed)
  num_bytes = _used(undisturbed) - before
  for trial in range(count + 1):  # the last is read-only
    disk = place / f"{task.name}-{trial}"
    disk.mkdir()
    _mount(_SIZE, disk)
    moment = rng.uniform(0, num_bytes), rng.uniform(0, _SECONDS)
    lines.append(full(task, disk, *moment) if trial < count else read_only(task, disk))
    task.whole(disk)
    task.compare(undisturbed, disk)
    subprocess.run(["umount", str(disk)], check=True)
  print(f"{task.name}: full {count} times, {sum(map(bool, lines[:-1]))} refused; read-only once", flush=True)
  print(*sorted({f"  {line}" for line in lines if line}), sep="\n", flush=True)
  return {"full": count, "refused": sum(map(bool, lines[:-1])), "read-only": 1}


def main() -> None:
  given = flags.parse(__doc__, trials=10, seed=0)
  if _OWN not in os.environ:
    os.environ[_OWN] = "1"
    arguments = ["-m", "benchmarks.disk_faults", *sys.argv[1:]]
    os.execvp("unshare", ["unshare", "--map-root-user", "--mount", sys.executable, *arguments])
  sys.path.insert(0, str(_ROOT / "tests"))
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:  # a failure leaves a mounted disk
    rng = random.Random(given.seed)
    tasks = _tasks(pathlib.Path(place))
    rows = {task.name: _trials(task, pathlib.Path(place), given.trials, rng) for task in tasks}
  _RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
  main()
