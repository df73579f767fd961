"""Reads and writes the files of `benchmarks/exchange.py` in a worker's own environment, without xmc_jax."""

import argparse
import json
import pathlib

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer

NGRAMS = (1, 2)


def parser_of(doc: str) -> argparse.ArgumentParser:
  """Returns a parser of the flags that every worker is called with."""
  parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--folder", type=pathlib.Path, required=True)
  parser.add_argument("--depth", type=int, required=True, help="labels to keep of each test point")
  parser.add_argument("--seed", type=int, default=0)
  return parser


def texts_of(folder: pathlib.Path, name: str) -> list[str]:
  """Reads the texts 'train', 'test' or 'labels'."""
  with (folder / f"{name}.txt").open(encoding="utf-8") as lines:
    return [json.loads(line) for line in lines]


def tfidf() -> TfidfVectorizer:
  """Returns the features of linear classifiers: tf-idf of words and pairs of words, with 1 + log count."""
  return TfidfVectorizer(ngram_range=NGRAMS, sublinear_tf=True, dtype=np.float32)


def write(folder: pathlib.Path, scores: sp.csr_matrix, seconds: dict[str, float], settings: dict) -> None:
  """Writes the results: CSR `[n, L]` scores, seconds to 'train' and 'test', and the settings used."""
  sp.save_npz(folder / "scores.npz", scores)
  about = {"seconds": seconds, "settings": settings}
  (folder / "about.json").write_text(json.dumps(about) + "\n")
