"""Opens finished runs for a comparison: reads their folders, without parameters and devices."""

import json
import pathlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from xmc_jax import data, methods
from xmc_jax.config.defaults import KEYS
from xmc_jax.errors import UserError
from xmc_jax.metrics.hits import Hits, as_truth, find_hits
from xmc_jax.report import training_records
from xmc_jax.retrieval.search import Ranking
from xmc_jax.runs import evaluate
from xmc_jax.storage import path_safety, run_folder

# The files of a prepared folder that define the test. Equal checksums mean equal texts, truth and filter.
_TEST_FILES = (
  *("test.texts", "test.texts_offsets", "test.truth.columns", "test.truth.columns_offsets"),
  *("test.filter.columns", "test.filter.columns_offsets", "labels.texts", "labels.texts_offsets"),
)
_LETTERS = "ABCDEFGHIJKLMNOPQRST"


class Finished(NamedTuple):
  """Describes a run that was trained and tested.

  Attributes:
    letter, name: its names in the comparison: a letter such as 'A', and its folder's name.
    workdir, config, dataset: as of any run.
    scores: the scores that rank the test points.
    step: the step of the tested parameters.
    frequency: `[L]` number of training points of each label.
    ranking: the ranking of the test points, from predictions/test.npz or another file beside it.
    hits: the true pairs of the ranking.
    curves, seconds: its readings during training, and its time by stage.
  """

  letter: str
  name: str
  workdir: pathlib.Path
  config: Any
  dataset: data.Dataset
  scores: str
  step: int
  frequency: np.ndarray
  ranking: Ranking
  hits: Hits
  curves: training_records.Curves
  seconds: Mapping[str, float]

  @property
  def method(self) -> str:
    names = run_folder.combined(self.workdir)
    return f"{' and '.join(names)} combined" if names else self.config.method.name

  @property
  def encoder(self) -> str:
    return pathlib.PurePath(self.config.encoder.name).name


def opened(workdirs: Sequence[pathlib.Path], scores: str = "") -> list[Finished]:
  """Opens runs to compare; checks that all were tested on the same points.

  Args:
    workdirs: their folders.
    scores: the scores that rank in all runs; '' is each run's own.

  Raises:
    UserError: fewer than two runs, too many, the same run twice, or a run that is not finished, not ranked
      by these scores, or tested on other data.
  """
  known = KEYS["eval"]["scores"].choices
  if scores and scores not in known:
    raise UserError(f"--scores={scores} is unknown; choose one of {', '.join(known)}")
  workdirs = [pathlib.Path(workdir).expanduser() for workdir in workdirs]
  if not 2 <= len(workdirs) <= len(_LETTERS):
    raise UserError(f"a comparison needs two or more runs, at most {len(_LETTERS)}, and got {len(workdirs)}")
  places = [workdir.resolve() for workdir in workdirs]
  for number, place in enumerate(places):
    if place in places[:number]:
      raise UserError(f"{workdirs[number]} is given twice; give each run once")
  for workdir in workdirs:
    _check_tested(workdir, scores)
  for workdir in workdirs[1:]:
    _check_same_test(workdirs[0], workdir)
  return [_opened(letter, workdir, scores) for letter, workdir in zip(_LETTERS, workdirs)]


def _check_tested(workdir: pathlib.Path, scores: str) -> None:
  files = _files(workdir, scores)
  path_safety.check(workdir)
  for name in ("report/metrics.json", "predictions/test.npz", "report/seconds.json"):
    if not (workdir / name).is_file():
      raise UserError(
        f"{workdir}: not finished, as {name} is missing; give its --mode=train command again, and it goes on"
      )
  for path in files:
    if not path.is_file():
      raise UserError(
        f"{workdir}: not ranked by {scores} yet, as {path.relative_to(workdir)} is missing; give "
        f"--mode=evaluate --workdir={workdir} --scores={scores} first"
      )


def _files(workdir: pathlib.Path, scores: str) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns the paths of the report and the predictions by these scores; a run's own have no suffix."""
  own = methods.read_config(workdir / "config.json").eval.scores
  suffix = f"_{scores}" if scores not in ("", own) else ""
  return workdir / "report" / f"metrics{suffix}.json", workdir / "predictions" / f"test{suffix}.npz"


def _check_same_test(first: pathlib.Path, other: pathlib.Path) -> None:
  one, two = (data.read_manifest(workdir / "data")["files"] for workdir in (first, other))
  for name in _TEST_FILES:
    if one[f"{name}.npy"]["sha256"] != two[f"{name}.npy"]["sha256"]:
      what = "labels" if name.startswith("labels") else "test points"
      raise UserError(
        f"{first} and {other} were tested on different {what} ({name}.npy differs); compare runs on the "
        "same data"
      )


def _opened(letter: str, workdir: pathlib.Path, scores: str) -> Finished:
  config, dataset = methods.read_config(workdir / "config.json"), data.load_prepared(workdir / "data")
  report, predictions = _files(workdir, scores)
  try:
    step = int(json.loads(report.read_text(encoding="utf-8"))["step"])
    ranking = evaluate.read_predictions(predictions, config.eval.k)
  except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    why, flag = " ".join(str(error).split())[:200], f" --scores={scores}" if scores else ""
    remedy = f"--mode=evaluate --workdir={workdir}{flag} makes them again"
    raise UserError(f"{workdir}: report and predictions are not readable ({why}); {remedy}") from None
  return Finished(
    letter=letter,
    name=workdir.resolve().name,
    workdir=workdir,
    config=config,
    dataset=dataset,
    scores=scores or config.eval.scores,
    step=step,
    frequency=np.asarray((dataset.train.truth > 0).sum(0)).ravel(),
    ranking=ranking,
    hits=find_hits(ranking.ids, as_truth(dataset.test.unfiltered_positives)),
    curves=training_records.curves(workdir),
    seconds=training_records.seconds(workdir),
  )
