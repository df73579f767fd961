"""Extreme multi-label text classification.

  python -m xmc_jax.main --config=experiments/dexml.py                  # train on the bundled data, and test
  python -m xmc_jax.main --config=experiments/dexml.py --config.train.num_epochs=5 --workdir=runs/short
  python -m xmc_jax.main --mode=evaluate --workdir=runs/short
  python -m xmc_jax.main --mode=predict --workdir=runs/short --input=texts.txt
  python -m xmc_jax.main --mode=export --workdir=runs/short
  python -m xmc_jax.main --mode=serve --workdir=runs/short
  python -m xmc_jax.main --mode=compare runs/short runs/dexml-debian
  python -m xmc_jax.main --mode=combine runs/short runs/dexml-debian --workdir=runs/both

Installed by pip, it is `xmc-jax` for short. Presets stand behind a colon (experiments/dexml.py:minilm); every
--config.KEY stands in docs/settings.md.
"""  # `--help` shows this. Heavy imports come after the checks, so that `--help` answers at once.

import pathlib

import ml_collections
from absl import app, flags

from xmc_jax import methods
from xmc_jax.cli import error_lines
from xmc_jax.cli import flags as options
from xmc_jax.errors import UserError

flags.adopt_module_key_flags(options)  # --help shows them


def main(argv: list[str]) -> None:
  options.check(argv)
  mode, workdir = options.MODE.value, pathlib.Path(options.WORKDIR.value).expanduser()
  if mode in ("prepare", "train", "plan"):
    config = options.checked_config()
    _make(mode, config, workdir if options.WORKDIR.value else pathlib.Path(f"runs/{config.name}"))
  elif mode == "compare":
    _compare([pathlib.Path(folder).expanduser() for folder in argv[1:]])
  elif options.WORKDIR.value:
    _use(mode, workdir, argv)
  else:
    raise UserError(f"--mode={mode} needs --workdir, the folder of a run")


def _make(mode: str, config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  from xmc_jax.cli import commands
  from xmc_jax.distributed import runtime

  if mode == "plan":
    return commands.plan(config, reads_data=not options.names_sizes())  # needs no device
  with runtime.started(options.DISTRIBUTED.value, config.runtime.deterministic):
    if mode == "prepare":
      return commands.prepare(config)
    commands.train_and_test(config, workdir, owns_process=True)


def _use(mode: str, workdir: pathlib.Path, argv: list[str]) -> None:
  if mode != "combine":
    methods.read_config(workdir / "config.json")
  from xmc_jax.cli import commands
  from xmc_jax.distributed import runtime

  given = options.reads_input(argv)
  output, scores, backend = options.OUTPUT.value, options.SCORES.value, options.BACKEND.value or ""
  with runtime.started(options.DISTRIBUTED.value):
    if mode == "combine":
      commands.combine_and_test([pathlib.Path(folder) for folder in argv[1:]], workdir)
    elif mode == "evaluate":
      commands.test(workdir, output, scores, backend, options.CHECKPOINT.value, options.INPUT.value, given)
    elif mode == "serve":
      _serve(workdir, scores, backend)
    elif mode == "export":
      commands.export(workdir, output, options.ADD_LABELS.value, scores)
    else:
      more = _values("k", "scores", "explain", "documents", "threshold", "add_labels")
      commands.predict(workdir, options.INPUT.value, output, backend=backend, reading=given, **more)


def _serve(workdir: pathlib.Path, scores: str, backend: str) -> None:
  from xmc_jax.cli import serving

  asked = _values("host", "port", "k", "allowed_hosts", "max_text_length", "threshold", "add_labels")
  page = _values("title", "description", "example")
  serving.serve(workdir, scores=scores, backend=backend, **asked, **page)


def _values(*names: str) -> dict:
  """Returns the values of flags by their names, which are those of the commands' arguments."""
  return {name: flags.FLAGS[name].value for name in names}


def _compare(workdirs: list[pathlib.Path]) -> None:
  for workdir in workdirs:
    methods.read_config(workdir / "config.json")
  from xmc_jax.cli import commands

  commands.compare(workdirs, options.OUTPUT.value, options.SCORES.value)


def cli() -> None:
  """Runs `main`; prints a user's error as one line and exits with a non-zero status."""
  with error_lines.in_one_line():
    app.run(main, flags_parser=options.parse)


if __name__ == "__main__":
  cli()
