"""Reads the labels of `--add_labels`, and opens a run that ranks them with its own."""

import pathlib

from xmc_jax import data
from xmc_jax.console import say
from xmc_jax.data import documents
from xmc_jax.data.formats import label_tables
from xmc_jax.export import programs
from xmc_jax.runs import run as runs
from xmc_jax.runs.model import Model


def read(path: str) -> tuple[list[str], list[str]]:
  """Reads new labels, a text a line or a table; returns texts and keys of those that have a text."""
  notices: list[str] = []
  table = label_tables.read(pathlib.Path(path).expanduser(), data.Options(), notices)
  for notice in notices:
    say(f"note: {documents.without_settings(notice)}")
  pairs = [(text, key) for text, key in zip(table.texts, table.keys) if text.strip()]
  return [" ".join(text.split()) for text, _ in pairs], [key.strip() for _, key in pairs]


def load(path: str, workdir: pathlib.Path, *, scores: str, backend: str, warm: bool) -> Model:
  """Opens a run as `Model.load` does; adds the labels of the file `path` that it lacks.

  Raises:
    UserError: the run ranks labels by more than their texts.
  """
  if not path:
    return Model.load(workdir, scores=scores, backend=backend, warm=warm)
  texts, keys = read(path)
  run = runs.reopen(workdir, backend=backend)
  programs.check_by_text(run, "train a run on data that have these labels")
  known = {*run.dataset.label_keys, *run.dataset.labels.texts}
  new = {key: text for text, key in zip(texts, keys) if not known & {key, text}}
  say(f"{len(new):,} labels added, {len(texts) - len(new):,} were there already")
  return Model(run.with_labels(list(new.values()), list(new)) if new else run, scores)
