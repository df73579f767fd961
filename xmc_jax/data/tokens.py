"""Token ids of texts: the tokenization, flat tables of ids, and padded arrays."""

import json
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from xmc_jax.data.arrays import Ragged, lengths_of, well_formed
from xmc_jax.errors import ConfigError

if TYPE_CHECKING:
  from xmc_jax.types import Tokens  # loads JAX, which preparing data does without

_CHUNK_ROWS = 8192


class TokenTable(Ragged):
  """Holds the token ids of many texts without padding, in memory or memory-mapped."""

  def __init__(self, ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray):
    super().__init__(ids, starts, lengths.astype(np.int32, copy=False))

  def gather(self, rows: np.ndarray, width: int) -> "Tokens":
    """Returns rows as a padded array.

    Args:
      rows: `[n]` row numbers; -1 gives an unused row, of length 0.
      width: columns of the result; longer rows are truncated.

    Returns:
      ids `[n, width]` int32, padded with 0; lengths `[n]` int32.

    Raises:
      IndexError: a row number outside the table.
    """
    from xmc_jax.types import Tokens

    rows = np.asarray(rows)
    if not len(self._values) or not len(rows):
      if np.any(rows >= len(self)):
        raise IndexError(f"row {rows.max()} of a table of {len(self)}")
      return Tokens(np.zeros((len(rows), width), np.int32), np.zeros(len(rows), np.int32))
    used = rows >= 0
    lengths = np.where(used, np.minimum(self.lengths[rows], width), 0).astype(np.int32)
    columns = np.arange(width)
    # Reading past a row's end is harmless (it is masked below) and cheaper than reading ragged rows.
    ids = self._values.take(self._starts[rows][:, None] + columns, mode="clip")
    return Tokens(np.where(columns < lengths[:, None], ids, 0).astype(np.int32, copy=False), lengths)


class Encoder:
  """Tokenizes texts at one maximum length: adds special tokens, truncates longer texts, does not pad.

  Attributes:
    max_length: tokens kept of each text.
    dtype: the smallest type that holds every id: uint16 or int32.
    json: the tokenizer as JSON, without its own settings for padding and truncation.
    num_special: special tokens added to each text.
    unknown_id: the token that stands for unknown words; None if there is none.
    num_cut: texts that `table` has cut so far.
  """

  def __init__(self, tokenizer: Any, max_length: int):
    self._tokenizer = rust_tokenizer(tokenizer)
    self.num_special = self._tokenizer.num_special_tokens_to_add(False)
    if max_length <= self.num_special:
      limit = f"more than the {self.num_special} special tokens of a text"
      raise ConfigError(f"max_length={max_length}: expected {limit}")
    self.max_length, self.num_cut = max_length, 0
    self.json = self._tokenizer.to_str()
    self._tokenizer.enable_truncation(max_length)
    model = json.loads(self.json)["model"]
    self.unknown_id = model.get("unk_id", self._tokenizer.token_to_id(model.get("unk_token") or ""))
    largest = max(self._tokenizer.get_vocab().values(), default=0)
    self.dtype = np.dtype(np.uint16 if largest < 65536 else np.int32)

  def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns token ids, one text after the other, the `[n]` int64 lengths, and how many texts were cut."""
    encodings = self._tokenizer.encode_batch_fast(texts)
    rows = [encoding.ids for encoding in encodings]
    lengths = lengths_of(rows)
    num_cut = sum(len(row) >= self.max_length and bool(one.overflowing) for row, one in zip(rows, encodings))
    return np.fromiter(chain.from_iterable(rows), self.dtype, int(lengths.sum())), lengths, num_cut

  def table(self, texts: Iterable[str]) -> TokenTable:
    """Encodes texts as a TokenTable in memory, like `prepare`; lone surrogates become U+FFFD."""
    ids, lengths = [np.zeros(0, self.dtype)], [np.zeros(1, np.int64)]
    source = iter(texts)
    while chunk := list(islice(source, _CHUNK_ROWS)):
      chunk_ids, chunk_lengths, num_cut = self.encode(well_formed(chunk))
      self.num_cut += num_cut
      ids.append(chunk_ids)
      lengths.append(chunk_lengths)
    return TokenTable.of_offsets(np.concatenate(ids), np.cumsum(np.concatenate(lengths)))


def rust_tokenizer(tokenizer: Any) -> Tokenizer:
  """Copies the `tokenizers.Tokenizer` in a Hugging Face tokenizer, without padding or truncation."""
  inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
  if not hasattr(inner, "to_str"):
    kind = type(tokenizer).__name__
    raise ConfigError(f"tokenizer={kind}: expected a tokenizers.Tokenizer or a fast tokenizer")
  copy = Tokenizer.from_str(inner.to_str())
  copy.no_padding()
  copy.no_truncation()
  return copy


def encode_texts(tokenizer: Any, texts: Sequence[str] | Iterable[str], max_length: int) -> TokenTable:
  """Encodes texts as a TokenTable in memory, like `prepare`. For many calls use one `Encoder`.

  Args:
    tokenizer: a `tokenizers.Tokenizer`, or a fast Hugging Face tokenizer.
    texts: the texts to encode; lone surrogates become U+FFFD.
    max_length: tokens kept of each text, special tokens included.

  Raises:
    ConfigError: max_length has no room for more than the special tokens.
  """
  return Encoder(tokenizer, max_length).table(texts)
