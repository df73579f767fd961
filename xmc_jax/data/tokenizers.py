"""Tokenizers: loaded from files, or trained on the user's texts."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from xmc_jax.errors import ConfigError, DataError

_UNKNOWN = ("[UNK]", "<unk>")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MAX_ALPHABET = 1000
_RARE = "\U00013000"  # a hieroglyph, which only vocabularies of bytes have


def load_tokenizer(path: str | Path) -> Tokenizer:
  """Loads a `tokenizers.Tokenizer` from a `tokenizer.json`, or from the folder that contains it.

  Raises:
    DataError: there is no such file, it cannot be read, or it cannot encode a text with an unknown letter.
  """
  file = Path(path).expanduser()
  if file.is_dir():
    file = file / "tokenizer.json"
  if not file.is_file():
    raise DataError(f"{file}: no such file; expected a tokenizer.json")
  wrong = "expected a tokenizer.json"
  try:
    tokenizer = Tokenizer.from_file(str(file))
    wrong = "unusable for texts with letters that it does not know"
    tokenizer.encode(_RARE)
  except Exception as error:  # the Rust side raises bare Exceptions
    raise DataError(f"{file}: {wrong} ({str(error).partition(chr(10))[0]})") from None
  return tokenizer


def add_prompt(tokenizer: Tokenizer, prompt: str) -> None:
  """Makes a `tokenizers.Tokenizer` read every text that is not empty as `prompt + text`.

  A special token that the text spells, such as [SEP], is followed by the prompt again.
  """
  own = [tokenizer.normalizer] if tokenizer.normalizer else []
  tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(prompt), *own])


def special_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
  """Returns the ids of a `tokenizers.Tokenizer` that stand for no text: [PAD], [CLS], [SEP], ..."""
  added = tokenizer.get_added_tokens_decoder().items()
  return tuple(sorted(number for number, token in added if token.special and token.content not in _UNKNOWN))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
  """Trains a lower-casing WordPiece tokenizer with BERT's special tokens on these texts.

  The same texts give the same tokenizer.

  Args:
    texts: training texts, read twice.
    vocab_size: most tokens to have, special ones included.

  Returns:
    `tokenizers.Tokenizer`; [PAD] has id 0.

  Raises:
    ConfigError: vocab_size has no room for the letters of the texts.
  """
  texts = texts if hasattr(texts, "__getitem__") else list(texts)
  normalizer, words = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
  alphabet = _alphabet(texts, normalizer)
  # The trainer numbers letters inside words in an order that changes from run to run, and breaks
  # ties by number. Listed up front, like special tokens, the letters keep the order given here.
  inside = [f"##{letter}" for letter in alphabet]
  fixed = [*_SPECIAL, *alphabet, *inside]
  if vocab_size < len(fixed):
    raise ConfigError(f"vocab_size={vocab_size}: expected at least {len(fixed)}, for every letter used")
  learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
  learner.normalizer, learner.pre_tokenizer = normalizer, words
  trainer = trainers.WordPieceTrainer(
    vocab_size=vocab_size,
    special_tokens=fixed,
    initial_alphabet=alphabet,
    limit_alphabet=len(alphabet),
    show_progress=False,
  )
  learner.train_from_iterator(texts, trainer)

  tokenizer = Tokenizer(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))
  tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, words
  tokenizer.decoder = decoders.WordPiece()
  tokenizer.add_special_tokens(list(_SPECIAL))
  ends = [(name, tokenizer.token_to_id(name)) for name in ("[SEP]", "[CLS]")]
  tokenizer.post_processor = processors.BertProcessing(*ends)
  return tokenizer


def _alphabet(texts: Iterable[str], normalizer: normalizers.Normalizer) -> list[str]:
  """Returns the letters of the texts in code point order; at most `_MAX_ALPHABET`, the most frequent."""
  counts: Counter[str] = Counter()
  source = iter(texts)
  while chunk := list(islice(source, 1024)):
    counts.update(normalizer.normalize_str("\n".join(chunk)))
  letters = sorted((letter for letter in counts if not letter.isspace()), key=lambda x: (-counts[x], x))
  return sorted(letters[:_MAX_ALPHABET])
