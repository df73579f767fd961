"""Tables whose rows are split over real processes on loopback."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest
import tiny_devices

ROOT = pathlib.Path(__file__).parents[2]
CHECKS = pathlib.Path(__file__).with_name("split_table_checks.py")


@pytest.mark.slow
def test_split_tables_give_what_whole_ones_do(tmp_path):
  """With two processes, and with three, whose number is no power of two."""
  for count in (2, 3):
    with socket.socket() as probe:
      probe.bind(("localhost", 0))
      port = str(probe.getsockname()[1])
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": tiny_devices.flags(2), "PYTHONPATH": str(ROOT)}
    (tmp_path / str(count)).mkdir()
    commands = [
      [sys.executable, str(CHECKS), str(number), str(count), port, str(tmp_path)] for number in range(count)
    ]
    children = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
      errors = [child.communicate(timeout=600)[1] for child in children]
    finally:
      for child in children:
        child.kill()
    for child, error in zip(children, errors):
      assert child.returncode == 0, error
