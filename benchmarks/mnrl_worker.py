"""Tunes a MiniLM with sentence-transformers' MultipleNegativesRankingLoss, on files.

  python -m venv .venv-bench && .venv-bench/bin/pip install -e ".[bench]"
  .venv-bench/bin/python benchmarks/mnrl_worker.py --folder=FOLDER --workdir=RUN --model=MODEL --depth=120

It needs PyTorch and imports nothing of xmc_jax; `benchmarks/exchange.py` describes the folder. A pair is a
training point and one of its labels; nearly all pairs are used once per epoch. A batch has no text twice (as
with the library's NO_DUPLICATES sampler); the other labels of a batch are a point's negatives. Labels are
ranked by the exact cosine. The state is saved in --workdir after each epoch, and the same command resumes
from it.
"""

import argparse
import importlib
import os
import pathlib
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import scipy.sparse as sp
import sentence_transformers
import torch
from pair_batches import pairs_of_epoch
from worker_files import texts_of, write

_CHECKPOINT = "mnrl.pt"
_ASKED = ("seed", "epochs", "pairs", "batch_size", "learning_rate", "scale", "warmup", "max_length")
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


def train(model, texts: dict[str, list[str]], truth: sp.csr_matrix, options) -> float:
  """Tunes the model; returns the seconds that this took, with those of finished epochs before a resume."""
  losses = importlib.import_module("sentence_transformers.sentence_transformer.losses")
  loss_of = losses.MultipleNegativesRankingLoss(model, scale=options.scale)
  optimiser = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.01)
  path = options.workdir / _CHECKPOINT
  first, seconds = _restore(path, model, optimiser, options)
  steps = 0
  for epoch in range(first, options.epochs):
    started, total = time.perf_counter(), 0.0
    torch.manual_seed(1000 * options.seed + epoch)  # the same dropout if an epoch is repeated after a kill
    model.train()
    made = pairs_of_epoch(truth, texts, options.batch_size, (options.seed, epoch), options.pairs)
    if not made:
      raise SystemExit("two pairs of different texts are needed to train; the data have fewer")
    for number, batch in enumerate(made):
      done = (epoch + number / len(made)) / options.epochs
      rate = options.learning_rate * min(done / max(options.warmup, 1e-9), (1 - done) / (1 - options.warmup))
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
      total, steps = total + loss.item(), steps + 1
      if steps % 20 == 0:
        print(f"epoch {epoch + 1}, step {number + 1} of {len(made)}: loss {loss.item():.3f}", flush=True)
      if steps == options.steps:
        return seconds + time.perf_counter() - started
    seconds += time.perf_counter() - started
    _save(path, model, optimiser, options, epoch + 1, seconds)
    mean = total / max(len(made), 1)
    print(f"epoch {epoch + 1} of {options.epochs}: loss {mean:.4f}, {seconds:.0f} s in all", flush=True)
  return seconds


def _asked(options) -> dict:
  return {name: getattr(options, name) for name in _ASKED}


def _save(path: pathlib.Path, model, optimiser, options, epochs: int, seconds: float) -> None:
  state = {
    "asked": _asked(options),
    "epochs": epochs,
    "seconds": seconds,
    "model": model.state_dict(),
    "optimiser": optimiser.state_dict(),
  }
  beside = path.with_name(f"{path.name}.tmp")
  torch.save(state, beside)
  beside.replace(path)


def _restore(path: pathlib.Path, model, optimiser, options) -> tuple[int, float]:
  """Restores the saved state, if there is one; returns the number of finished epochs, and their seconds."""
  if not path.exists():
    return 0, 0.0
  state = torch.load(path, weights_only=True)
  if state["asked"] != _asked(options):
    raise SystemExit(
      f"{path} was made with {state['asked']}, not {_asked(options)}; remove it, or ask as before"
    )
  model.load_state_dict(state["model"])
  optimiser.load_state_dict(state["optimiser"])
  print(f"goes on after epoch {state['epochs']}", flush=True)
  return state["epochs"], state["seconds"]


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
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  for folder in ("folder", "workdir"):
    parser.add_argument(f"--{folder}", type=pathlib.Path, required=True)
  parser.add_argument("--model", required=True, help="a Hugging Face model folder")
  parser.add_argument("--depth", type=int, required=True, help="labels to keep of each test point")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--epochs", type=int, default=3)
  parser.add_argument("--pairs", type=int, default=0, help="of an epoch, at most; 0 is all")
  parser.add_argument("--steps", type=int, default=0, help="stop after so many, to try it out; 0 is never")
  parser.add_argument("--batch_size", type=int, default=256)
  parser.add_argument("--learning_rate", type=float, default=2e-4)
  parser.add_argument("--scale", type=float, default=20.0)
  parser.add_argument("--warmup", type=float, default=0.1, help="share of all steps")
  parser.add_argument("--max_length", type=int, default=32, help="tokens of a text")
  return parser.parse_args()


def main() -> None:
  options = parse()
  texts = {name: texts_of(options.folder, name) for name in ("train", "labels", "test")}
  truth = sp.load_npz(options.folder / "truth.npz").tocsr()
  torch.manual_seed(options.seed)
  model = build(options.model, options.max_length)
  trained = train(model, texts, truth, options)
  started = time.perf_counter()
  scores = rank(encode(model, texts["test"]), encode(model, texts["labels"]), options.depth)
  seconds = {"train": trained, "test": time.perf_counter() - started}
  versions = {"sentence-transformers": sentence_transformers.__version__, "torch": torch.__version__}
  write(options.folder, scores, seconds, {**versions, **_asked(options)})


if __name__ == "__main__":
  main()
