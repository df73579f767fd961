"""Makes the first token table of a vocabulary that was trained on the user's texts."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import ml_collections
import numpy as np

from xmc_jax import data
from xmc_jax.data.tokens import Encoder, rust_tokenizer
from xmc_jax.errors import UserError
from xmc_jax.models.bag import BagSpec
from xmc_jax.models.locate import source_key
from xmc_jax.models.pretrained import load_pretrained, save_pretrained, token_table

if TYPE_CHECKING:
  from tokenizers import Tokenizer

_INSIDE = "##"  # begins a token inside a word, in WordPiece


def starts_from_table(settings: ml_collections.ConfigDict) -> bool:
  """Returns whether `config.encoder` trains a vocabulary whose rows start from another encoder's."""
  of_a_table = source_key(settings) == "init_table"
  return of_a_table and settings.tokenizer == "train" and bool(settings.init_table) and settings.pretrained


def write_table(name: str, tokenizer: "Tokenizer", folder: str | Path) -> None:
  """Writes a bag whose rows are the tokens of a tokenizer into `folder`, if it has none yet.

  Args:
    name: the encoder whose table is used, as `locate.locate` finds it.
    tokenizer: that of `data.train_tokenizer`.
    folder: made if missing, and replaced if it has no weights.

  Raises:
    UserError, DataError: the encoder or its tokenizer is missing or unreadable.
  """
  folder = Path(folder)
  if (folder / "model.safetensors").is_file() and (folder / "config.json").is_file():
    return
  shutil.rmtree(folder, ignore_errors=True)
  loaded = load_pretrained(name)
  if not loaded.tokenizer_file:
    raise UserError(
      f"{loaded.found}: no tokenizer.json, which encoder.tokenizer = 'train' needs to split its tokens; set "
      "--config.encoder.init_table=, which begins with random rows"
    )
  source = rust_tokenizer(data.load_tokenizer(loaded.tokenizer_file))
  rows = initial_rows(tokenizer, token_table(loaded.params), source)
  save_pretrained({"word": rows}, BagSpec(*rows.shape), folder)


def initial_rows(tokenizer: "Tokenizer", table: np.ndarray, source: "Tokenizer") -> np.ndarray:
  """Returns a row for each token of a tokenizer, from the table of another one.

  A token that both have keeps its row. Another has the mean of the rows of its pieces, or a random one if a
  piece is unknown.

  Args:
    tokenizer: the one to make rows for, V tokens.
    table: `[W, D]` rows of the tokens of `source`.
    source: splits the text of a token.

  Returns:
    `[V, D]` float32.
  """
  unknown = Encoder(source, 512).unknown_id
  known = source.get_vocab()
  tokens = tokenizer.get_vocab()
  rows = np.random.default_rng(0).normal(0, table.std(), (max(tokens.values()) + 1, table.shape[1]))
  like_ours = type(source.model).__name__ == "WordPiece"  # marks tokens inside words as ours does
  same = [token for token in tokens if like_ours and token in known]
  rows[[tokens[token] for token in same]] = table[[known[token] for token in same]]
  others = sorted(tokens.keys() - set(same))
  split = source.encode_batch([token.removeprefix(_INSIDE) for token in others], add_special_tokens=False)
  for token, found in zip(others, split):
    ids = list(found.ids)
    if ids and token.startswith(_INSIDE):
      ids[0] = known.get(_INSIDE + found.tokens[0], ids[0])
    if ids and unknown not in ids:
      rows[tokens[token]] = table[ids].mean(axis=0)
  return rows.astype(np.float32)
