"""Trains several methods one after another while time is left, and combines them (`config.auto.minutes`).

The rules: those of `members`, and each gets as many epochs as fit by the time of its first steps, and at most
those of its config. One that gets too few is left out, and at the end one of little weight. docs/methods.md,
"In the time you have", has runs. The constants below are set by hand.
"""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import time
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from xmc_jax import config as configs
from xmc_jax import data, methods
from xmc_jax.config import checks
from xmc_jax.console import quiet, say
from xmc_jax.distributed import runtime
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.retrieval import cpu_cores
from xmc_jax.runs import create, learning
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.storage import atomic, locks, run_folder
from xmc_jax.training import combine, guide, loop, members
from xmc_jax.training.one_run import train_run

_OF_WORDS = ("tokens", "tokenizer")  # in names of prepared files in which members may differ
_RECORD = "auto.json"
_TRIAL_STEPS = 5
_AFTER_REFRESH = 2.0  # a step with hard negatives, and its share of a refresh, takes as long as two without
_FEWEST_EPOCHS = 4  # with fewer, a further member is no help
_LEAST_WEIGHT = 0.05  # in the combination, of a member that is kept


def train_and_test(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  owns_process: bool = False,
  earlier: pathlib.Path | None = None,
) -> dict[str, float]:
  """Runs `--mode=train` of a config with `auto.minutes`; the same call goes on from where it was stopped.

  The time to read the data, and to prepare them for the first member, is not counted. `workdir` becomes the
  folder of the combined runs, which are in its `members/`. If it holds a finished run on fewer of these data,
  one that trains on from it takes its place. `earlier` is the run to train on from, in place of `init_from`.

  Returns:
    The test metrics of the combination, as fractions; none if no test row has a label.

  Raises:
    UserError: several processes train, or the folder holds another run.
  """
  if not runtime.is_alone():
    raise UserError("auto.minutes trains with a single process; give a method, as experiments/rae_xmc.py")
  members.check(config)
  source = str(earlier or config.init_from)
  if not workdir.exists() and _is_finished(_beside(workdir)):  # a kill came when the one before was away
    _beside(workdir).rename(workdir.resolve())
  if (workdir / "config.json").exists() and not (workdir / _RECORD).exists():
    raise UserError(f"{workdir} holds another run; give --workdir=ANOTHER_FOLDER")
  with contextlib.ExitStack() as stack:
    stack.enter_context(locks.in_use(workdir, ".auto.lock"))
    usual = members.usual_config(config)
    if source and not (workdir / _RECORD).exists():
      members.to_train_on(source)  # refuses another folder before data are prepared
    prepared, _ = create.prepare(usual)
    budget = _Budget(workdir / _RECORD, 60 * config.auto.minutes, members.given_of(config))
    if changed := _changed_data(prepared, workdir, budget.trained):
      can_move = _is_finished(workdir) and not os.path.ismount(workdir)
      if not (can_move and members.have_grown(prepared, workdir)):
        raise create.other_data(workdir, changed)
      return _replace(config, workdir, prepared, owns_process)
    stack.callback(budget.save)
    config = configs.changed(config, {"init_from": source})
    say(guide.of_data(prepared))
    names = budget.names = budget.names or members.names(prepared, source)
    max_length = members.max_length(usual, prepared)
    say(
      f"auto: {config.auto.minutes:g} minutes on {cpu_cores.num_cores()} cores: {', '.join(names)}, as far "
      "as time is left; then combined"
    )
    for name in names:
      folder = workdir / run_folder.MEMBERS / name
      member = members.config_of(config, name, max_length)
      _train(name, member, folder, budget, prepared, owns_process)
    return _combine_and_test(config, workdir, budget)


def _combine_and_test(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, budget: "_Budget"
) -> dict[str, float]:
  used = run_folder.combined(workdir)
  if budget.combined != budget.trained:
    run_folder.forget(workdir, "config.json")  # of a combination without what is trained now
    used = budget.trained
  folders = [workdir / run_folder.MEMBERS / name for name in used]
  values = checks.flatten(config)
  settings = {key: values[key] for key in members.OF_THE_TEST}
  means = combine.combine_and_test(folders, workdir, settings, least_weight=_LEAST_WEIGHT)
  budget.combined = budget.trained
  return means


def _changed_data(prepared: data.Dataset, workdir: pathlib.Path, names: Iterable[str]) -> str:
  """Returns a file in which the data of a member differ from these; '' if none does."""
  folders = (workdir / run_folder.MEMBERS / name for name in names)
  return next(filter(None, (create.changed_data(prepared, folder, _OF_WORDS) for folder in folders)), "")


def _replace(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, prepared: data.Dataset, owns_process: bool
) -> dict[str, float]:
  """Trains on from a finished run, beside it, and takes its place; what it has learnt stays learnt."""
  workdir = workdir.resolve()  # of a link, what it leads to is moved
  beside, known = _beside(workdir), members.num_known(prepared.test.texts, workdir)
  begun = [folder.name for folder in (beside / run_folder.MEMBERS).glob("*")]
  if _changed_data(prepared, beside, begun) or not (beside / _RECORD).exists():
    (beside / _RECORD).unlink(missing_ok=True)  # first, so that a kill leaves nothing to go on with
    shutil.rmtree(beside, ignore_errors=True)
  say(f"auto: the data have grown since {workdir} was trained: training on from it, in {beside}")
  means = train_and_test(config, beside, owns_process, earlier=workdir)
  if known:
    say(f"note: the run before was trained on {known:,} of the test texts, so metrics on them are too high")
  numbered = (workdir.with_name(f"{workdir.name}.{number}") for number in itertools.count(1))
  previous = next(path for path in numbered if not path.exists())
  with atomic.writing(workdir), locks.in_use(workdir, learning.LOCK, learning.LEARNS):
    with contextlib.suppress(FileNotFoundError):
      shutil.copy2(workdir / run_folder.LEARNT, beside)
    workdir.rename(previous)
    beside.rename(workdir)
  say(f"auto: {workdir} is the new run, with all that was written to {beside}; {previous} is the one before")
  return means


def _beside(workdir: pathlib.Path) -> pathlib.Path:
  return workdir.resolve().with_name(f".{workdir.resolve().name}.next")


def _is_finished(workdir: pathlib.Path) -> bool:
  return (workdir / "config.json").exists() and bool(run_folder.combined(workdir))


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
    names: those of all members that may be trained, in their order.
  """

  def __init__(self, path: pathlib.Path, seconds: float, given: Mapping[str, Any]):
    self._path, self._seconds, self._start = path, seconds, time.monotonic()
    self._given, self._earlier, self.members, self.combined, self.names = given, 0.0, {}, [], []
    with contextlib.suppress(FileNotFoundError):
      kept = json.loads(path.read_text(encoding="utf-8"))
      self._earlier, self.members, self.combined = kept["spent"], kept["members"], kept["combined"]
      self.names = kept.get("names", [])
      # Keys that did not exist yet had their defaults.
      earlier = {**json.loads(json.dumps(members.given_of(methods.default_config()))), **kept["given"]}
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
      content["names"] = self.names
      atomic.write_json(self._path, content)


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
