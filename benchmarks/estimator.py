"""How well XMCClassifier ranks on the bundled data, beside experiments/dexml.py's run.

  python -m benchmarks.estimator

It gets the training texts and the names of their labels, but no filter pairs: a text is often a label itself,
and the data set leaves that label out. So P@1 is shown twice: as `score` gives it, and without these pairs.
"""

import numpy as np
import scipy.sparse as sp

import xmc_jax
from benchmarks import flags
from xmc_jax import data, metrics

_DEPTH = 30  # labels ranked, of which filter pairs are left out


def names_of(matrix: sp.csr_matrix, texts: list[str]) -> list[list[str]]:
  """Returns the label texts of each row."""
  return [[texts[label] for label in row.indices] for row in matrix]


def main() -> None:
  given = flags.parse(__doc__, num_epochs=int)  # fewer than the method's, for a quick look
  debian = data.load()
  texts, test = list(debian.labels.texts), debian.test
  model = xmc_jax.XMCClassifier("dexml", num_epochs=given.num_epochs, verbose=1)
  model.fit(list(debian.train.texts), names_of(debian.train.truth, texts))
  score = model.score(list(test.texts), names_of(test.truth, texts))
  number_of = {text: number for number, text in enumerate(texts)}
  ranked = [[number_of[name] for name in row] for row in model.top_k(list(test.texts), k=_DEPTH)[2]]
  left = [[label for label in row if label not in out.indices] for row, out in zip(ranked, test.filter)]
  found = metrics.evaluate(np.array([row[: _DEPTH // 3] for row in left]), test.unfiltered_positives)
  shown = ", ".join(f"{name} {100 * found[name]:.2f}" for name in ("P@1", "P@5"))
  print(f"P@1 {100 * score:.2f}; without filter pairs {shown}")


if __name__ == "__main__":
  main()
