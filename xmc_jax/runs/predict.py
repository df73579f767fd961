"""Predicts line by line: `--mode=predict`, from a file or standard input to JSON lines or a matrix."""

import contextlib
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
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

_TABLES = (".csv", ".tsv", ".jsonl", ".json")  # which have more in a line than a text


def predict_lines(
  model: Model, lines: Iterable[str], out: IO[str], k: int, block: int = 1024, explain: bool = False
) -> int:
  """Reads one text a line, writes one JSON object a line; memory stays that of one block.

  Args:
    model: what answers.
    lines: texts.
    out: takes the lines.
    k: labels of each text; fewer where the model finds fewer.
    block: texts looked at together.
    explain: each label has 'why', as `Model.predict` explains it.

  Returns:
    The number of texts.
  """
  done = 0
  for texts in _blocks(lines, block):
    ids, scores, *rest = model.predict(texts, k, explain=explain)
    for text, row in zip(texts, zip(ids.tolist(), scores.tolist(), *rest)):
      out.write(json_line(text, (found for found in zip(*row) if found[0] >= 0)))
    out.flush()
    done += len(texts)
  return done


def predict_matrix(model: Model, lines: Iterable[str], path: pathlib.Path, k: int, block: int = 1024) -> int:
  """Writes CSR `[n, L]` of scores, as predictions/test.npz; each row's entries stand best first.

  It is there when it is whole. Memory is eight bytes for each of the n x k entries.

  Returns:
    The number of texts.

  Raises:
    UserError: it cannot be written.
  """
  found = [model.predict(texts, k)[:2] for texts in _blocks(lines, block)]
  none = np.zeros((0, k), np.int32), np.zeros((0, k), np.float32)
  ids, scores = (np.concatenate(parts) for parts in zip(none, *found))
  if runtime.is_main_process():
    evaluate.save_predictions(evaluate.Ranking(ids, scores), len(model.labels), path)
  return len(ids)


def _blocks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
  """Lines without their ends, so many at a time."""
  lines = iter(lines)
  while texts := [line.rstrip("\r\n") for line in itertools.islice(lines, size)]:
    yield texts


def json_line(text: str, found: Iterable[tuple[int, float, str] | tuple], **more: object) -> str:
  """One line of output: a text, its labels, best first, and what else there is.

  Args:
    text: what was asked.
    found: `(label id, score, label text)`, or these and why.
    more: other entries of the line.
  """
  labels = [
    {"id": id_, "score": round(score, 6), "text": name, **({"why": why[0]} if why else {})}
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
  """`--mode=predict`: '' is standard input, or standard output. Returns the number of texts.

  A destination that ends with .npz becomes a CSR matrix; any other takes JSON lines, with reasons where
  `explain` is given. From a file to a file, the output is there when it is whole; killed before, the same
  command goes on with JSON lines.

  Raises:
    UserError: the input, the output, the run, or what is asked of it; one line that names it.
  """
  if explain and destination.endswith(".npz"):
    raise UserError(
      f"--output={destination} has room for scores alone; leave --explain out, or take JSON lines"
    )
  with contextlib.ExitStack() as files:
    lines = lines_of(source, files)
    if source.endswith(_TABLES):
      say(f"note: {source} is read as plain text, a text a line, whatever its columns are; cut the texts out")
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
    model.open(explain)  # before the identity, which looks at what that may write
    made_of = _identity(workdir, model.step, source, [k, scores, backend, explain])
    out, done = files.enter_context(written_whole(pathlib.Path(destination), made_of, block))
    if done:
      say(f"predict: going on after {done:,} texts")
    done += predict_lines(model, itertools.islice(lines, done, None), out, k, block, explain)
  say(f"written to {destination}: {done:,} texts, {k} labels each")
  return done


def lines_of(source: str, files: contextlib.ExitStack) -> Iterator[str]:
  """The lines of a file, or of standard input."""

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
  """Returns what predictions follow from: the run by its files, the texts' file as it is, and settings."""
  of_step = (workdir / folder / str(step) / checksums.FILE_NAME for folder in ("best", "checkpoints"))
  made = [path for path in (*of_step, *(workdir / name for name in run_folder.AFTERWARDS)) if path.exists()]
  stat = os.stat(source)
  return {
    "run": [str(workdir.absolute()), *map(checksums.sha256, made)],
    "texts": [os.path.abspath(source), stat.st_size, stat.st_mtime_ns],
    "settings": settings,
  }


def _opened(destination: str, files: contextlib.ExitStack) -> IO[str]:
  """Opens what is written as it comes; of several processes, by the main one."""
  if not runtime.is_main_process():
    destination = os.devnull
  with atomic.writing(destination):
    return files.enter_context(open(destination, "w", encoding="utf-8")) if destination else sys.stdout
