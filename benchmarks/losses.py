"""Speed and memory of losses over all labels: against PyTorch, and with scores kept or computed again.

  .venv-bench/bin/python -m benchmarks.losses soft_top_k
  .venv-bench/bin/python -m benchmarks.losses streaming
  python -m benchmarks.losses streaming --alone --num_labels=1000000
  python -m benchmarks.losses kept_scores --num_rows=512

  soft_top_k   the loss and its gradient by dense scores; PyTorch runs the paper's algorithm: 32 halvings,
               each a pass over all scores, and the gradient of its equation 7
  streaming    decoupled softmax of unit vectors with both gradients; PyTorch has all scores at once. Extra
               memory is the growth of the peak of a fresh process in one run (Linux only), without the
               results. --alone runs ours at a size where dense scores would not fit
  kept_scores  ours with `keeps_scores`, and without

Rows have 5 positives; in float32, in one process on two threads, in turns. First, results are compared.
"""

import os
import subprocess
import sys

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import children, flags, paired_timing
from benchmarks.paired_timing import System
from xmc_jax import losses
from xmc_jax.ops import streaming_loss

_TEMPERATURE, _POSITIVES, _HALVINGS = 0.05, 5, 32
_KINDS = {"decoupled_softmax": {}, "soft_top_k": {"k": 5.0, "alpha": 2.0}}


def vectors(num_rows, num_labels, dim):
  """Returns unit vectors `[B, D]` and `[L, D]`, positives `[B, 5]`, and weights that select the first."""
  rng = np.random.default_rng(0)
  tables = [rng.standard_normal((rows, dim), np.float32) for rows in (num_rows, num_labels)]
  for table in tables:
    table /= np.linalg.norm(table, axis=1, keepdims=True)
  weights = np.zeros((num_rows, _POSITIVES), np.float32)
  weights[:, 0] = 1
  return *tables, positives_of(rng, num_rows, num_labels), weights


def positives_of(rng, num_rows, num_labels):
  drawn = [rng.choice(num_labels, _POSITIVES, replace=False) for _ in range(num_rows)]
  return np.array(drawn, np.int32)


def ours(name, loss, inputs, by) -> System:
  """Returns a loss of ours, compiled with its gradients; `loss` returns a loss of each row."""

  def total(*inputs):
    per_row = loss(*inputs)
    return per_row.sum(), per_row

  inputs = jax.device_put(inputs)
  program = jax.jit(jax.grad(total, argnums=by, has_aux=True)).lower(*inputs).compile()

  def run():
    gradients, per_row = jax.block_until_ready(program(*inputs))
    return per_row, *gradients

  return System(name, run)


def streaming(inputs, chunk, kind="decoupled_softmax", **more):
  def loss(queries, labels, positives, weights):
    settings = {"chunk": chunk, "temperature": _TEMPERATURE, "weights": weights, **_KINDS[kind], **more}
    return streaming_loss(kind, queries, labels, positives, **settings)

  return ours(f"xmc_jax {kind} {more or ''}".strip(), loss, inputs, (0, 1))


def dense_soft_top_k(scores, positives):
  def loss(scores, positives):
    labels = jnp.zeros(scores.shape, bool).at[jnp.arange(len(scores))[:, None], positives].set(True)
    return losses.soft_top_k_loss(scores, labels, **_KINDS["soft_top_k"])

  return ours("xmc_jax soft_top_k", loss, (scores, positives), (0,))


def torch_streaming(inputs) -> System:
  """Returns PyTorch's autograd on the whole score matrix."""
  import torch

  from benchmarks.full_label_torch import decoupled_softmax

  torch.set_num_threads(2)
  queries, labels, positives, weights = map(torch.from_numpy, inputs)
  queries.requires_grad_(), labels.requires_grad_()

  def run():
    queries.grad = labels.grad = None
    scores = (queries / _TEMPERATURE) @ labels.T
    per_row = decoupled_softmax(scores, positives, positives, weights)
    per_row.sum().backward()
    return per_row.detach().numpy(), queries.grad.numpy(), labels.grad.numpy()

  return System("torch, dense", run)


def torch_soft_top_k(scores, positives) -> System:
  """Returns the paper's algorithm in eager PyTorch: log z for z = sigmoid(alpha (s + t)), t by bisection."""
  import torch

  torch.set_num_threads(2)
  scores, positives = torch.from_numpy(scores), torch.from_numpy(positives).long()
  k, alpha = _KINDS["soft_top_k"].values()

  def run():
    low = -scores.amax(1, keepdim=True) - 10 / alpha
    high = -scores.amin(1, keepdim=True) + 10 / alpha
    for _ in range(_HALVINGS):
      middle = (low + high) / 2
      too_few = torch.sigmoid(alpha * (scores + middle)).sum(1, keepdim=True) < k
      low, high = torch.where(too_few, middle, low), torch.where(too_few, high, middle)
    logits = alpha * (scores + (low + high) / 2)
    z = torch.sigmoid(logits)
    per_row = -torch.nn.functional.logsigmoid(logits).gather(1, positives).mean(1)
    cotangent = torch.zeros_like(z).scatter_(1, positives, -1 / _POSITIVES)
    slopes, direct = z * (1 - z), cotangent * (1 - z)
    shared = direct.sum(1, keepdim=True) / slopes.sum(1, keepdim=True)
    return per_row.numpy(), (alpha * (direct - slopes * shared)).numpy()

  return System("torch, halvings", run)


def check_equal(one, other, limit):
  """Exits with a message if losses or gradients differ."""
  pairs = [[np.asarray(part) for part in pair] for pair in zip(one.run(), other.run())]
  differences = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs]
  if not max(differences) < limit:
    raise SystemExit(f"not the same: losses and gradients differ by {differences}")
  print("losses and gradients agree to " + ", ".join(f"{d:.0e}" for d in differences), flush=True)


def compare_soft_top_k(options):
  rng = np.random.default_rng(0)
  scores = rng.standard_normal((options.num_rows, options.num_labels), np.float32)
  positives = positives_of(rng, *scores.shape)
  systems = dense_soft_top_k(scores, positives), torch_soft_top_k(scores, positives)
  check_equal(*systems, 1e-4)
  paired_timing.compare(*systems, options.rounds)


def compare_kept_scores(options):
  inputs = vectors(options.num_rows, options.num_labels, options.dim)
  for kind in _KINDS:
    kept, again = (streaming(inputs, options.chunk, kind, keeps_scores=keeps) for keeps in (True, False))
    check_equal(kept, again, 1e-5)
    paired_timing.compare(kept, again, options.rounds)


def compare_streaming(options):
  inputs = vectors(options.num_rows, options.num_labels, options.dim)
  streamed = streaming(inputs, options.chunk)
  if options.alone:
    streamed.run()
    seconds = min(paired_timing.seconds_of(streamed.run) for _ in range(options.rounds))
    print(f"best {seconds:.1f} s; peak of the process {children.peak_bytes('self') / 1e9:.2f} GB")
    return
  theirs = torch_streaming(inputs)
  check_equal(streamed, theirs, 1e-5)
  paired_timing.compare(streamed, theirs, options.rounds)
  results = sum(table.nbytes for table in inputs[:2])  # a gradient of each
  own, other = ((growth(name, options) - results) / 1e6 for name in ("ours", "torch"))
  print(f"peak growth beside the results: xmc_jax {own:,.0f} MB, torch {other:,.0f} MB")


def growth(name, options):
  """Returns the bytes by which one run of a system raises the peak of a fresh process."""
  sizes = [f"--{key}={getattr(options, key)}" for key in ("num_rows", "num_labels", "dim", "chunk")]
  command = [sys.executable, "-m", "benchmarks.losses", "streaming", f"--growth={name}", *sizes]
  return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])


def measure_growth(options):
  """Prints by how much one run of --growth, 'ours' or 'torch', raises the peak of this process."""
  make = torch_streaming if options.growth == "torch" else lambda inputs: streaming(inputs, options.chunk)
  make(vectors(8, 4 * options.chunk, options.dim)).run()  # libraries load their code and start threads
  worker = make(vectors(options.num_rows, options.num_labels, options.dim))
  children.forget_peak()
  before = children.resident_bytes("VmRSS")
  worker.run()
  print(children.peak_bytes("self") - before)


_PARTS = {
  "soft_top_k": compare_soft_top_k,
  "streaming": compare_streaming,
  "kept_scores": compare_kept_scores,
}


def main():
  options = flags.parse(
    __doc__, _PARTS, num_rows=1024, num_labels=131_072, dim=384, chunk=4096, rounds=5, alone=False, growth=""
  )
  (measure_growth if options.growth else _PARTS[options.part])(options)


if __name__ == "__main__":
  main()
