"""Checks and measures the library on an accelerator, in three commands of nine minutes each.

  python -m benchmarks.accelerator.suite a --out=DIR   # rates, a step at 131K labels, is it right
  python -m benchmarks.accelerator.suite b --out=DIR   # PyTorch's step, 1.3M labels, several widths
  python -m benchmarks.accelerator.suite c --out=DIR   # trainings of each method, largest sizes, rates

Each phase runs in a process of its own. When it ends it prints a line and is added to DIR/a.json; one that
fails or takes too long does not stop the others, and DIR/a.log holds what it printed. `--tiny` rehearses
everything with small sizes, on any machine. `--only=NAME` runs one phase.

A machine without network needs what benchmarks/accelerator/pack.py collects.
"""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

FULL, TINY = "full", "tiny"
_SPARE = 5.0  # seconds that the last phase leaves for the end


class Phase(NamedTuple):
  """Describes one phase.

  Attributes:
    name: its name, a function in `module`: `measure(size) -> dict`, of numbers and texts that JSON can hold.
    module: below benchmarks/accelerator/phases.
    seconds: its longest time.
  """

  name: str
  module: str
  seconds: float


COMMANDS = {
  "a": (
    Phase("machine", "device", 60),
    Phase("ceilings", "device", 60),
    Phase("ops_against_cpu", "against_cpu", 120),
    Phase("dexml_131k", "dexml", 200),
    Phase("profile", "profile", 90),
    Phase("attention", "attention", 100),
    Phase("methods_against_cpu", "against_cpu", 300),
  ),
  "b": (
    Phase("peer", "peer", 240),
    Phase("dexml_1_3m", "dexml", 200),
    Phase("dexml_131k_real_widths", "dexml", 200),
    Phase("soft_top_k_1_3m", "dexml", 200),
  ),
  "c": (
    Phase("trainings", "trainings", 240),
    Phase("search_and_embedding", "rates", 90),
    Phase("clusters", "rates", 60),
    Phase("largest_number_of_labels", "dexml", 120),
    Phase("fine_tuning", "trainings", 300),
  ),
}


def run(command: str, size: str, folder: pathlib.Path, seconds: float, only: str = "") -> dict[str, Any]:
  """Runs the phases of a command in turn; returns what each found, and writes it to `folder` after each.

  Args:
    command: one of COMMANDS.
    size: FULL or TINY.
    folder: gets `{command}.json` and `{command}.log`.
    seconds: for all phases together.
    only: the name of the one phase to run; '' runs all.
  """
  folder.mkdir(parents=True, exist_ok=True)
  ends, results = time.monotonic() + seconds, {}
  for phase in COMMANDS[command]:
    if only not in ("", phase.name):
      continue
    started = time.monotonic()
    limit = min(phase.seconds, ends - started - _SPARE)
    found = (
      _in_a_process(phase, size, folder / f"{command}.log", limit)
      if limit > 0
      else {"failed": "no time left"}
    )
    results[phase.name] = {"seconds": round(time.monotonic() - started, 1), **found}
    (folder / f"{command}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(_line(phase.name, results[phase.name]), flush=True)
  return results


def _in_a_process(phase: Phase, size: str, log: pathlib.Path, seconds: float) -> dict[str, Any]:
  """Runs a phase in a process of its own; returns its result, or `{"failed": why}`."""
  result = log.with_name(f"{phase.name}.result")
  result.unlink(missing_ok=True)
  command = [
    sys.executable,
    "-m",
    "benchmarks.accelerator.suite",
    phase.name,
    f"--{size}",
    f"--out={result}",
  ]
  with open(log, "a", encoding="utf-8") as written:
    written.write(f"\n=== {phase.name}\n")
    written.flush()
    child = subprocess.Popen(command, stdout=written, stderr=written, start_new_session=True)
    try:
      status = child.wait(seconds)
    except subprocess.TimeoutExpired:
      return {"failed": f"took more than {seconds:.0f} s"}
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
      child.wait()
  if status or not result.exists():
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
    return {"failed": f"exit {status}: {last[:200]}"}
  found = json.loads(result.read_text(encoding="utf-8"))
  result.unlink()
  return found


def _line(name: str, found: dict[str, Any]) -> str:
  """Writes one line about a phase: its numbers, as many as fit."""
  told = "; ".join(f"{key} {_short(value)}" for key, value in found.items() if key != "seconds")
  return f"{name:26s} {found['seconds']:6.1f} s  {told[:400]}"


def _short(value: Any) -> str:
  if isinstance(value, float):
    return f"{value:.4g}"
  if isinstance(value, dict):
    return "(" + ", ".join(f"{key} {_short(one)}" for key, one in value.items()) + ")"
  return str(value)


def _measure(name: str, size: str, result: pathlib.Path) -> None:
  """Runs one phase in this process."""
  (phase,) = (phase for phases in COMMANDS.values() for phase in phases if phase.name == name)
  import jax

  # Phases compile some programs that others have compiled before.
  jax.config.update(
    "jax_compilation_cache_dir", str(pathlib.Path(tempfile.gettempdir(), "xmc_jax_suite_programs"))
  )
  module = importlib.import_module(f"benchmarks.accelerator.phases.{phase.module}")
  found = getattr(module, name)(size)
  result.write_text(json.dumps(found), encoding="utf-8")


def main(arguments: list[str]) -> int:
  names = [phase.name for phases in COMMANDS.values() for phase in phases]
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("command", choices=[*COMMANDS, *names])
  parser.add_argument("--tiny", dest="size", action="store_const", const=TINY, default=FULL)
  parser.add_argument("--full", dest="size", action="store_const", const=FULL)
  parser.add_argument(
    "--out", type=pathlib.Path, default=pathlib.Path("accelerator"), help="folder of the results"
  )
  parser.add_argument("--seconds", type=float, default=540.0, help="for the whole command")
  parser.add_argument(
    "--only", default="", choices=["", *names], metavar="NAME", help="one phase of the command"
  )
  given = parser.parse_args(arguments)
  if given.command not in COMMANDS:
    _measure(given.command, given.size, given.out)
    return 0
  results = run(given.command, given.size, given.out, given.seconds, given.only)
  return int(any("failed" in found for found in results.values()))


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
