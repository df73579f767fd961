"""Trains every method with the same budget on one data set.

  python -m benchmarks.leaderboard                                   # all rows, bundled data, 15 epochs each
  python -m benchmarks.leaderboard --methods dexa prime --seeds=3
  python -m benchmarks.leaderboard --preset=debian_minilm3           # MiniLM's first three layers, 8 epochs
  python -m benchmarks.leaderboard --data=data/LF-CppDocs-SeeAlso --board=cpp --config.data.num_validation=400

The same command skips finished runs and resumes killed ones. Each row writes
docs/results/leaderboard/NAME.json; other data, presets or budgets have their own board, in a folder below
that. `<!-- leaderboard: BOARD -->` and `<!-- end -->` in a page of docs/ show it, or
the main one without a name.

The budget is a number of epochs. A preset's schedule (when clusters, shortlists and pruning begin, and how
often they are renewed) is scaled to it. Classifiers train as many epochs again, on their row's encoder.
"""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from experiments.claims.run import LAST, costs_and_curve, test_last
from xmc_jax import methods as xmc_methods
from xmc_jax.errors import ConfigError

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / "docs" / "results" / "leaderboard"
_EPOCHS = {"debian": 15, "debian_minilm3": 8}  # the budget of each family of presets
_KEPT = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@100")
# The best epoch by validation is tested, ranked as in the papers.
_EQUAL = {"eval.every_epochs": 1.0, "checkpoint.keep": 1, "eval.scores": "fused"}
_SOFT_TOP_5 = {"method.loss": "soft_top_k", "method.k": 5.0, "method.alpha": 1.0}


class Row(NamedTuple):
  """Describes a row of the table.

  Attributes:
    what: its name in the table.
    experiment: experiments/NAME.py; a baseline takes only its data settings.
    settings: settings that override the preset's.
    base: for classifiers, the row that trains their encoder.
    baseline: the kind in benchmarks/tfidf.py; '' for methods.
    metric: what its loss is made for, which chooses its epoch under an equal budget; '' is P@1.
  """

  what: str
  experiment: str = "dexml"
  settings: Mapping[str, object] = MappingProxyType({})
  base: str = ""
  baseline: str = ""
  metric: str = ""


ROWS = {
  "tfidf_labels": Row("tf-idf, nearest label texts", baseline="labels"),
  "tfidf_vote": Row("tf-idf, vote of 20 nearest points", baseline="vote"),
  "tfidf_vote_all": Row("tf-idf, vote, held-out points vote too", baseline="vote_all"),
  "tfidf_both": Row("tf-idf, vote and label texts", baseline="both"),
  "tfidf_both_all": Row("tf-idf, vote and label texts, held-out points vote too", baseline="both_all"),
  "dpr": Row("DPR", "dpr"),
  "ance": Row("ANCE", "ance"),
  "ova": Row("one-vs-all", "ova"),
  "ngame": Row("NGAME", "ngame"),
  "dexa": Row("DEXA", "dexa"),
  "dexml": Row("DEXML, decoupled softmax", "dexml"),
  "dexml_soft_top_5": Row("DEXML, SoftTop-5", "dexml", _SOFT_TOP_5, metric="P@5"),
  "depsl": Row("DEPSL", "depsl"),
  "unidec": Row("UniDEC", "unidec"),
  "prime": Row("PRIME", "prime"),
  "ramen": Row("RAMEN on NGAME", "ramen"),
  "rae_xmc": Row("RAE-XMC", "rae_xmc"),
  "ngame_classifier": Row("NGAME with classifiers", "ngame_classifier", base="ngame"),
  "dexa_classifier": Row("DEXA with classifiers", "dexa_classifier", base="dexa"),
  "prime_classifier": Row("PRIME with classifiers", "prime_classifier", base="prime"),
  "ramen_classifier": Row("RAMEN with classifiers", "ramen_classifier", base="ramen"),
}
# For experiments without a preset of a family: another preset, and settings that make the encoder the same.
_THREE_LAYERS = ("debian_minilm1", {"encoder.num_layers": 3})
_OTHERS = {"debian_minilm3": dict.fromkeys(("dexml", "dpr", "ance", "ova"), _THREE_LAYERS)}


class Board(NamedTuple):
  """Holds what all rows of a table share.

  Attributes:
    name: a folder below docs/results/leaderboard; '' is the main board.
    family: the family of presets.
    epochs: the budget; 0 is each preset's own.
    data: `config.data.path`; '' is the bundled set.
    runs: where the runs' folders are.
    extra: further flags for all rows, `--config.KEY=VALUE`.
    suffix: appended to a row's name if rows of several families share a folder.
  """

  name: str
  family: str
  epochs: int
  data: str
  runs: pathlib.Path
  extra: tuple[str, ...] = ()
  suffix: str = ""

  def folder(self, row: str, seed: int) -> pathlib.Path:
    return self.runs / (self.name or "main") / f"{row}{self.suffix}-{seed}"


def preset_of(row: Row, family: str) -> tuple[str, Mapping[str, object]]:
  """Returns a row's preset, and settings that override it; classifiers have one preset for all encoders.

  Raises:
    ConfigError: the row's experiment has no preset of this family.
  """
  presets = importlib.import_module(f"experiments.{row.experiment}").PRESETS
  if family in presets:
    return family, {}
  if row.base:
    return next(iter(presets)), {}
  if row.experiment in _OTHERS.get(family, {}):
    return _OTHERS[family][row.experiment]
  raise ConfigError(f"experiments/{row.experiment}.py has no preset {family!r}; it has {', '.join(presets)}")


def settings(row: Row, seed: int, board: Board) -> tuple[str, dict[str, object]]:
  """Returns `(preset, settings that override it by dotted key)`."""
  preset, others = preset_of(row, board.family)
  config = importlib.import_module(f"experiments.{row.experiment}").get_config(preset)
  given = {"train.seed": seed}
  if not row.baseline:
    if board.epochs:
      given |= {"train.num_epochs": board.epochs, **stretched(config, board.epochs)}
      given |= {"eval.metric": row.metric} if row.metric else {}
    given |= {**_EQUAL, **others, **row.settings}
    if not board.epochs:  # the presets as users run them, so ranked by the hybrid ranker too
      given["eval.scores"] = "hybrid"
  if row.base:
    given["init_from"] = str(board.folder(row.base, seed))
  elif board.data:
    given["data.path"] = board.data
  return preset, given


def stretched(config, epochs: int) -> dict[str, object]:
  """Returns the settings of `config.method` in epochs, scaled to a training of `epochs` epochs."""
  ratio, found = epochs / config.train.num_epochs, {}
  base = xmc_methods.SETTINGS[config.method.get("base", config.method.name)].keys
  for key, value in config.method.items():
    read = key in base or key.startswith("pruning_")  # RAMEN's other bases have clocks that nothing reads
    if ratio == 1 or not read or not key.endswith(("_epoch", "_epochs")):
      continue
    if isinstance(value, tuple):
      found[f"method.{key}"] = tuple(round(ratio * epoch) for epoch in value)
    elif value:
      found[f"method.{key}"] = ratio * value
  return found


def command(name: str, seed: int, board: Board) -> list[str]:
  """Returns the command that trains a row, or ranks by tf-idf."""
  row = ROWS[name]
  preset, given = settings(row, seed, board)
  module = ["benchmarks.tfidf", f"--kind={row.baseline}"] if row.baseline else ["xmc_jax.main"]
  taken_over = ("--config.data.", "--config.encoder.", "--config.eval.propensity")  # from the encoder's run
  extra = [flag for flag in board.extra if not (row.base and flag.startswith(taken_over))]
  return [
    *(sys.executable, "-m", *module),
    f"--config=experiments/{row.experiment}.py:{preset}",
    f"--workdir={board.folder(name, seed)}",
    *(f"--config.{key}={value}" for key, value in given.items()),
    *extra,
  ]


def train(name: str, seed: int, board: Board) -> bool:
  """Trains a row with a seed unless it is finished; returns whether it is now. Logs beside its folder."""
  workdir, base = board.folder(name, seed), ROWS[name].base
  if is_finished(workdir):
    return True
  if base and not is_finished(board.folder(base, seed)):
    say(f"{name}, seed {seed}: left out, as {base} has not trained its encoder")
    return False
  say(f"{name}, seed {seed}")
  workdir.parent.mkdir(parents=True, exist_ok=True)
  log = workdir.with_name(f"{workdir.name}.log")
  with open(log, "a") as out:
    ended = subprocess.run(command(name, seed, board), cwd=_ROOT, stdout=out, stderr=out)
  if ended.returncode:
    say(f"{name}, seed {seed}: ended with {ended.returncode}; see {log}")
  return is_finished(workdir)


def say(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def is_finished(workdir: pathlib.Path) -> bool:
  """Returns whether a run has finished: it writes its times last."""
  return (workdir / "report" / "seconds.json").exists()


def outcome(name: str, seed: int, board: Board) -> dict[str, object]:
  """Returns a run's results, best and last, and the validation curve; costs include its encoder's run."""
  workdir, base = board.folder(name, seed), ROWS[name].base
  report, found = json.loads((workdir / "report" / "metrics.json").read_text()), costs_and_curve(workdir)
  intervals, before = report["intervals_95"], outcome(base, seed, board) if base else {}
  last = json.loads((workdir / LAST).read_text())["metrics"] if (workdir / LAST).exists() else {}
  ranges = {metric: intervals[metric] for metric in _KEPT if metric in intervals}
  return {
    "seed": seed,
    "metrics": {metric: round(report["metrics"][metric], 5) for metric in ranges},
    "last": {metric: round(last[metric], 5) for metric in _KEPT if metric in last},
    "half_intervals": {metric: round((high - low) / 2, 5) for metric, (low, high) in ranges.items()},
    "validation": max(found["curve"], default=None),
    "curve": found["curve"],
    "minutes": round(found["minutes"] + before.get("minutes", 0), 3),
    "GB": round(max(found["GB"], before.get("GB", 0)), 3),
  }


def keep(name: str, board: Board) -> None:
  """Writes the row's file with the results of all finished seeds."""
  folders = board.folder(name, 0).parent.glob(f"{name}-*")
  finished = sorted(int(path.name.rpartition("-")[2]) for path in folders if is_finished(path))
  row, folder = ROWS[name], _RESULTS / board.name
  if not finished:
    return
  preset, given = settings(row, finished[0], board)
  kept = {
    "what": row.what,
    "experiment": f"{row.experiment}:{preset}",
    "settings": {key: given[key] for key in given if key not in ("train.seed", "init_from")},
    "extra": list(board.extra),
    "seeds": [outcome(name, seed, board) for seed in finished],
  }
  folder.mkdir(parents=True, exist_ok=True)
  (folder / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


def write_tables() -> None:
  subprocess.run([sys.executable, "docs/make_tables.py", "write"], cwd=_ROOT, check=True)


def chosen(methods: list[str]) -> list[str]:
  """Returns these rows and the rows of the encoders that they need, in the table's order."""
  wanted = {*methods, *(ROWS[name].base for name in methods)}
  return [name for name in ROWS if name in wanted]


def parse(argv: list[str] | None) -> tuple[list[str], int, Board]:
  """Parses a command line into `(rows, seeds, board)`."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--methods", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW")
  parser.add_argument("--seeds", type=int, default=1, help="as many, from 0 on")
  parser.add_argument("--data", default="", help="a folder or table; the bundled set if not given")
  parser.add_argument("--preset", default="debian", choices=list(_EPOCHS), help="the family of presets")
  parser.add_argument("--budget", type=int, help="epochs of each training")
  parser.add_argument("--runs", type=pathlib.Path, default=_ROOT / "runs" / "leaderboard")
  parser.add_argument("--board", default="", help="where results go, below docs/results/leaderboard")
  given, extra = parser.parse_known_args(argv)
  if strange := [flag for flag in extra if not flag.startswith("--config.")]:
    parser.error(f"{strange[0]!r} is not understood; rows are {', '.join(ROWS)}")
  if extra and not given.board:
    parser.error(f"{extra[0]!r} makes it another board; name it: --board=NAME")
  epochs = given.budget or _EPOCHS[given.preset]
  own = [pathlib.Path(given.data).name] if given.data else []
  own += [given.preset] if own or given.preset != "debian" else []
  own += [f"{epochs}_epochs"] if epochs != _EPOCHS[given.preset] else []
  data = str(pathlib.Path(given.data).expanduser().resolve()) if given.data else ""
  name = given.board or "-".join(own)
  return (
    chosen(given.methods),
    given.seeds,
    Board(name, given.preset, epochs, data, given.runs.resolve(), tuple(extra)),
  )


def main(argv: list[str] | None = None) -> None:
  rows, num_seeds, board = parse(argv)
  failed = []
  for seed in range(num_seeds):  # each row runs once before any row runs a second time
    for name in rows:
      if not train(name, seed, board):
        failed.append(f"{name}-{seed}")
      elif not ROWS[name].baseline:
        test_last(board.folder(name, seed))
      keep(name, board)
      write_tables()
  if failed:
    sys.exit(f"not finished: {', '.join(failed)}; the same command goes on")


if __name__ == "__main__":
  main()
