"""Compares operations with float64: losses and their gradients, an encoder, search, row-sparse Adam.

  JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 python -m benchmarks.accelerator.operations FILE.npz [--tiny]

writes the references: of each result its length, and its largest and some random numbers.
"""

import functools
import pathlib
import sys
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import flags
from xmc_jax import losses, ops
from xmc_jax.models.encoder import Encoder, EncoderSpec
from xmc_jax.ops import lazy_adam

FULL, TINY = (512, 65_536, 384), (8, 64, 16)  # queries, labels, dimensions
MOST = 1e-4  # difference, of float32 sums in another order and of scores in three products of bfloat16 parts
_ZERO = 1e-9  # of the longest result of an operation
_SAMPLED = 2048  # of the largest numbers, and as many random ones

Problem = tuple[Callable, tuple]


def problems(num_queries: int, num_labels: int, dim: int, dtype=np.float32) -> dict[str, Problem]:
  """Returns functions by name with their arguments, which are the same in any precision."""
  rng = np.random.default_rng(0)

  def unit(*shape):
    array = rng.standard_normal(shape)
    return (array / np.linalg.norm(array, axis=-1, keepdims=True)).astype(np.float32).astype(dtype)

  queries, labels = unit(num_queries, dim), unit(num_labels, dim)
  positives = rng.integers(0, num_labels // 5, (num_queries, 5)).astype(np.int32)
  positives += np.arange(5, dtype=np.int32) * (num_labels // 5)  # of a row all differ
  scores = (4 * rng.standard_normal((num_queries, num_labels))).astype(np.float32).astype(dtype)
  marked = np.zeros(scores.shape, bool)
  np.put_along_axis(marked, positives, True, axis=1)

  def of_rows(loss):
    return jax.value_and_grad(lambda scores: loss(scores, jnp.asarray(marked)).mean()), (scores,)

  def streamed(kind, dense, **options):
    """Streams scores, whose sums are float32; in float64 all scores are there at once."""

    def total(queries, labels):
      if dtype == np.float64:
        return dense(queries @ labels.T / 0.05, jnp.asarray(marked)).mean()
      loss = ops.streaming_loss(kind, queries, labels, positives, chunk=4096, temperature=0.05, **options)
      return loss.mean()

    return jax.value_and_grad(total, argnums=(0, 1)), (queries, labels)

  def best(queries, labels):
    if dtype == np.float64:
      return jax.lax.top_k(queries @ labels.T, num_best)[0]
    return ops.top_k(queries, labels, num_best, chunk=8192)[0]

  def adam(table, ids, rows):
    merged = lazy_adam.merge(ids, rows)
    return lazy_adam.adam(table, lazy_adam.init(table), *merged, count=1, learning_rate=0.1)

  ids = rng.integers(0, num_labels, num_queries * 4).astype(np.int32)
  num_best, prior = min(100, num_labels), float(np.log(num_labels))
  soft_top_k = functools.partial(losses.soft_top_k_loss, k=5, alpha=2.0)
  streamed_soft_top_k = functools.partial(streamed, "soft_top_k", soft_top_k, k=5.0, alpha=2.0)
  return {
    "softmax": of_rows(losses.softmax),
    "decoupled_softmax": of_rows(losses.decoupled_softmax),
    "binary": of_rows(losses.binary),
    "soft_top_k": of_rows(soft_top_k),
    "margin": of_rows(losses.margin),
    "dynamic_margin": of_rows(losses.dynamic_margin),
    "streaming_decoupled": streamed("decoupled_softmax", losses.decoupled_softmax),
    "streaming_softmax": streamed("softmax", losses.softmax),
    "streaming_soft_top_k": streamed_soft_top_k(),
    "streaming_binary": streamed("binary", lambda s, y: losses.binary(s - prior, y), prior=prior),
    "streaming_kept": streamed_soft_top_k(keeps_scores=True),
    "streaming_bf16x3": streamed("decoupled_softmax", losses.decoupled_softmax, precision="auto"),
    "encoder": _encoder(rng, num_queries, dim, dtype),
    "top_k_scores": (best, (queries, labels)),
    "row_sparse_adam": (adam, (labels, ids, unit(len(ids), dim))),
  }


def _encoder(rng: np.random.Generator, num_texts: int, dim: int, dtype) -> Problem:
  """Returns an encoder's gradient; its parameters are NumPy's, which all machines draw alike."""
  encoder = Encoder(EncoderSpec("distilbert", 500, dim, 2, 4, 4 * dim, 32), dtype=dtype)
  texts = rng.integers(0, 500, (num_texts, 12), np.int32)
  mask = np.arange(12) < rng.integers(1, 13, (num_texts, 1))
  shapes = jax.eval_shape(encoder.init, jax.random.key(0), texts, mask)
  draw = lambda shape: (dim**-0.5 * rng.standard_normal(shape)).astype(np.float32).astype(dtype)

  def total(params):
    return jnp.sum(jnp.sin(encoder.apply(params, texts, mask)) * mask[..., None])

  return jax.value_and_grad(total), (jax.tree.map(lambda leaf: draw(leaf.shape), shapes),)


def _results(problem: Problem) -> Iterator[np.ndarray]:
  function, arguments = problem
  for leaf in jax.tree.leaves(jax.jit(function)(*arguments)):
    yield np.asarray(leaf, np.float64).ravel()


def write(file: pathlib.Path, sizes: tuple[int, int, int]) -> None:
  """Writes the references of all operations; needs JAX_ENABLE_X64."""
  arrays: dict[str, np.ndarray] = {}
  rng = np.random.default_rng(0)
  for name, problem in problems(*sizes, dtype=np.float64).items():
    for number, result in enumerate(_results(problem)):
      largest = np.argsort(-np.abs(result))[:_SAMPLED]
      at = np.unique(np.r_[largest, rng.integers(0, len(result), min(_SAMPLED, len(result)))])
      arrays |= {f"{name}/{number}/at": at.astype(np.int32), f"{name}/{number}/value": result[at]}
      arrays[f"{name}/{number}/length"] = np.linalg.norm(result)
  np.savez_compressed(file, **arrays)


def differences(file: pathlib.Path, sizes: tuple[int, int, int]) -> Iterator[tuple[str, float]]:
  """Yields each operation's name and how far its results here are from the references, as a share."""
  with np.load(file) as stored:
    references = dict(stored)
  for name, problem in problems(*sizes).items():
    results = list(_results(problem))
    of = lambda key, name=name, results=results: [
      references[f"{name}/{number}/{key}"] for number in range(len(results))
    ]
    longest, shares = max(of("length")), []
    for result, at, value, length in zip(results, of("at"), of("value"), of("length")):
      # Some gradients are 0 but for rounding, that of the keys' bias for one.
      scale = length if length > _ZERO * longest else longest
      shares += [np.linalg.norm(result[at] - value) / scale, abs(np.linalg.norm(result) - length) / scale]
    yield name, float(np.max(shares))


def main() -> None:
  options = flags.parse(__doc__, folders="file", tiny=False)
  if not jax.config.jax_enable_x64:
    sys.exit("set JAX_ENABLE_X64=1: references are float64")
  write(options.file[0], TINY if options.tiny else FULL)


if __name__ == "__main__":
  main()
