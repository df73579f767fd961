"""Compiles and times DEXML's full-label step on random texts, at the sizes of the public sets."""

import concurrent.futures
import statistics
import time
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from benchmarks.accelerator import abstract_step, compiled
from xmc_jax import plan as plans
from xmc_jax.distributed import runtime, sharding
from xmc_jax.types import Batch, Tokens, TrainState

VOCABULARY, NUM_POSITIVES = 30_522, 16
_FEWEST_ID = 1000  # of random tokens: none is special
_POINT_TOKENS, _LABEL_TOKENS = 16, 12
# Points of a batch and labels, by preset.
SIZES = {"lf_amazontitles_131k": (4096, 131_072), "lf_amazontitles_1.3m": (8192, 1_305_280)}
_TINY = (16, 64)


class Problem(NamedTuple):
  """Holds a step and what it trains on.

  Attributes:
    config: the run's config, with chunk sizes.
    made: the step.
    batch: the host's batch; every text has all its tokens.
  """

  config: ml_collections.ConfigDict
  made: abstract_step.AbstractStep
  batch: Batch

  def put(self) -> tuple[TrainState, Batch]:
    """Returns the first state and the batch, on the device."""
    state = self.made.step.first_state(*self.made.method.init(jax.random.key(0)))
    return state, sharding.put_batch(self.batch, sharding.make())


def config_of(preset: str, tiny: bool = False, **values: Any) -> ml_collections.ConfigDict:
  """Returns the config of a preset of SIZES without dropout; `values` are of its method."""
  num_points, num_labels = _TINY if tiny else SIZES[preset]
  config = compiled.config_of(f"dexml:{preset}", [])
  config.encoder.update(dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0)
  config.encoder.update({"num_layers": 1, "dtype": "float32"} if tiny else {"dtype": "bfloat16"})
  config.data.max_length = max(_POINT_TOKENS, _LABEL_TOKENS)
  config.method.update(label_chunk=32 if tiny else 4096, **values)
  config.train.update(batch_size=num_points, warmup_fraction=0.0, learning_rate=2e-5)
  tokens = {"tokens_per_point": float(_POINT_TOKENS), "tokens_per_label": float(_LABEL_TOKENS)}
  config.plan.update(num_labels=num_labels, **tokens)
  return config


def groups(config: ml_collections.ConfigDict) -> tuple[abstract_step.Groups, abstract_step.Groups]:
  """Returns the texts of a batch and of its pool."""
  return [(_POINT_TOKENS, config.train.batch_size)], [(_LABEL_TOKENS, config.plan.num_labels)]


def make(config: ml_collections.ConfigDict, memory: float | None = None) -> Problem:
  """Makes the step of a config of `config_of`, and a batch; chunks are for so much memory, or for JAX's."""
  kind, known = runtime.device()
  config = compiled.with_chunks(config, known if memory is None else memory, kind)
  points, labels = groups(config)
  sizes = {"vocab_size": VOCABULARY, "num_positives": NUM_POSITIVES}
  made = abstract_step.make(config, sharding.make(), points=points, labels=labels, **sizes)
  return Problem(config, made, _random_batch(made.batch))


def _random_batch(batch: Batch) -> Batch:
  """Returns a host batch of the shapes of `batch`: random texts, and positives where there is room."""
  rng = np.random.default_rng(0)

  def texts(groups):
    return tuple(
      Tokens(
        rng.integers(_FEWEST_ID, VOCABULARY, group.ids.shape, np.int32),
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


def flops(config: ml_collections.ConfigDict) -> float:
  """Returns three times the forward pass's FLOPs: of encoding real tokens, and of one product of scores.

  The gradient cache's second pass, padding and further products of scores do not count. The model FLOPs
  utilisation is this number over the seconds of a step times the device's peak.
  """
  spec = plans.sizes_of(config).encoder
  points, labels = groups(config)
  of_keys = 4 * spec.width**2  # a token's key and value in a block
  of_query = 4 * spec.width**2 + 4 * spec.width * spec.ffn_width  # all else, without products with keys

  def forward(tokens: int) -> int:
    queries = (spec.num_layers - 1) * tokens + 1  # of the last block, CLS pooling reads one token alone
    return spec.num_layers * tokens * of_keys + queries * (of_query + 4 * tokens * spec.width)

  encoded = sum(number * forward(tokens) for tokens, number in points + labels)
  return 3 * (encoded + 2.0 * config.train.batch_size * config.plan.num_labels * spec.width)


Compiling = concurrent.futures.Future[tuple[jax.stages.Compiled, float]]


def compile_beside(lowered: jax.stages.Lowered) -> Compiling:
  """Compiles in a thread of its own; the result is the program and its seconds."""

  def compiled_and_timed():
    start = time.perf_counter()
    program = lowered.compile()
    return program, round(time.perf_counter() - start, 1)

  return concurrent.futures.ThreadPoolExecutor(1).submit(compiled_and_timed)


class Timed:
  """Runs a compiled step from the first parameters on; keeps losses and seconds."""

  def __init__(self, program: jax.stages.Compiled, problem: Problem):
    self._program, self._problem = program, problem
    self._state, self._batch = problem.put()
    self._losses: list[float] = []
    self._seconds: list[float] = []

  def release(self) -> None:
    """Frees the device's memory."""
    self._state = self._batch = None

  def run(self, steps: int) -> None:
    """Runs steps, each until its loss is on the host."""
    for _ in range(steps):
      start = time.perf_counter()
      self._state, metrics = self._program(self._state, self._batch)
      self._losses.append(float(metrics["loss"]))
      self._seconds.append(time.perf_counter() - start)

  def facts(self) -> dict[str, Any]:
    """Returns the median seconds of the steps after the first, TFLOP/s, losses, and the peak in GB."""
    seconds = statistics.median(self._seconds[1:] or self._seconds)
    stats = jax.local_devices()[0].memory_stats() or {}
    return {
      "step_seconds": round(seconds, 4),
      "all_seconds": [round(each, 3) for each in self._seconds],
      "teraflops_a_second": round(flops(self._problem.config) / seconds / 1e12, 2),
      "losses": [round(loss, 4) for loss in self._losses],
      "gigabytes_at_most": round(stats.get("peak_bytes_in_use", 0) / 1e9, 2),
    }
