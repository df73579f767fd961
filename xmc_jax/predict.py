"""A trained run, ready to predict: from Python, and line by line from the command."""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np

from xmc_jax import answers, digests, disk, evaluate, methods, plain, run_folder, runtime
from xmc_jax import config as configs
from xmc_jax import run as runs
from xmc_jax.console import say
from xmc_jax.data.tokens import Encoder
from xmc_jax.errors import DataError, UserError
from xmc_jax.line_file import written_whole
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.runs import ranking

_TABLES = (".csv", ".tsv", ".jsonl", ".json")  # which have more in a line than a text


class Model:
  """A trained dual encoder with its labels. Made of a `Run`, it opens what it needs when it is asked.

  Example:
    >>> model = xmc_jax.Model.load("runs/dexml-debian")
    >>> ids, scores, texts = model.predict(["a window manager for X11"], k=3)
  """

  def __init__(self, run: runs.Run, scores: str = ""):
    self._run, self._scores = run, scores
    methods.check_scores(scores or run.config.eval.scores, run.config, run.method)
    self._params, self._aux, self.step = run.trained()

  @classmethod
  def load(
    cls, workdir: str | pathlib.Path, *, scores: str = "", backend: str = "", warm: bool = True
  ) -> "Model":
    """Opens a run's folder, which is all that is needed.

    Args:
      workdir: the folder.
      scores: what to rank by: 'hybrid', all sources joined; 'fused', the method's own scores; 'encoder',
        'classifier', 'memory', ...: one source alone; '' is as the run was told.
      backend: what searches the labels: 'exact', 'scann' (of large sets, nearly all of the best, sooner) or
        'auto'; '' is as the run was told.
      warm: open what ranks, and answer a text of usual length, so that the first that is asked need not
        wait for it. What is missing in the folder is made and kept there, as the points' embeddings. Texts of
        other lengths, or many at once, are still compiled when they come first, and ScaNN's indexes are
        built after 50 texts. False opens what is needed when it is needed.

    Raises:
      UserError: no run there, or nothing trained yet, or no such scores or backend; or what ranks is damaged,
        or needs LightGBM, which is not installed.
    """
    model = cls(runs.reopen(pathlib.Path(workdir), backend=backend), scores)
    if warm:
      train = model._run.dataset.train
      usual = np.argsort(train.tokens.lengths, kind="stable")[len(train) // 2]
      model.predict([train.texts[int(usual)]], k=1)
    return model

  @property
  def labels(self) -> Sequence[str]:
    """The L label texts; a label's id is its position."""
    return self._run.dataset.labels.texts

  @property
  def _chosen(self) -> str:
    return self._scores or self._run.config.eval.scores

  @functools.cached_property
  def _sources(self) -> HybridRanker:
    opened = ranking.hybrid if self._chosen == "hybrid" else ranking.sources
    return opened(self._run, self._params, self._aux)

  @functools.cached_property
  def _rank(self) -> ranking.Rank:
    if self._chosen == "hybrid":
      return self._sources.rank
    if self._chosen in configs.SOURCES:
      return functools.partial(self._sources.rank_by, self._chosen)
    return ranking.ranker(self._run, self._params, self._aux, self._chosen)

  @functools.cached_property
  def _tokens(self) -> Encoder:
    return Encoder(self._run.dataset.tokenizer(), self._run.config.data.max_length)

  def embed(self, texts: Sequence[str]) -> np.ndarray:
    """`[n, D]` float32 embeddings of texts, as points.

    A dual encoder embeds labels alike. Of UniDEC's, the first `encoder.projection_dim` columns are the
    dual encoder's; the rest meets classifiers, which no text has.

    Raises:
      UserError: `texts` is not a list of texts.
    """
    answers.check_texts(texts)
    return self._run.embed_queries(self._params, self._aux, self._tokens.table(texts))

  def check_k(self, k: int) -> None:
    """Raises UserError unless k labels per text can be had."""
    answers.check_k(k, len(self.labels))

  def predict(
    self, texts: Sequence[str], k: int = 5, explain: bool = False
  ) -> tuple[np.ndarray, np.ndarray, list[list[str]]] | tuple:
    """The k best labels of each text.

    Args:
      texts: n texts; an empty one is legal.
      k: labels per text, 1 to L.
      explain: also say why, as a fourth result.

    Returns:
      ids `[n, k]` int32, scores `[n, k]` float32, best first, and the labels' texts, a list of k for each.
      Scores are probabilities that a label is right where the run ranks by 'hybrid', else inner products,
      or what they are fused to. Where fewer are found, -1 and -inf stand behind them, and a list is shorter.
      With `explain`, also a list of a dict for each label of each text: 'sources', the sources that have it
      among their best ten, with its rank there; 'voters', training texts that voted for it, with weights.

    Raises:
      UserError: k is out of range, or `texts` is not a list of texts.
    """
    why = (lambda *found: answers.reasons(self._sources, *found)) if explain else None
    rank = lambda *asked: self._rank(*asked)  # opened when it is needed
    return answers.best_labels(texts, k, self.labels, self.embed, rank, why)

  def open(self, explain: bool = False) -> None:
    """Opens what ranks, which may write files into the run's folder; with `explain`, also what explains."""
    _ = self._rank
    if explain:
      _ = self._sources


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
    try:
      evaluate.save_predictions(evaluate.Ranking(ids, scores), len(model.labels), path)
    except OSError as error:
      raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
  return len(ids)


def _blocks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
  """Lines without their ends, so many at a time."""
  lines = iter(lines)
  while texts := [line.rstrip("\r\n") for line in itertools.islice(lines, size)]:
    yield texts


def json_line(text: str, found: Iterable[tuple[int, float, str] | tuple], **more) -> str:
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
  return plain.json(json.dumps({"text": text, "labels": labels, **more}, ensure_ascii=False)) + "\n"


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
    if not (source and runtime.is_alone() and disk.is_plain_file(destination)):
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


def _identity(workdir: pathlib.Path, step: int, source: str, settings: list) -> dict:
  """Returns what predictions follow from: the run by its files, the texts' file as it is, and settings."""
  of_step = (workdir / folder / str(step) / digests.FILE_NAME for folder in ("best", "checkpoints"))
  made = [path for path in (*of_step, *(workdir / name for name in run_folder.AFTERWARDS)) if path.exists()]
  stat = os.stat(source)
  return {
    "run": [str(workdir.absolute()), *map(digests.sha256, made)],
    "texts": [os.path.abspath(source), stat.st_size, stat.st_mtime_ns],
    "settings": settings,
  }


def _opened(destination: str, files: contextlib.ExitStack) -> IO[str]:
  """Opens what is written as it comes; of several processes, by the main one."""
  if not runtime.is_main_process():
    destination = os.devnull
  try:
    return files.enter_context(open(destination, "w", encoding="utf-8")) if destination else sys.stdout
  except OSError as error:
    raise UserError(f"{destination}: cannot be written ({error.strerror})") from None
