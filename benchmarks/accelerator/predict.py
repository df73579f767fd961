"""Compiles what a lease runs for a device that is not here: does XLA take every program?

  JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 python -m benchmarks.accelerator.predict h100

Prints a line for each program, and ends with the number of those that XLA refused. Predictions for DEXML's
steps go to docs/results/lease/TARGET_predicted.json.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.accelerator import compiled, dexml_step, first_steps, lease, operations, targets

RESULTS = compiled.RESULTS.with_name("lease")
STEPS = {
  "dexml_131k": ("lf_amazontitles_131k", {}),
  "dexml_1_3m": ("lf_amazontitles_1.3m", {}),
  "soft_top_5_1_3m": ("lf_amazontitles_1.3m", {"loss": "soft_top_k"}),
}
_DEBIAN = {"plan.num_labels": 11_438, "plan.num_points": 9914}
_MINILM = {"encoder.name": "all-MiniLM-L6-v2"}  # whose sizes are known without its files


def _dexml(target: str) -> Iterator[tuple[str, Callable[[], Any]]]:
  """Yields names, and functions that compile a step of DEXML and return its account."""
  for name, (preset, values) in STEPS.items():
    config = dexml_step.config_of(preset, **values)
    points, labels = dexml_step.groups(config)
    yield name, functools.partial(compiled.compile_step, config, target, points, labels)


def _others(target: str) -> Iterator[tuple[str, Callable[[], Any]]]:
  """Yields names, and functions that compile an operation, a method's step or a training's."""
  place = NamedSharding(targets.mesh(target), PartitionSpec())
  shape = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
  with jax.default_device(jax.local_devices(backend="cpu")[0]):
    problems = operations.problems(*operations.FULL)
  for name, (function, arguments) in problems.items():
    shapes = jax.tree.map(shape, arguments)
    yield name, lambda function=function, shapes=shapes: jax.jit(function).lower(*shapes).compile()
  for method in first_steps.METHODS:
    config = _config(f"{method}:debian", {**first_steps.SMALL, **_DEBIAN})
    yield f"first step of {method}", functools.partial(compiled.compile_step, config, target)
  for experiment, changes in lease.TRAININGS.values():
    config = _config(experiment.replace(".py", ""), {**changes, **_DEBIAN, **_MINILM})
    yield f"training of {experiment}", functools.partial(compiled.compile_step, config, target)


def _config(preset: str, changes: dict[str, Any]):
  config = compiled.config_of(preset, [])
  config.update_from_flattened_dict(changes)
  return config


def main(arguments: list[str]) -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("target", choices=targets.NAMES)
  parser.add_argument("--only", default="", help="programs whose name has this in it")
  options = parser.parse_args(arguments)
  predicted, refused = {}, 0
  with targets.as_default(options.target):
    steps, others = list(_dexml(options.target)), list(_others(options.target))
  for name, compile_it in steps + others:
    if options.only not in name:
      continue
    start = time.perf_counter()
    try:
      with targets.as_default(options.target):
        result = compile_it()
      if name in STEPS:
        preset, values = STEPS[name]
        model_flops = dexml_step.flops(dexml_step.config_of(preset, **values))
        predicted[name] = {**result[0], "model_flops": model_flops}
      print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    except Exception as error:  # XLA's refusals are of many kinds
      refused += 1
      print(f"{name}: refused: {str(error).splitlines()[0][:200]}", flush=True)
  if predicted:
    file = RESULTS / f"{options.target}_predicted.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(known | predicted, indent=1, sort_keys=True) + "\n", encoding="utf-8")
  print(f"{refused} refused")
  sys.exit(refused > 0)


if __name__ == "__main__":
  main(sys.argv[1:])
