"""Sets up JAX and tells about the machine: processes, devices, compiled programs on disk, memory."""

import atexit
import contextlib
import faulthandler
import math
import os
import re
import resource
import sys
import threading
from collections.abc import Callable, Iterator

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from xmc_jax import config as configs
from xmc_jax.distributed import compiled_programs
from xmc_jax.errors import UserError
from xmc_jax.types import Array

_SECONDS_UNHEARD = 30  # without a heartbeat: then JAX takes a process for dead
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
_STDERR, _ONE_LISTENER = 2, threading.Lock()
_BROKEN = re.compile(r"(Gloo|NCCL) .*")  # how JAX's error begins when the connection to a process breaks
_NOTE = re.compile(rb"[IW]\d{4} |WARNING: All log messages before absl")


def start(distributed: bool = False, deterministic: bool = False, keeps_programs: bool = True) -> None:
  """Sets up a run: keeps compiled programs, so that the second start is quick; silences libraries.

  Args:
    distributed: join the other processes of this run. JAX finds them by itself on TPU pods, Slurm and MPI;
      elsewhere set $JAX_COORDINATOR_ADDRESS (host:port), $JAX_NUM_PROCESSES and $JAX_PROCESS_ID.
    deterministic: the same inputs give the same bits on a GPU, too: sums have a fixed order, and kernels are
      not chosen by timing them.
    keeps_programs: write compiled programs into the cache on disk.

  Raises:
    UserError: there is no device, the other processes cannot be joined, or JAX has started already and its
      programs for a GPU are not deterministic.
  """
  logging.set_verbosity(logging.WARNING)
  if deterministic and not is_deterministic():
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC}".strip()
  if distributed:
    _join()
  if keeps_programs:
    compiled_programs.keep(configs.cache_root() / "compiled")
  try:
    jax.devices()
  except RuntimeError as error:  # JAX_PLATFORMS names a missing device, or a driver is missing
    raise UserError(f"JAX finds no device: {error}") from None
  if deterministic and jax.default_backend() == "gpu" and not adds_in_order(_scattered_sum()):
    raise UserError(
      "runtime.deterministic = True must be set before JAX starts, and here it has started without; restart "
      f"Python, or set XLA_FLAGS={_DETERMINISTIC} before"
    )


def _scattered_sum() -> str:
  """Returns the program by which this device adds rows at ids, of which several may be equal."""
  add = jax.jit(lambda table, ids, rows: table.at[ids].add(rows))
  lowered = add.lower(np.zeros((4, 2), np.float32), np.zeros(3, np.int32), np.ones((3, 2), np.float32))
  return lowered.compile().as_text() or ""


def is_deterministic() -> bool:
  """Returns whether XLA_FLAGS ask for deterministic GPU programs: then no kernel may be chosen by timing."""
  return _DETERMINISTIC in os.environ.get("XLA_FLAGS", "")


def adds_in_order(program: str) -> bool:
  """Returns whether a compiled program (HLO) adds rows with equal ids in a fixed order.

  A GPU adds them atomically, in any order, unless they are sorted and summed before.
  """
  return all("unique_indices=true" in line for line in program.splitlines() if " scatter(" in line)


@contextlib.contextmanager
def started(distributed: bool, deterministic: bool = False, keeps_programs: bool = True) -> Iterator[None]:
  """Runs a mode of the command line: calls `start`; after an error does not wait for other processes."""
  start(distributed, deterministic, keeps_programs)
  try:
    yield
  except Exception as error:
    if not is_alone():
      atexit.register(os._exit, 1)  # before JAX's own, which waits for the others to end, too
    if isinstance(error, jax.errors.JaxRuntimeError) and (broken := _BROKEN.search(str(error))):
      raise UserError(
        "another process of this run is gone, so this one stops, too; the same commands go on from the last "
        f"checkpoint ({broken[0]})"
      ) from None
    raise


def _join() -> None:
  _keep_standard_output()
  faulthandler.disable()  # if JAX aborts because another process died, a dump of this one is no help
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
  """Keeps standard output for what we print.

  Native libraries write there, too (Gloo about its peers, NCCL if asked to). These lines would mix with
  predictions, so they go to standard error.
  """
  stdout = sys.__stdout__
  if stdout is None or sys.stdout is not stdout:
    return  # a notebook's output, which native libraries do not write to
  stdout.flush()
  ours = os.dup(stdout.fileno())
  os.dup2(sys.stderr.fileno(), stdout.fileno())
  sys.stdout = os.fdopen(ours, "w", encoding=stdout.encoding, errors=stdout.errors)


@contextlib.contextmanager
def notes_left_out() -> Iterator[None]:
  """Hides infos and warnings that C++ libraries write to standard error, "I0000 00:00 file.cc:58] ...".

  Errors and all other lines are written when the block ends. Works on Linux only, and in one thread at a
  time, because the whole process has one standard error.
  """
  with _ONE_LISTENER, os.fdopen(os.memfd_create("notes"), "w+b") as heard:  # in memory: a disk may be full
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
  """Waits until every process has called this."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def on_main_process(act: Callable[[], object], name: str) -> None:
  """Calls `act` in the main process; the others wait for it."""
  if is_main_process():
    act()
  barrier(name)


@contextlib.contextmanager
def main_process_first(name: str) -> Iterator[None]:
  """Runs the block in the main process before all others, so that they find the files that it makes."""
  if not is_main_process():
    barrier(name)
  yield
  if is_main_process():
    barrier(name)


def from_main_process(array: Array) -> Array:
  """Returns the main process's array, on every process; shapes and types must be equal."""
  if is_alone():
    return array
  return np.asarray(multihost_utils.broadcast_one_to_all(array))


def is_alone() -> bool:
  """Returns whether this process is the only one of the run."""
  return jax.process_count() == 1


def num_processes() -> int:
  """Returns the number of processes of the run."""
  return jax.process_count()


def is_main_process() -> bool:
  """Returns whether this is the main process, which prints and writes reports."""
  return jax.process_index() == 0


def device() -> tuple[str, int]:
  """Returns the kind of the first local device, 'gpu', 'tpu' or 'cpu', and its bytes; 0 if unknown."""
  first = jax.local_devices()[0]
  kind = first.platform if first.platform in ("cpu", "tpu") else "gpu"
  return kind, (first.memory_stats() or {}).get("bytes_limit", 0)


def device_with_room(num_bytes: float) -> jax.Device:
  """Returns the first local device, or this host's CPU if an accelerator has fewer bytes free."""
  first = jax.local_devices()[0]
  stats = first.memory_stats() or {}
  free = stats.get("bytes_limit", math.inf) - stats.get("bytes_in_use", 0)
  if first.platform != "cpu" and free < num_bytes:
    with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS excludes the CPU
      return jax.local_devices(backend="cpu")[0]
  return first


def peak_memory() -> dict[str, int]:
  """Returns peaks in bytes: 'host' of this process, 'device' of the fullest local device, if known."""
  unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, KiB elsewhere
  marks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
  stats = [device.memory_stats() or {} for device in jax.local_devices()]
  if peaks := [s["peak_bytes_in_use"] for s in stats if "peak_bytes_in_use" in s]:
    marks["device"] = max(peaks)
  return marks
