"""The command line: `python -m xmc_jax.main --config=experiments/dexml.py`.

Kept short on purpose: flags, config, mode. Heavy imports come after the checks,
so that --help and a config error answer at once.
"""

import os
import pathlib
import sys

from absl import app, flags
from ml_collections import config_flags

from xmc_jax import config as configs
from xmc_jax.contract import UserError

_CONFIG = config_flags.DEFINE_config_file(
  "config", help_string="experiments/NAME.py[:preset]; --config.KEY=VALUE sets a value"
)
_MODE = flags.DEFINE_enum(
  "mode",
  "train",
  ["prepare", "train", "evaluate", "predict"],
  "train: all of it, from raw files to the test table. evaluate and predict need --workdir alone",
)
_WORKDIR = flags.DEFINE_string("workdir", "", "the run's folder; runs/<config.name> if not given")
_INPUT = flags.DEFINE_string("input", "", "predict: a file with one text a line; standard input if not given")
_OUTPUT = flags.DEFINE_string(
  "output", "", "predict: where to write JSON lines; standard output if not given"
)
_K = flags.DEFINE_integer("k", 5, "predict: labels per text", lower_bound=1)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"{argv[1]!r} is not understood; options start with --, see --help")
  if _MODE.value in ("evaluate", "predict"):
    _use(_existing_workdir())
  else:
    _make(*_checked_config())


def _checked_config():
  config = _CONFIG.value
  if config is None:
    raise UserError("--config is missing; for instance --config=experiments/dexml.py")
  try:
    name = config.name
  except OSError as error:  # config_flags puts off its failure to load until the first use
    raise UserError(f"--config: {str(error).strip().splitlines()[-1].strip()}") from None
  configs.check(config)
  return config, pathlib.Path(_WORKDIR.value or f"runs/{name}")


def _existing_workdir() -> pathlib.Path:
  if not _WORKDIR.value:
    raise UserError(f"--mode={_MODE.value} needs --workdir, the folder of a run")
  return pathlib.Path(_WORKDIR.value)


def _make(config, workdir: pathlib.Path) -> None:
  from xmc_jax import runtime, workflow

  runtime.start()
  (workflow.prepare if _MODE.value == "prepare" else workflow.train_and_test)(config, workdir)


def _use(workdir: pathlib.Path) -> None:
  configs.read(workdir / "config.json")
  from xmc_jax import runtime, workflow

  runtime.start()
  if _MODE.value == "evaluate":
    workflow.test(workdir)
  else:
    workflow.predict(workdir, _INPUT.value, _OUTPUT.value, _K.value)


def cli() -> None:
  """Runs `main`; whatever a user can cause ends in one line and a non-zero exit."""
  try:
    app.run(main, flags_parser=_parse_flags)
  except UserError as error:
    sys.exit(f"error: {error}")
  except KeyboardInterrupt:
    sys.exit("interrupted; the same command goes on from the last checkpoint")
  except BrokenPipeError:  # `... | head`: nobody reads any more
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse_flags(argv: list[str]) -> list[str]:
  """absl's parser; what config files and overrides raise becomes one line."""
  try:
    return flags.FLAGS(argv)
  except UserError:
    raise
  except Exception as error:  # a config file is code: it can raise anything
    raise UserError(configs.flag_fault(argv, error)) from None


if __name__ == "__main__":
  cli()
