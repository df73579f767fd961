"""Writes what explains a training to its reader: what it begins with, what figures mean, what to try next."""

import importlib.util
import os
import shlex
import sys
import textwrap
from collections.abc import Iterable

from xmc_jax import sanitize
from xmc_jax.data import Dataset
from xmc_jax.metrics import FAMILIES, SetScores
from xmc_jax.report.descriptions import RANKINGS
from xmc_jax.runs import run as runs

_LONGEST = 60  # characters of a text
_LABELS = 2  # of the example


def of_data(dataset: Dataset) -> str:
  """Returns what the data are: their size, an example, and notes on how they were read."""
  manifest = dataset.manifest
  train, test, labels = (f"{manifest['counts'][part]['texts']:,}" for part in ("train", "test", "labels"))
  sizes = f"{manifest['name']}: {train} texts to learn from and {test} to test with, {labels} labels"
  notes = (f"note: {notice}" for notice in manifest["notices"])
  return "\n".join([sizes, *_example(dataset), *notes])


def _example(dataset: Dataset) -> list[str]:
  """Returns a training text with some of its labels; nothing if the first texts have none."""
  train, names = dataset.train, dataset.label_names
  for row in range(min(50, len(train))):
    labels = train.truth[row].indices.tolist()
    if labels and train.texts[row].strip():
      shown = [_quoted(names[label]) for label in labels[:_LABELS]]
      more = f" and {len(labels) - _LABELS} more" if len(labels) > _LABELS else ""
      word = "label" if len(labels) == 1 else "labels"
      return [f"for instance {_quoted(train.texts[row])} has the {word} {', '.join(shown)}{more}"]
  return []


def _quoted(text: str) -> str:
  return f"«{sanitize.line(text, _LONGEST)}»"


def of_training(run: runs.Run) -> str:
  """Returns what a training will do."""
  batches, config, held_out = run.batches, run.config, len(run.data.validation)
  against = "the labels of each batch" if run.method.batch.labels.startswith("in_batch") else "all labels"
  plan = (
    f"training: {config.train.num_epochs} epochs of {batches.steps_per_epoch} steps on {len(batches.rows):,} "
    f"texts, against {against}"
  )
  if not held_out:
    return plan
  known = ""
  if num := run.data.num_known:
    known = f"; {config.init_from} was trained on {num:,} of these, so metrics on them are too high"
  return (
    f"{plan}; {held_out:,} texts are held out, to keep the parameters that are best on them "
    f"(by {config.eval.metric}){known}"
  )


def meanings(metrics: Iterable[str], rankings: Iterable[str]) -> str:
  """Returns what each kind of metric, such as 'P@1', and each of several rankings is: a line for each."""
  kinds = dict.fromkeys(name.partition("@")[0] for name in metrics)
  named = {f"{kind}@k": FAMILIES[kind].meaning for kind in kinds if kind in FAMILIES}
  columns = list(rankings)
  if len(columns) > 1:
    named |= {name.replace("_", " "): RANKINGS[name] for name in columns if name in RANKINGS}
  width = max(map(len, named), default=0)
  return "\n".join(f"  {name:<{width}}  {meaning}" for name, meaning in named.items())


def of_sets(sets: SetScores) -> str:
  """Returns how good the sets of labels with the best expected F1 are, in words."""
  f1 = f"F1 {100 * sets.sample_f1:.1f} of a text, {100 * sets.micro_f1:.1f} of all pairs"
  return f"--labels=f1 gives {sets.mean_size:.1f} labels a text: {f1}"


def next_commands(run: runs.Run) -> str:
  """Writes commands to try next, for the user's own shell and data."""
  python = os.path.relpath(sys.executable)
  python = sys.executable if python.startswith("..") else python
  command = f"{shlex.quote(python)} -m xmc_jax.main --workdir={shlex.quote(str(run.workdir))}"
  points = run.dataset.test if len(run.dataset.test) else run.dataset.train
  given = [points.texts[row] for row in range(min(50, len(points)))]
  texts = [sanitize.line(textwrap.shorten(text, 60, placeholder="") or text[:60]) for text in given]
  text = next((text for text in texts if text and "'" not in text), texts[0])
  tries = {
    "labels of a text, and why": f"echo {shlex.quote(text)} | {command} --mode=predict --explain",
    "a page to type texts into": f"{command} --mode=serve",
    "a folder for other programs": f"{command} --mode=export",
  }
  if importlib.util.find_spec("fastapi") is None:
    tries.pop("a page to type texts into")
  lines = (line for what, one in tries.items() for line in (f"  # {what}", f"  {one}"))
  return "\n".join(["try next", *lines])
