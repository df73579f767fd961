"""Reads the command line's flags; errors of config files and overrides become one line. Loads no jax."""

import contextlib
import math
import pathlib
import re
import runpy
from typing import Literal

import ml_collections
from absl import flags
from ml_collections import config_flags

from xmc_jax import config as configs
from xmc_jax import experiments, methods
from xmc_jax.cli import error_lines
from xmc_jax.config import checks
from xmc_jax.config.defaults import KEYS, READS_INPUT, keys_of
from xmc_jax.errors import UserError

CONFIG = config_flags.DEFINE_config_file("config", help_string="FILE.py[:preset]; --config.KEY=VALUE")
MODE = flags.DEFINE_enum(
  "mode",
  "train",
  ["prepare", "train", "evaluate", "predict", "export", "compare", "combine", "plan", "serve", "learn"],
  "train: from raw files to the test table. evaluate, predict, export: need --workdir alone. compare: needs "
  "the folders of two runs or more. combine: makes one run of these in --workdir. plan: what would fit. "
  "serve: a page and an API over --workdir. learn: remembers labelled texts, trains nothing",
)
WORKDIR = flags.DEFINE_string("workdir", "", "the run's folder; runs/<config.name> if not given")
INPUT = flags.DEFINE_string(
  "input",
  "",
  "predict: a file with one text a line, a table, or a folder with a text a file; else standard input. "
  "evaluate: labelled data to test on, in any layout; the run's own test rows if not given. learn: labelled "
  "texts, in any layout",
)
DOCUMENTS = flags.DEFINE_bool(
  "documents", False, "predict: the whole of --input is one text, line breaks too"
)
THRESHOLD = flags.DEFINE_float("threshold", -math.inf, "predict, serve: the least score of a label")
LABELS = flags.DEFINE_string(
  "labels", "", "predict: which labels: f1 (the set with the best expected F1), a least score, or how many"
)
INCLUDE = flags.DEFINE_multi_string(
  "include", [], "predict: the key of a label; only labels that are named are answers"
)
EXCLUDE = flags.DEFINE_multi_string("exclude", [], "predict: the key of a label that is never an answer")
LANGUAGE = flags.DEFINE_string("language", "", "predict: the language of the labels' names, such as fi")
OUTPUT = flags.DEFINE_string(
  "output",
  "",
  "predict: a file for JSON lines, or .npz for a matrix; else standard output. evaluate: a file for JSON "
  "lines. export: a folder; export/ in the run's if not given. compare: a file for the page",
)
ADD_LABELS = flags.DEFINE_string(
  "add_labels",
  "",
  "predict, serve, export (to the exported folder): a file of new labels, a text a line or a table",
)
UNDO = flags.DEFINE_bool("undo", False, "learn: forget the texts that were learnt last, together")
NEW_LABELS = flags.DEFINE_bool("new_labels", False, "learn: add labels that the run lacks, not refuse them")
UNLEARN = flags.DEFINE_multi_integer("unlearn", [], "learn: forget the text that has this number")
DISTRIBUTED = flags.DEFINE_bool("distributed", False, "one of several processes; see docs/scaling.md")
SCORES = flags.DEFINE_string(
  "scores", "", "hybrid, fused, encoder, classifier, memory, ...: what ranks; the run's if not given"
)
EXPLAIN = flags.DEFINE_bool(
  "explain",
  False,
  "predict: say why, for each label: which sources rank it high, which training texts have it",
)
BACKEND = flags.DEFINE_enum(
  "backend", None, KEYS["eval"]["backend"].choices, "evaluate, predict, serve: search by"
)
CHECKPOINT = flags.DEFINE_enum(
  "checkpoint", "best", ["best", "last"], "evaluate: the parameters best by validation, or the last step's"
)
K = flags.DEFINE_integer("k", 5, "predict, serve: labels per text", lower_bound=1)
HOST = flags.DEFINE_string("host", "127.0.0.1", "serve: the address to listen on; 0.0.0.0 is all of them")
PORT = flags.DEFINE_integer("port", 8000, "serve: 0 is any free port", lower_bound=0, upper_bound=65535)
MAX_TEXT_LENGTH = flags.DEFINE_integer(
  "max_text_length", 10_000, "serve: characters of a text; longer ones are refused", lower_bound=1
)
ALLOWED_HOSTS = flags.DEFINE_list(
  "allowed_hosts", [], "serve: names by which a proxy asks, besides this machine's own; see docs/serving.md"
)
TITLE = flags.DEFINE_string("title", "", "serve: the page's title; the run's name if not given")
DESCRIPTION = flags.DEFINE_string("description", "", "serve: a sentence below the page's title")
EXAMPLE = flags.DEFINE_multi_string("example", [], "serve: a text to try on the page; may be repeated")
LEARN = flags.DEFINE_bool("learn", False, "serve: take corrections, from clients that have the token")
LEARN_TOKEN_FILE = flags.DEFINE_string(
  "learn_token_file", "", "serve: a file whose first line is the token for --learn, of 16 characters or more"
)

_READING = re.compile(r"--config\.data\.(\w+)=(.*)", re.DOTALL)
_MOST_LABELS = 100  # of a text, where --labels chooses by scores
_CONFIG_MODES = ("prepare", "train", "plan")
_OF_RUNS = ("compare", "combine")  # their arguments are folders of runs
# The flags that each mode uses.
_USES = {
  **dict.fromkeys(_CONFIG_MODES, "config workdir distributed"),
  "evaluate": "workdir input output scores backend checkpoint distributed",
  "predict": "workdir input output scores backend documents labels threshold k include exclude language "
  "add_labels explain distributed",
  "export": "workdir output scores add_labels distributed",
  "compare": "output scores distributed",
  "combine": "workdir",
  "learn": "workdir input new_labels undo unlearn",
  "serve": "workdir scores backend threshold k add_labels host port allowed_hosts max_text_length title "
  "description example learn learn_token_file",
}


def parse(argv: list[str]) -> list[str]:
  """Parses the command line by absl; `--help` exits with 0.

  Raises:
    UserError: a config file or an override cannot work.
  """
  argv = _beside_package(argv)
  keys = "|".join(READS_INPUT.get(error_lines.value_of("mode", argv), ()))
  own = [argument for argument in argv if keys and re.match(rf"--config\.data\.({keys})=", argument)]
  argv = [argument for argument in argv if argument not in own]
  try:
    rest = [*flags.FLAGS(argv), *own]
    getattr(CONFIG.value, "name", None)  # a file that cannot be read raises at the first use
    return rest
  except SystemExit as error:
    raise SystemExit(0 if error_lines.asks_help(argv) else error.code or 1) from None
  except (UserError, BrokenPipeError):
    raise
  except Exception as error:  # a config file is code: it can raise anything
    raise UserError(error_lines.of_flags(argv, error, _known_keys(argv))) from None


def reads_input(argv: list[str]) -> dict[str, str]:
  """Returns the keys of config.data on the command line that `parse` has left for --input."""
  return {found[1]: found[2] for argument in argv if (found := _READING.fullmatch(argument))}


def labels_to_give() -> tuple[int, float | Literal["f1"]]:
  """Returns how many labels a text gets at most, and their least score, or 'f1'.

  Raises:
    UserError: --labels is not understood, or says it a second time.
  """
  labels, k, threshold = LABELS.value, K.value, THRESHOLD.value
  if not labels:
    return k, threshold
  for name in ("k", "threshold"):
    if flags.FLAGS[name].present:
      raise UserError(f"--labels={labels} and --{name}: leave one of them out")
  if labels == "f1":
    return _MOST_LABELS, "f1"
  if labels.isdecimal() and int(labels):
    return int(labels), threshold
  with contextlib.suppress(ValueError):
    if math.isfinite(least := float(labels)) and not labels.isdecimal():
      return _MOST_LABELS, least
  raise UserError(f"--labels={labels!r}: expected f1, a least score such as 0.3, or a number such as 5")


def check(argv: list[str]) -> None:
  """Refuses flags and arguments that the mode does not use, or that contradict each other."""
  labels_to_give()
  mode, reading = MODE.value, reads_input(argv)
  others = [argument for argument in argv[1:] if not _READING.fullmatch(argument)]
  if others and mode not in _OF_RUNS:
    raise UserError(f"{others[0]!r} is not understood; options start with --, see --help")
  if reading and mode in ("evaluate", "learn") and not INPUT.value:
    raise UserError(f"--config.data.{next(iter(reading))} reads --input=FILE, which is missing")
  if mode == "learn" and [bool(INPUT.value), UNDO.value, bool(UNLEARN.value)].count(True) != 1:
    raise UserError("--mode=learn takes one of --input=FILE, --undo and --unlearn=NUMBER")
  if mode == "serve" and LEARN.value != bool(LEARN_TOKEN_FILE.value):
    raise UserError("--learn and --learn_token_file=FILE go together; the file has the clients' token")
  if reading:
    config = methods.default_config()
    config.data.update(reading)
    methods.check_config(config)
  for name in dict.fromkeys(" ".join(_USES.values()).split()):
    if not flags.FLAGS[name].present or name in _USES[mode].split():
      continue
    if mode not in _CONFIG_MODES:
      folders = "the folders of runs" if mode in _OF_RUNS else "the run's folder"
      raise UserError(f"--mode={mode} takes its settings from {folders}; leave --{name} out")
    instead = f"set --config.eval.{name}, or " if name in ("scores", "backend", "k") else ""
    raise UserError(f"--mode={mode} does not use --{name}; {instead}leave it out")


def checked_config() -> ml_collections.ConfigDict:
  """Returns the config that --config names, with its overrides; refuses one that cannot work."""
  if not CONFIG.present:
    raise UserError(
      "--config is missing; for instance --config=experiments/auto.py to train, or --mode=predict "
      "--workdir=RUN to use what was trained; --help has more"
    )
  if config_flags.get_override_values(flags.FLAGS["config"]).get("data.path") == "":
    raise UserError("--config.data.path is empty; give a file or a folder, or 'bundled' for the bundled data")
  methods.check_config(CONFIG.value)
  CONFIG.value.name = configs.name_after_data(CONFIG.value)
  return CONFIG.value


def names_sizes() -> bool:
  """Returns whether the command line gives sizes of data for a plan."""
  given = config_flags.get_override_values(flags.FLAGS["config"])
  return any(key.startswith(("plan.num_", "plan.tokens_")) for key in given)


def _known_keys(argv: list[str]) -> dict:
  """Returns the keys and values of the config on the command line, without overrides.

  If it cannot be read, returns all keys outside `config.method`, with their defaults.
  """
  path, _, preset = error_lines.value_of("config", argv).partition(":")
  with contextlib.suppress(Exception, SystemExit):  # a config file is code: it can raise anything
    return checks.flatten(runpy.run_path(path)["get_config"](*([preset] if preset else [])))
  return {key: declared.default for key, declared in keys_of().items()}


def _beside_package(argv: list[str]) -> list[str]:
  """Points --config=experiments/... to the file installed with the package, if none exists here."""
  given = error_lines.value_of("config", argv)
  path, colon, preset = given.partition(":")
  installed = experiments.FOLDER.parent / path
  if not path.startswith("experiments/") or pathlib.Path(path).exists() or not installed.is_file():
    return argv
  spellings = (given, f"--config={given}", f"-config={given}")
  found = f"{installed}{colon}{preset}"
  return [text.removesuffix(given) + found if text in spellings else text for text in argv]
