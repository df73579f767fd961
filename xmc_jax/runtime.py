"""The machine: what this process is, compiled programs kept on disk, memory readings."""

import contextlib
import resource
import sys

import jax
from absl import logging

from xmc_jax import config as configs
from xmc_jax.contract import UserError


def start() -> None:
  """Sets a run up: compiled programs are kept, so that the second start is quick; libraries stay quiet."""
  logging.set_verbosity(logging.WARNING)
  with contextlib.suppress(OSError):  # a read-only home costs compile time, not the run
    folder = configs.cache_root() / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
  try:
    jax.devices()
  except RuntimeError as error:  # JAX_PLATFORMS names what is not here, or a driver is missing
    raise UserError(f"JAX finds no device: {error}") from None


def is_main_process() -> bool:
  """True in the one process that prints and writes reports."""
  return jax.process_index() == 0


def peak_memory() -> dict[str, int]:
  """High-water marks in bytes: 'host' of this process, 'device' of the fullest local device, if it tells."""
  unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, KiB elsewhere
  marks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
  stats = [device.memory_stats() or {} for device in jax.local_devices()]
  if peaks := [s["peak_bytes_in_use"] for s in stats if "peak_bytes_in_use" in s]:
    marks["device"] = max(peaks)
  return marks
