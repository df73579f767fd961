"""Profiles the steps of phase dexml_131k, and lists the kernels that take longest."""

import collections
import pathlib
import tempfile
from typing import Any

import jax

from benchmarks.accelerator.phases import dexml

_NUM_KERNELS = 30


def profile(size: str) -> dict[str, Any]:
  """Returns milliseconds and calls of the longest kernels of steps at 131,072 labels; prints them, too."""
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      step = dexml.dexml_131k(size)
    (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
    kernels, calls = _kernels(jax.profiler.ProfileData.from_file(str(file)))
  total = sum(kernels.values())
  longest = sorted(kernels, key=kernels.__getitem__, reverse=True)[:_NUM_KERNELS]
  for name in longest:
    print(f"{kernels[name]:10.2f} ms {calls[name]:7,} x {kernels[name] / max(total, 1e-9):6.1%}  {name}")
  return {
    "step_seconds": step.get("step_seconds"),
    "milliseconds_of_kernels": round(total, 1),
    "longest": {name: [round(kernels[name], 2), calls[name]] for name in longest},
  }


def _kernels(data: jax.profiler.ProfileData) -> tuple[dict[str, float], collections.Counter]:
  """Returns milliseconds and calls by kernel: of the device's streams, or of the host if there is none."""
  planes = list(data.planes)
  lines = [line for plane in planes if plane.name.startswith("/device:") for line in plane.lines]
  of_gpu = [line for line in lines if line.name.startswith("Stream")]
  of_device = of_gpu or [line for line in lines if line.name == "XLA Ops"]
  milliseconds, calls = collections.defaultdict(float), collections.Counter()
  for line in of_device or [line for plane in planes for line in plane.lines]:
    for event in line.events:
      if not event.name.startswith("$"):  # Python's functions
        milliseconds[event.name] += event.duration_ns / 1e6
        calls[event.name] += 1
  return dict(milliseconds), calls
