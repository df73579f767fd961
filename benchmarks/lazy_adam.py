"""Speed and memory of row-sparse Adam on a table of 1.3 million labels, and of dense Adam on a smaller one.

  PYTHONPATH=. .venv/bin/python benchmarks/lazy_adam.py

First `xmc_jax.ops.lazy_adam` takes turns with `optax.adam` on a table `[--compared_labels, --dim]`: a step
of either differentiates a quadratic loss of --rows random rows, by the rows in ours and by the whole table in
optax, with table and moments donated. They are checked to agree on the loss of the first step, and on the
rows that it changed. Then ours trains `[--num_labels, --dim]`, the size of LF-AmazonTitles-1.3M, with its two
moments, 12 GB of float32. The peak resident memory of the process must stay below --limit_gb, or the exit
status is 1. Tables are made on the device. --turns 0 skips the comparison.
"""

import argparse
import functools
import resource

import jax
import jax.numpy as jnp
import numpy as np
import optax
import paired_timing
import roofline

from xmc_jax.ops import lazy_adam

RATE = 1e-3


def make_table(num_labels, dim):
  """Builds a table of patterned rows of about unit length, cheaply and without a second array of its size."""
  fill = lambda: jnp.sin(0.1 * jnp.arange(num_labels)[:, None] + jnp.arange(dim)) / dim**0.5
  return jax.jit(fill)()


def loss_of(rows):
  return jnp.sum((rows - 1) ** 2)


class Ours:
  name = "xmc_jax"

  def __init__(self, table, batches):
    self.table, self.moments, self.batches, self.count = table, lazy_adam.init(table), batches, 0

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(table, moments, ids, count):
      rows = lazy_adam.take(table, ids)
      loss, gradients = jax.value_and_grad(loss_of)(rows)
      merged = lazy_adam.merge(ids, gradients)
      return *lazy_adam.adam(table, moments, *merged, count=count, learning_rate=RATE), loss

    self._step = step

  def run(self):
    ids = self.batches[self.count % len(self.batches)]
    self.count += 1
    self.table, self.moments, loss = self._step(self.table, self.moments, ids, jnp.int32(self.count))
    return float(loss)


class Optax:
  name = "optax"

  def __init__(self, table, batches):
    optimiser = optax.adam(RATE)
    self.table, self.state, self.batches, self.count = table, optimiser.init(table), batches, 0

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(table, state, ids):
      loss, gradient = jax.value_and_grad(lambda table: loss_of(table[ids]))(table)
      updates, state = optimiser.update(gradient, state)
      return optax.apply_updates(table, updates), state, loss

    self._step = step

  def run(self):
    ids = self.batches[self.count % len(self.batches)]
    self.count += 1
    self.table, self.state, loss = self._step(self.table, self.state, ids)
    return float(loss)


def draw_batches(num_labels, rows, count=8):
  rng = np.random.default_rng(0)
  return [jax.device_put(rng.integers(0, num_labels, rows, dtype=np.int32)) for _ in range(count)]


def compare(options):
  size = (options.compared_labels, options.dim)
  batches = draw_batches(options.compared_labels, options.rows)
  ours, theirs = Ours(make_table(*size), batches), Optax(make_table(*size), batches)
  losses = [system.run() for system in (ours, theirs)]
  difference = jnp.abs(ours.table[batches[0]] - theirs.table[batches[0]]).max()
  if not (abs(losses[0] / losses[1] - 1) < 1e-5 and difference < 1e-6):
    raise SystemExit(f"not the same: losses {losses}, rows differ by {difference:.1e}")
  print(f"{options.rows:,} rows a step of {size[0]:,} x {size[1]}; the first agrees to {difference:.0e}")
  paired_timing.compare(ours, theirs, options.turns)


def resident_gb():
  """Returns the resident memory of this process in GiB, now and at its peak."""
  with open("/proc/self/status", encoding="utf-8") as status:
    now = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
  return now / 2**20, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def train_large(options):
  state_gb = 3 * 4 * options.num_labels * options.dim / 2**30
  print(f"{options.num_labels:,} x {options.dim}: table and moments {state_gb:.1f} GiB", flush=True)
  ours = Ours(
    make_table(options.num_labels, options.dim), draw_batches(options.num_labels, options.rows, options.steps)
  )
  jax.block_until_ready((ours.table, ours.moments))
  print("made: resident {:.1f} GiB, peak {:.1f} GiB".format(*resident_gb()), flush=True)
  ours.run()
  seconds = sorted(paired_timing.timed(ours)[0] for _ in range(options.steps))
  median, (now, peak) = seconds[len(seconds) // 2], resident_gb()
  print(f"{median:.3f} s a step, {seconds[0]:.3f} to {seconds[-1]:.3f}; {options.rows / median:,.0f} rows/s")
  moved = 4 * options.rows * options.dim * 7  # a gradient read; row and moments read and written
  roofline.say_bandwidth(moved, median, "moving the rows, their moments and gradients")
  print(f"trained: resident {now:.1f} GiB, peak {peak:.1f} GiB, {peak * 2**30 / 1e9:.1f} GB", flush=True)
  return peak * 2**30 / 1e9


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--num_labels", type=int, default=1_305_265)
  parser.add_argument("--compared_labels", type=int, default=130_000)
  parser.add_argument("--dim", type=int, default=768)
  parser.add_argument("--rows", type=int, default=8192)
  parser.add_argument("--steps", type=int, default=20)
  parser.add_argument("--turns", type=int, default=7)
  parser.add_argument("--limit_gb", type=float, default=16.0)
  options = parser.parse_args()

  if options.turns:
    compare(options)
  if train_large(options) > options.limit_gb:
    raise SystemExit(f"more than {options.limit_gb} GB of resident memory")


if __name__ == "__main__":
  main()
