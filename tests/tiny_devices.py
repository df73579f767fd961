"""Flags of XLA for processes with a few simulated devices."""

import os

_OWN = os.environ.get("XLA_FLAGS", "")


def flags(count: int) -> str:
  """XLA_FLAGS of `count` devices; LLVM optimises less, as compiling is what takes a small test's time."""
  return f"{_OWN} --xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0"
