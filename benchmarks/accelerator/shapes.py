"""Compiles what the suite runs for a device that is not here: does XLA take every program?

  JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 python -m benchmarks.accelerator.shapes h200

Operations, search, clusters and encoders with the suite's sizes, and a step of each method. Prints a line
for each program, and ends with the number of those that XLA refused.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.accelerator import compiled, targets
from benchmarks.accelerator.phases import against_cpu, rates, trainings
from xmc_jax import models, ops
from xmc_jax.refresh import halving
from xmc_jax.retrieval.index import RECALL
from xmc_jax.retrieval.search import BLOCK, BLOCK_OF_ACCELERATORS
from xmc_jax.types import Tokens

_DEBIAN = ["plan.num_labels=11438", "plan.num_points=9914"]
_OF_1_3_M = [
  ("dexml:lf_amazontitles_1.3m_soft_top_5", [(16, 8192)], [(12, 1_306_624)]),
  ("dexml:lf_amazontitles_131k", [(16, 4096)], [(8, 40_960), (12, 57_344), (16, 32_768)]),
]
Program = Callable[[], Any]


def _operations(place: NamedSharding) -> Iterator[tuple[str, Program]]:
  """Yields names, and functions that compile: operations, search, clusters, encoders."""
  array = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype, sharding=place)
  shaped = lambda tree: jax.tree.map(lambda leaf: array(*leaf.shape, dtype=leaf.dtype), tree)
  with jax.default_device(jax.local_devices(backend="cpu")[0]):
    problems = against_cpu.problems(*against_cpu.SHAPE["full"])
  for name, (function, arguments) in problems.items():
    yield name, lambda function=function, given=arguments: jax.jit(function).lower(*shaped(given)).compile()
  _, num_labels, dim = rates.SEARCH["full"]
  for block in (BLOCK, BLOCK_OF_ACCELERATORS):
    top_k = functools.partial(ops.top_k, k=100)
    given = array(block, dim), array(num_labels, dim)
    yield f"search of {block}", lambda top_k=top_k, given=given: jax.jit(top_k).lower(*given).compile()
    nearly = functools.partial(ops.top_k, k=100, recall=RECALL)
    yield f"shortlists of {block}", lambda nearly=nearly, given=given: jax.jit(nearly).lower(*given).compile()
  num_vectors, dim, num_clusters = rates.CLUSTERS["full"]
  for groups in (1, 32, num_clusters // 2):
    size = -(-num_vectors // groups)
    given = array(groups, size, dim), array(groups, size, dtype=jnp.int32)
    yield f"{groups} groups in halves", lambda given=given: halving._split.lower(*given, cut=False).compile()
  for name in rates.ENCODERS["full"]:
    embedder = models.build(SimpleNamespace(name=name, pretrained=False, dtype="auto"))
    params = shaped(jax.eval_shape(embedder.init, jax.random.key(0)))
    tokens = Tokens(array(4096, 16, dtype=jnp.int32), array(4096, dtype=jnp.int32))
    given = params, tokens
    yield (
      f"{name} embeds",
      lambda embedder=embedder, given=given: jax.jit(embedder.embed).lower(*given).compile(),
    )


def _steps(target: str) -> Iterator[tuple[str, Program]]:
  """Yields names, and functions that compile a training step."""
  changes = [
    f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
    for key, value in trainings.ENCODER.items()
  ]
  for method in against_cpu.METHODS["full"]:
    config = compiled.config_of(f"{method}:debian", [*changes, *_DEBIAN])
    yield f"{method}, bundled data", functools.partial(compiled.compile_step, config, target)
  for preset, points, labels in _OF_1_3_M:
    config = compiled.config_of(preset, [])
    yield preset, functools.partial(compiled.compile_step, config, target, points, labels)


def main(arguments: list[str]) -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("target", choices=targets.NAMES)
  parser.add_argument("--only", default="", help="programs whose name has this in it")
  options = parser.parse_args(arguments)
  with targets.as_default(options.target, cudnn=False):
    place = NamedSharding(targets.mesh(options.target), PartitionSpec())
    programs = [*_operations(place), *_steps(options.target)]
  refused = 0
  for name, compile_it in programs:
    if options.only not in name:
      continue
    start = time.perf_counter()
    try:
      with targets.as_default(options.target, cudnn=False):
        compile_it()
      print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    except Exception as error:  # XLA's refusals are of many kinds
      refused += 1
      print(f"{name}: refused: {str(error).splitlines()[0][:200]}", flush=True)
  print(f"{refused} refused")
  sys.exit(refused > 0)


if __name__ == "__main__":
  main(sys.argv[1:])
