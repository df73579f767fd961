"""XLA flags for processes with a few simulated devices."""

import os

_OWN = os.environ.get("XLA_FLAGS", "")


def flags(count: int) -> str:
  """Returns XLA_FLAGS for `count` devices, with little optimisation, as compilation dominates small tests."""
  return f"{_OWN} --xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0"
