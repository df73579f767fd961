"""Runs each --mode: reads a config or a run's folder, and shows the result to the user."""

import contextlib
import copy
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from xmc_jax import config as configs
from xmc_jax import data, methods
from xmc_jax import plan as plans
from xmc_jax.config.keys import LARGEST
from xmc_jax.console import say, show
from xmc_jax.data import formats
from xmc_jax.data.added import Unknown
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.plan.table import table
from xmc_jax.report import compare as compare  # the command of --mode=compare
from xmc_jax.runs import create, label_frequency
from xmc_jax.runs import run as runs
from xmc_jax.runs.best_labels import LabelRequest, check_k
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.model import Model
from xmc_jax.runs.trained import to_test
from xmc_jax.storage import atomic
from xmc_jax.training import members, test_table
from xmc_jax.training.combine import combine as combine  # the command of --mode=combine
from xmc_jax.training.train import train_and_test as train_and_test  # the command of --mode=train

_BYTES_OF_CHARACTER = 12  # in JSON, at most: two escapes such as \ud83d


def prepare(config: ml_collections.ConfigDict) -> None:
  """Runs `--mode=prepare`: reads, tokenises and checks the data; trains nothing and makes no run's folder."""
  if config.auto.minutes:
    config = members.usual_config(config)
  prepared, config = create.prepare(config)
  show(data.summary(prepared.manifest))
  show(f"prepared in {prepared.folder}, where --mode=train finds it")
  try:
    create.fit_to_data(config, prepared)
  except UserError as error:
    say(f"note: with these settings --mode=train will refuse: {error}")


def plan(config: ml_collections.ConfigDict, reads_data: bool = True) -> None:
  """Runs `--mode=plan`: estimates time and memory of a run; refuses one that cannot fit.

  Sizes are those of the data, if they are here and `reads_data` is set, else those of `config.plan`.
  """
  if config.auto.minutes:
    raise UserError(
      "auto chooses by time while it trains, so it has no plan; give a method, as experiments/dexml.py"
    )
  if methods.builds_on_a_run(config):
    if config.init_from:
      config = create.with_encoder_of(config)
    else:
      supposed = f"encoder.name = {config.encoder.name!r} is supposed"
      print(f"note: {supposed}; --config.init_from=RUN takes the encoder of a run", file=sys.stderr)
  sizes = plans.sizes_of(config, create.data_here(config) if reads_data else None)
  config, chosen = create.fitted(config, sizes.num_points, sizes.num_labels)
  if chosen:
    print(chosen, file=sys.stderr)
  configs.check_against_data(config, sizes.num_points or LARGEST, sizes.num_labels)
  made = plans.plan(config, sizes)
  # Does not call `show`, which asks JAX for a device.
  print(table(made), file=sys.stdout if made.total <= made.limit else sys.stderr)
  plans.check(made)


def test(
  workdir: pathlib.Path,
  destination: str = "",
  scores: str = "",
  backend: str = "",
  checkpoint: str = "best",
  source: str = "",
  reading: Mapping[str, str] | None = None,
) -> dict[str, float]:
  """Runs `--mode=evaluate`: writes the test table of a run, from its folder alone.

  Takes the flags of the same names; `destination` is --output, `source` --input, and `reading` are keys of
  `config.data` that read it: the others are the run's own.
  """
  path = pathlib.Path(source).expanduser()
  formats.refuse_missing(path, "--input")
  run, own = runs.reopen(workdir, backend=backend), methods.read_config(workdir / "config.json").eval
  label_frequency.log_scope(run, scores or own.scores)
  choices = ((scores, own.scores), (backend, own.backend), (checkpoint, "best"))
  suffix = "".join(f"_{given}" for given, usual in choices if given not in ("", usual))
  writes = bool(destination) and runtime.is_main_process()
  if writes:
    atomic.check_output(destination)  # before the long work
  with contextlib.ExitStack() as stack:
    if source:
      suffix += f"_on_{path.name.partition('.')[0]}"
      folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
      run = run.with_test_rows(path, folder, reading)
    if why := test_table.why_none(run.dataset):
      raise UserError(f"{workdir}: {why}, so there is no test table; --input=FILE names other labelled rows")
    trained = stack.enter_context(to_test(run, checkpoint))
    means, ranked = test_table.write(trained, MetricWriter(workdir), scores, suffix)
  if writes:
    from xmc_jax.runs.predict import write_test

    with atomic.open_output(destination) as out:
      write_test(run, ranked, out)
    show(f"labels in words: {destination}")
  return means


def predict(
  workdir: pathlib.Path,
  source: str,
  destination: str,
  request: LabelRequest,
  reading: Mapping[str, str] | None = None,
  scores: str = "",
  backend: str = "",
  documents: bool = False,
  add_labels: str = "",
) -> None:
  """Runs `--mode=predict`: reads texts and writes only JSON lines; at a terminal it shows a prompt."""
  from xmc_jax.cli import interactive
  from xmc_jax.runs.predict import predict_command

  opened: dict[str, Any] = {"scores": scores, "backend": backend, "add_labels": add_labels}
  if not (source or destination) and sys.stdin.isatty() and sys.stdout.isatty():
    return interactive.show_prompt(Model.load(workdir, warm=False, **opened), request)
  predict_command(workdir, source, destination, request, whole=documents, reading=reading, **opened)


def learn(
  workdir: pathlib.Path,
  source: str,
  reading: Mapping[str, str] | None = None,
  unlearn: Sequence[int] = (),
  new_labels: bool = False,
) -> None:
  """Runs `--mode=learn`: remembers labelled texts in a run's folder, or forgets some.

  Takes the flags of the same names, and `source` and `reading` as `test`; without `source` and `unlearn`,
  what was learnt last is forgotten.
  """
  path = pathlib.Path(source).expanduser()
  formats.refuse_missing(path, "--input")
  run = runs.reopen(workdir)
  model = Model(run.trained(), "hybrid")
  if unlearn:
    model.unlearn(unlearn)
    return show(f"forgotten: {_texts(len(set(unlearn)))}")
  if not source:
    return show(f"forgotten: {_texts(model.undo())}, learnt last")
  known, grown = model.dataset.num_labels, copy.copy(run)
  grown.dataset = model.dataset
  with tempfile.TemporaryDirectory() as folder:
    given = {"unknown_labels": "keep" if new_labels else "refuse", **(reading or {})}
    unknown: Unknown = "add" if new_labels else "refuse"
    dataset = grown.with_test_rows(path, pathlib.Path(folder), given, unknown).dataset
    truth = dataset.test.unfiltered_positives
    rows = np.flatnonzero(np.diff(truth.indptr))
    if not len(rows):
      raise UserError(f"{path}: no text has a label")
    labels = [[dataset.label_keys[int(label)] for label in truth[row].indices] for row in rows]
    new = {
      dataset.label_keys[label]: dataset.labels.texts[label] for label in range(known, dataset.num_labels)
    }
    numbers = model.learn(list(dataset.test.texts[rows]), labels, new)
    if left := len(dataset.test) - len(rows):
      say(f"note: {_texts(left)} without a label left out")
  added = f" with {len(new):,} new label{'s' * (len(new) != 1)}" if new else ""
  show(
    f"learnt: {_texts(len(numbers))}{added}, numbers {numbers[0]} to {numbers[-1]}; predictions of this run "
    "use them from now on, and --undo takes them back"
  )


def _texts(count: int) -> str:
  return f"{count:,} text{'s' * (count != 1)}"


def export(workdir: pathlib.Path, destination: str = "", added: str = "", scores: str = "") -> None:
  """Runs `--mode=export`: exports a run for other tools, or adds new labels to an exported folder.

  Takes the flags of the same names; `destination` is --output, `added` --add_labels.
  """
  from xmc_jax import export as exports
  from xmc_jax.runs import label_functions

  if not added:
    return exports.export(workdir, destination, scores)
  folder = pathlib.Path(destination).expanduser() if destination else workdir / "export"
  new = label_functions.read_added(pathlib.Path(added).expanduser(), data.read_manifest(workdir / "data"))
  exports.add_labels(folder, list(new.values()), list(new))


def serve(
  workdir: pathlib.Path,
  *,
  host: str,
  port: int,
  k: int,
  allowed_hosts: Sequence[str],
  scores: str,
  backend: str,
  max_text_length: int,
  threshold: float,
  add_labels: str,
  title: str,
  description: str,
  example: Sequence[str],
  learn_token_file: str,
) -> None:
  """Runs `--mode=serve`: serves a run over HTTP until it is stopped.

  Takes the flags of the same names (flags.py); `add_labels` as `Model.load` reads it.

  Raises:
    UserError: a library is missing, the port is in use, or the run cannot be opened, or cannot learn.
  """
  from xmc_jax import serve as serving

  serving.check_installed()
  from xmc_jax.serve import options, server

  if not add_labels:  # else they count, too
    check_k(k, data.read_manifest(workdir / "data")["counts"]["labels"]["texts"], threshold)
  token = options.read_token(pathlib.Path(learn_token_file).expanduser()) if learn_token_file else ""
  usual = serving.Limits()
  with server.bound_socket(host, port) as taken:  # before the run is opened, which takes a while
    say(f"opening {workdir}")
    model = Model.load(workdir, scores=scores, backend=backend, warm=False, add_labels=add_labels)
    k = model.check_k(k, threshold)
    application = serving.app(
      model,
      k=k,
      name=workdir.absolute().name,
      limits=serving.Limits(
        max_k=max(k, usual.max_k),
        max_text_length=max_text_length,
        max_body_bytes=max(usual.max_body_bytes, _BYTES_OF_CHARACTER * max_text_length),
      ),
      allowed_hosts=server.known_names(host, taken, allowed_hosts),
      page_text=serving.PageText(title, description, tuple(example)),
      threshold=threshold,
      learn_token=token,
    )
    server.serve(application, taken, host)
