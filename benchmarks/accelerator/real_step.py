"""Runs a method's training step on random texts, at any size, without data or weights."""

import math
import statistics
import time
from typing import Any

import jax
import ml_collections
import numpy as np

from benchmarks.accelerator import abstract_step, compiled
from benchmarks.accelerator.phases.timing import peak_gigabytes
from xmc_jax import plan as plans
from xmc_jax.distributed import runtime, sharding
from xmc_jax.types import Batch, Tokens

VOCABULARY, NUM_POSITIVES = 30_522, 16
_FEWEST_ID = 1000  # of random tokens: none is special


def random_batch(batch: Batch, vocab_size: int, seed: int = 0) -> Batch:
  """Returns a host batch of the shapes of `batch`: random texts, and as many positives as there is room for.

  Args:
    batch: of a method whose pool is all labels (`abstract_step.make`).
    vocab_size: tokens of the encoder.
    seed: another one gives other texts and positives.
  """
  rng = np.random.default_rng(seed)

  def texts(groups):
    return tuple(
      Tokens(
        rng.integers(_FEWEST_ID, vocab_size, group.ids.shape, np.int32),
        np.full(group.lengths.shape, group.ids.shape[1], np.int32),
      )
      for group in groups
    )

  (num_rows, width), num_columns = batch.positives.shape, len(batch.columns)
  first = rng.integers(0, num_columns, (num_rows, 1))
  return batch._replace(
    rows=np.arange(num_rows, dtype=np.int32),
    queries=texts(batch.queries),
    columns=np.arange(num_columns, dtype=np.int32),
    labels=texts(batch.labels),
    positives=((first + np.arange(width)) % num_columns).astype(np.int32),
    weights=np.full((num_rows, width), 1 / width, np.float32),
    excluded=np.full(batch.excluded.shape, -1, np.int32),
  )


def with_chunks(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns the config with the chunk sizes that it leaves open chosen for this machine's device."""
  kind, memory = runtime.device()
  return compiled.with_chunks(config, memory, kind)


def measure(
  config: ml_collections.ConfigDict,
  points: abstract_step.Groups,
  labels: abstract_step.Groups,
  steps: int = 5,
  seed: int = 0,
) -> dict[str, Any]:
  """Trains a few steps; returns seconds, losses, memory and TFLOP/s, beside the plan's figures.

  Args:
    config: of a method that trains against all labels; `plan.*` say how many there are.
    points, labels: groups of texts, as for `abstract_step.make`.
    steps: number of steps after the first.
    seed: of texts and parameters.
  """
  config, devices = with_chunks(config), sharding.make()
  sizes = {"vocab_size": VOCABULARY, "num_positives": NUM_POSITIVES}
  made = abstract_step.make(config, devices, points=points, labels=labels, **sizes)
  batch = sharding.put_batch(random_batch(made.batch, VOCABULARY, seed), devices)
  state = made.step.first_state(*made.method.init(jax.random.key(seed)))
  start = time.perf_counter()
  program = made.step.lower(state, batch).compile()
  compiled, seconds, losses = time.perf_counter() - start, [], []
  for _ in range(steps + 1):
    start = time.perf_counter()
    state, metrics = program(state, batch)
    losses.append(float(metrics["loss"]))
    seconds.append(time.perf_counter() - start)
  typical = statistics.median(seconds[1:])
  if not all(map(math.isfinite, losses)) or min(losses[1:]) >= losses[0]:
    return {"failed": f"losses of one batch do not fall: {losses}"}
  plan = plans.plan(config, plans.sizes_of(config))
  flops = sum(stage.flops for stage in plan.stages.values())
  return {
    "step_seconds": round(typical, 4),
    "compile_seconds": round(compiled, 1),
    "teraflops_a_second": round(flops / typical / 1e12, 3),
    "gigabytes_at_most": peak_gigabytes(),
    "gigabytes_of_temporaries": round(program.memory_analysis().temp_size_in_bytes / 1e9, 2),
    "gigabytes_planned": round(plan.total / 1e9, 2),
    "losses": [round(loss, 4) for loss in losses],
    "chunks": {
      key: size for key, size in config.method.items() if key.endswith(("_chunk", "uncached_tokens"))
    },
  }
