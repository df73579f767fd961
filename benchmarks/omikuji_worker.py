"""Trains Omikuji's trees of linear classifiers on files: Parabel's, or Bonsai's.

  python3.11 -m venv .venv-omikuji
  .venv-omikuji/bin/pip install omikuji==0.5.2 scikit-learn==1.9.1
  .venv-omikuji/bin/python benchmarks/omikuji_worker.py --kind=bonsai --folder=FOLDER --depth=120

It imports nothing of xmc_jax; `benchmarks/exchange.py` describes the folder. Features are those of
`benchmarks/pecos_worker.py`. Omikuji takes no seed: two trainings differ a little. Prabhu, Kag, Harsola,
Agrawal and Varma, Parabel, WWW 2018; Khandagale, Xiao and Babbar, Bonsai, Machine Learning 2020.
"""

import importlib.metadata
import time

import numpy as np
import omikuji
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file
from worker_files import NGRAMS, parser_of, texts_of, tfidf, write

# Annif's settings of both.
KINDS = {
  "parabel": {"cluster_balanced": True, "cluster_k": 2, "max_depth": 20},
  "bonsai": {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3},
}
BEAM_SIZE = 50  # as XR-Linear's


def main() -> None:
  parser = parser_of(__doc__)
  parser.add_argument("--kind", choices=KINDS, required=True)
  options = parser.parse_args()
  train, test = (texts_of(options.folder, name) for name in ("train", "test"))
  truth = sp.load_npz(options.folder / "truth.npz").tocsr()

  started = time.perf_counter()
  vectorizer = tfidf()
  features, path = vectorizer.fit_transform(train), options.folder / "train.svm"
  labelled = np.flatnonzero(np.diff(truth.indptr))
  with path.open("wb") as out:
    out.write(f"{len(labelled)} {features.shape[1]} {truth.shape[1]}\n".encode())
    dump_svmlight_file(features[labelled], truth[labelled], out, multilabel=True)
  parameters = omikuji.Model.default_hyper_param()
  for name, value in KINDS[options.kind].items():
    setattr(parameters, name, value)
  model = omikuji.Model.train_on_data(str(path), parameters)
  trained = time.perf_counter()
  queries = vectorizer.transform(test).tocsr()
  rows, columns, scores = [], [], []
  for row, (start, end) in enumerate(zip(queries.indptr, queries.indptr[1:])):
    pairs = list(zip(queries.indices[start:end].tolist(), queries.data[start:end].tolist()))
    for label, score in model.predict(pairs, beam_size=BEAM_SIZE, top_k=options.depth):
      rows.append(row)
      columns.append(label)
      scores.append(score)
  ended = time.perf_counter()

  found = sp.csr_matrix((np.array(scores, np.float32), (rows, columns)), (len(test), truth.shape[1]))
  settings = {
    "omikuji": importlib.metadata.version("omikuji"),
    "ngrams": NGRAMS,
    **KINDS[options.kind],
    "beam_size": BEAM_SIZE,
  }
  seconds = {"train": trained - started, "test": ended - trained}
  write(options.folder, found, seconds, settings)


if __name__ == "__main__":
  main()
