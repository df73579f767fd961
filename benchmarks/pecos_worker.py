"""Trains PECOS's XR-Linear on files: an extreme linear model over a tree of labels.

  python3.11 -m venv .venv-pecos
  .venv-pecos/bin/pip install numpy==1.26.4 scipy==1.12.0 scikit-learn==1.5.2
  .venv-pecos/bin/pip install --no-deps libpecos==1.2.8  # the rest that it names is for its transformers
  .venv-pecos/bin/python benchmarks/pecos_worker.py --folder=FOLDER --depth=120 --seed=0

It needs NumPy below 2, so it has its own environment, and imports nothing of xmc_jax;
`benchmarks/exchange.py` describes the folder. Features are tf-idf of words and of pairs of words,
fitted to training texts alone; label vectors are the sums of their points' features (PIFA); negatives are
teacher-forcing and matcher-aware ones. Yu, Zhong, Zhang, Chang and Dhillon, PECOS: Prediction for Enormous
and Correlated Output Spaces, JMLR 2022.
"""

import importlib.metadata
import time

import numpy as np
import scipy.sparse as sp
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear import XLinearModel
from worker_files import NGRAMS, parser_of, texts_of, tfidf, write

INDEX = {"indexer_type": "hierarchicalkmeans", "nr_splits": 16, "max_leaf_size": 100}
NEGATIVES, BEAM_SIZE = "tfn+man", 50


def main() -> None:
  options = parser_of(__doc__).parse_args()
  train, test = (texts_of(options.folder, name) for name in ("train", "test"))
  truth = sp.load_npz(options.folder / "truth.npz").tocsc().astype(np.float32)

  started = time.perf_counter()
  vectorizer = tfidf()
  features = vectorizer.fit_transform(train).tocsr()
  features.sort_indices()
  labels = LabelEmbeddingFactory.create(truth, features, method="pifa")
  tree = Indexer.gen(labels, seed=options.seed, **INDEX)
  model = XLinearModel.train(features, truth, C=tree, negative_sampling_scheme=NEGATIVES)
  trained = time.perf_counter()
  queries = vectorizer.transform(test).tocsr()
  queries.sort_indices()
  scores = model.predict(queries, beam_size=BEAM_SIZE, only_topk=options.depth)
  ended = time.perf_counter()

  settings = {
    "libpecos": importlib.metadata.version("libpecos"),
    "ngrams": NGRAMS,
    **INDEX,
    "negative_sampling_scheme": NEGATIVES,
    "beam_size": BEAM_SIZE,
  }
  seconds = {"train": trained - started, "test": ended - trained}
  write(options.folder, sp.csr_matrix(scores), seconds, settings)


if __name__ == "__main__":
  main()
