"""One point of benchmarks/scaling.py: the cost of a method with given numbers of points and labels.

  PYTHONPATH=.:benchmarks python benchmarks/scaling_point.py dpr 16000 30000 FOLDER  # of synthetic_data.write

Prints a line of JSON for each unit as soon as it is measured: its name, `wall` and `cpu` seconds (the median
of several runs after one that compiles; `once` if the first took too long to repeat), and `peak_mb`, the peak
resident memory of the process during the unit, less that before the data were opened. Units:

  open        opening the data, the method and the builder of batches; once
  walks       random walks over the graph, RAMEN alone; once, as in a run
  NAME        each refresh, including what it embeds
  batch       building a batch on the host
  step        a training step, including the batch's transfer to the device; `xla_mb` is XLA's memory estimate
  evaluation  `evaluate.validate` of N / 8 points
"""

import argparse
import ctypes
import gc
import importlib
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import jax
import synthetic_data

from xmc_jax import data, methods, refresh
from xmc_jax.distributed import runtime, sharding
from xmc_jax.plan import chunks
from xmc_jax.runs import evaluate
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.run import Run
from xmc_jax.training import loop, optimizer
from xmc_jax.training.step import TrainStep

SHARE = 8  # N / SHARE points more are held out for evaluation
BATCH, WIDTH = 256, 64
_RUNS = 3  # at most
_SECONDS, _TOO_LONG = 8.0, 50.0  # CPU seconds of all runs, or of the first, after which none follows


def number_of_clusters(num_labels: int) -> int:
  """Returns a power of two: about 10 labels per cluster, as in DEXA's and PRIME's largest preset."""
  return 1 << ((num_labels // 8).bit_length() - 1)


def config_of(method: str, num_points: int, num_labels: int):
  """Builds the experiment's config for the bundled set, with a small encoder and synthetic data."""
  config = importlib.import_module(f"experiments.{method}").get_config("")
  values = {
    "data.num_validation": num_points // SHARE,
    "data.max_length": synthetic_data.LONGEST,
    "encoder.name": "bag",
    "encoder.init_table": "",
    "encoder.width": WIDTH,
    "train.batch_size": BATCH,
  }
  if config.encoder.projection_dim:
    values["encoder.projection_dim"] = WIDTH
  if config.method.classifier_dim:
    values["method.classifier_dim"] = WIDTH
  if config.method.num_label_clusters:
    values["method.num_label_clusters"] = number_of_clusters(num_labels)
  if config.method.prototype_width:
    values["method.prototype_width"] = 2 * WIDTH
  config.update_from_flattened_dict(values)
  methods.check_config(config)
  return config


def memory(key: str) -> float:
  """Returns VmRSS, the resident memory, or VmHWM, its peak, in MB."""
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(key))


def forget_peak() -> None:
  """Resets the peak resident memory; first returns memory that compilation freed to the system."""
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)
  pathlib.Path("/proc/self/clear_refs").write_text("5")


class Meter:
  """Times units and prints their costs; memory is counted above that at the construction of the Meter."""

  def __init__(self):
    self._base = memory("VmRSS")

  def once(self, unit: str, work: Callable[[], object], **more):
    """Measures a unit in a single run."""
    forget_peak()
    seconds, made = self._run(work)
    self._print(unit, [seconds], once=True, **more)
    return made

  def often(self, unit: str, work: Callable[[], object], runs: int = _RUNS, more=dict):
    """Measures a unit: runs it once to compile, then times it. `more()` returns further values to print."""
    forget_peak()
    first, made = self._run(work)
    taken = []
    if first[1] < _TOO_LONG:
      forget_peak()
    while first[1] < _TOO_LONG and len(taken) < runs and sum(cpu for _, cpu in taken) < _SECONDS:
      seconds, made = self._run(work)
      taken.append(seconds)
    self._print(unit, taken or [first], once=not taken, first=round(first[1], 2), **more())
    return made

  def _run(self, work):
    wall, cpu = time.perf_counter(), time.process_time()
    made = jax.block_until_ready(work())
    return (time.perf_counter() - wall, time.process_time() - cpu), made

  def _print(self, unit, taken, **more):
    wall, cpu = (statistics.median(values) for values in zip(*taken))
    peak = memory("VmHWM") - self._base
    found = {"unit": unit, "wall": round(wall, 5), "cpu": round(cpu, 5), "peak_mb": round(peak), **more}
    print(json.dumps({**found, "runs": len(taken)}), flush=True)


def measure(config, folder: pathlib.Path, workdir: pathlib.Path) -> None:
  """Measures all units of a config, on the data of a folder."""
  writer = MetricWriter(workdir)
  meter = Meter()

  def opened() -> Run:
    dataset = data.load_prepared(folder)
    config.method.update(chunks.choose_here(config, dataset))
    run = Run(config, workdir, dataset)
    if not run.method.batch.graph_sides:
      run.batches  # noqa: B018
    return run

  run = meter.once("open", opened)
  if run.method.batch.graph_sides:
    meter.once("walks", lambda: (run.sides, run.batches)[:0])
  total = config.train.num_epochs * run.batches.steps_per_epoch
  step = TrainStep(run.method, run.mesh, run.config.train, optimizer.make(config, total), writer)
  state = step.first_state(*run.initial_parameters())
  refreshed, extra_state = {}, state.extra_state
  for name, definition in run.method.refreshes.items():

    def renewed(name=name, definition=definition, refreshed=refreshed, extra_state=extra_state):
      return refresh.renew(
        name, definition, run.snapshot(state.params, extra_state, 0), refreshed, extra_state
      )

    refreshed, extra_state = meter.often(name, renewed)
  state = state._replace(extra_state=extra_state)
  state = steps(meter, run, state, refreshed, step)
  meter.often("evaluation", lambda: evaluate.validate(run, state.params, state.extra_state) and None)


def steps(meter: Meter, run: Run, state, refreshed, step: TrainStep):
  """Measures building batches and training steps; returns the state after them."""
  number, batches = -1, []

  def build():
    nonlocal number
    number += 1
    batches.append(run.batches.build(number % run.batches.steps_per_epoch, refreshed))

  meter.often("batch", build, runs=20)
  sizes = {"rows": int((batches[0].rows >= 0).sum()), "columns": len(batches[0].columns)}
  static = loop.static_labels(run.batches, run.mesh)
  # Some batches that are clusters have another shape; they would cause another compilation.
  shape = lambda batch: [leaf.shape for leaf in jax.tree.leaves(batch)]
  batches = [batch for batch in batches if shape(batch) == shape(batches[0])]

  def one():
    nonlocal state, number
    number += 1
    placed = sharding.put_batch(batches[number % len(batches)], run.mesh)._replace(**static)
    state, metrics = step(state, placed)
    return metrics

  def account():
    found = [program.memory_analysis() for program in step._programs.values()]
    most = max(one.argument_size_in_bytes + one.temp_size_in_bytes for one in found)
    return {"xla_mb": round(most / 1e6, 1), **sizes}

  meter.often("step", one, runs=10, more=account)
  return state


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("method")
  parser.add_argument("points", type=int, help="trained on")
  parser.add_argument("labels", type=int)
  parser.add_argument("folder", type=pathlib.Path, help="of synthetic_data.write, with N / 8 points more")
  given = parser.parse_args()
  runtime.start()
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # methods share compiled refreshes
  jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.numpy.zeros(8)))  # allocates the device's own memory
  with tempfile.TemporaryDirectory() as workdir:
    config = config_of(given.method, given.points, given.labels)
    measure(config, given.folder, pathlib.Path(workdir))
  sys.stdout.flush()


if __name__ == "__main__":
  main()
