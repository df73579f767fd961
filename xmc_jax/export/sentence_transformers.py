"""Writes a run's encoder as a folder that sentence-transformers can load."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import ml_collections
import numpy as np

from xmc_jax import data, models
from xmc_jax.methods.components import unidec_heads
from xmc_jax.models.sentence_modules import save_sentence_modules, write_safetensors
from xmc_jax.runs.run import Run
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import atomic
from xmc_jax.types import PyTree

_TOLERANCE = 1e-4  # largest difference to the method's own embeddings: float32, for vectors of length 1
_STATIC = "0_StaticEmbedding"
# The special tokens that common tokenizers use for each role.
_ROLES = {
  "pad_token": ("[PAD]", "<pad>"),
  "unk_token": ("[UNK]", "<unk>"),
  "cls_token": ("[CLS]", "<s>"),
  "sep_token": ("[SEP]", "</s>"),
  "mask_token": ("[MASK]", "<mask>"),
}


class Sentence(NamedTuple):
  """Describes what was written for sentence-transformers.

  Attributes:
    reason: why there is no folder; '' if there is one.
    width: number of columns of its embeddings, which are the first columns of the run's own.
    notes: differences to the run's own embeddings.
  """

  reason: str = ""
  width: int = 0
  notes: tuple[str, ...] = ()


def write(folder: Path, trained: Trained, probes: list[str]) -> Sentence:
  """Writes the folder, if sentence-transformers supports the encoder of a run in float32.

  Checks with the texts `probes` that the folder's embeddings equal the run's.
  """
  run, trees = trained.run, (trained.params, trained.extra_state.get("encoder"))  # the latter is a frozen one
  root = next((tree for tree in trees if isinstance(tree, Mapping) and "encoder" in tree), None)
  if root is None:
    return Sentence("its parameters hold no encoder under a known name")
  projection = root.get(unidec_heads.TEXTS, root).get("projection")
  root = {"encoder": root["encoder"], **({"projection": projection} if projection else {})}
  settings = ml_collections.ConfigDict(run.config.encoder.to_dict())
  settings.projection_dim = projection["kernel"].shape[1] if projection else 0
  settings.projection_tanh = unidec_heads.TEXTS in trained.params or settings.projection_tanh
  settings.update(embedding_dropout=0.0, num_frozen_layers=0)
  tokenizer = run.dataset.tokenizer()
  tokens = data.encode_texts(tokenizer, probes, run.config.data.max_length)
  vectors, padded = trained.queries(tokens), tokens.gather(np.arange(len(tokens)), run.config.data.max_length)
  for normalize in (settings.normalize, not settings.normalize):  # some methods scale in any case
    settings.normalize = normalize
    embedder = models.build(
      settings, vocab_size=tokenizer.get_vocab_size(), special_ids=data.special_ids(tokenizer)
    )
    if isinstance(embedder.spec, models.GruSpec):
      return Sentence("it has no module for the mean over the tokens of a Bi-GRU")
    found, expected = embedder.embed(root, padded), vectors[:, : embedder.width]
    if found.shape == expected.shape and np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
      break
  else:
    return Sentence("its method embeds texts in a way that no chain of its modules can compute")
  notes: tuple[str, ...] = ()
  if embedder.width < vectors.shape[1]:
    columns = f"the first {embedder.width} of the {vectors.shape[1]} columns of the run's own"
    notes = (f"its embeddings are {columns}",)
  if isinstance(embedder.spec, models.EncoderSpec):
    embedder.save(root, folder)
    longest = min(run.config.data.max_length, embedder.spec.max_positions)
    _write_tokenizer(folder, run, longest)
    if longest < run.config.data.max_length:
      notes += (f"it cuts texts after {longest} tokens, where the run reads further windows",)
  else:
    _write_static(folder, run, root, settings)
    notes += ("texts without a token, and texts that spell a special token such as [SEP], differ",)
  atomic.write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "dot"})
  return Sentence(width=embedder.width, notes=notes)


def _write_tokenizer(folder: Path, run: Run, longest: int) -> None:
  """Writes the run's tokenizer in the files that transformers and sentence-transformers read."""
  tokenizer = run.dataset.tokenizer()
  (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
  vocabulary = tokenizer.get_vocab()
  roles = {role: next((name for name in known if name in vocabulary), None) for role, known in _ROLES.items()}
  roles = {role: name for role, name in roles.items() if name}
  roles.setdefault("pad_token", tokenizer.id_to_token(0))  # any token will do: it is masked
  settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest}
  inputs = {"model_input_names": ["input_ids", "attention_mask"]}
  atomic.write_json(folder / "tokenizer_config.json", {**settings, **inputs, **roles})
  atomic.write_json(folder / "special_tokens_map.json", roles)
  atomic.write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})


def _write_static(folder: Path, run: Run, root: PyTree, settings: ml_collections.ConfigDict) -> None:
  """Writes a bag encoder as StaticEmbedding.

  Its tokenizer adds no special tokens, and truncates longer texts itself.
  """
  inner, tokenizer = folder / _STATIC, run.dataset.tokenizer()
  inner.mkdir(parents=True)
  table = np.asarray(root["encoder"]["word"], np.float32)
  write_safetensors(inner / "model.safetensors", {"embedding.weight": np.ascontiguousarray(table)})
  tokenizer.no_padding()
  tokenizer.enable_truncation(run.config.data.max_length - tokenizer.num_special_tokens_to_add(False))
  (inner / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
  save_sentence_modules(
    folder,
    pooling="",
    unit=settings.normalize,
    width=table.shape[1],
    projection=root.get("projection"),
    tanh=settings.projection_tanh,
  )
