"""The figures in docs/figures/, drawn from docs/results/.

python docs/make_figures.py
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
  ("prime_loss_cpp/and_regulariser_prime_lite", "PRIME-lite", "tab:blue", "-"),
  ("prime_parts_cpp/without_free_vectors", "without free vectors", "tab:orange", "--"),
  ("prime_centroids_cpp/without_centroids", "without centroids", "tab:green", "--"),
  ("prime_parts_cpp/without_centroids_and_vectors", "without either", "tab:red", "--"),
  ("prime_and_others_cpp/dexa", "DEXA", "black", "-"),
  ("prime_and_others_cpp/ngame", "NGAME", "gray", "-"),
)


_METHODS = {  # of scaling.json: name, colour, line, marker
  "dexml": ("DEXML", "tab:blue", "-", "o"),
  "ova": ("one-vs-all", "tab:cyan", "-", "s"),
  "dpr": ("DPR", "gray", "--", "v"),
  "ance": ("ANCE", "black", "--", "^"),
  "ngame": ("NGAME", "tab:olive", "-", "o"),
  "dexa": ("DEXA", "tab:green", "-", "s"),
  "prime": ("PRIME", "tab:red", "-", "D"),
  "ramen": ("RAMEN", "tab:brown", "-", "v"),
  "unidec": ("UniDEC", "tab:purple", "--", "s"),
  "depsl": ("DEPSL", "tab:pink", "--", "o"),
}
_PEERS = {  # rows of benchmarks/accuracy.py
  "tfidf_both": ("tf-idf, vote and label texts", "black", "s"),
  "xr_linear": ("XR-Linear (PECOS)", "tab:green", "D"),
  "parabel": ("Parabel (Omikuji)", "tab:orange", "^"),
  "bonsai": ("Bonsai (Omikuji)", "tab:red", "v"),
  "mnrl": ("MiniLM-L6, MNRL", "tab:purple", "*"),
}
_CURVES = {  # of benchmarks/learning.py: colour, line
  "no learning": ("gray", "--"),
  "learn only": ("tab:blue", "o-"),
  "retrained at each tenth": ("black", "^:"),
}
_FEW = {"points": 16_000, "labels": 30_000}  # of what the other sweep varies
_APART = ("open", "walks", "batch", "step", "evaluation")  # units that are no refreshes


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


def scaling(path: pathlib.Path) -> None:
  """CPU seconds and memory of each method's units, against labels above, against points below."""
  found = json.loads((_DOCS / "results" / "scaling.json").read_text())["found"]
  figure, grid = pyplot.subplots(2, 4, figsize=(14, 7.2), sharex="row", sharey="col", layout="constrained")
  for axes, (by, other) in zip(grid, (("labels", "points"), ("points", "labels"))):
    for method, (label, colour, style, marker) in _METHODS.items():
      of_method = [one for one in found if one["method"] == method and one[other] == _FEW[other]]
      of_method.sort(key=lambda one: one[by])
      look = {"color": colour, "linestyle": style, "marker": marker, "markersize": 4, "linewidth": 1.3}
      for panel, cost in zip(axes, (_step, _refreshes, _evaluation, _memory)):
        pairs = [(one[by], cost(one)) for one in of_method]
        pairs = [pair for pair in pairs if pair[1] is not None]
        panel.plot(*zip(*pairs), label=label, **look) if pairs else None
    _dress(axes, by, other)
  handles, labels = grid[0, 0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
  figure.savefig(path, dpi=110)


def _dress(axes, by: str, other: str) -> None:
  """Logarithmic axes with names, and what is proportional to the size, as a grey line in each panel."""
  titles = ("a step", "all refreshes, once each", "evaluation", "peak memory")
  points = "2,000 points" if by == "labels" else "N / 8 points"
  for panel, title in zip(axes, titles):
    panel.set(xscale="log", yscale="log", ylabel="MB" if "memory" in title else "CPU seconds")
    panel.set_title(f"{title} of {points}" if title == "evaluation" else title, fontsize=10)
    panel.set_xlabel(f"{by}, with {_FEW[other]:,} {other}")
    panel.grid(alpha=0.3)
    sizes = sorted({int(size) for line in panel.lines for size in line.get_xdata()})
    if not sizes:
      continue
    panel.set_xticks(sizes, [_short(size) for size in sizes])
    panel.minorticks_off()
    top = 2 * max(max(line.get_ydata()) for line in panel.lines)
    panel.plot([sizes[0], sizes[-1]], [top * sizes[0] / sizes[-1], top], ":", color="gray", zorder=0)
    panel.annotate(
      "proportional",
      (sizes[-1], top),
      (-24, 0),
      textcoords="offset points",
      ha="right",
      va="center",
      fontsize=8,
      color="gray",
    )


def _short(size: int) -> str:
  return f"{size / 1e6:.3g}M" if size >= 1e6 else f"{size // 1000}k"


def _step(found: dict) -> float | None:
  return found["units"].get("step", {}).get("cpu")


def _refreshes(found: dict) -> float | None:
  """All of them; nothing where there are none, or one was left out."""
  taken = [unit["cpu"] for name, unit in found["units"].items() if name not in _APART]
  return sum(taken) if taken and "step" in found["units"] else None


def _evaluation(found: dict) -> float | None:
  return found["units"].get("evaluation", {}).get("cpu")


def _memory(found: dict) -> float | None:
  return None if "left_out" in found else max(unit["peak_mb"] for unit in found["units"].values())


def time_to_quality(path: pathlib.Path) -> None:
  """Three metrics of LF-DebianTitles against minutes from the data to predictions; `auto` by its minutes."""
  rows = {
    file.stem: json.loads(file.read_text())
    for file in (_DOCS / "results" / "accuracy" / "LF-DebianTitles").glob("*.json")
  }
  by_minutes = sorted((name for name in rows if name.startswith("auto_")), key=lambda name: int(name[5:]))
  figure, panels = pyplot.subplots(1, 3, figsize=(12, 4), layout="constrained")
  for panel, metric in zip(panels, ("P@1", "PSP@5", "R@100")):
    point = {}
    for name, row in rows.items():
      first = row["seeds"][0]
      point[name] = (first["fit_seconds"] + first["test_seconds"]) / 60, 100 * first["metrics"][metric]
    panel.plot(*zip(*(point[name] for name in by_minutes)), "o-", color="tab:blue", label="auto")
    for name, (label, colour, marker) in _PEERS.items():
      panel.plot(*point[name], marker, color=colour, label=label)
    panel.set(xscale="log", xlabel="minutes on two cores", ylabel=f"{metric}, %")
    panel.set_xticks((0.1, 1, 10, 60), ("0.1", "1", "10", "60"))
    panel.grid(alpha=0.3)
  figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=9)
  figure.savefig(path, dpi=110)


def learning(path: pathlib.Path) -> None:
  """P@1 and R@100 of each tenth of the portions, for each set that benchmarks.learning measured."""
  files = sorted((_DOCS / "results" / "learning").glob("*.json"))
  size = (1 + 2.6 * len(files), 4.6)
  figure, grid = pyplot.subplots(
    2, len(files), figsize=size, sharex=True, squeeze=False, layout="constrained"
  )
  for column, file in zip(grid.T, files):
    found = json.loads(file.read_text())
    column[0].set_title(found["set"].removeprefix("LF-"), fontsize=10)
    column[1].set_xlabel("tenth of the second half")
    for panel, metric in zip(column, ("P@1", "R@100")):
      for curve, (colour, style) in _CURVES.items():
        values = [100 * value for value in found["curves"].get(curve, {}).get(metric, ())]
        parts = [values[len(values) * at // 10 : len(values) * (at + 1) // 10] for at in range(10)]
        means = [statistics.mean(part) for part in parts if part]
        if means:
          panel.plot(range(1, len(means) + 1), means, style, color=colour, markersize=4, label=curve)
      panel.set_ylabel(f"{metric}, %" if column[0] is grid[0, 0] else "")
      panel.grid(alpha=0.3)
  lines = {line.get_label(): line for panel in grid[0] for line in panel.get_lines()}
  figure.legend(handles=lines.values(), loc="outside lower center", ncols=4, fontsize=9)
  figure.savefig(path, dpi=110)


if __name__ == "__main__":
  learning(_DOCS / "figures" / "learning.png")
  time_to_quality(_DOCS / "figures" / "time_to_quality.png")
  convergence(_DOCS / "figures" / "prime_convergence.png")
  scaling(_DOCS / "figures" / "scaling.png")
