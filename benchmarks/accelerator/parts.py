"""Parts of a lease's first command, each in a process of its own; lease.py starts them."""

import argparse
import functools
import importlib.metadata
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import flags
from benchmarks.accelerator import dexml_step, facts, first_steps, operations, peer
from benchmarks.accelerator.facts import Facts
from xmc_jax.ops import precision

_PACKAGES = (
  *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu", "flax", "optax", "orbax-checkpoint"),
  *("transformers", "tokenizers", "numpy", "scipy", "ml_collections", "lightgbm", "torch"),
)
_STEPS = 5  # that are timed
_ROUNDS, _CALLS = 7, 10  # timed of a product and of a copy
_SHARE = 0.75  # of the device's memory, which JAX takes by itself: what chunks are chosen for


def step(options: argparse.Namespace, found: Facts) -> None:
  """Says what the device is, times DEXML's step at 131K labels, and checks operations while it compiles."""
  found.add("device", **_device())
  with found.of_failure("rates"):
    found.add("rates", **_rates(options.tiny))
  compiling: dexml_step.Compiling | None = None
  with found.of_failure("dexml_131k"):
    problem = dexml_step.make(dexml_step.config_of("lf_amazontitles_131k", options.tiny), _memory())
    start = time.perf_counter()
    lowered = problem.made.lower()
    chunks = {key: size for key, size in problem.config.method.items() if key.endswith(("chunk", "tokens"))}
    seconds = round(time.perf_counter() - start, 1)
    found.add("dexml_131k_traced", seconds=seconds, chunks=chunks)
    compiling = dexml_step.compile_beside(lowered)
  checks = _check_operations(options, found)
  while compiling and not compiling.done() and next(checks, False):
    pass
  if compiling:
    with found.of_failure("dexml_131k"):
      program, seconds = compiling.result()
      timed = dexml_step.Timed(program, problem)
      timed.run(_STEPS + 1)
      found.add("dexml_131k", compile_seconds=seconds, **timed.facts())
      timed.release()
  for _ in checks:
    pass


def _memory() -> float | None:
  """Returns the bytes that chunks are chosen for; None where the device does not say."""
  stats = jax.local_devices()[0].memory_stats() or {}
  share = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", _SHARE))
  return stats["bytes_limit"] / share * _SHARE if "bytes_limit" in stats else None


def _device() -> dict:
  versions = {}
  for name in _PACKAGES:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = "missing"
  one = jax.local_devices()[0]
  return {
    "device": one.device_kind,
    "platform": one.platform,
    "gigabytes_for_jax": round((one.memory_stats() or {}).get("bytes_limit", 0) / 1e9, 2),
    "cores": os.cpu_count(),
    "python": platform.python_version(),
    "versions": versions,
  }


def _rates(tiny: bool) -> dict[str, float]:
  """Returns TFLOP/s of a square product by type of operands, and TB/s of a copy, read and written."""
  side, megabytes = (128, 1) if tiny else (8192, 4096)
  square, rates = np.random.default_rng(0).normal(size=(side, side)), {}
  for name in ("bfloat16", "bf16x3", "float32"):
    is_half = name == "bfloat16"
    algorithm = None if is_half else precision.algorithm(name)
    product = jax.jit(functools.partial(jnp.matmul, precision=algorithm))
    matrix = jnp.asarray(square, jnp.bfloat16 if is_half else jnp.float32)
    rates[f"teraflops_{name}"] = 2 * side**3 / _seconds_of(product, matrix, matrix) / 1e12
  array = jnp.ones(megabytes << 18, jnp.float32)  # larger than any cache
  rates["terabytes_copied"] = 2 * array.nbytes / _seconds_of(jax.jit(lambda a: a + 1), array) / 1e12
  return {name: round(rate, 3) for name, rate in rates.items()}


def _seconds_of(function: Callable, *arrays: jax.Array) -> float:
  """Returns the median seconds of a call, over rounds of some calls."""
  function(*arrays).block_until_ready()
  seconds = []
  for _ in range(_ROUNDS):
    start = time.perf_counter()
    for _ in range(_CALLS):
      result = function(*arrays)
    result.block_until_ready()
    seconds.append((time.perf_counter() - start) / _CALLS)
  return statistics.median(seconds)


def _check_operations(options: argparse.Namespace, found: Facts) -> Iterator[bool]:
  """Yields True after each operation's fact."""
  sizes, name = (operations.TINY, "tiny") if options.tiny else (operations.FULL, "full")
  with found.of_failure("operations"):
    for operation, share in operations.differences(options.packed / f"references_{name}.npz", sizes):
      found.add("operation", name=operation, differs_by=share, **_failed_unless(share <= operations.MOST))
      yield True


def _failed_unless(is_right: bool) -> dict[str, str]:
  return {} if is_right else {"failed": "differs"}


def references(options: argparse.Namespace, found: Facts) -> None:
  """Writes, by the CPU, the peer's weights and the methods' first steps."""
  problem = dexml_step.make(dexml_step.config_of("lf_amazontitles_131k", options.tiny))
  peer.write_weights(problem, options.there / "weights")
  first_steps.write(options.there, first_steps.TINY if options.tiny else first_steps.METHODS)


def torch_step(options: argparse.Namespace, found: Facts) -> None:
  """Times PyTorch's step, alone on the device, beside our figures."""
  problem = dexml_step.make(dexml_step.config_of("lf_amazontitles_131k", options.tiny))
  folder = options.there / "weights"
  facts.await_file(folder / "config.json")
  theirs = peer.steps(problem, folder)
  known = facts.read(options.out / facts.FILE)
  ours = [one for one in known if one["fact"] == "dexml_131k" and "losses" in one]
  found.add("peer", **theirs, **(peer.beside(theirs, ours[-1]) if ours else {}))


def methods(options: argparse.Namespace, found: Facts) -> None:
  """Compares the first steps of each method with the CPU's."""
  names = first_steps.TINY if options.tiny else first_steps.METHODS
  for name, shares in first_steps.differences(options.there, names):
    is_right = all(share <= first_steps.MOST[key] for key, share in shares.items())
    found.add("method", name=name, **shares, **_failed_unless(is_right))


def largest(options: argparse.Namespace, found: Facts) -> None:
  """Times three steps at 1.3 million labels, by decoupled softmax and by SoftTop-5."""
  compiling = {}
  for name, loss in {"dexml_1_3m": "decoupled_softmax", "soft_top_5_1_3m": "soft_top_k"}.items():
    with found.of_failure(name):
      config = dexml_step.config_of("lf_amazontitles_1.3m", options.tiny, loss=loss)
      problem = dexml_step.make(config, _memory())
      compiling[name] = problem, dexml_step.compile_beside(problem.made.lower())
  for name, (problem, program_of) in compiling.items():
    with found.of_failure(name):
      program, seconds = program_of.result()
      timed = dexml_step.Timed(program, problem)
      for _ in range(3):
        timed.run(1)
        found.add(name, compile_seconds=seconds, **timed.facts())
      timed.release()


PARTS = {"step": step, "references": references, "peer": torch_step, "methods": methods, "largest": largest}


def main() -> None:
  folders = dict.fromkeys(("out", "packed", "there"), pathlib.Path)
  options = flags.parse(__doc__, PARTS, **folders, started=0.0, tiny=False)
  PARTS[options.part](options, Facts(options.out, options.started))


if __name__ == "__main__":
  main()
