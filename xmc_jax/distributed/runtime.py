"""The machine: what this process is, compiled programs kept on disk, memory readings."""

import contextlib
import faulthandler
import math
import os
import re
import resource
import sys
import threading
from collections.abc import Iterator

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from xmc_jax import config as configs
from xmc_jax.distributed import peer_watchdog
from xmc_jax.errors import UserError
from xmc_jax.types import Array

_SECONDS_UNHEARD = 30  # after which JAX calls a process dead
_STDERR, _ONE_LISTENER = 2, threading.Lock()
_NOTE = re.compile(rb"[IW]\d{4} |WARNING: All log messages before absl")


def start(distributed: bool = False) -> None:
  """Sets a run up: compiled programs are kept, so that the second start is quick; libraries stay quiet.

  Args:
    distributed: join the other processes of this run. JAX finds them by itself on TPU pods, Slurm and MPI;
      elsewhere $JAX_COORDINATOR_ADDRESS (host:port), $JAX_NUM_PROCESSES and $JAX_PROCESS_ID name them.

  Raises:
    UserError: no device, or no other processes.
  """
  logging.set_verbosity(logging.WARNING)
  if distributed:
    _join()
  with contextlib.suppress(OSError):  # a read-only home costs compile time, not the run
    folder = configs.cache_root() / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
  try:
    jax.devices()
  except RuntimeError as error:  # JAX_PLATFORMS names what is not here, or a driver is missing
    raise UserError(f"JAX finds no device: {error}") from None
  peer_watchdog.watch(jax.process_index(), jax.process_count())


@contextlib.contextmanager
def started(distributed: bool) -> Iterator[None]:
  """A mode of the command line: `start`, and when it has ended well this is said to the other processes."""
  start(distributed)
  try:
    yield
  except Exception as error:
    if not isinstance(error, UserError):
      peer_watchdog.await_news()
    raise
  peer_watchdog.part()


def _join() -> None:
  _keep_standard_output()
  faulthandler.disable()  # where JAX aborts as another process is gone, a dump of this one says nothing
  number, count = (os.environ.get(name) for name in ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"))
  try:
    jax.distributed.initialize(
      process_id=int(number) if number else None,
      num_processes=int(count) if count else None,
      heartbeat_timeout_seconds=_SECONDS_UNHEARD,
    )
  except (RuntimeError, ValueError) as error:
    reason = str(error).strip().splitlines()[0]
    raise UserError(
      f"--distributed: the processes of this run cannot be joined ({reason}); set JAX_COORDINATOR_ADDRESS, "
      "JAX_NUM_PROCESSES and JAX_PROCESS_ID, or leave --distributed out"
    ) from None


def _keep_standard_output() -> None:
  """Leaves standard output to what we print.

  What native libraries say of themselves there (Gloo of its peers, NCCL when asked to) would stand between
  predictions, so it goes to standard error.
  """
  stdout = sys.__stdout__
  if stdout is None or sys.stdout is not stdout:
    return  # a notebook's, which no native library writes to
  stdout.flush()
  ours = os.dup(stdout.fileno())
  os.dup2(sys.stderr.fileno(), stdout.fileno())
  sys.stdout = os.fdopen(ours, "w", encoding=stdout.encoding, errors=stdout.errors)


@contextlib.contextmanager
def notes_left_out() -> Iterator[None]:
  """Meanwhile nothing is shown of what C++ libraries note on standard error, "I0000 00:00 file.cc:58] ...".

  That is, infos and warnings; errors and whatever else was written there come when the block ends. Linux
  alone, and one thread at a time: standard error is the whole process's.
  """
  with _ONE_LISTENER, os.fdopen(os.memfd_create("notes"), "w+b") as heard:  # no disk that may be full
    sys.stderr.flush()
    ours = os.dup(_STDERR)
    os.dup2(heard.fileno(), _STDERR)
    try:
      yield
    finally:
      sys.stderr.flush()
      os.dup2(ours, _STDERR)
      os.close(ours)
      heard.seek(0)
      for line in heard:
        if not _NOTE.match(line):
          os.write(_STDERR, line)


def barrier(name: str) -> None:
  """Waits until every process is here."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


@contextlib.contextmanager
def main_process_first(name: str) -> Iterator[None]:
  """The main process runs the block before all others: it makes the files that they find."""
  if not is_main_process():
    barrier(name)
  yield
  if is_main_process():
    barrier(name)


def from_main_process(array: Array) -> Array:
  """The main process's array, on every process; shapes and types must be equal."""
  if is_alone():
    return array
  return np.asarray(multihost_utils.broadcast_one_to_all(array))


def is_alone() -> bool:
  """True where this process is the whole run."""
  return jax.process_count() == 1


def is_main_process() -> bool:
  """True in the one process that prints and writes reports."""
  return jax.process_index() == 0


def device() -> tuple[str, int]:
  """What the first local device is, 'gpu', 'tpu' or 'cpu', and its bytes; 0 where it does not tell."""
  first = jax.local_devices()[0]
  kind = first.platform if first.platform in ("cpu", "tpu") else "gpu"
  return kind, (first.memory_stats() or {}).get("bytes_limit", 0)


def device_with_room(num_bytes: float) -> jax.Device:
  """The first local device, or this host's CPU where an accelerator has not so many bytes left."""
  first = jax.local_devices()[0]
  stats = first.memory_stats() or {}
  free = stats.get("bytes_limit", math.inf) - stats.get("bytes_in_use", 0)
  if first.platform != "cpu" and free < num_bytes:
    with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS leaves the CPU out
      return jax.local_devices(backend="cpu")[0]
  return first


def peak_memory() -> dict[str, int]:
  """High-water marks in bytes: 'host' of this process, 'device' of the fullest local device, if it tells."""
  unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, KiB elsewhere
  marks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
  stats = [device.memory_stats() or {} for device in jax.local_devices()]
  if peaks := [s["peak_bytes_in_use"] for s in stats if "peak_bytes_in_use" in s]:
    marks["device"] = max(peaks)
  return marks
