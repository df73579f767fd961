"""Predicts line by line for `--mode=predict`: from a file or standard input to JSON lines or a matrix."""

import contextlib
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from xmc_jax import sanitize
from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.errors import DataError, UserError
from xmc_jax.runs import evaluate
from xmc_jax.runs.model import Model
from xmc_jax.storage import atomic, checksums, run_folder
from xmc_jax.storage.line_file import written_whole

_TABLES = (".csv", ".tsv", ".jsonl", ".json")  # formats whose lines hold more than a text


def predict_lines(
  model: Model, lines: Iterable[str], out: IO[str], k: int, block: int = 1024, explain: bool = False
) -> int:
  """Reads one text per line and writes one JSON object per line; holds one block in memory at a time.

  Args:
    model: predicts the labels.
    lines: texts.
    out: the file to write to.
    k: labels per text; fewer if the model finds fewer.
    block: texts predicted together.
    explain: whether each label gets 'why', the reasons that `Model.predict` returns.

  Returns:
    The number of texts.
  """
  done = 0
  for texts in _blocks(lines, block):
    ids, scores, *rest = model.predict(texts, k, explain=explain)
    for text, row in zip(texts, zip(ids.tolist(), scores.tolist(), *rest)):
      out.write(json_line(text, (found for found in zip(*row) if found[0] >= 0), model.keys))
    out.flush()
    done += len(texts)
  return done


def predict_matrix(model: Model, lines: Iterable[str], path: pathlib.Path, k: int, block: int = 1024) -> int:
  """Writes scores as CSR `[n, L]`, like predictions/test.npz; the entries of a row are best first.

  Writes the file whole or not at all. Takes eight bytes of memory for each of the n x k entries.

  Returns:
    The number of texts.

  Raises:
    UserError: it cannot be written.
  """
  found = [model.predict(texts, k)[:2] for texts in _blocks(lines, block)]
  none = np.zeros((0, k), np.int32), np.zeros((0, k), np.float32)
  ids, scores = (np.concatenate(parts) for parts in zip(none, *found))
  if runtime.is_main_process():
    evaluate.save_predictions(evaluate.Ranking(ids, scores), model.keys, path)
  return len(ids)


def _blocks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
  """Yields lines without their line ends, `size` at a time."""
  lines = iter(lines)
  while texts := [line.rstrip("\r\n") for line in itertools.islice(lines, size)]:
    yield texts


def json_line(
  text: str, found: Iterable[tuple[int, float, str] | tuple], keys: Sequence[str], **more: object
) -> str:
  """Returns one line of output: a text, its labels, best first, and other entries.

  Args:
    text: the query.
    found: for each label `(label id, score, label text)`, or these and its reasons.
    keys: the keys of all labels, by id.
    more: other entries of the line.
  """
  labels = [
    {"id": id_, "key": keys[id_], "score": round(score, 6), "text": name, **({"why": why[0]} if why else {})}
    for id_, score, name, *why in found
  ]
  return sanitize.json(json.dumps({"text": text, "labels": labels, **more}, ensure_ascii=False)) + "\n"


def predict_command(
  workdir: pathlib.Path,
  source: str,
  destination: str,
  k: int,
  scores: str = "",
  backend: str = "",
  explain: bool = False,
  block: int = 1024,
) -> int:
  """Runs `--mode=predict` and returns the number of texts; '' is standard input, or standard output.

  A destination that ends with .npz becomes a CSR matrix; any other gets JSON lines, with reasons if `explain`
  is set. From a file to a file, the output appears only when it is complete. If the process is killed before
  that, the same command continues the JSON lines.

  Raises:
    UserError: the input, the output, the run or an argument is at fault; the message names it in one line.
  """
  if explain and destination.endswith(".npz"):
    raise UserError(
      f"--output={destination}: a .npz file holds only scores; leave --explain out, or write JSON lines"
    )
  with contextlib.ExitStack() as files:
    lines = lines_of(source, files)
    if source.endswith(_TABLES):
      say(f"note: {source} is read as plain text, a whole line as one text; give a file of the texts alone")
    model = Model.load(workdir, scores=scores, backend=backend, warm=False)
    model.check_k(k)  # before the output is opened
    if source and os.path.exists(destination) and os.path.samefile(source, destination):
      raise UserError(f"--output={destination} is the input; give another file")
    if destination.endswith(".npz"):
      count = predict_matrix(model, lines, pathlib.Path(destination), k, block)
      say(f"written to {destination}: {count:,} texts x {len(model.labels):,} labels, {k} scores a text")
      return count
    if not (source and runtime.is_alone() and atomic.is_plain_file(destination)):
      return predict_lines(model, lines, _opened(destination, files), k, block, explain)
    model.open(explain)  # before the identity, which includes files that this may write
    made_of = _identity(workdir, model.step, source, [k, scores, backend, explain])
    out, done = files.enter_context(written_whole(pathlib.Path(destination), made_of, block))
    if done:
      say(f"predict: going on after {done:,} texts")
    done += predict_lines(model, itertools.islice(lines, done, None), out, k, block, explain)
  say(f"written to {destination}: {done:,} texts, {k} labels each")
  return done


def lines_of(source: str, files: contextlib.ExitStack) -> Iterator[str]:
  """Opens a file, or standard input, and returns its lines."""

  def refused(error: OSError) -> DataError:
    return DataError(f"{source or 'standard input'}: cannot be read ({error.strerror})")

  def lines(file: IO[str]) -> Iterator[str]:
    try:
      yield from file
    except OSError as error:
      raise refused(error) from None

  try:
    path = pathlib.Path(source)
    file = files.enter_context(path.open(encoding="utf-8-sig", errors="replace")) if source else sys.stdin
  except OSError as error:
    raise refused(error) from None
  return lines(file)


def _identity(workdir: pathlib.Path, step: int, source: str, settings: list[object]) -> dict[str, Any]:
  """Returns what predictions depend on: checksums of the run's files, the file of texts, and settings."""
  folders = run_folder.BEST, run_folder.NEWEST, f"{run_folder.REFIT}/{run_folder.BEST}"
  of_step = (workdir / folder / str(step) / checksums.FILE_NAME for folder in folders)
  made = [
    path for path in (*of_step, *(workdir / name for name in run_folder.RANKING_FILES)) if path.exists()
  ]
  stat = os.stat(source)
  return {
    "run": [str(workdir.absolute()), *map(checksums.sha256, made)],
    "texts": [os.path.abspath(source), stat.st_size, stat.st_mtime_ns],
    "settings": settings,
  }


def _opened(destination: str, files: contextlib.ExitStack) -> IO[str]:
  """Opens an output that is written line by line; only the main process writes it."""
  if not runtime.is_main_process():
    destination = os.devnull
  with atomic.writing(destination):
    return files.enter_context(open(destination, "w", encoding="utf-8")) if destination else sys.stdout
