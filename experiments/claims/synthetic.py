"""The papers' synthetic data sets, written as raw files that any run can read.

python -m experiments.claims.synthetic t_star data/claims/t_star
python -m experiments.claims.synthetic random_pairs data/claims/random_pairs_10000 --pairs=10000
"""

import argparse
import json
import pathlib

import numpy as np

_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
T_STAR = "tstar"


def write_t_star(folder: pathlib.Path, seed: int = 0) -> None:
  """DEXML, Figure 2: positives of one query that differ in difficulty.

  1,000 training queries and 5,000 labels of random words. The first 100 queries begin with t* and carry
  labels 0 to 4; label 0 alone ends with t*. The others carry a random label each. 1,000 test queries begin
  with t*, and label 0 is what they want.
  """
  words = _Words(seed, num_words=2000)
  train = [(T_STAR + " " + words.text(15), range(5)) for _ in range(100)]
  train += [(words.text(16), [5 + int(words.rng.integers(4995))]) for _ in range(900)]
  labels = [words.text(15) + " " + T_STAR, *(words.text(16) for _ in range(4999))]
  test = [(T_STAR + " " + words.text(15), [0]) for _ in range(1000)]
  _write(folder, train, test, labels)


def write_random_pairs(folder: pathlib.Path, num_pairs: int, seed: int = 0) -> None:
  """DEXML, Table 10: random queries and labels of 16 words; query i carries label i, and is tested, too."""
  words = _Words(seed, num_words=2000)
  pairs = [(words.text(16), [number]) for number in range(num_pairs)]
  _write(folder, pairs, pairs, [words.text(16) for _ in range(num_pairs)])


class _Words:
  """Random words of five letters, and texts of them."""

  def __init__(self, seed: int, num_words: int):
    self.rng = np.random.default_rng(seed)
    letters = self.rng.integers(0, 26, (2 * num_words, 5))
    words = dict.fromkeys("".join(_LETTERS[row]) for row in letters)
    words.pop(T_STAR, None)
    self._words = np.array(list(words)[:num_words])

  def text(self, length: int) -> str:
    return " ".join(self._words[self.rng.integers(0, len(self._words), length)])


def _write(folder: pathlib.Path, train, test, labels) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  for name, points in (("trn", train), ("tst", test)):
    lines = [
      {"uid": str(number), "title": text, "target_ind": list(ids), "target_rel": [1.0] * len(ids)}
      for number, (text, ids) in enumerate(points)
    ]
    (folder / f"{name}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
  lines = [{"uid": str(number), "title": text} for number, text in enumerate(labels)]
  (folder / "lbl.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("kind", choices=("t_star", "random_pairs"))
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--pairs", type=int, default=10_000)
  parser.add_argument("--seed", type=int, default=0)
  given = parser.parse_args()
  if given.kind == "t_star":
    write_t_star(given.folder, given.seed)
  else:
    write_random_pairs(given.folder, given.pairs, given.seed)


if __name__ == "__main__":
  main()
