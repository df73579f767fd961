"""Trains several methods one after another while time is left, and combines them (`config.auto.minutes`).

The rules: the methods of `MEMBERS` in this order, and RAMEN second where the data have a graph of points.
Where labels have few points, DEPSL is first. The more the members' words differ, the better they combine: so
DEXML has a vocabulary of the user's texts, and where many texts are long, it alone reads their beginnings.
Each gets as many epochs as fit by the time of its first steps, and at most those of its preset. One that gets
too few is left out, and at the end one of little weight in the combination. docs/methods.md, "In the time
you have", has runs. The constants below are set by hand.
"""

import contextlib
import json
import pathlib
import shutil
import time
from collections.abc import Mapping
from typing import Any

import ml_collections

from xmc_jax import config as configs
from xmc_jax import data, experiments, methods, models
from xmc_jax.config import checks
from xmc_jax.console import quiet, say
from xmc_jax.data.dataset import QUERY
from xmc_jax.data.prepared import is_prepared
from xmc_jax.distributed import runtime
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.retrieval import cpu_cores
from xmc_jax.runs import create
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.storage import atomic, locks, run_folder
from xmc_jax.storage.run_folder import MAY_CHANGE
from xmc_jax.training import combine, guide, loop
from xmc_jax.training.one_run import train_run

MEMBERS = ("rae_xmc", "dexml", "depsl")
"""Names the experiments that are trained, in this order; RAMEN may be added."""
_WITH_GRAPHS = "ramen"
_FEW_POINTS = 2.5  # on average a label; with fewer, the last of MEMBERS is first
_OWN_WORDS = "dexml"  # has a vocabulary of the user's texts, where the encoder is a table
_MANY_CUT = 0.25  # share of texts longer than the usual max_length, from which on the others read more
_LONG = 128  # tokens that they read then
_OF_WORDS = ("tokens", "tokenizer")  # in names of prepared files in which members may differ
# Keys that are the user's own, whatever is trained.
_GIVEN = (
  *("encoder.name", "encoder.init_table", "data.", "train.seed", "train.refit"),
  *("mesh.", "runtime.", "checkpoint."),
  *("eval.k", "eval.backend", "eval.metric", "eval.propensity"),
)
# Only the combination is tested: what a member has in place of the user's values.
_OF_THE_TEST = {"eval.num_examples": 0, "eval.report_page": False}
_OF_THE_WHOLE = ("name", "auto.", "plan.", *_OF_THE_TEST)
_RECORD = "auto.json"
_TRIAL_STEPS = 5
_AFTER_REFRESH = 2.0  # a step with hard negatives, and its share of a refresh, takes as long as two without
_FEWEST_EPOCHS = 4  # with fewer, a further member is no help
_LEAST_WEIGHT = 0.05  # in the combination, of a member that is kept


def train_and_test(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, owns_process: bool = False
) -> dict[str, float]:
  """Runs `--mode=train` of a config with `auto.minutes`; the same call goes on from where it was stopped.

  The time to read the data, and to prepare them for the first member, is not counted.

  Args:
    config: checked already.
    workdir: becomes the folder of the combined runs, which are in its `members/`.
    owns_process: whether a stop request may end this process.

  Returns:
    The test metrics of the combination, as fractions; none if no test row has a label.

  Raises:
    UserError: several processes train, or the folder holds another run.
  """
  if not runtime.is_alone():
    raise UserError("auto.minutes trains with a single process; give a method, as experiments/rae_xmc.py")
  check(config)
  if (workdir / "config.json").exists() and not (workdir / _RECORD).exists():
    raise UserError(f"{workdir} holds another run; give --workdir=ANOTHER_FOLDER")
  with contextlib.ExitStack() as stack:
    stack.enter_context(locks.in_use(workdir, ".auto.lock"))
    usual = _member(config, MEMBERS[0])
    prepared, _ = create.prepare(usual)
    budget = _Budget(workdir / _RECORD, 60 * config.auto.minutes, _given(config))
    stack.callback(budget.save)
    for name in budget.trained:
      create.refuse_other_data(prepared, workdir / run_folder.MEMBERS / name, _OF_WORDS)
    say(guide.of_data(prepared))
    names = _names(prepared)
    max_length = _max_length(usual, prepared)
    say(
      f"auto: {config.auto.minutes:g} minutes on {cpu_cores.num_cores()} cores: {', '.join(names)}, as far "
      "as time is left; then combined"
    )
    for name in names:
      folder = workdir / run_folder.MEMBERS / name
      member = _member(config, name, max_length)
      _train(name, member, folder, budget, prepared, owns_process)
    used = run_folder.combined(workdir)
    if budget.combined != budget.trained:
      run_folder.forget(workdir, "config.json")  # of a combination without what is trained now
      used = budget.trained
    folders = [workdir / run_folder.MEMBERS / name for name in used]
    values = checks.flatten(config)
    settings = {key: values[key] for key in _OF_THE_TEST}
    means = combine.combine_and_test(folders, workdir, settings, least_weight=_LEAST_WEIGHT)
    budget.combined = budget.trained
    return means


def check(config: ml_collections.ConfigDict) -> None:
  """Raises ConfigError if a key is set that `auto.minutes` chooses."""
  usual = checks.flatten(methods.default_config())
  for key, value in checks.flatten(config).items():
    if value != usual.get(key) and not key.startswith((*_GIVEN, *_OF_THE_WHOLE)):
      raise ConfigError(
        f"{key} = {value!r}: auto chooses it; leave it out, or choose a method in place of auto"
      )


class _Budget:
  """Counts the time that is left, and remembers what was decided, over all calls on a folder.

  Args:
    path: the file that remembers.
    seconds: the time of all calls together.
    given: the user's settings; raises ConfigError if an earlier call had others.

  Attributes:
    members: by name, what was decided: nothing, or `num_epochs` and `minutes`; once it is trained,
      also the seconds of `joining` its sources.
    combined: names of the members that were trained when the combination was made.
  """

  def __init__(self, path: pathlib.Path, seconds: float, given: Mapping[str, Any]):
    self._path, self._seconds, self._start = path, seconds, time.monotonic()
    self._given, self._earlier, self.members, self.combined = given, 0.0, {}, []
    with contextlib.suppress(FileNotFoundError):
      kept = json.loads(path.read_text(encoding="utf-8"))
      self._earlier, self.members, self.combined = kept["spent"], kept["members"], kept["combined"]
      # Keys that did not exist yet had their defaults.
      earlier = {**json.loads(json.dumps(_given(methods.default_config()))), **kept["given"]}
      if changed := configs.differences(earlier, json.loads(json.dumps(given))):
        raise ConfigError(
          f"{path.parent} holds a run with other settings ({changed[0]}); give --workdir=ANOTHER_FOLDER, or "
          "delete this one to start anew"
        )

  @property
  def left(self) -> float:
    """Returns the seconds that are left."""
    return self._seconds - self._earlier - (time.monotonic() - self._start)

  def decide(self, name: str, **values: float) -> None:
    """Remembers what was decided on a member."""
    self.members[name] = {**self.members.get(name, {}), **values}
    self.save()

  @property
  def trained(self) -> list[str]:
    """Returns the names of the members that are trained, or will be, sorted."""
    return sorted(name for name, decided in self.members.items() if decided)

  def save(self) -> None:
    """Writes all of it, once anything was decided."""
    if self.members:
      spent = self._seconds - self.left
      content = {"given": self._given, "spent": spent, "members": self.members, "combined": self.combined}
      atomic.write_json(self._path, content)


def _names(prepared: data.Dataset) -> list[str]:
  """Returns what may be trained, in this order."""
  first, *others = MEMBERS
  if prepared.train.truth.nnz < _FEW_POINTS * prepared.num_labels:
    first, *others = others[-1], first, *others[:-1]
  has_graph = any(QUERY in kinds for kinds in prepared.graph_kinds.values())
  return [first, *[_WITH_GRAPHS] * has_graph, *others]


def _max_length(member: ml_collections.ConfigDict, prepared: data.Dataset) -> int:
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


def _given(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the user's settings that may not change later."""
  values = checks.flatten(config).items()
  return {key: value for key, value in values if key.startswith(_GIVEN) and not key.startswith(MAY_CHANGE)}


def _member(
  config: ml_collections.ConfigDict, name: str, max_length: int | None = None
) -> ml_collections.ConfigDict:
  """Returns the config of a member: its experiment's for the user's encoder, on the user's data.

  `max_length` is that of members without a vocabulary of their own; None is the user's.
  """
  values = checks.flatten(config).items()
  given = {key: value for key, value in values if key.startswith(_GIVEN) and value != ""}
  member = configs.changed(experiments.for_encoder(name, config.encoder.name), given)
  words: dict[str, Any] = {}
  if name == _OWN_WORDS and _chooses_words(member):
    words["encoder.tokenizer"] = "train"
  elif max_length:
    words["data.max_length"] = max_length
  return configs.changed(member, {"name": name, **_OF_THE_TEST, **words})


def _train(
  name: str,
  config: ml_collections.ConfigDict,
  folder: pathlib.Path,
  budget: _Budget,
  prepared: data.Dataset,
  owns_process: bool,
) -> None:
  """Trains a member in its folder, or goes on with it, if it fits into the time."""
  if not budget.members.get(name):
    others = sum(map(bool, budget.members.values()))
    reserve = _reserve(prepared, budget, 1 + others)
    trainings = 1 + config.train.refit  # the second one takes as long
    left = budget.left - reserve
    epochs = _epochs_in(left / trainings, config, folder) if left > 0 else 0
    fits = not others or epochs >= _FEWEST_EPOCHS
    if not run_folder.has_checkpoints(folder):  # else the run itself counts the time of its first steps
      left = budget.left - reserve
    minutes = max(left, 1.0) / trainings / 60
    budget.decide(name, **({"num_epochs": epochs, "minutes": minutes} if fits else {}))
    if not fits:
      say(f"auto: no time for {name}")
    elif not epochs:
      say(f"auto: there may be no time for an epoch of {name}; give more auto.minutes")
  decided = budget.members[name]
  if not decided or "joining" in decided:
    return
  say(f"auto: {name} for {decided['num_epochs']:g} epochs, in at most {decided['minutes']:.1f} minutes")
  settings = {"train.num_epochs": decided["num_epochs"], "train.minutes": decided["minutes"]}
  member = configs.changed(config, settings)
  with train_run(member, folder, owns_process, tells_data=False) as (_, writer):
    budget.decide(name, joining=writer.seconds["hybrid"])


def _reserve(prepared: data.Dataset, budget: _Budget, num_members: int) -> float:
  """Returns the seconds that joining the new member's sources, combining all and testing will take."""
  texts, tested = len(prepared.train) + prepared.num_labels, len(prepared.test)
  joining = 10 + 6e-5 * texts
  slowness = max(
    [1.0, *(member["joining"] / joining for member in budget.members.values() if "joining" in member)]
  )
  num_fits = 1 if num_members == 1 else 2  # again if members are left out
  return slowness * (
    10 + joining + num_members * (num_fits * joining + 5e-3 * tested / cpu_cores.num_cores())
  )


def _epochs_in(seconds: float, config: ml_collections.ConfigDict, folder: pathlib.Path) -> int:
  """Trains a few steps; returns how many epochs fit into the time, at most those of the config."""
  shutil.rmtree(folder, ignore_errors=True)
  begun = time.monotonic()
  with quiet(), contextlib.closing(MetricWriter(folder)) as writer:
    run = create.create(config, folder, writer)
    steps = run.batches.steps_per_epoch
    tried = min(_TRIAL_STEPS, steps)
    loop.train(run, writer, last_step=tried)
  per_step = writer.seconds["train"] / tried * (_AFTER_REFRESH if run.method.refreshes else 1)
  epoch = steps * per_step + writer.seconds["evaluate"]
  left = seconds - (time.monotonic() - begun) - 2 * writer.seconds["compile"]
  epochs = int(max(0, min(config.train.num_epochs, left // epoch)))
  if epochs < config.train.num_epochs:  # its schedule is another
    shutil.rmtree(folder)
  return epochs
