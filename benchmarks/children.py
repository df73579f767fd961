"""Runs child processes, logs their output and measures their peak memory; describes the machine."""

import math
import os
import pathlib
import platform
import re
import subprocess
import time
from collections.abc import Sequence

_EVERY_SECONDS = 0.1


def run(
  command: Sequence[str], log: pathlib.Path, cwd: pathlib.Path, kill_after: float = math.inf
) -> tuple[int, int]:
  """Runs a command to its end, or kills it after so many seconds; appends its output to `log`.

  Returns:
    Its exit status, and its peak memory in bytes, without its own children; 0 if the system does not tell.
    The peak in the child's resource usage is not used: on Linux it starts from the parent's peak.
  """
  log.parent.mkdir(parents=True, exist_ok=True)
  peak, ends = 0, time.monotonic() + kill_after
  with open(log, "a") as out:
    child = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=out)
    try:
      while child.poll() is None:
        peak = max(peak, peak_bytes(child.pid))
        if time.monotonic() > ends:
          child.kill()
        time.sleep(_EVERY_SECONDS)
    finally:
      if child.poll() is None:
        child.terminate()
        child.wait()
  return child.returncode, peak


def peak_bytes(pid: int | str) -> int:
  """Returns the peak resident memory of a process so far; 'self' is this one."""
  return resident_bytes("VmHWM", pid)


def resident_bytes(field: str, pid: int | str = "self") -> int:
  """Returns resident memory, now ('VmRSS') or at its peak ('VmHWM'); 0 if the system does not tell."""
  try:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
  except OSError:
    return 0
  found = re.search(rf"{field}:\s+(\d+) kB", status)
  return 1024 * int(found[1]) if found else 0


def forget_peak() -> None:
  """Sets this process's peak of resident memory to what it has now."""
  pathlib.Path("/proc/self/clear_refs").write_text("5")


def machine() -> str:
  """Describes this machine's cores and memory."""
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return f"{os.cpu_count()} cores of {_processor()}, {memory / 2**30:.0f} GiB"


def _processor() -> str:
  try:
    found = re.search(r"model name\s*: (.+)", pathlib.Path("/proc/cpuinfo").read_text())
  except OSError:
    found = None
  return found[1].strip() if found else platform.processor() or platform.machine()
