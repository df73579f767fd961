"""Speed and memory of the streaming loss, against dense PyTorch: decoupled softmax over all labels.

Needs both frameworks, which the project's own environment does not have:

  python -m venv .venv-bench && .venv-bench/bin/pip install -e ".[bench]"
  PYTHONPATH=. .venv-bench/bin/python benchmarks/streaming.py

For each query, one of several positives is sampled; the work is the loss and its gradients by queries and
labels, in float32, on two threads. First the results are checked to agree to 1e-5. Then both take turns,
--rounds times; compilation is reported separately. Extra memory is the growth of the peak resident set of a
fresh process in one run (Linux only), and for ours also XLA's own estimate. It is given with and without
the results; the labels' gradient alone takes 4 · L · D bytes in both systems.

  PYTHONPATH=. .venv-bench/bin/python benchmarks/streaming.py --alone --num_rows=1024 --num_labels=1000000

runs ours alone, at a size where a dense matrix would not fit, and prints the peak memory of the process.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import roofline

TEMPERATURE = 0.05
NUM_POSITIVES = 5
MEGABYTE = 1e6


def make_inputs(num_rows, num_labels, dim):
  """Returns unit vectors `[B, D]` and `[L, D]`, positives `[B, 5]`, and weights that select the first."""
  rng = np.random.default_rng(0)
  tables = []
  for rows in (num_rows, num_labels):
    table = rng.standard_normal((rows, dim), np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    tables.append(table)
  positives = np.array(
    [rng.choice(num_labels, NUM_POSITIVES, replace=False) for _ in range(num_rows)], np.int32
  )
  weights = np.zeros(positives.shape, np.float32)
  weights[:, 0] = 1
  return *tables, positives, weights


class Ours:
  """Runs `xmc_jax.ops.streaming_loss`, jitted with its gradient."""

  def __init__(self, inputs, chunk):
    import jax

    from xmc_jax.ops import streaming_loss

    self.name, self._jax = f"xmc_jax, chunk {chunk}", jax
    self._inputs = jax.block_until_ready(jax.device_put(inputs))

    def total(queries, labels, positives, weights):
      per_row = streaming_loss(
        "decoupled_softmax", queries, labels, positives, chunk=chunk, temperature=TEMPERATURE, weights=weights
      )
      return per_row.sum(), per_row

    self._step = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True)).lower(*self._inputs).compile()

  def run(self):
    (d_queries, d_labels), per_row = self._jax.block_until_ready(self._step(*self._inputs))
    return per_row, d_queries, d_labels

  def planned_memory(self):
    """Returns XLA's estimate in bytes, without the inputs: temporaries, and outputs."""
    memory = self._step.memory_analysis()
    return memory.temp_size_in_bytes, memory.output_size_in_bytes


class Torch:
  """Runs PyTorch's autograd on the whole score matrix."""

  def __init__(self, inputs, chunk=None):
    import torch

    self.name, self._torch = "torch, dense", torch
    torch.set_num_threads(2)
    self.queries, self.labels, positives, self.weights = map(torch.from_numpy, inputs)
    self.positives = positives.long()
    self.queries.requires_grad_(), self.labels.requires_grad_()

  def run(self):
    torch = self._torch
    self.queries.grad = self.labels.grad = None
    scores = (self.queries / TEMPERATURE) @ self.labels.T
    positive = torch.zeros(scores.shape, dtype=torch.bool).scatter_(1, self.positives, True)
    log_negatives = scores.masked_fill(positive, -torch.inf).logsumexp(1, keepdim=True)
    margins = log_negatives - scores.gather(1, self.positives)
    per_row = (self.weights * torch.nn.functional.softplus(margins)).sum(1)
    per_row.sum().backward()
    return per_row.detach().numpy(), self.queries.grad.numpy(), self.labels.grad.numpy()


SYSTEMS = {"ours": Ours, "torch": Torch}


def resident(field):
  """Returns resident bytes: now ('VmRSS'), or the peak since the start or `forget_peak` ('VmHWM')."""
  with open("/proc/self/status", encoding="ascii") as lines:
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak():
  with open("/proc/self/clear_refs", "w", encoding="ascii") as command:
    command.write("5")


def measure_growth(options):
  """Prints by how much one run raises the peak above library and inputs; runs in a separate process."""
  system = SYSTEMS[options.growth]
  system(
    make_inputs(8, 4 * options.chunk, options.dim), options.chunk
  ).run()  # makes libraries load their code and start threads
  worker = system(make_inputs(options.num_rows, options.num_labels, options.dim), options.chunk)
  forget_peak()
  before = resident("VmRSS")
  worker.run()
  print(resident("VmHWM") - before)


def growth(name, options):
  """Returns the bytes by which one run of a system raises the peak of a fresh process."""
  sizes = [f"--{key}={getattr(options, key)}" for key in ("num_rows", "num_labels", "dim", "chunk")]
  command = [sys.executable, __file__, f"--growth={name}", *sizes]
  return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])


def check_equal(ours, theirs):
  """Exits with a message if losses or gradients differ."""
  differences = []
  for a, b in zip(ours.run(), theirs.run()):
    differences.append(float(np.abs(np.asarray(a) - b).max() / np.abs(b).max()))
  if max(differences) > 1e-5:
    raise SystemExit(f"not the same: losses and gradients differ by {differences}")
  print("losses, gradients to queries and labels agree to " + ", ".join(f"{d:.0e}" for d in differences))


def compare(options):
  inputs = make_inputs(options.num_rows, options.num_labels, options.dim)
  print(
    f"B {options.num_rows:,}, L {options.num_labels:,}, D {options.dim}, float32, {NUM_POSITIVES} positives"
  )
  start = time.perf_counter()
  systems = [Ours(inputs, options.chunk), Torch(inputs)]
  print(f"compiled in {time.perf_counter() - start:.1f} s")
  check_equal(*systems)
  seconds = [[], []]
  for _ in range(options.rounds):
    for system, times in zip(systems, seconds):
      start = time.perf_counter()
      system.run()
      times.append(time.perf_counter() - start)
  for system, times in zip(systems, seconds):
    print(f"  {system.name:22s} median {statistics.median(times):.3f} s, best {min(times):.3f} s")
  ratios = [theirs / ours for ours, theirs in zip(*seconds)]
  print(
    f"  torch / xmc_jax: {statistics.median(seconds[1]) / statistics.median(seconds[0]):.2f} by medians, "
    f"{min(seconds[1]) / min(seconds[0]):.2f} by bests; turn by turn {min(ratios):.2f} to {max(ratios):.2f}"
  )
  say_products(options, statistics.median(seconds[0]))
  temporary, outputs = systems[0].planned_memory()
  grown = {name: growth(name, options) / MEGABYTE for name in SYSTEMS}
  print(f"extra memory: xmc_jax by XLA's account {temporary / MEGABYTE:.0f} MB")
  print(f"  results {outputs / MEGABYTE:.0f} MB")
  for words, less in (("with the results", 0), ("without", outputs / MEGABYTE)):
    ours, theirs = (grown[name] - less for name in ("ours", "torch"))
    print(f"  peak growth {words}: xmc_jax {ours:.0f} MB, torch {theirs:.0f} MB, ratio {theirs / ours:.1f}")


def run_alone(options):
  worker = Ours(make_inputs(options.num_rows, options.num_labels, options.dim), options.chunk)
  seconds = []
  for _ in range(options.rounds):
    start = time.perf_counter()
    per_row, *_ = worker.run()
    seconds.append(time.perf_counter() - start)
  temporary, outputs = worker.planned_memory()
  print(f"B {options.num_rows:,}, L {options.num_labels:,}, D {options.dim}")
  print(f"  median {statistics.median(seconds):.1f} s, mean loss {np.mean(per_row):.4f}")
  print(
    f"  extra memory by XLA's account {temporary / MEGABYTE:.0f} MB, results {outputs / MEGABYTE:,.0f} MB"
  )
  print(f"  scores whole would take {4e-6 * options.num_rows * options.num_labels:,.0f} MB a copy")
  print(f"  peak of the process {resident('VmHWM') / 1e9:.2f} GB")
  say_products(options, statistics.median(seconds))


def say_products(options, seconds):
  """Compares ours with the machine's limit: products for the scores and for each of two gradients."""
  work = 3 * options.num_rows * options.num_labels * options.dim
  roofline.say_limit(work, seconds, "scores and the products of both gradients")


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--num_rows", type=int, default=256)
  parser.add_argument("--num_labels", type=int, default=131_072)
  parser.add_argument("--dim", type=int, default=384)
  parser.add_argument("--chunk", type=int, default=4096)
  parser.add_argument("--rounds", type=int, default=9)
  parser.add_argument("--alone", action="store_true", help="without PyTorch")
  parser.add_argument("--growth", choices=SYSTEMS, help=argparse.SUPPRESS)
  options = parser.parse_args()
  work = measure_growth if options.growth else run_alone if options.alone else compare
  work(options)


if __name__ == "__main__":
  main()
