"""Starts the processes of one run on loopback, and waits for them."""

import os
import pathlib
import socket
import subprocess
from collections.abc import Sequence

import tiny_devices

ROOT = pathlib.Path(__file__).parents[2]


def free_port() -> str:
  """Returns a port that nothing listens on."""
  with socket.socket() as probe:
    probe.bind(("localhost", 0))
    return str(probe.getsockname()[1])


def run_together(
  commands: Sequence[Sequence[str]], devices_each: int, environments: Sequence[dict[str, str]]
) -> list[tuple[str, str, int]]:
  """Runs commands at the same time, each with some devices; returns `(out, err, exit code)` of each."""
  common = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": tiny_devices.flags(devices_each)}
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
  children = [
    subprocess.Popen(command, cwd=ROOT, env={**common, **own}, **pipes)
    for command, own in zip(commands, environments, strict=True)
  ]
  try:
    return [(*child.communicate(timeout=600), child.returncode) for child in children]
  finally:
    for child in children:
      child.kill()
