"""Adds labels by their texts, if those alone are what a method's embedding functions read."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import export as jax_export

from xmc_jax import data
from xmc_jax.console import say
from xmc_jax.data import documents
from xmc_jax.data.formats import columns, label_tables
from xmc_jax.data.formats.label_ids import Vocabulary
from xmc_jax.data.formats.table_files import SUFFIXES, column_names, suffix
from xmc_jax.distributed import sharding
from xmc_jax.errors import UserError
from xmc_jax.types import Array, PyTree, Tokens

if TYPE_CHECKING:
  from xmc_jax.runs.trained import Trained

_TEXTS = ("input_ids", "attention_mask")
_IDS = "label_ids"
INPUTS = {*_TEXTS, _IDS}

Function = Callable[..., Array]  # (params, extra_state, tokens, ids [b]) -> [b, D]


def reads(function: Function, trained: "Trained", max_length: int) -> set[str]:
  """Returns what a function reads: names of parameters, 'input_ids', 'attention_mask', 'label_ids'."""
  named = named_arrays(trained)

  def call(inputs):
    tokens = Tokens(inputs["input_ids"], inputs["attention_mask"].sum(axis=1))
    return function(*filled(trained, inputs), tokens, inputs[_IDS])

  # Sizes are fixed here: a symbolic size counts as a read of every argument that has it.
  texts, ids = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((2, max_length), (2,)))
  inputs = {**shapes_of(named), **dict.fromkeys(_TEXTS, texts), _IDS: ids}
  positions_read = jax_export.export(jax.jit(call))(inputs).module_kept_var_idx
  return {name for position, name in enumerate(sorted(inputs)) if position in positions_read}


def follows_from_text(function: Function, trained: "Trained", max_length: int) -> bool:
  """Returns whether a label's vector depends on its text alone, and not on its id."""
  read = reads(function, trained, max_length)
  return "input_ids" in read and _IDS not in read


def by_text(trained: "Trained") -> Function | None:
  """Returns the method's function that embeds an unseen label by its text alone; None if it has none."""
  method, max_length = trained.run.method, trained.run.config.data.max_length
  known = [method.embed_texts, method.embed_labels, *method.scorers.values()]
  following = (f for f in known if f and follows_from_text(f, trained, max_length))
  return next(following, None)


def check_by_text(trained: "Trained", remedy: str) -> None:
  """Raises UserError unless a run can embed an unseen label by its text, by each of its scorers."""
  run = trained.run
  scorers = (follows_from_text(f, trained, run.config.data.max_length) for f in run.method.scorers.values())
  if not by_text(trained) or not all(scorers):
    raise UserError(
      f"method {run.config.method.name!r} ranks labels by more than their texts, so none can be added "
      f"without training; {remedy}"
    )


def named_arrays(trained: "Trained") -> dict[str, Array]:
  """Returns every array by its path, such as 'params/encoder/word'."""
  leaves = jax.tree_util.tree_leaves_with_path(trained.tree)
  return {sharding.path_name(path): leaf for path, leaf in leaves}


def shapes_of(named: Mapping[str, Array]) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shape and type of every array."""
  return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in named.items()}


def filled(trained: "Trained", given: Mapping[str, Array]) -> tuple[PyTree, PyTree]:
  """Returns `(params, extra_state)`: the given arrays, and zeros in place of those that no function reads."""

  def pick(path, leaf):
    name = sharding.path_name(path)
    return given[name] if name in given else jnp.zeros(leaf.shape, leaf.dtype)

  tree = jax.tree_util.tree_map_with_path(pick, trained.tree)
  return tree["params"], tree["extra_state"]


def read_added(path: Path, manifest: dict) -> dict[str, str]:
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


def with_added(trained: "Trained", added: str | Path | Mapping[str, str]) -> "Trained":
  """Returns a trained run with the labels of a file, or of `{key: text}`, that it lacks.

  Raises:
    UserError: the run ranks labels by more than their texts.
  """
  dataset = trained.run.dataset
  texts = added if isinstance(added, Mapping) else read_added(Path(added).expanduser(), dataset.manifest)
  for member in trained.members.values():
    check_by_text(member, "train a run on data that have these labels")
  known = Vocabulary(list(dataset.label_names), list(dataset.label_keys))
  new = {key: text for key, text in texts.items() if key not in known and text not in known}
  say(f"{len(new):,} labels added, {len(texts) - len(new):,} were there already")
  return trained.with_labels(list(new.values()), list(new)) if new else trained
