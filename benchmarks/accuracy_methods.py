"""Our methods in the rows of benchmarks/accuracy.py: presets, settings, and the command that trains each."""

import importlib
import pathlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from xmc_jax.errors import ConfigError

# Trained like users' runs; ranked by the hybrid ranker, of which results by the encoder alone are a part.
_EQUAL = {"eval.every_epochs": 1.0, "checkpoint.keep": 1, "eval.scores": "hybrid"}
_MINUTES = (1, 3, 10, 30)
_SOFT_TOP_5 = {"method.loss": "soft_top_k", "method.k": 5.0, "method.alpha": 1.0}


class Row(NamedTuple):
  """Describes a row of the table.

  Attributes:
    what: its name in the table.
    experiment: experiments/NAME.py; a baseline takes only its data settings.
    settings: settings that override the preset's.
    base: for classifiers, the row that trains their encoder.
    baseline: the kind in benchmarks/tfidf.py; '' for methods.
  """

  what: str
  experiment: str = "dexml"
  settings: Mapping[str, object] = MappingProxyType({})
  base: str = ""
  baseline: str = ""


ROWS = {
  "tfidf_vote": Row("tf-idf, vote of 20 nearest points", baseline="vote_all"),
  "tfidf_both": Row("tf-idf, vote and label texts", baseline="both_all"),
  "dpr": Row("DPR", "dpr"),
  "ance": Row("ANCE", "ance"),
  "ova": Row("one-vs-all", "ova"),
  "ngame": Row("NGAME", "ngame"),
  "dexa": Row("DEXA", "dexa"),
  "dexml": Row("DEXML, decoupled softmax", "dexml"),
  "dexml_soft_top_5": Row("DEXML, SoftTop-5", "dexml", _SOFT_TOP_5),
  "depsl": Row("DEPSL", "depsl"),
  "unidec": Row("UniDEC", "unidec"),
  "prime": Row("PRIME", "prime"),
  "ramen": Row("RAMEN on NGAME", "ramen"),
  "rae_xmc": Row("RAE-XMC", "rae_xmc"),
  "ngame_classifier": Row("NGAME with classifiers", "ngame_classifier", base="ngame"),
  "dexa_classifier": Row("DEXA with classifiers", "dexa_classifier", base="dexa"),
  "prime_classifier": Row("PRIME with classifiers", "prime_classifier", base="prime"),
  "ramen_classifier": Row("RAMEN with classifiers", "ramen_classifier", base="ramen"),
  **{f"auto_{most}": Row(f"auto, {most} min", "auto", {"auto.minutes": float(most)}) for most in _MINUTES},
}
# For experiments without a preset of a family: another preset, and settings that make the encoder the same.
_THREE_LAYERS = ("debian_minilm1", {"encoder.num_layers": 3})
_OTHERS = {"debian_minilm3": dict.fromkeys(("dexml", "dpr", "ance", "ova"), _THREE_LAYERS)}


class Board(NamedTuple):
  """Holds what all rows of a data set share.

  Attributes:
    name: the set's name; a folder below docs/results/accuracy.
    family: the family of presets.
    data: `config.data.path`; '' is the bundled set.
    runs: where the runs' folders are.
    extra: further flags for all rows, `--config.KEY=VALUE`.
    suffix: appended to a row's name if rows of several families share a folder.
  """

  name: str
  family: str
  data: str
  runs: pathlib.Path
  extra: tuple[str, ...] = ()
  suffix: str = ""

  def folder(self, row: str, seed: int) -> pathlib.Path:
    return self.runs / self.name / f"{row}{self.suffix}-{seed}"


def preset_of(row: Row, family: str) -> tuple[str, Mapping[str, object]]:
  """Returns a row's preset, and settings that override it; classifiers have one preset for all encoders.

  Raises:
    ConfigError: the row's experiment has no preset of this family.
  """
  presets = importlib.import_module(f"xmc_jax.experiments.{row.experiment}").PRESETS
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
  given = {"train.seed": seed}
  if not row.baseline:
    given |= {**({} if row.experiment == "auto" else _EQUAL), **others, **row.settings}
  if row.base:
    given["init_from"] = str(board.folder(row.base, seed))
  elif board.data:
    given["data.path"] = board.data
  return preset, given


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


def say(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def is_finished(workdir: pathlib.Path) -> bool:
  """Returns whether a run has finished: it writes its times last."""
  return (workdir / "report" / "seconds.json").exists()
