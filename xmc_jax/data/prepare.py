"""Turns raw files into one prepared folder: reads, checks, counts and tokenizes them as streams."""

import contextlib
import hashlib
import logging
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xmc_jax.data import formats, prepared
from xmc_jax.data.arrays import ArrayFolder, CsrFile, RaggedFile, utf8, well_formed
from xmc_jax.data.formats.filters_and_graphs import filter_of
from xmc_jax.data.formats.lines import PACKED, text_lines
from xmc_jax.data.formats.matrices import cleaned, matrix_chunks
from xmc_jax.data.formats.source import GraphFiles, Options, Source, hashes_of
from xmc_jax.data.prepared import read_manifest, write_manifest
from xmc_jax.data.tokens import Encoder
from xmc_jax.errors import DataError
from xmc_jax.storage import atomic, whole_folder
from xmc_jax.storage.checksums import sha256

Progress = Callable[[str, int, int | None], None]
_MANY = 0.1  # a larger share of cut texts or unknown tokens gets a notice
_AHEAD = 2  # chunks of texts that may wait for the tokenizer while others are read
_log = logging.getLogger("xmc_jax.data")


class Prepared(NamedTuple):
  """Holds the result of `prepare`."""

  folder: Path
  manifest: dict  # `summary` returns it as a table
  why: str  # why it was built in this call, in a few words; '' if it was reused


def prepare(
  path: str | Path,
  out_dir: str | Path,
  *,
  layout: str = "auto",
  tokenizer: Any = None,
  tokenizer_name: str = "",
  max_length: int = 32,
  progress: Progress | None = None,
  **options: Any,
) -> Prepared:
  """Turns raw files into a prepared folder, or reuses an existing one.

  Args:
    path: a folder in any layout, or a table.
    out_dir: the prepared folder; a stale or damaged one is replaced, a folder with other files is refused.
    layout: one of `formats.LAYOUTS`.
    tokenizer: a `tokenizers.Tokenizer` or a fast Hugging Face tokenizer; None stores no tokens.
    tokenizer_name: its name in the manifest.
    max_length: tokens kept of each text, special tokens included.
    progress: called with (stage, rows done, total rows or None).
    **options: how to read the files: the fields of `formats.source.Options`.

  Raises:
    DataError: bad input; the message is one line that names it.
    UserError: the folder cannot be written.
    ConfigError: an option that cannot work.
  """
  source_path, folder = Path(path).expanduser(), Path(out_dir).expanduser()
  source = formats.recognise(source_path, layout, Options(**options))
  encoder = None if tokenizer is None else Encoder(tokenizer, max_length)
  identity = {
    "layout": source.layout,
    "options": Options(**options)._asdict(),
    "tokenizer": encoder and _tokenizer_entry(encoder, tokenizer_name),
  }
  root = source_path if source_path.is_dir() else source_path.parent
  with atomic.writing(folder, prepared.REMEDY):
    if not prepared.why_stale(folder, identity, source.files, root):
      return Prepared(folder, read_manifest(folder), "")
    with whole_folder.in_turn(folder):
      # Another process may have prepared it while this one waited for the lock.
      why = prepared.why_stale(folder, identity, source.files, root)
      if why:
        _log.info("preparing %s: %s", folder, why)
        with prepared.built_beside(folder) as beside:
          atomic.check_room(folder, _likely_bytes(source.files), "the prepared data")
          sources = prepared.fingerprints(source.files, root)
          _fill(beside, source, encoder, progress or (lambda *_: None), {**identity, "sources": sources})
  return Prepared(folder, read_manifest(folder), why)


def _fill(folder: Path, source: Source, encoder: Encoder | None, progress: Progress, identity: dict) -> None:
  """Writes all files of a prepared folder, the manifest last."""
  with ArrayFolder(folder) as arrays:
    counts = _Builder(source, arrays, encoder, progress).build()
  if encoder:
    (folder / prepared.TOKENIZER).write_text(encoder.json, encoding="utf-8")
  written = sorted(folder.iterdir())
  files: dict[str, dict[str, Any]] = {}
  for path in written:
    progress("checksums", len(files), len(written))
    files[path.name] = {"size": path.stat().st_size, "sha256": sha256(path)}
  # Tables are read more than once, and repeat their notices each time.
  notices = list(dict.fromkeys([*source.notices, *_worth_knowing(counts, encoder)]))
  manifest = {"name": source.name, **identity, "counts": counts, "notices": notices, "files": files}
  write_manifest(folder, {**manifest, "read_by": source.read_by})
  progress("checksums", len(written), len(written))


def _worth_knowing(counts: dict, encoder: Encoder | None) -> Iterator[str]:
  """Yields a notice for each count that makes results worse than they look, or than they could be."""
  train, test, labels = counts["train"], counts["test"], counts["labels"]
  if 2 * test["in_train"] > test["texts"]:
    many = f"{test['in_train']:,} of {test['texts']:,} test texts are also in train"
    yield f"{many}: the scores of a test tell little about new texts"
  if encoder:
    for name, group in (("texts", train), ("label texts", labels)):
      if group["cut"] > _MANY * group["texts"]:
        many = f"{group['cut']:,} of {group['texts']:,} {name}"
        yield f"{many} are cut at {encoder.max_length} tokens (change with --config.data.max_length)"
    words = train["tokens"] - encoder.num_special * train["texts"]
    if train["unknown"] > _MANY * words:
      share = f"{train['unknown'] / words:.0%} of the tokens of train are unknown to this vocabulary"
      yield f"{share}; take an encoder of that language, or --config.encoder.tokenizer=train"


def _likely_bytes(files: Sequence[Path]) -> float:
  """Estimates the prepared size of source files: as large as the files, or 3 times that if compressed."""
  return sum(
    (3.0 if file.suffix in (*PACKED, ".npz", ".parquet", ".xlsx") else 1.0) * file.stat().st_size
    for file in files
  )


def _tokenizer_entry(encoder: Encoder, name: str) -> dict:
  digest = hashlib.sha256(encoder.json.encode()).hexdigest()
  return {"name": name, "sha256": digest, "max_length": encoder.max_length, "dtype": encoder.dtype.name}


class _TextFiles(contextlib.AbstractContextManager["_TextFiles"]):
  """Writes the texts of one kind, and their tokens if there is an encoder, and counts them.

  A thread tokenizes and writes while the next texts are read. On exit, all texts are written and counted.
  """

  def __init__(self, folder: ArrayFolder, name: str, encoder: Encoder | None):
    self.counts: Counter[str] = Counter(texts=0, empty_texts=0)
    self.num_texts = 0  # passed to `append` so far
    self._encoder = encoder
    self._thread = ThreadPoolExecutor(1, "prepare")
    self._under_way: deque[Future[None]] = deque()
    self._texts = RaggedFile(folder, f"{name}.texts", np.uint8)
    self._tokens = RaggedFile(folder, f"{name}.tokens", encoder.dtype) if encoder else None
    if encoder:
      self.counts.update(tokens=0, unknown=0, cut=0)

  def __exit__(self, kind: type | None, *_: object) -> None:
    self._thread.shutdown(cancel_futures=kind is not None)
    while kind is None and self._under_way:
      self._under_way.popleft().result()

  def append(self, texts: list[str]) -> None:
    self.num_texts += len(texts)
    self._under_way.append(self._thread.submit(self._write, texts))
    if len(self._under_way) > _AHEAD:
      self._under_way.popleft().result()

  def _write(self, texts: list[str]) -> None:
    texts = well_formed(texts)
    self._texts.append(*utf8(texts))
    self.counts["texts"] += len(texts)
    self.counts["empty_texts"] += sum(not text.strip() for text in texts)
    if self._encoder and self._tokens:
      ids, lengths, num_cut = self._encoder.encode(texts)
      self._tokens.append(ids, lengths)
      self.counts["tokens"] += len(ids)
      self.counts["unknown"] += int((ids == self._encoder.unknown_id).sum())
      self.counts["cut"] += num_cut


class _Builder:
  """Fills a folder from a source, labels first, because other files are checked against their number."""

  def __init__(self, source: Source, folder: ArrayFolder, encoder: Encoder | None, progress: Progress):
    self._source, self._folder, self._encoder, self._progress = source, folder, encoder, progress
    self._num_train, self._label_hashes = 0, array("q")

  def build(self) -> dict:
    """Writes every array and returns the counts."""
    labels = self._write_texts("labels", "labels", self._label_texts())
    if not labels["texts"]:
      raise DataError(f"{self._source.labels_file}: expected at least one label, found none")
    self._has_points = np.zeros(labels["texts"], bool)
    counts = {split: self._write_split(split, labels["texts"]) for split in ("train", "test")}
    labels["without_points"] = int((~self._has_points).sum())
    graphs = {
      graph.name: self._write_graph(graph, counts["train"]["texts"], labels["texts"])
      for graph in self._source.graphs
    }
    return {**counts, "labels": labels, "graphs": graphs}

  def _write_texts(self, stage: str, name: str, chunks: Iterator[list[str]]) -> Counter[str]:
    with _TextFiles(self._folder, name, self._encoder) as files:
      for chunk in chunks:
        files.append(chunk)
        self._progress(stage, files.num_texts, None)
    return files.counts

  def _label_texts(self) -> Iterator[list[str]]:
    """Yields the labels' texts, and writes their keys, names and concepts if they have any."""
    files: dict[str, RaggedFile] = {}
    for labels in self._source.labels():
      for name in prepared.OF_LABELS:
        if (column := getattr(labels, name)) is not None:
          files[name] = files.get(name) or RaggedFile(self._folder, f"labels.{name}", np.uint8)
          files[name].append(*utf8(well_formed(column)))
      self._label_hashes.extend(hashes_of(labels.texts, len(self._label_hashes) - (1 << 40)))
      yield labels.texts

  def _write_split(self, split: str, num_labels: int) -> Counter[str]:
    counts = Counter(pairs=0, duplicates=0, zeros=0, without_labels=0, filter_duplicates=0)
    truth = CsrFile(self._folder, f"{split}.truth")
    hashes = array("q")
    with _TextFiles(self._folder, split, self._encoder) as files:
      for rows in self._source.splits[split](num_labels):
        pairs = cleaned(rows.targets, num_labels, counts)
        truth.append(pairs.counts, pairs.ids, pairs.values)
        files.append(rows.texts)
        hashes.extend(hashes_of(rows.texts, self._num_train + len(hashes)))
        if split == "train":
          self._has_points[pairs.ids] = True
        counts["without_labels"] += int((pairs.counts == 0).sum())
        if pairs.place.path in self._source.held_out and split == "train":
          counts["validation"] += int((pairs.counts > 0).sum())
        counts["pairs"] += len(pairs.ids)
        self._progress(split, files.num_texts, rows.total)
    counts.update(files.counts)
    of_rows, of_labels = (np.frombuffer(each, np.int64) for each in (hashes, self._label_hashes))
    distinct = np.unique(of_rows)
    counts["repeated_texts"] = len(of_rows) - len(distinct)
    if split == "train":
      self._of_train, self._num_train = distinct, len(of_rows)
    else:
      counts["in_train"] = int(np.isin(of_rows, self._of_train).sum())
    numbers, columns = filter_of(self._source, split, of_rows, of_labels, counts)
    file = CsrFile(self._folder, f"{split}.filter", with_values=False)
    file.append(np.bincount(numbers, minlength=len(of_rows)), columns)
    counts["filter_pairs"] = len(columns)
    return counts

  def _write_graph(self, graph: GraphFiles, num_rows: int, num_labels: int) -> Counter[str]:
    stage, name = f"graph {graph.name}", f"graph.{graph.name}"
    lines = text_lines(graph.anchors, self._source.notices, self._source.options)
    counts = self._write_texts(stage, f"{name}.anchors", (chunk.texts for chunk in lines))
    num_anchors = counts["texts"]
    if not num_anchors:
      raise DataError(f"{graph.anchors}: expected at least one anchor, found none")
    sides = {
      "query_edges": (graph.query_edges, num_rows, "rows, one for each training point"),
      "label_edges": (graph.label_edges, num_labels, "rows, one for each label"),
    }
    for side, (path, num, what) in sides.items():
      if path is None:
        continue
      counts[side] = 0
      names = (what, f"columns, one for each line of {graph.anchors.name}")
      file = CsrFile(self._folder, f"{name}.{side}")
      for chunk in matrix_chunks(path, (num, num_anchors), names, self._source.notices):
        pairs = cleaned(chunk, num_anchors, counts)
        file.append(pairs.counts, pairs.ids, pairs.values)
        counts[side] += len(pairs.ids)
    return counts
