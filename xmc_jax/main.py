"""Extreme multi-label text classification.

  python -m xmc_jax.main --config=experiments/auto.py                   # train on the bundled data, and test
  python -m xmc_jax.main --config=experiments/dexml.py --config.train.num_epochs=5 --workdir=runs/short
  python -m xmc_jax.main --mode=evaluate --workdir=runs/short
  python -m xmc_jax.main --mode=predict --workdir=runs/short --input=texts.txt
  python -m xmc_jax.main --mode=serve --workdir=runs/short
  python -m xmc_jax.main --mode=learn --workdir=runs/short --input=corrected.csv
  python -m xmc_jax.main --mode=compare runs/short runs/dexml-debian    # or combine, with --workdir=runs/both

Installed by pip: `xmc-jax`. A preset follows a colon (experiments/dexml.py:minilm); keys: docs/settings.md.
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
  elif mode != "compare" and not options.WORKDIR.value:
    raise UserError(f"--mode={mode} needs --workdir, the folder of a run")
  elif mode in ("compare", "combine"):
    _join(mode, [pathlib.Path(folder).expanduser() for folder in argv[1:]], workdir)
  else:
    _use(mode, workdir, options.reads_input(argv))


def _make(mode: str, config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  from xmc_jax.cli import commands
  from xmc_jax.distributed import runtime

  if mode == "plan":
    return commands.plan(config, reads_data=not options.names_sizes())  # needs no device
  with runtime.started(options.DISTRIBUTED.value, config.runtime.deterministic):
    if mode == "prepare":
      return commands.prepare(config)
    commands.train_and_test(config, workdir, owns_process=True)


def _use(mode: str, workdir: pathlib.Path, given: dict[str, str]) -> None:
  methods.read_config(workdir / "config.json")
  from xmc_jax.cli import commands
  from xmc_jax.distributed import runtime

  output, scores, backend = options.OUTPUT.value, options.SCORES.value, options.BACKEND.value or ""
  with runtime.started(options.DISTRIBUTED.value):
    if mode == "evaluate":
      commands.test(workdir, output, scores, backend, options.CHECKPOINT.value, options.INPUT.value, given)
    elif mode == "serve":
      asked = "host port k allowed_hosts max_text_length threshold add_labels title description example"
      commands.serve(workdir, backend=backend, **_values("scores", "learn_token_file", *asked.split()))
    elif mode == "learn":
      commands.learn(workdir, options.INPUT.value, given, options.UNLEARN.value, options.NEW_LABELS.value)
    elif mode == "export":
      commands.export(workdir, output, options.ADD_LABELS.value, scores)
    else:
      from xmc_jax.runs.best_labels import LabelRequest

      k, threshold = options.labels_to_give()
      limits = tuple(options.INCLUDE.value), tuple(options.EXCLUDE.value)
      request = LabelRequest(k, threshold, options.EXPLAIN.value, *limits, options.LANGUAGE.value)
      more = _values("scores", "documents", "add_labels")
      commands.predict(workdir, options.INPUT.value, output, request, given, backend=backend, **more)


def _values(*names: str) -> dict:
  """Returns the values of flags by their names, which are those of the commands' arguments."""
  return {name: flags.FLAGS[name].value for name in names}


def _join(mode: str, folders: list[pathlib.Path], workdir: pathlib.Path) -> None:
  _ = [methods.read_config(folder / "config.json") for folder in folders]
  from xmc_jax.cli import commands

  if mode == "compare":
    return commands.compare(folders, options.OUTPUT.value, options.SCORES.value)
  commands.combine(folders, workdir)


def cli() -> None:
  """Runs `main`; prints a user's error as one line and exits with a non-zero status."""
  with error_lines.in_one_line():
    app.run(main, flags_parser=options.parse)


if __name__ == "__main__":
  cli()
