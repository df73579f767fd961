"""Speed of the SoftTop-k loss, ours against the paper's binary search in PyTorch.

Needs both frameworks, as benchmarks/encoder.py does:

  PYTHONPATH=. .venv-bench/bin/python benchmarks/soft_top_k.py

Measures a loss and its gradient by the scores `[--batch_size, --num_labels]`, with 5 random positives per
row. PyTorch runs the paper's algorithm: 32 halvings, each a pass over all scores, and the gradient of its
equation 7 in an autograd function. Both run in one process on two threads, taking turns; the medians are over
--rounds turns. First losses and gradients are checked to agree to 1e-4. Compilation is reported separately.
`wall` is what a user waits for; `cpu`, the time of all threads, varies less on a busy machine.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import jax.numpy as jnp
import numpy as np
import paired_timing
import roofline
import torch

from xmc_jax import losses

NUM_HALVINGS = 32


class Ours:
  """Runs xmc_jax's loss, jitted; turns the positives, given as columns, into labels `[B, L]`."""

  name = "xmc_jax"

  def __init__(self, scores, positives, k, alpha):
    def mean_loss(scores, positives):
      rows = jnp.arange(len(scores))[:, None]
      labels = jnp.zeros(scores.shape, bool).at[rows, positives].set(True)
      return jnp.mean(losses.soft_top_k_loss(scores, labels, k, alpha=alpha))

    self.inputs = jax.device_put((scores, positives))
    start = time.perf_counter()
    self.step = jax.jit(jax.value_and_grad(mean_loss)).lower(*self.inputs).compile()
    print(f"compiled in {time.perf_counter() - start:.1f} s", flush=True)

  def run(self):
    return jax.block_until_ready(self.step(*self.inputs))


class LogSoftTopK(torch.autograd.Function):
  """Computes log z for z = sigmoid(alpha (s + t)); finds t by bisection."""

  @staticmethod
  def forward(ctx, scores, k, alpha):
    low = -scores.amax(1, keepdim=True) - 10 / alpha
    high = -scores.amin(1, keepdim=True) + 10 / alpha
    for _ in range(NUM_HALVINGS):
      middle = (low + high) / 2
      too_few = torch.sigmoid(alpha * (scores + middle)).sum(1, keepdim=True) < k
      low, high = torch.where(too_few, middle, low), torch.where(too_few, high, middle)
    logits = alpha * (scores + (low + high) / 2)
    ctx.save_for_backward(torch.sigmoid(logits))
    ctx.alpha = alpha
    return torch.nn.functional.logsigmoid(logits)

  @staticmethod
  def backward(ctx, cotangent):
    (z,) = ctx.saved_tensors
    slopes = z * (1 - z)
    direct = cotangent * (1 - z)
    shared = direct.sum(1, keepdim=True) / slopes.sum(1, keepdim=True)
    return ctx.alpha * (direct - slopes * shared), None, None


class Torch:
  """Runs the paper's algorithm in eager PyTorch."""

  name = "torch"

  def __init__(self, scores, positives, k, alpha):
    self.scores = torch.from_numpy(scores).requires_grad_()
    self.positives, self.k, self.alpha = torch.from_numpy(positives).long(), k, alpha

  def run(self):
    log_z = LogSoftTopK.apply(self.scores, self.k, self.alpha)
    loss = -log_z.gather(1, self.positives).mean()
    (gradient,) = torch.autograd.grad(loss, self.scores)
    return loss.detach(), gradient


def check_equal(ours, theirs):
  """Exits with a message if losses or the rows' gradients differ by more than 1e-4."""
  (loss, gradient), (their_loss, their_gradient) = (
    [np.asarray(part) for part in system.run()] for system in (ours, theirs)
  )
  loss_difference = abs(loss - their_loss)
  difference = len(gradient) * np.abs(gradient - their_gradient).max()
  if not (loss_difference < 1e-4 and difference < 1e-4):
    raise SystemExit(f"not the same: losses differ by {loss_difference:.2e}, gradients by {difference:.2e}")
  print(f"loss {loss:.4f}; losses agree to {loss_difference:.1e}, gradients to {difference:.1e}", flush=True)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--batch_size", type=int, default=256)
  parser.add_argument("--num_labels", type=int, default=131_072)
  parser.add_argument("--k", type=float, default=5)
  parser.add_argument("--alpha", type=float, default=2)
  parser.add_argument("--spread", type=float, default=1, help="standard deviation of the scores")
  parser.add_argument("--rounds", type=int, default=5)
  options = parser.parse_args()

  torch.set_num_threads(2)
  rng = np.random.default_rng(0)
  scores = options.spread * rng.standard_normal((options.batch_size, options.num_labels), np.float32)
  positives = np.stack([rng.choice(options.num_labels, 5, replace=False) for _ in scores]).astype(np.int32)
  systems = [kind(scores, positives, options.k, options.alpha) for kind in (Ours, Torch)]
  check_equal(*systems)
  seconds = paired_timing.compare(*systems, options.rounds)
  roofline.say_bandwidth(2 * scores.nbytes, seconds, "reading scores and writing gradients once")


if __name__ == "__main__":
  main()
