"""Speed and memory of row-sparse Adam: beside dense `optax.adam`, and on a table of 1.3 million labels.

  python -m benchmarks.lazy_adam

A step differentiates a quadratic loss of --rows random rows, by the rows in ours and by the whole table in
optax, with table and moments donated. Losses of the first step, and the rows that it changed, are compared.
Then ours trains `[--num_labels, --dim]`, the size of LF-AmazonTitles-1.3M: with its two moments, 12 GB.
--rounds 0 skips the comparison.
"""

import statistics

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import children, flags, paired_timing
from xmc_jax.ops import lazy_adam

_RATE, _BATCHES = 1e-3, 8


def loss_of(rows):
  return jnp.sum((rows - 1) ** 2)


class System:
  """Trains a table of patterned rows of about unit length, made on the device without a copy."""

  def __init__(self, num_labels, options):
    fill = lambda: jnp.sin(0.1 * jnp.arange(num_labels)[:, None] + jnp.arange(options.dim)) / options.dim**0.5
    self.table = jax.jit(fill)()
    rng = np.random.default_rng(0)
    self.batches = [rng.integers(0, num_labels, options.rows, dtype=np.int32) for _ in range(_BATCHES)]
    self.state, self.count = self.init(self.table), 0
    self._step = jax.jit(self.step, donate_argnums=(0, 1))

  def run(self):
    ids = self.batches[self.count % _BATCHES]
    self.count += 1
    self.table, self.state, loss = self._step(self.table, self.state, ids, jnp.int32(self.count))
    return float(loss)


class Ours(System):
  name = "xmc_jax"

  def init(self, table):
    return lazy_adam.init(table)

  def step(self, table, moments, ids, count):
    loss, gradients = jax.value_and_grad(loss_of)(lazy_adam.take(table, ids))
    merged = lazy_adam.merge(ids, gradients)
    return *lazy_adam.adam(table, moments, *merged, count=count, learning_rate=_RATE), loss


class Optax(System):
  name = "optax"

  def init(self, table):
    return optax.adam(_RATE).init(table)

  def step(self, table, state, ids, count):
    loss, gradient = jax.value_and_grad(lambda table: loss_of(table[ids]))(table)
    updates, state = optax.adam(_RATE).update(gradient, state)
    return optax.apply_updates(table, updates), state, loss


def compare(options):
  ours, theirs = Ours(options.compared_labels, options), Optax(options.compared_labels, options)
  losses, ids = [system.run() for system in (ours, theirs)], ours.batches[0]
  difference = jnp.abs(ours.table[ids] - theirs.table[ids]).max()
  if not (abs(losses[0] / losses[1] - 1) < 1e-5 and difference < 1e-6):
    raise SystemExit(f"not the same: losses {losses}, rows differ by {difference:.1e}")
  print(
    f"{options.rows:,} rows a step of {ours.table.shape}; the first agrees to {difference:.0e}", flush=True
  )
  for system in (ours, theirs):
    system.run()  # compiles again, for what a step returned
  paired_timing.compare(ours, theirs, options.rounds)


def train_large(options):
  ours = Ours(options.num_labels, options)
  ours.run()
  seconds = statistics.median(paired_timing.timed(ours)[0] for _ in range(options.steps))
  peak = children.peak_bytes("self") / 1e9
  rate = options.rows / seconds
  print(f"{ours.table.shape}: {seconds:.3f} s a step, {rate:,.0f} rows/s; peak {peak:.1f} GB")


def main():
  options = flags.parse(
    __doc__, num_labels=1_305_265, compared_labels=130_000, dim=768, rows=8192, steps=20, rounds=7
  )
  if options.rounds:
    compare(options)
  train_large(options)


if __name__ == "__main__":
  main()
