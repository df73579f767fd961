"""Predicts for `--mode=predict`: from lines, documents or a table to JSON lines or a matrix."""

import contextlib
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from xmc_jax import data, sanitize
from xmc_jax.console import say
from xmc_jax.data import documents, formats
from xmc_jax.data.documents import Document
from xmc_jax.data.formats.lines import STANDARD_INPUT
from xmc_jax.data.prepared import options_for
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.runs import evaluate
from xmc_jax.runs.best_labels import LabelRequest, answers, check_k
from xmc_jax.runs.model import Model
from xmc_jax.runs.run import Run
from xmc_jax.storage import atomic, checksums, run_folder
from xmc_jax.storage.line_file import written_whole


def predict_lines(
  model: Model,
  documents: Iterable[Document],
  out: IO[str],
  request: LabelRequest,
  block: int = 1024,
) -> int:
  """Writes one JSON object a line for each document; holds one block in memory at a time.

  Args:
    model: predicts the labels.
    documents: the texts; a blank one gets no labels.
    out: the file to write to.
    request: which labels; reasons are under 'why'.
    block: texts predicted together.

  Returns:
    The number of documents.
  """
  done = 0
  for part, dataset, ids, scores, *rest in _predicted(model, documents, request, block):
    for document, row in zip(part, zip(ids.tolist(), scores.tolist(), *rest)):
      labels = (label for label in zip(*row) if label[0] >= 0)
      out.write(json_line(document, labels, dataset.label_keys, dataset.notation))
    out.flush()
    done += len(part)
  return done


def predict_matrix(
  model: Model,
  documents: Iterable[Document],
  path: pathlib.Path,
  request: LabelRequest,
  block: int = 1024,
) -> int:
  """Writes scores as CSR `[n, L]`, like predictions/test.npz; the entries of a row are best first.

  Writes the file whole or not at all. Takes eight bytes of memory for each of the n x k entries.

  Returns:
    The number of documents.

  Raises:
    UserError: it cannot be written.
  """
  blocks = [(ids, scores) for _, _, ids, scores, *_ in _predicted(model, documents, request, block)]
  none = np.zeros((0, request.k), np.int32), np.zeros((0, request.k), np.float32)
  ids, scores = (np.concatenate(parts) for parts in zip(none, *blocks))
  if runtime.is_main_process():
    evaluate.save_predictions(evaluate.Ranking(ids, scores), model.keys, path)
  return len(ids)


def _predicted(
  model: Model, documents: Iterable[Document], request: LabelRequest, block: int
) -> Iterator[tuple]:
  """Yields `block` documents at a time, and what `Model.ranked` returns for them.

  Labels that are not given, and all those of a blank text, have the id -1.
  """
  documents = iter(documents)
  while part := list(itertools.islice(documents, block)):
    texts = [document.text for document in part]
    dataset, ids, *rest = answers(model, texts, request)
    has_text = np.array([[bool(text.strip())] for text in texts])
    yield part, dataset, np.where(has_text, ids, -1), *rest


def json_line(
  document: Document,
  found: Iterable[tuple[int, float, str] | tuple],
  keys: Sequence[str],
  notation: Callable[[int], str],
  **more: object,
) -> str:
  """Returns one line of output: a text, its labels, best first, and other entries.

  Args:
    document: the query.
    found: for each label `(label id, score, label text)`, or these and its reasons.
    keys: the keys of all labels, by id.
    notation: of a label in its vocabulary; '' if it has none.
    more: other entries of the line.
  """
  labels = []
  for id_, score, name, *why in found:
    labels.append({"id": id_, "key": keys[id_], "score": round(score, 6), "text": name})
    if found_notation := notation(id_):
      labels[-1]["notation"] = found_notation
    if why:
      labels[-1]["why"] = why[0]
  id_of_document = {} if document.id is None else {"id": document.id}
  line = {**id_of_document, "text": document.text, "labels": labels, **more}
  return sanitize.json(json.dumps(line, ensure_ascii=False)) + "\n"


def write_test(run: Run, ranked: evaluate.Ranking, out: IO[str]) -> None:
  """Writes the test rows as JSON lines: ranked labels, as `predict_lines` writes them, and true ones."""
  names, keys, test = run.dataset.label_names, run.dataset.label_keys, run.dataset.test
  for row, (ids, scores) in enumerate(zip(ranked.ids.tolist(), ranked.scores.tolist())):
    labels = ((label, value, names[label]) for label, value in zip(ids, scores) if label >= 0)
    positives = test.unfiltered_positives[row].indices.tolist()
    true = [{"id": label, "key": keys[label], "text": names[label]} for label in positives]
    out.write(json_line(Document(test.texts[row]), labels, keys, run.dataset.notation, true=true))


def predict_command(
  workdir: pathlib.Path,
  source: str,
  destination: str,
  request: LabelRequest,
  scores: str = "",
  backend: str = "",
  block: int = 1024,
  whole: bool = False,
  add_labels: str = "",
  reading: Mapping[str, str] | None = None,
) -> int:
  """Runs `--mode=predict` and returns the number of texts; '' is standard input, or standard output.

  A destination that ends with .npz becomes a CSR matrix; any other gets JSON lines, with reasons if they are
  requested. From a file to a file, the output appears only when it is complete. If the process is killed
  before that, the same command continues the JSON lines. With `whole`, each file is one text; `add_labels` is
  a file of more labels; `reading` are keys of `config.data` to read by.

  Raises:
    UserError: the input, the output, the run or an argument is at fault; the message names it in one line.
  """
  source = os.path.expanduser(source)
  _check_files(source, destination, request.explain)
  manifest = data.read_manifest(workdir / "data")
  num_labels = manifest["counts"]["labels"]["texts"]
  if not add_labels:  # else they count, too
    check_k(request.k, num_labels, request.threshold)
  options = options_for(manifest, pathlib.Path(source), reading)
  texts = documents_of(source, whole, options)
  with contextlib.ExitStack() as files:
    model = Model.load(workdir, scores=scores, backend=backend, warm=False, add_labels=add_labels)
    request = request._replace(k=model.check_k(request.k, request.threshold))
    model.where(request.include, request.exclude)
    model.check_language(request.language)
    files.callback(_say_cut, model)
    if destination.endswith(".npz"):
      count = predict_matrix(model, texts, pathlib.Path(destination), request, block)
      size = f"{count:,} texts x {len(model.labels):,} labels"
      say(f"written to {destination}: {size}, at most {request.k} scores a text")
      return count
    if not (source and runtime.is_alone() and atomic.is_plain_file(destination)):
      return predict_lines(model, texts, _opened(destination, files), request, block)
    model.open(request.explain)  # before the identity, which includes files that this may write
    added = [model.labels[label] for label in range(num_labels, len(model.labels))]
    settings = [*map(str, request), scores, backend, whole, added, *options]
    made_of = _identity(workdir, model.step, source, settings)
    out, done = files.enter_context(written_whole(pathlib.Path(destination), made_of, block))
    if done:
      say(f"predict: going on after {done:,} texts")
    rest = itertools.islice(texts, done, None)
    done += predict_lines(model, rest, out, request, block)
  say(f"written to {destination}: {done:,} texts, at most {request.k} labels each")
  return done


def _check_files(source: str, destination: str, explain: bool) -> None:
  """Raises UserError if the source is missing, or the destination cannot be written or is the source."""
  if explain and destination.endswith(".npz"):
    raise UserError(
      f"--output={destination}: a .npz file holds only scores; leave --explain out, or write JSON lines"
    )
  formats.refuse_missing(pathlib.Path(source), "--input")
  if destination and runtime.is_main_process():
    atomic.check_output(destination)
  if source and os.path.exists(destination) and os.path.samefile(source, destination):
    raise UserError(f"--output={destination} is the input; give another file")


def _say_cut(model: Model) -> None:
  if model.cut:
    say(f"note: {model.cut}")


def documents_of(source: str, whole: bool, options: data.Options) -> Iterator[Document]:
  """Opens a file, a folder or, for '', standard input; returns its documents, and prints notes on them.

  Args:
    source: a file with a text a line, a table, or a folder with a text a file.
    whole: whether a file is one text.
    options: how the run's own data are read.
  """
  notices: list[str] = []
  path = pathlib.Path(source) if source else STANDARD_INPUT
  return _noting(documents.read(path, whole, options, notices), notices, path.name)


def _noting(texts: Iterator[Document], notices: list[str], name: str) -> Iterator[Document]:
  """Yields the documents; prints once each notice that reading them adds, and that there are none."""
  said: set[str] = set()
  is_empty = True
  for document in itertools.chain(texts, [None]):
    for notice in dict.fromkeys(notices):
      if notice not in said:
        say(f"note: {notice}")
    said.update(notices)
    notices.clear()
    if document is not None:
      is_empty = False
      yield document
  if is_empty:
    say(f"note: {name}: no text")


def _identity(workdir: pathlib.Path, step: int, source: str, settings: list[object]) -> dict[str, Any]:
  """Returns what predictions depend on: checksums of the run's files, the file of texts, and settings."""
  folders = run_folder.BEST, run_folder.NEWEST, f"{run_folder.REFIT}/{run_folder.BEST}"
  of_step = (workdir / folder / str(step) / checksums.FILE_NAME for folder in folders)
  read = [
    path
    for path in (*of_step, *(workdir / name for name in (*run_folder.RANKING_FILES, run_folder.LEARNT)))
    if path.exists()
  ]
  stats = map(os.stat, documents.files_of(pathlib.Path(source)))
  sizes, times = zip(*((stat.st_size, stat.st_mtime_ns) for stat in stats))
  return {
    "run": [str(workdir.absolute()), *map(checksums.sha256, read)],
    "texts": [os.path.abspath(source), len(sizes), sum(sizes), max(times)],
    "settings": settings,
  }


def _opened(destination: str, files: contextlib.ExitStack) -> IO[str]:
  """Opens an output that is written line by line; only the main process writes it."""
  if not runtime.is_main_process():
    destination = os.devnull
  with atomic.writing(destination):
    return files.enter_context(open(destination, "w", encoding="utf-8")) if destination else sys.stdout
