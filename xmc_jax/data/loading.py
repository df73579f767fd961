"""`load`: opens a Dataset from a path to raw files or to a prepared folder."""

import hashlib
import json
from pathlib import Path
from typing import Any

from xmc_jax.config import cache_root
from xmc_jax.data.dataset import Dataset, load_prepared
from xmc_jax.data.prepare import Progress, prepare
from xmc_jax.data.prepared import is_prepared
from xmc_jax.data.tokens import rust_tokenizer


def bundled_path() -> Path:
  """Returns the folder with the raw files of LF-DebianTitles, which come with the package."""
  return Path(__file__).parent / "bundled" / "LF-DebianTitles"


def load(
  path: str | Path = "",
  *,
  layout: str = "auto",
  tokenizer: Any = None,
  tokenizer_name: str = "",
  max_length: int = 32,
  cache_dir: str | Path | None = None,
  progress: Progress | None = None,
  **options: Any,
) -> Dataset:
  """Opens a data set: raw files, which are prepared once and kept in a cache, or a prepared folder.

  Args:
    path: a folder in any layout, a table, or a prepared folder, which is opened unchanged; ''
      or 'bundled' is the data set that comes with the package.
    layout, tokenizer, tokenizer_name, max_length, progress, **options: as in `prepare`.
    cache_dir: where prepared folders are kept; None is `$XMC_JAX_CACHE`, or `~/.cache/xmc_jax`.

  Raises:
    DataError: bad input; the message is one line that names the file.
    UserError: the cache cannot be written.
    ConfigError: an option that cannot work.

  Example:
    >>> debian = load("bundled")
    >>> len(debian.train), debian.num_labels
    (9914, 11438)
  """
  raw = bundled_path() if str(path) in ("", "bundled") else Path(path).expanduser()
  if is_prepared(raw):
    return load_prepared(raw)
  key: list[object] = [str(raw.resolve()), layout, options, tokenizer_name]
  if tokenizer is not None:
    key += [rust_tokenizer(tokenizer).to_str(), max_length]
  digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
  cache = cache_root() if cache_dir is None else Path(cache_dir).expanduser()
  prepared = prepare(
    raw,
    cache / f"{raw.resolve().name}-{digest}",
    layout=layout,
    tokenizer=tokenizer,
    tokenizer_name=tokenizer_name,
    max_length=max_length,
    progress=progress,
    **options,
  )
  return load_prepared(prepared.folder)
