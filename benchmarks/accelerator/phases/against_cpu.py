"""Compares this device's results with a CPU's: each operation, and the first steps of each method."""

import functools
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xmc_jax import losses, ops, refresh
from xmc_jax.distributed import sharding
from xmc_jax.models.encoder import Encoder, EncoderSpec
from xmc_jax.ops import lazy_adam
from xmc_jax.runs import create
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.training import loop, optimizer
from xmc_jax.training.step import TrainStep
from xmc_jax.types import EXTRA_STATE

SHAPE = {"full": (512, 65_536, 384), "tiny": (8, 64, 16)}  # queries, labels, dimensions
METHODS = {
  "full": ("dexml", "dpr", "ance", "ova", "unidec", "depsl", "ngame", "dexa", "prime", "ramen", "rae_xmc"),
  "tiny": ("ngame", "dexa"),
}
_NUM_STEPS = 2
# Of float32 sums in another order, and of scores in three products of bfloat16 parts.
_MOST_OF_OPS, _MOST_OF_LOSSES, _MOST_OF_NORMS = 1e-4, 1e-4, 2e-3
_SMALL = {
  "encoder.name": "bag",
  "encoder.init_table": "",
  "encoder.tokenizer": "train",
  "encoder.width": 64,
  "encoder.dtype": "float32",
  "encoder.dropout": 0.0,
  "train.batch_size": 64,
}


def ops_against_cpu(size: str) -> dict[str, Any]:
  """Returns the largest difference of each operation's results, as a share of the largest value."""
  devices, found = (jax.devices()[0], jax.local_devices(backend="cpu")[0]), {}
  for name, (function, arguments) in problems(*SHAPE[size]).items():
    program = jax.jit(function)
    here, there = (jax.device_get(program(*jax.device_put(arguments, device))) for device in devices)
    shares = jax.tree.map(lambda a, b: np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30), here, there)
    found[name] = float(max(jax.tree.leaves(shares)))
  wrong = [name for name, share in found.items() if not share <= _MOST_OF_OPS]
  return found | ({"failed": f"differ from the CPU: {', '.join(wrong)}"} if wrong else {})


def problems(num_queries: int, num_labels: int, dim: int) -> dict[str, tuple[Any, tuple]]:
  """Returns functions by name with their arguments: losses and gradients, search, row-sparse Adam."""
  rng = np.random.default_rng(0)

  def unit(*shape):
    array = rng.standard_normal(shape).astype(np.float32)
    return array / np.linalg.norm(array, axis=-1, keepdims=True)

  queries, labels = unit(num_queries, dim), unit(num_labels, dim)
  positives = rng.permuted(np.tile(np.arange(num_labels, dtype=np.int32), (num_queries, 1)), axis=1)[:, :5]
  scores = 4 * rng.standard_normal((num_queries, num_labels)).astype(np.float32)
  marked = np.zeros(scores.shape, bool)
  np.put_along_axis(marked, positives, True, axis=1)

  def of_rows(loss):
    return jax.value_and_grad(lambda scores: loss(scores, jnp.asarray(marked)).mean()), (scores,)

  def streamed(kind, **options):
    def total(queries, labels):
      loss = ops.streaming_loss(kind, queries, labels, positives, chunk=4096, temperature=0.05, **options)
      return loss.mean()

    return jax.value_and_grad(total, argnums=(0, 1)), (queries, labels)

  def adam(table, ids, rows):
    merged = lazy_adam.merge(ids, rows)
    return lazy_adam.adam(table, lazy_adam.init(table), *merged, count=1, learning_rate=0.1)

  spec = EncoderSpec("distilbert", 500, dim, 2, 4, 4 * dim, 32)
  encoder, texts = Encoder(spec), rng.integers(0, 500, (num_queries, 12), np.int32)
  mask = np.arange(12) < rng.integers(1, 13, (num_queries, 1))
  params = encoder.init(jax.random.key(0), texts, mask)

  def encoded(params):
    hidden = encoder.apply(params, texts, mask)
    return jnp.sum(jnp.sin(hidden) * mask[..., None])

  ids = rng.integers(0, num_labels, num_queries * 4).astype(np.int32)
  return {
    "softmax": of_rows(losses.softmax),
    "decoupled_softmax": of_rows(losses.decoupled_softmax),
    "binary": of_rows(losses.binary),
    "soft_top_k": of_rows(functools.partial(losses.soft_top_k_loss, k=5, alpha=2.0)),
    "margin": of_rows(losses.margin),
    "dynamic_margin": of_rows(losses.dynamic_margin),
    "streaming_decoupled": streamed("decoupled_softmax"),
    "streaming_softmax": streamed("softmax"),
    "streaming_soft_top_k": streamed("soft_top_k", k=5.0, alpha=2.0),
    "streaming_binary": streamed("binary", prior=float(np.log(num_labels))),
    "streaming_kept": streamed("soft_top_k", k=5.0, alpha=2.0, keeps_scores=True),
    "streaming_bf16x3": streamed("decoupled_softmax", precision="auto"),
    "encoder": (jax.value_and_grad(encoded), (params,)),
    "top_k_scores": (lambda q, z: ops.top_k(q, z, min(100, num_labels), chunk=8192)[0], (queries, labels)),
    "row_sparse_adam": (adam, (labels, ids, unit(len(ids), dim))),
  }


def methods_against_cpu(size: str) -> dict[str, Any]:
  """Returns how far losses and gradient norms of each method's first steps are from a CPU's, as shares.

  A process that sees only the CPU goes ahead; what refreshes have added to the state there is used here, too,
  as rounding may decide a cluster.
  """
  found: dict[str, Any] = {}
  wrong = []
  with tempfile.TemporaryDirectory() as name:
    folder, environment = pathlib.Path(name), {**os.environ, "JAX_PLATFORMS": "cpu"}
    ahead = subprocess.Popen([sys.executable, "-m", __name__, size, name], env=environment)
    for method in METHODS[size]:
      file = folder / f"{method}.npz"
      while not file.exists():
        if ahead.poll() is not None and not file.exists():
          return {"failed": f"the CPU's process ended with {ahead.returncode} in {method}", **found}
        time.sleep(0.2)
      with np.load(file) as there:
        here = _first_steps(method, folder / "here", [there[key] for key in there if key.startswith("leaf")])
        shares = {key: np.max(np.abs(here[key] / there[key] - 1)) for key in ("loss", "gradient_norm")}
      found[method] = {key: float(share) for key, share in shares.items()}
      if not (shares["loss"] <= _MOST_OF_LOSSES and shares["gradient_norm"] <= _MOST_OF_NORMS):
        wrong.append(method)
    ahead.wait()
  return found | ({"failed": f"differ from the CPU: {', '.join(wrong)}"} if wrong else {})


def _first_steps(method: str, folder: pathlib.Path, leaves: list[np.ndarray] | None = None) -> dict[str, Any]:
  """Returns 'loss' and 'gradient_norm' of the first steps, and the leaves of the extra state before them.

  Args:
    method: the name of an experiment.
    folder: for the run and its data.
    leaves: of an extra state, to use in place of what refreshes make here.
  """
  config = importlib.import_module(f"experiments.{method}").get_config("debian")
  config.update_from_flattened_dict({**_SMALL, "data.cache_dir": str(folder / "cache")})
  writer = MetricWriter(folder / method)
  run = create.create(config, folder / method, writer)
  step = TrainStep(run.method, run.mesh, run.config.train, optimizer.make(config, 1000), writer)
  state = step.first_state(*run.initial_parameters())
  extra_state, snapshot = state.extra_state, run.snapshot(state.params, state.extra_state, 0)
  for name, definition in run.method.refreshes.items():
    if definition.target == EXTRA_STATE:
      _, extra_state = refresh.renew(name, definition, snapshot, {}, extra_state)
  structure = jax.tree.structure(extra_state)
  if leaves is not None:
    extra_state = jax.tree.map(
      lambda old, new: jax.device_put(new, old.sharding), extra_state, structure.unflatten(leaves)
    )
  kept = jax.device_get(jax.tree.leaves(extra_state))
  state, metrics = state._replace(extra_state=extra_state), []
  static = loop.static_labels(run.batches, run.mesh)
  for number in range(_NUM_STEPS):
    batch = sharding.put_batch(run.batches.build(number), run.mesh)
    state, found = step(state, batch._replace(**static))
    metrics.append(jax.device_get(found))
  return {
    **{key: np.array([each[key] for each in metrics]) for key in ("loss", "gradient_norm")},
    **{f"leaf{number:03d}": leaf for number, leaf in enumerate(kept)},
  }


def _go_ahead(size: str, folder: pathlib.Path) -> None:
  """Writes the first steps of each method by this process's device."""
  for method in METHODS[size]:
    found = _first_steps(method, folder / "there")
    np.savez(folder / f"{method}.part.npz", **found)
    (folder / f"{method}.part.npz").rename(folder / f"{method}.npz")


if __name__ == "__main__":
  _go_ahead(sys.argv[1], pathlib.Path(sys.argv[2]))
