"""Chooses the columns of a table by their names, and says which were chosen."""

import difflib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from xmc_jax.data.formats.source import Options, excerpt
from xmc_jax.errors import DataError

TEXTS = ("title", "text", "query", "question", "sentence", "name", "description", "content", "body")
LABELS = (
  *("labels", "label", "tags", "targets", "target", "categories", "category", "classes", "topics", "y"),
  *("subject_uris", "subject_labels"),  # Annif's
)
KEYS = ("id", "uid", "uri", "key", "code", "label_id", "label", "name")
LABEL_TEXTS = (*TEXTS, "label", "preflabel", "term", "heading")
DESCRIPTIONS = ("description", "definition", "gloss", "content", "body", "abstract")
PARENTS = ("parent", "parent_id", "parent_key", "parent_uid", "parent_label", "broader")
_MANY = 12  # columns shown in a message


class TableColumns(NamedTuple):
  """Holds the columns of a table's texts, and that of its labels or several of 0 and 1, one a label."""

  texts: tuple[str, ...]
  labels: tuple[str, ...]


def guess(candidates: tuple[str, ...], have: list[str]) -> str:
  """Returns the first candidate that is a column, in any case; '' if none is."""
  by_lower = {name.strip().lower(): name for name in reversed(have)}
  return next((by_lower[name] for name in candidates if name in by_lower), "")


def named_columns(wanted: str, have: list[str]) -> tuple[str, ...]:
  """Returns the columns of a setting, one name or several joined by '+'; none if one is missing."""
  return next((names for names in ((wanted,), tuple(wanted.split("+"))) if set(names) <= set(have)), ())


def text_columns(wanted: str, have: list[str], usual: tuple[str, ...] = TEXTS) -> tuple[str, ...]:
  """Returns the columns that make up the text; none if they are missing."""
  # 'title' is the default, so it may mean any usual name of a text column.
  found = guess(usual, have) if wanted == "title" and wanted not in have else ""
  return (found,) if found else named_columns(wanted, have)


def refuse_twice(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
  """Refuses a table that has one of these columns twice."""
  if twice := next((name for name in wanted if names.count(name) > 1), ""):
    raise DataError(f"{path}: expected one column {excerpt(twice)}, found {names.count(twice)}; rename one")


def text_and_label_columns(
  path: Path, have: list[str], options: Options, one_hot: Callable[[], tuple[str, ...]], notices: list[str]
) -> TableColumns:
  """Chooses the columns of a table that has these; refuses one that is missing.

  `one_hot` returns the columns of 0 and 1, if no column is known to be that of labels. A refusal repeats the
  notice on which sheet of a workbook was read.
  """
  not_text = [name for name in have if name not in (options.text, *options.text.split("+"))]
  label = options.label_column or guess(LABELS, not_text)
  labels = named_columns(label, have) if label else ()
  if not labels and not options.label_column:
    labels = tuple(name for name in one_hot() if name in not_text)
    labels = labels if len(labels) > 1 else ()
  texts = text_columns(options.text, [name for name in have if name not in labels])
  if not labels or not texts:
    sheets = "".join(f"; {note}" for note in notices if note.startswith(f"{path.name}: only the first of "))
    raise DataError(f"{_columns_missing(path, have, options, texts, '+'.join(labels))}{sheets}")
  return TableColumns(texts, labels)


def _columns_missing(path: Path, have: list[str], options: Options, texts: tuple, label: str) -> DataError:
  if label and options.text == options.label_column:
    return DataError(f"{path}: expected texts and labels in two columns, found {excerpt(label)} for both")
  wanted, flags = [], []
  if not texts:
    name = "" if options.text == "title" else f" {excerpt(options.text)}"
    wanted.append(f"a column{name} of texts")
    flags.append(f"--config.data.text={_nearest(options.text, have) if name else 'NAME'}")
  if not label:
    name = f" {excerpt(options.label_column)}" if options.label_column else ""
    wanted.append(f"a column{name} of labels")
    flags.append(f"--config.data.label_column={_nearest(options.label_column, have)}")
  by_number = "; without a header, columns are called 1, 2, ..." if len(wanted) == 2 else ""
  return DataError(
    f"{path}: expected {' and '.join(wanted)}; set {' and '.join(flags)} {shown(have)}{by_number}"
  )


def _nearest(name: str, have: list[str]) -> str:
  """Returns the column whose name is nearest to a misspelt one, as a shell reads it; 'NAME' if none is."""
  return shlex.quote(next(iter(difflib.get_close_matches(name, have, n=1)), "NAME"))


def shown(columns: list[str]) -> str:
  """Returns a table's columns, in parentheses, for an error message."""
  more = ["..."] if len(columns) > _MANY else []
  return f"(columns: {', '.join([*map(excerpt, columns[:_MANY]), *more])})"


def taken(table: str, chosen: TableColumns, options: Options, has_names: bool) -> str:
  """Returns which columns of a table were taken, if they have names, and how to change what was guessed."""
  if not has_names:
    return f"{table}: a text and its labels a line"
  texts = f"column {' and '.join(map(excerpt, chosen.texts))}"
  labels = f"column {excerpt(chosen.labels[0])}"
  if len(chosen.labels) > 1:
    labels = f"{len(chosen.labels):,} columns of 0 and 1"
  change = " (guessed; change with --config.data.{})"
  if "+".join(chosen.texts) != options.text:
    texts += change.format("text")
  if not options.label_column:
    labels += change.format("label_column")
  return f"{table}: texts from {texts}, labels from {labels}"
