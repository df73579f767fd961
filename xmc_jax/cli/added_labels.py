"""Opens a run to predict with, and adds labels by their texts: those of `--add_labels`."""

import pathlib
from typing import NamedTuple

from xmc_jax import data
from xmc_jax.console import say
from xmc_jax.data.formats import label_tables
from xmc_jax.export import programs
from xmc_jax.runs import run as runs
from xmc_jax.runs.model import Model


class Added(NamedTuple):
  """Holds labels to add: their texts and their keys."""

  texts: list[str]
  keys: list[str]


def read(path: str) -> Added:
  """Reads new labels: a text a line, or a table with names and keys; leaves empty ones out."""
  notices: list[str] = []
  table = label_tables.read(pathlib.Path(path).expanduser(), data.Options(), notices)
  for notice in notices:
    say(f"note: {notice}")
  pairs = [
    (" ".join(text.split()), key.strip()) for text, key in zip(table.texts, table.keys) if text.strip()
  ]
  return Added([text for text, _ in pairs], [key for _, key in pairs])


def load(path: str, workdir: pathlib.Path, *, scores: str, backend: str, warm: bool) -> Model:
  """Opens a run as `Model.load` does; labels of a file that it lacks rank with its own.

  Raises:
    UserError: the run ranks labels by more than their texts.
  """
  if not path:
    return Model.load(workdir, scores=scores, backend=backend, warm=warm)
  added, run = read(path), runs.reopen(workdir, backend=backend)
  trained = programs.Trained(*run.trained()[:2])
  programs.check_by_text(run, trained, "train a run on data that have these labels")
  known = {*run.dataset.label_keys, *run.dataset.labels.texts}
  new = {key: text for text, key in zip(*added) if not known & {key, text}}
  say(f"{len(new):,} labels added, {len(added.texts) - len(new):,} were there already")
  return Model(run.with_labels(list(new.values()), list(new)) if new else run, scores)
