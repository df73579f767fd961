"""The figures in docs/figures/, drawn from docs/results/.

  python docs/make_figures.py        # needs matplotlib, of requirements-bench.txt
"""

import json
import pathlib
import statistics

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_DOCS = pathlib.Path(__file__).parent
# What PRIME-lite's curve is compared with: CLAIM/ROW, its name, colour and line.
_CONVERGENCE = (
  ("prime_loss/and_regulariser_prime_lite", "PRIME-lite", "tab:blue", "-"),
  ("prime_parts/without_free_vectors", "without free vectors", "tab:orange", "--"),
  ("prime_parts/without_centroids", "without centroids", "tab:green", "--"),
  ("prime_parts/without_centroids_and_vectors", "without either", "tab:red", "--"),
  ("prime_and_others/dexa", "DEXA", "black", "-"),
  ("prime_and_others/ngame", "NGAME", "gray", "-"),
)


def convergence(path: pathlib.Path) -> None:
  """Validation P@1 after each epoch, mean over seeds, and the band from the lowest to the highest."""
  figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
  for name, label, colour, style in _CONVERGENCE:
    claim, _, row = name.partition("/")
    rows = json.loads((_DOCS / "results" / f"claim_{claim}.json").read_text())["rows"]
    by_epoch = [[100 * value for value in values] for values in zip(*(seed["curve"] for seed in rows[row]))]
    epochs = range(1, len(by_epoch) + 1)
    mean, low, high = ([of(values) for values in by_epoch] for of in (statistics.mean, min, max))
    axes.plot(epochs, mean, style, color=colour, label=label)
    axes.fill_between(epochs, low, high, color=colour, alpha=0.1)
  axes.set(xlabel="epochs", ylabel="validation P@1, %", xlim=(1, None))
  axes.set_title("LF-DebianTitles, bag of embeddings")
  axes.grid(alpha=0.3)
  axes.legend(loc="lower right", fontsize=9)
  path.parent.mkdir(exist_ok=True)
  figure.savefig(path, dpi=130)


if __name__ == "__main__":
  convergence(_DOCS / "figures" / "prime_convergence.png")
