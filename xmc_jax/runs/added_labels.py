"""Reads labels to add, and returns a trained run that ranks them with its own."""

from collections.abc import Mapping
from pathlib import Path

from xmc_jax import data
from xmc_jax.console import say
from xmc_jax.data import documents
from xmc_jax.data.formats import columns, label_tables
from xmc_jax.data.formats.label_ids import Vocabulary
from xmc_jax.data.formats.table_files import SUFFIXES, column_names, suffix
from xmc_jax.runs import label_functions
from xmc_jax.runs.trained import Trained


def read(path: Path, manifest: dict) -> dict[str, str]:
  """Reads new labels, a text a line or a table, as `{key: text}`; leaves out those without a text.

  Args:
    path: the file.
    manifest: of the run's data, whose columns `label_text` and `label_parent` count if the file has them.
  """
  notices: list[str] = []
  options = data.Options()
  if suffix(path) in SUFFIXES:
    have = column_names(path, notices, options)
    own = {key: manifest["options"][key] for key in ("label_text", "label_parent")}
    options = options._replace(
      **{key: name for key, name in own.items() if columns.named_columns(name, have)}
    )
  table = label_tables.read(path, options, notices)
  for notice in dict.fromkeys(notices):
    say(f"note: {documents.without_settings(notice)}")
  pairs = zip(table.keys, table.texts)
  return {key.strip() or text.strip(): " ".join(text.split()) for key, text in pairs if text.strip()}


def with_labels(trained: Trained, added: str | Path | Mapping[str, str]) -> Trained:
  """Returns a trained run with the labels of a file, or of `{key: text}`, that it lacks.

  Raises:
    UserError: the run ranks labels by more than their texts.
  """
  dataset = trained.run.dataset
  texts = added if isinstance(added, Mapping) else read(Path(added).expanduser(), dataset.manifest)
  for member in trained.members.values():
    label_functions.check_by_text(member, "train a run on data that have these labels")
  known = Vocabulary(list(dataset.labels.texts), list(dataset.label_keys))
  new = {key: text for key, text in texts.items() if key not in known and text not in known}
  say(f"{len(new):,} labels added, {len(texts) - len(new):,} were there already")
  return trained.with_labels(list(new.values()), list(new)) if new else trained
