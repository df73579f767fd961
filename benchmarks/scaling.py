"""How cost grows with labels and with points: time and memory of a step, of refreshes, of evaluation.

  python -m benchmarks.scaling                # an hour; resumes where it stopped
  python -m benchmarks.scaling --methods dpr
  python -m benchmarks.scaling --only_table
  python docs/make_figures.py                              # docs/figures/scaling.png

All methods have the same small encoder, a bag of 64 dimensions, batches of 256 and synthetic data:
16,000 points with 10,000 to 3 million labels, and 16,000 to 1 million points with 30,000 labels. Every point
of this grid runs in its own process, and is stopped after --limit seconds. docs/results/scaling.json is
rewritten after each; delete its lines to measure them again. Units:

  open        opening the data, the method and the builder of batches; once
  walks       random walks over the graph, RAMEN alone; once, as in a run
  NAME        each refresh, including what it embeds
  batch       building a batch on the host
  step        a training step, including the batch's transfer; `xla_mb` is XLA's memory estimate
  evaluation  `evaluate.validate` of N / 8 points

Each has `wall` and `cpu` seconds, the median of several runs after one that compiles (`once` if the first
took too long to repeat), and `peak_mb`, the peak of the process in the unit, less that before the data were
opened. Prints exponents: the slope of a line through log(size) and log(cost) over the larger half of sizes.
"""

import ctypes
import gc
import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np

from benchmarks import children, flags, synthetic_data
from xmc_jax import data, methods, refresh
from xmc_jax.distributed import runtime, sharding
from xmc_jax.plan import chunks
from xmc_jax.runs import evaluate
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.run import Run
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import atomic
from xmc_jax.training import loop, optimizer
from xmc_jax.training.step import TrainStep

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "scaling.json"
_METHODS = ("dexml", "dpr", "ance", "ova", "ngame", "dexa", "unidec", "depsl", "prime", "ramen")
# UniDEC's clusters have 250 points at each of these N, whose ratios are powers of two.
POINTS = (16_000, 64_000, 256_000, 1_024_000)
LABELS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)
FEW_POINTS, FEW_LABELS = POINTS[0], LABELS[1]  # the fixed size while the other one is varied
SHARE = 8  # N / SHARE points more are held out for evaluation
BATCH, WIDTH = 256, 64
_RUNS = 3  # at most
_SECONDS, _TOO_LONG = 8.0, 50.0  # CPU seconds of all runs, or of the first, after which none follows


def number_of_clusters(num_labels: int) -> int:
  """Returns a power of two: about 10 labels per cluster, as in DEXA's and PRIME's largest preset."""
  return 1 << ((num_labels // 8).bit_length() - 1)


def config_of(method: str, num_points: int, num_labels: int):
  """Builds the experiment's config for the bundled set, with a small encoder and synthetic data."""
  config = importlib.import_module(f"xmc_jax.experiments.{method}").get_config("")
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
  if config.method.get("classifier_dim"):
    values["method.classifier_dim"] = WIDTH
  if config.method.get("num_label_clusters"):
    values["method.num_label_clusters"] = number_of_clusters(num_labels)
  if config.method.get("prototype_width"):
    values["method.prototype_width"] = 2 * WIDTH
  config.update_from_flattened_dict(values)
  methods.check_config(config)
  return config


def forget_peak() -> None:
  """Resets the peak resident memory; first returns memory that compilation freed to the system."""
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)
  children.forget_peak()


class Meter:
  """Times units and prints their costs; memory is counted above that at the construction of the Meter."""

  def __init__(self):
    self._base = children.resident_bytes("VmRSS")

  def once(self, unit: str, work: Callable[[], object]):
    """Measures a unit in a single run."""
    forget_peak()
    seconds, made = self._run(work)
    self._print(unit, [seconds], once=True)
    return made

  def often(self, unit: str, work: Callable[[], object], runs: int = _RUNS, more=dict):
    """Measures a unit after a run that compiles it. `more()` returns further values to print."""
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
    peak = (children.peak_bytes("self") - self._base) / 1e6
    found = {"unit": unit, "wall": round(wall, 5), "cpu": round(cpu, 5), "peak_mb": round(peak), **more}
    print(json.dumps({**found, "runs": len(taken)}), flush=True)


def measure(config, folder: pathlib.Path, workdir: pathlib.Path) -> None:
  """Measures all units of a config, on the data of a folder; prints a line of JSON for each."""
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
      snapshot = Trained(run, state.params, extra_state).snapshot()
      return refresh.renew(name, definition, snapshot, refreshed, extra_state)

    refreshed, extra_state = meter.often(name, renewed)
  state = state._replace(extra_state=extra_state)
  state = steps(meter, run, state, refreshed, step)
  meter.often("evaluation", lambda: evaluate.validate(Trained(run, state.params, state.extra_state)) and None)


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


def measure_point(method: str, points: str, labels: str, folder: str) -> None:
  """Measures a method on a folder of `synthetic_data.write`, with N / 8 points more."""
  runtime.start()
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # methods share compiled refreshes
  jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.numpy.zeros(8)))  # allocates the device's own memory
  with tempfile.TemporaryDirectory() as workdir:
    measure(config_of(method, int(points), int(labels)), pathlib.Path(folder), pathlib.Path(workdir))
  sys.stdout.flush()


def measured(method: str, size: tuple[int, int], folder: pathlib.Path, limit: float) -> dict:
  """Measures a point in a process of its own; returns its record, which is partial if it was stopped."""
  command = [sys.executable, "-m", "benchmarks.scaling", "--point", method, *map(str, size), str(folder)]
  with tempfile.TemporaryFile("w+") as said:
    try:
      code = subprocess.run(command, cwd=ROOT, stdout=said, timeout=limit).returncode
      why = f"ended with {code}" if code else ""
    except subprocess.TimeoutExpired:
      why = f"more than {limit:.0f} s"
    said.seek(0)
    units = {found.pop("unit"): found for found in map(json.loads, (line for line in said if line[0] == "{"))}
  record = {"method": method, "points": size[0], "labels": size[1], "units": units}
  return {**record, "left_out": why} if why else record


def kept() -> list[dict]:
  return json.loads(RESULTS.read_text())["found"] if RESULTS.exists() else []


def keep(found: list[dict]) -> None:
  """Writes all records, one per line."""
  found = sorted(found, key=lambda one: (_METHODS.index(one["method"]), one["points"], one["labels"]))
  head = {
    "machine": children.machine(),
    "seconds": "of the processor (cpu) and by the clock (wall)",
    "memory": "MB",
  }
  lines = ",\n".join(json.dumps(one) for one in found)
  atomic.write_text(RESULTS, json.dumps(head)[:-1] + f', "found": [\n{lines}\n]}}\n')


def sweep(wanted: list[str], limit: float) -> None:
  """Measures what is not kept yet, small sizes first."""
  sizes = {(FEW_POINTS, one) for one in LABELS} | {(one, FEW_LABELS) for one in POINTS}
  for size in sorted(sizes, key=lambda size: (size[0] * size[1], size)):
    have = {one["method"] for one in kept() if (one["points"], one["labels"]) == size}
    left = [method for method in wanted if method not in have]
    with tempfile.TemporaryDirectory() as place:
      folder = pathlib.Path(place) / "data"
      for method in left:
        if not folder.exists():
          synthetic_data.write(folder, size[0] + size[0] // SHARE, size[1])
        record = measured(method, size, folder, limit)
        keep([*kept(), record])
        units = ", ".join(f"{name} {one['cpu']:.3g}" for name, one in record["units"].items())
        print(f"{method}, N {size[0]:,}, L {size[1]:,}: {units} {record.get('left_out', '')}", flush=True)


def say_exponents(method: str, by: str) -> None:
  """Prints the exponent of each unit in 'labels' or 'points', and its cost at the largest size."""
  other, fixed = ("points", FEW_POINTS) if by == "labels" else ("labels", FEW_LABELS)
  series: dict[str, list[tuple[int, float]]] = {}
  for one in sorted(kept(), key=lambda one: one[by]):
    if one["method"] == method and one[other] == fixed:
      for unit, cost in one["units"].items():
        series.setdefault(unit, []).append((one[by], max(cost["cpu"], 1e-6)))
  for unit, pairs in series.items():
    larger = np.log(pairs[-max(2, -(-len(pairs) // 2)) :])
    exponent = f"{np.polyfit(*larger.T, 1)[0]:.2f}" if len(pairs) > 1 else "unknown"
    print(f"{method}, {unit}: exponent in {by} {exponent}; {pairs[-1][1]:.3g} s at {pairs[-1][0]:,}")


def main() -> None:
  given = flags.parse(__doc__, methods=_METHODS, limit=900.0, only_table=False, point=())
  if given.point:
    return measure_point(*given.point)
  if not given.only_table:
    sweep(given.methods, given.limit)
  for method in given.methods:
    for by in ("labels", "points"):
      say_exponents(method, by)


if __name__ == "__main__":
  main()
