"""Combines finished runs on the same data: `xmc_jax.combine`, and what `--mode=combine` runs."""

import contextlib
import filecmp
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from xmc_jax import config as configs
from xmc_jax import data, methods
from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.runs import create, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.model import Model
from xmc_jax.storage import atomic, locks, path_safety, run_folder, whole_folder
from xmc_jax.training import test_table

_COMBINES = "combines runs in this folder; wait for it, or stop it"
_LEFT_OUT = ("tensorboard", "export", run_folder.LAST, run_folder.LEARNT)
_MAY_DIFFER = ("tokens", "tokenizer", "graph.")  # in names of prepared files


def combine(folders: Sequence[str | pathlib.Path], workdir: str | pathlib.Path) -> Model:
  """Combines finished runs into one that ranks by a weighted mean of their log-odds, and tests it.

  The result is a folder like that of any run. It holds its members (in `members/`, by hard links where the
  disk allows them), so the runs may be deleted. If it is interrupted, the same call goes on.

  Args:
    folders: those of two or more runs on the same data that held out the same rows; they rank by 'hybrid',
      and may differ in all else. Runs that are in `workdir/members` stay there.
    workdir: the folder of the combination.

  Returns:
    The combined `Model`.

  Raises:
    UserError: a folder holds no finished run, or the runs do not fit together; in one line.

  Example:
    >>> model = xmc_jax.combine(["runs/dexml", "runs/rae_xmc"], "runs/both")
  """
  workdir = pathlib.Path(workdir).expanduser()
  if len(folders) < 2:
    raise UserError(f"two or more runs can be combined, and got {len(folders)}")
  with runtime.started(distributed=False):
    combine_and_test([pathlib.Path(folder) for folder in folders], workdir)
  return Model.load(workdir, warm=False)


def combine_and_test(
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
  settings: Mapping[str, Any] = MappingProxyType({}),
  least_weight: float = 0.0,
) -> dict[str, float]:
  """Joins runs, or copies a single one, and tests the combination; see `combine`.

  Its config is that of the first by name, with these settings. Runs that weigh less than `least_weight` are
  left out.

  Returns:
    The test metrics, as fractions; none if no test row has a label.
  """
  members = _named(folders)
  _check(members)
  with contextlib.ExitStack() as stack:
    stack.enter_context(locks.in_use(workdir, doing=_COMBINES))
    writer = stack.enter_context(contextlib.closing(MetricWriter(workdir)))
    with writer.stage("combine"):
      _write(members, workdir, settings, least_weight)
    return test_table.test(runs.reopen(workdir).trained(), writer)


def _named(folders: Sequence[pathlib.Path]) -> dict[str, pathlib.Path]:
  """Returns the folders by their names, sorted; equal names get numbers."""
  named: dict[str, pathlib.Path] = {}
  for folder in (folder.expanduser().resolve() for folder in folders):
    if folder in named.values():
      raise UserError(f"{folder} is given twice; give each run once")
    names = (folder.name, *(f"{folder.name}-{number}" for number in range(2, len(folders) + 2)))
    named[next(name for name in names if name not in named)] = folder
  return dict(sorted(named.items()))


def _check(members: Mapping[str, pathlib.Path]) -> None:
  """Raises UserError for a folder without a finished run, and for runs that do not fit together."""
  first, *others = map(_opened, members.values())
  for run in others:
    both = f"{first.workdir} and {run.workdir}"
    files, others_files = (each.dataset.manifest["files"] for each in (first, run))
    if differs := create.differing(files, others_files, _MAY_DIFFER):
      raise ConfigError(f"{both} are of other data ({differs} differs); combine runs on the same data")
    if not np.array_equal(run.data.validation.row_numbers, first.data.validation.row_numbers):
      raise ConfigError(
        f"{both} held out other rows, so there is nothing to fit their combination on; train with the same "
        "data.num_validation and train.seed"
      )


def _opened(folder: pathlib.Path) -> runs.Run:
  """Opens a run; raises UserError unless it is finished and ranks by 'hybrid'."""
  config = methods.read_config(folder / "config.json")
  if (folder / run_folder.COMBINED).exists():
    raise ConfigError(f"{folder} holds combined runs itself; name the folders in its members/")
  if config.eval.scores != "hybrid":
    raise ConfigError(
      f"{folder} ranks by {config.eval.scores!r}, and only runs that rank by 'hybrid' can be combined"
    )
  run = runs.reopen(folder)
  run.saved.to_use()
  if not (folder / run_folder.HYBRID).exists() or (config.train.refit and not run.is_refitted):
    raise UserError(f"{folder}: not finished; give its --mode=train command again, and it goes on")
  return run


def _write(
  members: Mapping[str, pathlib.Path],
  workdir: pathlib.Path,
  settings: Mapping[str, Any],
  least_weight: float,
) -> None:
  """Writes the folder of a combination; config.json, which makes it a run's folder, comes last."""
  if (workdir / "config.json").exists():
    return _check_same(members, workdir)
  path_safety.check(workdir)
  (_, first), *_ = members.items()
  with atomic.writing(workdir):
    for name, folder in members.items():
      _link(folder, workdir / run_folder.MEMBERS / name)
    data.link_into(first / "data", workdir / "data")
    (workdir / run_folder.HYBRID).unlink(missing_ok=True)
    atomic.write_json(workdir / run_folder.COMBINED, list(members))
  config = methods.read_config(first / "config.json")
  config = configs.changed(config, {**settings, "name": " + ".join(members)})
  joined = runs.reopen_members(workdir, config, may_refit=False)
  say(f"combine: learning on {len(joined.data.validation):,} texts that {', '.join(members)} held out")
  model = ranking.hybrid_model(joined.trained())
  if len(members) > 1 and model.num_rows:
    weights = {name: one.weight for name, one in zip(members, (model, *model.others))}
    say(f"combine: weights {', '.join(f'{name} {weight:.2f}' for name, weight in weights.items())}")
    least = min(least_weight, max(weights.values()))
    useful = {name: folder for name, folder in members.items() if weights[name] >= least}
    if len(useful) < len(members):
      return _write(useful, workdir, settings, least_weight)
  atomic.write_text(workdir / "config.json", configs.to_json(config))


def _check_same(members: Mapping[str, pathlib.Path], workdir: pathlib.Path) -> None:
  """Raises ConfigError unless the folder holds the combination of exactly these runs."""
  same = run_folder.combined(workdir) == list(members) and all(
    filecmp.cmp(folder / file, workdir / run_folder.MEMBERS / name / file, shallow=False)
    for name, folder in members.items()
    for file in ("config.json", run_folder.HYBRID)
  )
  if not same:
    raise ConfigError(f"{workdir} holds another run; give --workdir=ANOTHER_FOLDER, or delete this one")


def _link(folder: pathlib.Path, destination: pathlib.Path) -> None:
  """Copies a run to its place among the members, by hard links; files that grow are copied."""
  if destination.resolve() == folder:
    return

  def left_out(place: str, names: list[str]) -> set[str]:
    has_best = run_folder.BEST in names and any(pathlib.Path(place, run_folder.BEST).glob("[0-9]*"))
    out = {*_LEFT_OUT, *[run_folder.NEWEST] * has_best}
    return {name for name in names if name in out or name.startswith(".")}

  def copy(source: str, target: str) -> None:
    if source.endswith(".jsonl"):
      shutil.copyfile(source, target)
    else:
      atomic.link_or_copy(source, target)

  with whole_folder.in_turn(destination), whole_folder.built_beside(destination) as beside:
    shutil.copytree(folder, beside, ignore=left_out, copy_function=copy, dirs_exist_ok=True)
