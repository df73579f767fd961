"""XLA flags for processes with a few simulated devices, and the platform that the tests run on."""

import importlib.metadata
import os

_OWN = os.environ.get("XLA_FLAGS", "")
# '' is eight simulated CPU devices; 'cpu' one, 'gpu' and 'tpu' those of the machine.
PLATFORM = os.environ.get("XMC_JAX_TEST_PLATFORM", "")
JAX_PLATFORMS = {"": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}.get(PLATFORM, PLATFORM)


# Compilation dominates small tests; without fusion emitters XLA takes half of the time. From jaxlib 0.11 on
# there is no such flag, and an unknown one would end the process.
_COMPILED_FAST = "--xla_backend_optimization_level=0"
if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
  _COMPILED_FAST += " --xla_cpu_use_fusion_emitters=false"


def flags(count: int) -> str:
  """Returns XLA_FLAGS for `count` devices, with programs that compile fast."""
  return f"{_OWN} --xla_force_host_platform_device_count={count} {_COMPILED_FAST}"


def flags_of_tests() -> str:
  """Returns XLA_FLAGS for the tests' own process."""
  return _OWN if PLATFORM in ("gpu", "tpu") else flags(1 if PLATFORM else 8)
