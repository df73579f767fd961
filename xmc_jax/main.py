"""Extreme multi-label text classification.

  python -m xmc_jax.main --config=experiments/dexml.py                  # train on the bundled data, and test
  python -m xmc_jax.main --config=experiments/dexml.py --config.train.num_epochs=5 --workdir=runs/short
  python -m xmc_jax.main --mode=evaluate --workdir=runs/short
  python -m xmc_jax.main --mode=predict --workdir=runs/short --input=texts.txt

Presets stand behind a colon (experiments/dexml.py:minilm); every --config.KEY stands in xmc_jax/config.py.
"""  # `--help` shows this. Heavy imports come after the checks, so that it answers at once.

import pathlib

from absl import app, flags
from ml_collections import config_flags

from xmc_jax import checks, faults
from xmc_jax import config as configs
from xmc_jax.contract import UserError

_CONFIG = config_flags.DEFINE_config_file("config", help_string="FILE.py[:preset]; --config.KEY=VALUE")
_MODE = flags.DEFINE_enum(
  "mode",
  "train",
  ["prepare", "train", "evaluate", "predict", "plan"],
  "train: from raw files to the test table. evaluate, predict: need --workdir alone. plan: what would fit",
)
_WORKDIR = flags.DEFINE_string("workdir", "", "the run's folder; runs/<config.name> if not given")
_INPUT = flags.DEFINE_string("input", "", "predict: a file with one text a line; standard input if not given")
_OUTPUT = flags.DEFINE_string("output", "", "predict, evaluate: a file for JSON lines; predict: else stdout")
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "one of several processes; see docs/scaling.md")
_SCORES = flags.DEFINE_string("scores", "", "evaluate, predict: fused, encoder or classifier; else the run's")
_BACKEND = flags.DEFINE_enum("backend", None, checks.CHOICES["eval.backend"], "evaluate, predict: search by")
_K = flags.DEFINE_integer("k", 5, "predict: labels per text", lower_bound=1)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"{argv[1]!r} is not understood; options start with --, see --help")
  given = [name for name in faults.USED_BY if flags.FLAGS[name].present]
  if fault := faults.of_mode(_MODE.value, given):
    raise UserError(fault)
  workdir = pathlib.Path(_WORKDIR.value).expanduser()
  if _MODE.value in ("prepare", "train", "plan"):
    config = _checked_config()
    _make(config, workdir if _WORKDIR.value else pathlib.Path(f"runs/{config.name}"))
  elif _WORKDIR.value:
    _use(workdir)
  else:
    raise UserError(f"--mode={_MODE.value} needs --workdir, the folder of a run")


def _checked_config():
  if not _CONFIG.present:
    raise UserError("--config is missing; for instance --config=experiments/dexml.py")
  configs.check(_CONFIG.value)
  return _CONFIG.value


def _make(config, workdir: pathlib.Path) -> None:
  from xmc_jax import runtime, workflow

  if _MODE.value == "plan":
    return workflow.plan(config)  # looks for no device
  with runtime.started(_DISTRIBUTED.value):
    workflow.prepare(config) if _MODE.value == "prepare" else workflow.train_and_test(config, workdir)


def _use(workdir: pathlib.Path) -> None:
  configs.read(workdir / "config.json")
  from xmc_jax import runtime, workflow

  with runtime.started(_DISTRIBUTED.value):
    if _MODE.value == "evaluate":
      workflow.test(workdir, _OUTPUT.value, _SCORES.value, _BACKEND.value or "")
    else:
      workflow.predict(workdir, _INPUT.value, _OUTPUT.value, _K.value, _SCORES.value, _BACKEND.value or "")


def _parse_flags(argv: list[str]) -> list[str]:
  """absl's parser; what config files and overrides raise becomes one line, and --help exits with 0."""
  try:
    rest = flags.FLAGS(argv)
    getattr(_CONFIG.value, "name", None)  # a file that cannot be read raises at the first use
    return rest
  except SystemExit as error:
    raise SystemExit(0 if faults.asks_help(argv) else error.code or 1) from None
  except (UserError, BrokenPipeError):
    raise
  except Exception as error:  # a config file is code: it can raise anything
    raise UserError(faults.of_flags(argv, error, configs.default())) from None


def cli() -> None:
  """Runs `main`; whatever a user can cause ends in one line and a non-zero exit."""
  with faults.in_one_line():
    app.run(main, flags_parser=_parse_flags)


if __name__ == "__main__":
  cli()
