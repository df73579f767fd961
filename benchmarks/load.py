"""Time and memory of large inputs: preparing millions of points and labels, predicting millions of lines.

  PYTHONPATH=. python benchmarks/load.py prepare --points=5000000 --labels=1000000
  PYTHONPATH=. python benchmarks/load.py predict RUN --lines=10000000     # a trained run's folder

`prepare` writes a synthetic set of index files and prepares it in a separate process. `predict` predicts
labels of --lines texts with a run, kills the process half-way (-9) and runs the same command again. Both
print time and peak memory.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from prepare import make_texts, real_titles, write

_ROOT = pathlib.Path(__file__).parents[1]


def measured(command: list[str], kill_after: float = 0.0) -> tuple[float, float, str]:
  """Runs a command, killed after `kill_after` seconds (0: never); returns `(seconds, peak GB, output)`."""
  start = time.perf_counter()
  with tempfile.TemporaryFile("w+") as said:
    process = subprocess.Popen(command, cwd=_ROOT, stdout=said, stderr=subprocess.STDOUT)
    while kill_after and time.perf_counter() - start < kill_after and process.poll() is None:
      time.sleep(0.1)
    if kill_after:
      process.kill()
    _, status, usage = os.wait4(process.pid, 0)
    said.seek(0)
    text = said.read()
  if status and not kill_after:
    sys.exit(f"ended with status {status}:\n{text[-3000:]}")
  return time.perf_counter() - start, usage.ru_maxrss * 1024 / 1e9, text


def prepare(num_points: int, num_labels: int) -> None:
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place) / "set"
    start = time.perf_counter()
    folder.mkdir()
    write(folder, make_texts(real_titles(None), num_points + num_labels), num_labels)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    print(f"wrote {size:.2f} GB in {time.perf_counter() - start:.0f} s", flush=True)
    command = [sys.executable, "-m", "xmc_jax.main", "--mode=prepare", "--config=experiments/dexml.py"]
    seconds, peak, said = measured(
      [*command, f"--config.data.path={folder}", f"--config.data.cache_dir={place}/cache"]
    )
    print(said[said.index("set (") :])
    print(f"prepared {num_points:,} points and {num_labels:,} labels in {seconds:.0f} s, peak {peak:.2f} GB")


def predict(run: pathlib.Path, num_lines: int) -> None:
  with tempfile.TemporaryDirectory() as place:
    source, destination = pathlib.Path(place) / "texts.txt", pathlib.Path(place) / "out.jsonl"
    with source.open("w") as file:
      file.writelines(f"a window manager for X{number}\n" for number in range(num_lines))
    command = [sys.executable, "-m", "xmc_jax.main", "--mode=predict", f"--workdir={run.absolute()}", "--k=1"]
    command += [f"--input={source}", f"--output={destination}"]
    part, start = destination.with_name("out.jsonl.part"), time.perf_counter()
    rate = _rate(command, part)
    first = measured(command, kill_after=num_lines / rate / 2)
    seconds, peak, said = measured(command)
    print(said.strip())
    with destination.open() as file:
      wrong = sum(json.loads(line)["text"] != f"a window manager for X{at}" for at, line in enumerate(file))
    with destination.open() as file:
      count = sum(1 for _ in file)
    print(f"{count:,} lines, {wrong} out of order; peak {max(peak, first[1]):.2f} GB")
    print(f"killed after {first[0]:.0f} s, then {seconds:.0f} s; {time.perf_counter() - start:.0f} s in all")


def _rate(command: list[str], part: pathlib.Path) -> float:
  """Returns the lines per second of the first minute; deletes what was written."""
  measured(command, kill_after=60)
  with part.open("rb") as file:
    lines = sum(1 for _ in file)
  for path in part.parent.glob("*.part*"):
    path.unlink()
  print(f"{lines / 60:,.0f} lines a second, starting included", flush=True)
  return max(lines, 1) / 60


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  modes = parser.add_subparsers(dest="mode", required=True)
  of_prepare = modes.add_parser("prepare")
  of_prepare.add_argument("--points", type=int, default=5_000_000)
  of_prepare.add_argument("--labels", type=int, default=1_000_000)
  of_predict = modes.add_parser("predict")
  of_predict.add_argument("run", type=pathlib.Path)
  of_predict.add_argument("--lines", type=int, default=10_000_000)
  given = parser.parse_args()
  prepare(given.points, given.labels) if given.mode == "prepare" else predict(given.run, given.lines)


if __name__ == "__main__":
  main()
