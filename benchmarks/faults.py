"""Disturbs trainings at random, and checks that they end bit for bit like undisturbed ones.

  python -m benchmarks.faults                          # every method, 20 of each fault
  python -m benchmarks.faults prime --trials=5 --seed=1

Each trial chooses a random stage of a training (preparing data, compilation, steps, refreshes, validation,
fitting the hybrid ranker, saving) and a moment in it. Then the process is killed (-9), or asked to stop
(SIGTERM), or it is killed and a file of its newest checkpoint is truncated or changed by one bit. The same
command resumes the run, and is disturbed again, until the run has ended; the run is compared with an
undisturbed one. Other kinds kill processes that prepare data, write predictions to a file, or export.
docs/results/faults.json holds the outcomes.
"""

import argparse
import collections
import json
import pathlib
import random
import sys
import tempfile

from benchmarks.fault_kinds import KINDS, Trials, expect, start

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / "docs" / "results" / "faults.json"
_HYBRID = "hybrid"  # DEXML with a fitted hybrid ranker
_ENOUGH_TO_FIT = {"num_train": 600}


def settings() -> dict[str, dict]:
  """Returns the settings of a tiny run of each method and of the hybrid ranker, by name.

  Prepared data go to $XMC_JAX_CACHE.
  """
  import tiny_runs

  often = {"checkpoint.every_epochs": 0.4, "train.num_epochs": 3, "data.cache_dir": ""}
  clusters = {"method.labels": "in_batch", "method.loss": "margin", "method.clusters_first_epoch": 1.0}
  hard = {"method.num_hard_negatives": 2, "method.shortlist_size": 8, "method.shortlist_first_epoch": 0.0}
  softmax = {"method.labels": "in_batch", "method.loss": "softmax"}
  table = {"method.name": "ova", "method.loss": "binary", "method.labels": "table"}
  made = {
    "dexml": {},
    "soft_top_k": {"method.loss": "soft_top_k"},
    "dpr": {**softmax, "method.name": "dpr"},
    "ance": {**softmax, **hard, "method.name": "ance"},
    "ova": table,
    "ngame": {**clusters, "method.name": "ngame"},
    "dexa": {**clusters, "method.name": "dexa", "method.num_label_clusters": 8},
    "unidec": {**tiny_runs.UNIDEC, "method.pool_size": 40},
    "prime": tiny_runs.PRIME,
    "ramen": tiny_runs.RAMEN,
    "rae_xmc": tiny_runs.RAE_XMC,
    _HYBRID: {"eval.scores": "hybrid", "data.num_validation": 220},
  }
  return {name: {**often, **found} for name, found in made.items()}


def _undisturbed(config: pathlib.Path, folder: pathlib.Path) -> dict[str, list[float]]:
  """Trains the config once without faults; returns the seconds of each entry into each stage."""
  ended = start(config, folder / "undisturbed", STAGES=str(folder / "stages"))
  expect(ended.returncode == 0, f"{folder.name}, undisturbed", ended)
  stages = collections.defaultdict(list)
  for line in (folder / "stages").read_text().splitlines():
    name, seconds = json.loads(line)
    stages[name].append(seconds)
  return stages


def _keep(kind: str, method: str, trials: Trials) -> None:
  lost = {"steps_lost": sum(trials.lost), "most": max(trials.lost)} if trials.lost else {}
  rows = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
  rows.setdefault(kind, {})[method] = {"trials": trials.count, "runs": trials.runs, **lost}
  _RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
  print(f"{method}: {kind}: {rows[kind][method]}; all ended alike", flush=True)


def main() -> None:
  sys.path.insert(0, str(_ROOT / "tests"))
  import tiny_runs

  made = settings()
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("methods", nargs="*", default=list(made), help=f"of {', '.join(made)}")
  parser.add_argument("--trials", type=int, default=20)
  parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
  parser.add_argument("--seed", type=int, default=0)
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as place:
    for method in given.methods:
      folder = pathlib.Path(place) / method
      folder.mkdir()
      size = _ENOUGH_TO_FIT if method == _HYBRID else {}
      data = tiny_runs.write_graphs(tiny_runs.write_data(folder / "data", **size))
      config = tiny_runs.config_file(folder / "config.py", data, **made[method])
      stages = _undisturbed(config, folder)
      for kind in given.kinds:
        trials = KINDS[kind](config, folder, stages, random.Random(f"{given.seed} {method} {kind}"))
        trials.run(given.trials)
        _keep(kind, method, trials)


if __name__ == "__main__":
  main()
