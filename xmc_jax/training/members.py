"""Chooses what `training.auto` trains: which methods, in which order, and the config of each.

The rules: the methods of `MEMBERS` in this order, and RAMEN second where the data have a graph of points.
Where labels have few points, DEPSL is first. The more the members' words differ, the better they combine: so
DEXML has a vocabulary of the user's texts, and where many texts are long, it alone reads their beginnings.
With `config.init_from`, a folder that auto made of other data, its members train on, with fewer epochs. The
constants below are set by hand.
"""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections

from xmc_jax import config as configs
from xmc_jax import data, experiments, methods, models
from xmc_jax.config import checks
from xmc_jax.console import say
from xmc_jax.data.dataset import QUERY
from xmc_jax.data.prepared import is_prepared
from xmc_jax.errors import ConfigError
from xmc_jax.storage import run_folder
from xmc_jax.storage.run_folder import MAY_CHANGE

MEMBERS = ("rae_xmc", "dexml", "depsl")
"""Names the experiments that are trained, in this order; RAMEN may be added."""
_WITH_GRAPHS = "ramen"
_FEW_POINTS = 2.5  # on average a label; with fewer, the last of MEMBERS is first
_OWN_WORDS = "dexml"  # has a vocabulary of the user's texts, where the encoder is a table
_MANY_CUT = 0.25  # share of texts longer than the usual max_length, from which on the others read more
_LONG = 128  # tokens that they read then
_TO_TRAIN_ON = 0.5  # of the epochs of an experiment, after a run on other data
# Keys that are the user's own, whatever is trained.
_GIVEN = (
  *("init_from", "encoder.name", "encoder.init_table", "data.", "train.seed", "train.refit"),
  *("mesh.", "runtime.", "checkpoint."),
  *("eval.k", "eval.backend", "eval.metric", "eval.propensity"),
)
# Only the combination is tested: what a member has in place of the user's values.
OF_THE_TEST = {"eval.num_examples": 0, "eval.report_page": False}
_OF_THE_WHOLE = ("name", "auto.", "plan.", *OF_THE_TEST)


def check(config: ml_collections.ConfigDict) -> None:
  """Raises ConfigError if a key is set that `auto.minutes` chooses."""
  usual = checks.flatten(methods.default_config())
  for key, value in checks.flatten(config).items():
    if value != usual.get(key) and not key.startswith((*_GIVEN, *_OF_THE_WHOLE)):
      raise ConfigError(
        f"{key} = {value!r}: auto chooses it; leave it out, or choose a method in place of auto"
      )


def to_train_on(init_from: str) -> list[str]:
  """Returns the names of the members of a run that auto made.

  Raises:
    ConfigError: there is none in the folder.
  """
  folder = pathlib.Path(init_from)
  found = [name for name in run_folder.combined(folder) if name in (*MEMBERS, _WITH_GRAPHS)]
  if not found:
    raise ConfigError(f"init_from = {init_from!r}: expected the folder of a run that auto has trained")
  return found


def have_grown(prepared: data.Dataset, workdir: pathlib.Path) -> bool:
  """Returns whether data have more training rows than a run that auto made, and all of its labels."""
  earlier = _data_of(workdir)
  is_more = len(prepared.train) > len(earlier.train)
  return is_more and set(earlier.label_keys).issubset(prepared.label_keys)


def num_known(texts: Sequence[str], workdir: pathlib.Path) -> int:
  """Returns how many of some texts a run that auto made was trained on."""
  return sum(map(set(_data_of(workdir).train.texts).__contains__, texts))


def _data_of(workdir: pathlib.Path) -> data.Dataset:
  return data.load_prepared(workdir / run_folder.MEMBERS / to_train_on(str(workdir))[0] / "data")


def names(prepared: data.Dataset, init_from: str = "") -> list[str]:
  """Returns what may be trained, in this order; with `init_from`, of its members.

  Raises:
    ConfigError: none of them fits these data.
  """
  first, *others = MEMBERS
  if prepared.train.truth.nnz < _FEW_POINTS * prepared.num_labels:
    first, *others = others[-1], first, *others[:-1]
  has_graph = any(QUERY in kinds for kinds in prepared.graph_kinds.values())
  order = [first, *[_WITH_GRAPHS] * has_graph, *others]
  if not init_from:
    return order
  earlier = to_train_on(init_from)
  if not (chosen := [name for name in order if name in earlier]):
    raise ConfigError(f"init_from = {init_from!r}: {_WITH_GRAPHS} needs graphs, and these data have none")
  return chosen


def max_length(member: ml_collections.ConfigDict, prepared: data.Dataset) -> int:
  """Returns the `data.max_length` of members without a vocabulary of their own; says if it is not the usual.

  `prepared` is cut at the `data.max_length` of this member.
  """
  given, counts = member.data.max_length, prepared.manifest["counts"]["train"]
  usual = methods.default_config().data.max_length
  cut = counts["cut"] / max(counts["texts"], 1)
  if given != usual or cut < _MANY_CUT or not _chooses_words(member):
    return given
  say(
    f"auto: {cut:.0%} of the texts have more than {given} tokens; {_OWN_WORDS} reads {given}, the others "
    f"{_LONG}"
  )
  return _LONG


def _chooses_words(member: ml_collections.ConfigDict) -> bool:
  """Returns whether a member's encoder is a table, which fits any vocabulary, and its data are not tokens."""
  of_a_table = models.source_key(member.encoder) == "init_table" and bool(member.encoder.init_table)
  return of_a_table and not is_prepared(pathlib.Path(member.data.path).expanduser())


def given_of(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the user's settings that may not change later."""
  values = checks.flatten(config).items()
  return {key: value for key, value in values if key.startswith(_GIVEN) and not key.startswith(MAY_CHANGE)}


def usual_config(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns a config for the first look at the data."""
  return config_of(configs.changed(config, {"init_from": ""}), MEMBERS[0])


def config_of(
  config: ml_collections.ConfigDict, name: str, max_length: int | None = None
) -> ml_collections.ConfigDict:
  """Returns the config of a member: its experiment's for the user's encoder, on the user's data.

  `max_length` is that of members without a vocabulary of their own; None is the user's.
  """
  values = checks.flatten(config).items()
  given = {key: value for key, value in values if key.startswith(_GIVEN) and value != ""}
  member = configs.changed(experiments.for_encoder(name, config.encoder.name), given)
  own: dict[str, Any] = {"name": name, **OF_THE_TEST}
  if name == _OWN_WORDS and _chooses_words(member):
    own["encoder.tokenizer"] = "train"
  elif max_length:
    own["data.max_length"] = max_length
  if config.init_from:
    own["init_from"] = str(pathlib.Path(config.init_from) / run_folder.MEMBERS / name)
    own["train.num_epochs"] = math.ceil(_TO_TRAIN_ON * member.train.num_epochs)
  return configs.changed(member, own)
