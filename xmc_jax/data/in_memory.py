"""`write`: writes texts and labels that are in memory as a folder that `load` reads."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import scipy.sparse as sp

from xmc_jax.data.formats.lines import MAX_LINE_BYTES
from xmc_jax.data.label_sets import LabelSpace
from xmc_jax.data.label_values import Labels, texts_of
from xmc_jax.errors import DataError
from xmc_jax.storage import atomic

# The layout raw_json, in the order of writing: a folder is recognised by its first file, which comes last.
_LABELS, _TEST, _TRAIN = "lbl.json", "tst.json", "trn.json"
Encoded: TypeAlias = tuple[list[str], sp.csr_matrix]  # n texts and their relevances, CSR `[n, L]`


def write(
  folder: str | Path,
  texts: Any,
  labels: Any,
  *,
  label_texts: Any = None,
  test_texts: Any = None,
  test_labels: Any = None,
) -> Path:
  """Writes a data set from Python objects, as a folder for `config.data.path`, `load` and `prepare`.

  Every text is kept exactly, with its line breaks, or empty. A text may have no label.

  Args:
    folder: where to write; made if missing. An earlier data set of `write` there is replaced.
    texts: n training texts: a list, tuple, NumPy array, or pandas or Polars series of str.
    labels: their labels, in one of these forms: a list of names for each text; a list of ids for each text,
      positions in `label_texts`; one name or id for each text; a SciPy sparse matrix `[n, L]`, whose entries
      are relevances; or an array or data frame `[n, L]` of 0 and 1.
    label_texts: the L label texts. None: the names are the texts, in alphabetical order, or those of a data
      frame's columns; ids and columns of other matrices are named by their numbers.
    test_texts: texts to test on; None for none.
    test_labels: their labels, in the form of `labels`.

  Returns:
    The folder.

  Raises:
    DataError: wrong input; one line that says where it is and what was found.
    UserError: the folder cannot be written.

  Example:
    >>> folder = write("mine", ["a window manager", "plays music"], [["desktop", "x11"], ["audio"]])
    >>> load(folder).num_labels
    3
  """
  if (test_texts is None) != (test_labels is None):
    raise DataError("test_texts and test_labels belong together; give both, or neither")
  train = texts_of(texts, "texts")
  test = [] if test_texts is None else texts_of(test_texts, "test_texts")
  given = Labels(labels, len(train))
  given_test = Labels(test_labels, len(test), "test_labels")
  tested = test_labels is not None
  space = LabelSpace.of(given, label_texts, *([given_test] if tested else []))
  test_truth = space.encode(given_test) if tested else sp.csr_matrix((0, len(space.texts)))
  return write_encoded(folder, space.texts, (train, space.encode(given)), (test, test_truth))


def write_encoded(folder: str | Path, label_texts: list[str], train: Encoded, test: Encoded) -> Path:
  """Writes a data set as `write` does; refuses one without labels."""
  if not train[1].nnz:
    raise DataError("labels: no text has a label, so there is nothing to learn")
  folder = Path(folder).expanduser()
  with atomic.writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
    ours = [folder / name for name in (_LABELS, _TEST, _TRAIN)]
    left = [atomic.unfinished(path) for path in ours]  # by a killed process
    others = {path.name for path in set(folder.iterdir()).difference(ours, left)}
    if others:
      raise DataError(f"{folder} holds other files ({min(others)}), which may be read too; give a new folder")
    for path in (folder / _TRAIN, *left):  # without `_TRAIN`, a kill leaves no mixture of two data sets
      path.unlink(missing_ok=True)
  for name, lines in _files(label_texts, train, test):
    with atomic.written_whole(folder / name) as beside, beside.open("wb") as file:
      file.writelines(lines)
  return folder


def checksums(label_texts: list[str], train: Encoded, test: Encoded) -> dict[str, str]:
  """Returns the SHA-256 of each file that `write_encoded` would write, by name; writes nothing."""
  found = {}
  for name, lines in _files(label_texts, train, test):
    digest = hashlib.sha256()
    for line in lines:
      digest.update(line)
    found[name] = digest.hexdigest()
  return found


def _files(label_texts: list[str], train: Encoded, test: Encoded) -> Iterator[tuple[str, Iterator[bytes]]]:
  yield _LABELS, _lines(({"title": text} for text in label_texts), "label_texts")
  yield _TEST, _lines(_points(*test), "test_texts")
  yield _TRAIN, _lines(_points(*train), "texts")


def _points(texts: list[str], truth: sp.csr_matrix) -> Iterator[dict]:
  binary = bool((truth.data == 1).all())
  for text, start, end in zip(texts, truth.indptr[:-1], truth.indptr[1:]):
    point = {"title": text, "target_ind": truth.indices[start:end].tolist()}
    yield point if binary else {**point, "target_rel": truth.data[start:end].tolist()}


def _lines(records: Iterable[dict], what: str) -> Iterator[bytes]:
  for row, record in enumerate(records):
    try:
      line = f"{json.dumps(record, ensure_ascii=False)}\n".encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can express
      line = f"{json.dumps(record)}\n".encode()
    if len(line) > MAX_LINE_BYTES:
      raise DataError(f"{what}[{row}]: expected at most {MAX_LINE_BYTES >> 20} MiB of text and labels")
    yield line
