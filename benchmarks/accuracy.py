"""Peers and our methods side by side on any data: the same split, filters and metrics. docs/accuracy.md.

  python -m benchmarks.accuracy --pecos_python=.venv-pecos/bin/python --rows xr_linear tfidf_vote tfidf_both
  python -m benchmarks.accuracy --data=data/LF-CppDocs-SeeAlso --rows dexml --config.data.num_validation=400
  python -m benchmarks.accuracy --omikuji_python=.venv-omikuji/bin/python --rows parabel bonsai
  python -m benchmarks.accuracy --bench_python=.venv-bench/bin/python --rows mnrl --mnrl_epochs=3
  python -m benchmarks.accuracy --preset=debian_minilm6 --rows dexa_classifier rae_xmc

Rows:

  xr_linear    PECOS's XR-Linear, on all training rows
  parabel, bonsai  Omikuji's trees of linear classifiers, on all training rows
  tfidf_vote   benchmarks/tfidf.py, the vote of all training rows
  tfidf_both   the same with label texts; the validation rows choose their weight, and then vote too
  mnrl         MiniLM-L6 tuned with sentence-transformers' MultipleNegativesRankingLoss, on all training rows
  auto_MINUTES ours, several methods combined: auto_1, auto_3, auto_10, auto_30
  METHOD       ours, as in experiments/METHOD.py: its encoder alone (with classifiers: fused), and hybrid

Each row writes docs/results/accuracy/SET/ROW.json, where SET is the name of the data's folder, and its
predictions below --runs. With another preset than the default, it writes SET/ROW_PRESET.json. The same
command skips finished rows and resumes killed ones. `--config.KEY=VALUE` is passed to our methods; keys of
data and eval apply to the peers, too.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

from absl import logging

from benchmarks import accuracy_results, children
from benchmarks.accuracy_methods import Board, is_finished
from benchmarks.accuracy_results import DEPTH, REFERENCE, Judge
from benchmarks.accuracy_rows import PEERS, ROWS, WORKERS, Options, asked, config_of, fit, results
from xmc_jax.cli import error_lines
from xmc_jax.errors import ConfigError
from xmc_jax.runs import create, evaluate

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / "docs" / "results" / "accuracy"
_BUNDLED = "LF-DebianTitles"
_FAMILY = "debian"  # the default family of presets
_ENVIRONMENTS = {
  REFERENCE: "pecos_python",
  "mnrl": "bench_python",
  "parabel": "omikuji_python",
  "bonsai": "omikuji_python",
}


def run_set(rows: list[str], num_seeds: int, board: Board, options: Options) -> list[str]:
  """Runs the rows of one data set and stores their results; returns the names of unfinished rows."""
  config = config_of(board)
  dataset = create.load_data(config, None, "")
  judge, failed = Judge(dataset, config.eval), []
  for seed in range(num_seeds):  # each row runs once before any row runs a second time
    for name in rows:
      wanted = asked(name, board, options)
      if _is_kept(name, seed, board, wanted):
        continue
      found = results(name, seed, board) if fit(name, seed, board, options, dataset) else {}
      for file, (what, result) in found.items():
        row = {"what": what, "set": board.name, "test_points": len(dataset.test)}
        row |= {"asked": wanted, "settings": result.settings}
        outcome = judge.outcome(seed, result, children.machine(), _reference(name, seed, board))
        accuracy_results.keep(_file(board, file), row, outcome)
      if not found:
        failed.append(f"{board.name}/{name}-{seed}")
      write_tables()
  return failed


def _file(board: Board, name: str) -> pathlib.Path:
  return _RESULTS / board.name / f"{name}{board.suffix}.json"


def _is_kept(name: str, seed: int, board: Board, wanted: dict) -> bool:
  """Returns whether a row's file has this seed, with its difference to XR-Linear if that can be computed.

  Raises:
    ConfigError: the file was made with other settings.
  """
  path = _file(board, name)
  kept = accuracy_results.read(path)
  if kept and kept["asked"] != wanted:
    raise ConfigError(
      f"{board.name}/{path.name} was made with {json.dumps(kept['asked'])}, and this command asks for "
      f"{json.dumps(wanted)}; remove it and its folders in --runs, or give the first settings"
    )
  found = accuracy_results.seed_of(kept, seed)
  compared = f"to_{REFERENCE}" in found or _reference_folder(name, seed, board) is None
  return bool(found) and (compared or not is_finished(board.folder(name, seed)))


def _reference_folder(name: str, seed: int, board: Board) -> pathlib.Path | None:
  """Returns XR-Linear's folder for this seed, else for seed 0; None for XR-Linear, or if none is finished."""
  peers = board._replace(suffix="")
  folders = [peers.folder(REFERENCE, other) for other in (seed, 0)] if name != REFERENCE else []
  return next(filter(is_finished, folders), None)


def _reference(name: str, seed: int, board: Board):
  """Returns XR-Linear's ids `[n, DEPTH]`, or None."""
  folder = _reference_folder(name, seed, board)
  return evaluate.read_predictions(folder / "predictions" / "test.npz", DEPTH).ids if folder else None


def write_tables() -> None:
  subprocess.run([sys.executable, "docs/make_tables.py", "write", "accuracy"], cwd=_ROOT, check=True)


def parse(argv: list[str] | None) -> tuple[list[str], int, list[Board], Options]:
  """Parses a command line into `(rows, seeds, a board for each data set, options)`."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", action="append", help="a folder or table, or several; else the bundled set")
  parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW")
  parser.add_argument("--preset", default=_FAMILY, help="of our methods; classifiers have one for all")
  parser.add_argument("--seeds", type=int, default=1, help="as many, from 0 on")
  parser.add_argument("--pecos_python", default="", help="Python of an environment that has libpecos")
  parser.add_argument("--omikuji_python", default="", help="of one that has omikuji")
  parser.add_argument("--bench_python", default="", help="of one that has sentence-transformers")
  parser.add_argument("--mnrl_epochs", type=int, default=3)
  parser.add_argument("--mnrl_pairs", type=int, default=0, help="of an epoch, at most; 0 is all")
  parser.add_argument("--runs", type=pathlib.Path, default=_ROOT / "runs" / "accuracy")
  given, extra = parser.parse_known_args(argv)
  if strange := [flag for flag in extra if not flag.startswith("--config.") or "=" not in flag]:
    parser.error(f"{strange[0]!r} is not understood; rows are {', '.join(ROWS)}")
  python = {}
  for row, flag in _ENVIRONMENTS.items():
    python[row] = os.path.abspath(getattr(given, flag))  # not resolved: an environment's python is a link
    if row in given.rows and not (getattr(given, flag) and os.access(python[row], os.X_OK)):
      parser.error(f"row {row}: --{flag}={getattr(given, flag)} is no Python; see benchmarks/{WORKERS[row]}")
  suffix = "" if given.preset == _FAMILY else f"_{given.preset}"
  if suffix and (peers := [row for row in given.rows if row in PEERS]):
    parser.error(f"row {peers[0]} has no presets; give --rows without it")
  paths = [pathlib.Path(path).expanduser().resolve() if path else None for path in given.data or [""]]
  names = [path.name if path else _BUNDLED for path in paths]
  if twice := [name for name in names if names.count(name) > 1]:
    parser.error(f"two data sets are called {twice[0]!r}, under which results are kept; rename a folder")
  boards = [
    Board(name, given.preset, str(path or ""), given.runs.resolve(), tuple(extra), suffix)
    for name, path in zip(names, paths)
  ]
  rows = [name for name in ROWS if name in given.rows]  # XR-Linear first: the others are compared with it
  mnrl = {"epochs": given.mnrl_epochs, "pairs": given.mnrl_pairs}
  return rows, given.seeds, boards, Options(python, mnrl)


def main(argv: list[str] | None = None) -> None:
  logging.set_verbosity(logging.WARNING)
  rows, num_seeds, boards, options = parse(argv)
  failed = [row for board in boards for row in run_set(rows, num_seeds, board, options)]
  if failed:
    sys.exit(f"not finished: {', '.join(failed)}; the same command goes on")


if __name__ == "__main__":
  with error_lines.in_one_line():
    main()
