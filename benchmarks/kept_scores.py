"""Compares a streaming loss that keeps its scores with one that computes them in every pass.

  PYTHONPATH=. python benchmarks/kept_scores.py [--num_rows=1024] [--num_labels=131072]

Loss and both gradients, of unit vectors in float32. Results are checked to agree; then the two
take turns. Prints wall and CPU seconds, medians, and the ratio of each turn.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax.ops import streaming_loss

KINDS = {"decoupled_softmax": {}, "soft_top_k": {"k": 5.0, "alpha": 2.0}}
_TEMPERATURE = 0.05


def make_inputs(num_rows: int, num_labels: int, dim: int) -> list[jax.Array]:
  """Returns unit vectors `[B, D]` and `[L, D]`, and positives `[B, 5]`."""
  rng = np.random.default_rng(0)
  tables = [rng.standard_normal((rows, dim), np.float32) for rows in (num_rows, num_labels)]
  tables = [table / np.linalg.norm(table, axis=1, keepdims=True) for table in tables]
  return jax.device_put([*tables, rng.integers(0, num_labels, (num_rows, 5)).astype(np.int32)])


def step(kind: str, keeps_scores: bool, inputs: list[jax.Array], chunk: int) -> jax.stages.Compiled:
  """Compiles the loss of a batch with its gradients."""

  def total(queries, labels, positives):
    settings = {"chunk": chunk, "temperature": _TEMPERATURE, "keeps_scores": keeps_scores}
    return jnp.sum(streaming_loss(kind, queries, labels, positives, **settings, **KINDS[kind]))

  return jax.jit(jax.value_and_grad(total, argnums=(0, 1))).lower(*inputs).compile()


def seconds(program: jax.stages.Compiled, inputs: list[jax.Array]) -> tuple[float, float]:
  """Returns wall and CPU seconds of one run."""
  wall, cpu = time.perf_counter(), time.process_time()
  jax.block_until_ready(program(*inputs))
  return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--num_rows", type=int, default=1024)
  parser.add_argument("--num_labels", type=int, default=131_072)
  parser.add_argument("--dim", type=int, default=384)
  parser.add_argument("--chunk", type=int, default=4096)
  parser.add_argument("--rounds", type=int, default=5)
  options = parser.parse_args()
  inputs = make_inputs(options.num_rows, options.num_labels, options.dim)
  for kind in KINDS:
    programs = {keeps: step(kind, keeps, inputs, options.chunk) for keeps in (False, True)}
    results = [program(*inputs) for program in programs.values()]  # also warms up
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), *results)
    taken = {keeps: [] for keeps in programs}
    for _ in range(options.rounds):
      for keeps, program in programs.items():
        taken[keeps].append(seconds(program, inputs))
    for number, clock in enumerate(("wall", "CPU")):
      again, kept = ([turn[number] for turn in taken[keeps]] for keeps in (False, True))
      ratios = sorted(one / other for one, other in zip(kept, again))
      of_it = f"{statistics.median(ratios):.2f} of it ({ratios[0]:.2f} to {ratios[-1]:.2f})"
      print(
        f"{kind}, {clock}: computed in every pass {statistics.median(again):.2f} s, kept "
        f"{statistics.median(kept):.2f} s, {of_it}"
      )


if __name__ == "__main__":
  main()
