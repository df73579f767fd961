"""Tunes a MiniLM with sentence-transformers' MultipleNegativesRankingLoss, on files.

  python -m venv .venv-bench && .venv-bench/bin/pip install -e ".[bench]"
  .venv-bench/bin/python benchmarks/mnrl_worker.py --folder=FOLDER --model=MODEL --depth=120

It needs PyTorch and imports nothing of xmc_jax; `benchmarks/exchange.py` describes the folder. A pair is a
training point and one of its labels; nearly all pairs are used once per epoch. A batch has no text twice (as
with the library's NO_DUPLICATES sampler); the other labels of a batch are a point's negatives. Labels are
ranked by the exact cosine.
"""

import argparse
import importlib
import os
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import scipy.sparse as sp
import sentence_transformers
import torch
from pair_batches import pairs_of_epoch
from worker_files import parser_of, texts_of, write

_ASKED = ("seed", "epochs", "pairs", "max_length")
_BATCH_SIZE, _LEARNING_RATE, _SCALE = 256, 2e-4, 20.0
_WARMUP = 0.1  # share of all steps
_ENCODED = 256  # texts at a time


def build(folder: str, max_length: int):
  """Builds the model of a Hugging Face folder, with mean pooling and unit vectors."""
  parts = importlib.import_module("sentence_transformers.sentence_transformer.modules")
  word = parts.Transformer(folder, max_seq_length=max_length)
  pooling = parts.Pooling(word.get_embedding_dimension())
  device = "cuda" if torch.cuda.is_available() else "cpu"
  return sentence_transformers.SentenceTransformer(modules=[word, pooling, parts.Normalize()], device=device)


def tokenized(model, texts: list[str]) -> dict[str, torch.Tensor]:
  """Returns token ids `[n, T]` and masks, padded to the longest text."""
  limit = {"truncation": True, "max_length": model.max_seq_length, "padding": True, "return_tensors": "pt"}
  return {key: value.to(model.device) for key, value in model.tokenizer(texts, **limit).items()}


def train(model, texts: dict[str, list[str]], truth: sp.csr_matrix, options) -> None:
  """Tunes the model."""
  losses = importlib.import_module("sentence_transformers.sentence_transformer.losses")
  loss_of = losses.MultipleNegativesRankingLoss(model, scale=_SCALE)
  optimiser = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
  model.train()
  for epoch in range(options.epochs):
    made = pairs_of_epoch(truth, texts, _BATCH_SIZE, (options.seed, epoch), options.pairs)
    if not made:
      raise SystemExit("two pairs of different texts are needed to train; the data have fewer")
    for number, batch in enumerate(made):
      done = (epoch + number / len(made)) / options.epochs
      rate = _LEARNING_RATE * min(done / _WARMUP, (1 - done) / (1 - _WARMUP))
      for group in optimiser.param_groups:
        group["lr"] = rate
      sides = (
        tokenized(model, [texts[side][row] for row in batch[:, column]])
        for column, side in enumerate(("train", "labels"))
      )
      optimiser.zero_grad(set_to_none=True)
      loss = loss_of(list(sides), None)
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimiser.step()
      if number % 20 == 0:
        print(f"epoch {epoch + 1}, step {number + 1} of {len(made)}: loss {loss.item():.3f}", flush=True)


@torch.inference_mode()
def encode(model, texts: list[str]) -> torch.Tensor:
  """Returns `[n, D]` unit vectors; texts of similar length share a batch."""
  model.eval()
  order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
  vectors = torch.zeros(len(texts), model.get_embedding_dimension())
  for start in range(0, len(order), _ENCODED):
    rows = order[start : start + _ENCODED]
    found = model(tokenized(model, [texts[row] for row in rows]))["sentence_embedding"]
    vectors[torch.tensor(rows)] = found.cpu()
  return vectors


def rank(points: torch.Tensor, labels: torch.Tensor, k: int) -> sp.csr_matrix:
  """Returns each point's k largest cosines as CSR `[n, L]`."""

  found = [torch.topk(part @ labels.T, k) for part in points.split(_ENCODED)]
  values, ids = (torch.cat(part).numpy().ravel() for part in zip(*found))
  return sp.csr_matrix((values, ids, k * np.arange(len(points) + 1)), (len(points), len(labels)))


def parse() -> argparse.Namespace:
  parser = parser_of(__doc__)
  parser.add_argument("--model", required=True, help="a Hugging Face model folder")
  parser.add_argument("--epochs", type=int, default=3)
  parser.add_argument("--pairs", type=int, default=0, help="of an epoch, at most; 0 is all")
  parser.add_argument("--max_length", type=int, default=32, help="tokens of a text")
  return parser.parse_args()


def main() -> None:
  options = parse()
  texts = {name: texts_of(options.folder, name) for name in ("train", "labels", "test")}
  truth = sp.load_npz(options.folder / "truth.npz").tocsr()
  torch.manual_seed(options.seed)
  model = build(options.model, options.max_length)
  started = time.perf_counter()
  train(model, texts, truth, options)
  trained = time.perf_counter()
  scores = rank(encode(model, texts["test"]), encode(model, texts["labels"]), options.depth)
  seconds = {"train": trained - started, "test": time.perf_counter() - trained}
  versions = {"sentence-transformers": sentence_transformers.__version__, "torch": torch.__version__}
  asked = {name: getattr(options, name) for name in _ASKED}
  fixed = {"batch_size": _BATCH_SIZE, "learning_rate": _LEARNING_RATE, "scale": _SCALE, "warmup": _WARMUP}
  write(options.folder, scores, seconds, {**versions, **asked, **fixed})


if __name__ == "__main__":
  main()
