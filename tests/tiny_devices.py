"""XLA flags for processes with a few simulated devices, and the platform that the tests run on."""

import os

_OWN = os.environ.get("XLA_FLAGS", "")
# '' is eight simulated CPU devices; 'cpu' one, 'gpu' and 'tpu' those of the machine.
PLATFORM = os.environ.get("XMC_JAX_TEST_PLATFORM", "")
JAX_PLATFORMS = {"": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}.get(PLATFORM, PLATFORM)


def flags(count: int) -> str:
  """Returns XLA_FLAGS for `count` devices, with little optimisation, as compilation dominates small tests."""
  return f"{_OWN} --xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0"


def flags_of_tests() -> str:
  """Returns XLA_FLAGS for the tests' own process."""
  return _OWN if PLATFORM in ("gpu", "tpu") else flags(1 if PLATFORM else 8)
