"""Hands the second half of a set to a run of its first half, in portions, each predicted and then learnt.

  python -m benchmarks.learning --data=data/LF-CppDocs-SeeAlso
  python -m benchmarks.learning --data=data/Finna-YSO-sv --settings train.num_epochs=5 --retrain --train_on=3

The first half, drawn by a seed, has all labels of the set; the second comes in random order. Curves, with a
value for each portion: "no learning" is the run of the first half, "learn only" that with Model.learn of each
portion, "retrained at each tenth" (--retrain) nine new runs on the rows so far. `test` has the test rows
after all portions, and by a run on all rows, `full`: that of benchmarks/accuracy.py if --runs is the same;
`trained on` starts from the run of the first half and has --train_on epochs.

Labels without a point in the first half are new: "new R@10" counts these alone, and `after` how often one is
among the first ten of a text that has it, by the number of earlier portions' texts with it; "1, near" if that
is among the ten most alike so far, by the run's vectors. Texts that came before, `repeated`, do not count.

What is in --runs is not done again. Writes docs/results/learning/SET.json.
"""

import argparse
import gzip
import json
import pathlib
import re
import shutil
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks import accuracy_rows, children, flags
from benchmarks.accuracy_methods import Board, say
from xmc_jax import data, metrics
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs import create, evaluate
from xmc_jax.runs.model import Model
from xmc_jax.storage import atomic

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / "docs" / "results" / "learning"
_DEPTH, _FIRST = 100, 10
_SHOWN = ("P@1", "P@5", "PSP@5", "R@10", "R@100")
_UNTAUGHT, _TAUGHT, _RETRAINED = "no learning", "learn only", "retrained at each tenth"
Rankings = dict[str, np.ndarray]


class Halves(NamedTuple):
  """Holds a set, and which of its training rows come when.

  Attributes:
    dataset: the whole set.
    first: rows of the first half, and of a validation file, ascending.
    portions: rows of each portion of the second half.
    inverse: `[L]` inverse propensities, by all training rows.
    is_new: `[L]` bool, True = has points in the second half alone.
  """

  dataset: data.Dataset
  first: np.ndarray
  portions: list[np.ndarray]
  inverse: np.ndarray
  is_new: np.ndarray


def halves_of(dataset: data.Dataset, num_portions: int, settings: Any) -> Halves:
  """Divides the training rows; `settings` is a config's `eval`."""
  num, train = len(dataset.train) - dataset.num_validation, dataset.train
  order, more = np.random.default_rng(0).permutation(num), np.arange(num, len(train))
  first, second = np.concatenate([np.sort(order[: num // 2]), more]), order[num // 2 :]
  inverse = metrics.inverse_propensity(train.truth, settings.propensity_a, settings.propensity_b)
  has = [
    np.bincount(train.unfiltered_positives[rows].indices, minlength=len(inverse)) for rows in (first, second)
  ]
  return Halves(dataset, first, np.array_split(second, num_portions), inverse, (has[0] == 0) & (has[1] > 0))


def write_copy(source: pathlib.Path, target: pathlib.Path, rows: np.ndarray) -> None:
  """Copies a folder of data with only these training rows, ascending, unless there is a copy."""
  if target.exists():
    return
  part = target.with_name("part")
  shutil.rmtree(part, ignore_errors=True)
  part.mkdir(parents=True)
  place = {row: number for number, row in enumerate(rows.tolist())}
  for path in source.iterdir():
    if not re.search("trn|train", path.name):
      shutil.copyfile(path, part / path.name)
      continue
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
      lines = file.read().removesuffix(b"\n").split(b"\n")
    if "filter_labels" in path.name:
      pairs = [(int(row), label) for row, label in map(bytes.split, filter(bytes.strip, lines))]
      lines = [b"%d %s" % (place[row], label) for row, label in pairs if row in place]
    elif path.name.endswith("trn_X_Y.txt"):
      lines = [b"%d %s" % (len(rows), lines[0].split()[1]), *(lines[1 + row] for row in place)]
    else:
      lines = [lines[row] for row in place]
    with opened(part / path.name, "wb") as file:
      file.write(b"".join(line + b"\n" for line in lines))
  part.rename(target)


def trained(dataset: data.Dataset, row: str, board: Board) -> pathlib.Path:
  """Trains a row of benchmarks/accuracy.py, unless it is finished; returns its folder."""
  if not accuracy_rows.fit(row, 0, board, accuracy_rows.Options({}, {}), dataset):
    raise SystemExit("not finished; the same command goes on")
  return board.folder(row, 0)


def trained_on(dataset: data.Dataset, rows: np.ndarray, row: str, board: Board, name: str) -> Model:
  """Trains on some rows, ascending, and opens the run; checks that these are its rows."""
  place = board._replace(name=f"{board.name}.{name}", data=str(board.runs / f"{board.name}.{name}" / "data"))
  num = len(dataset.train) - dataset.num_validation
  write_copy(pathlib.Path(board.data), pathlib.Path(place.data), rows[rows < num])
  model = Model.load(trained(dataset, row, place), scores="hybrid")
  same = list(model.keys) == list(dataset.label_keys)
  if not same or list(model.dataset.train.texts) != list(dataset.train.texts[rows]):
    raise SystemExit(f"{place.data} has other rows or labels than {board.data}")
  return model


def ranked(model: Model, split: data.Split) -> np.ndarray:
  """Ranks as an evaluation does, without filtered pairs; returns ids `[n, 100]`, padded with -1."""
  texts, depth = list(split.texts), min(_DEPTH, len(model.keys))
  ranker = model._learner.now(opened=True).ranker
  ids = ranker.rank(Queries(model.embed(texts), texts), depth, split.filter).ids
  return np.pad(ids, ((0, 0), (0, _DEPTH - depth)), constant_values=-1)


def tested_then_taught(model: Model, halves: Halves, learns: bool) -> Rankings:
  """Ranks each portion, then learns it; returns ids of the second half and of the test rows, and seconds."""
  train, truth = halves.dataset.train, halves.dataset.train.unfiltered_positives.tolil().rows
  ids, seconds = [], []
  for number, rows in enumerate([halves.first, *halves.portions]):
    start = time.perf_counter()
    if number:
      ids.append(ranked(model, train.rows(rows)))
    ranked_at = time.perf_counter()
    if number and learns:
      rows = [row for row in rows if truth[row]]
      labels = [[model.keys[label] for label in truth[row]] for row in rows]
      model.learn([train.texts[row] for row in rows], labels)
    seconds.append((ranked_at - start, time.perf_counter() - ranked_at))
  predict, learnt = np.array(seconds[1:]).T
  arrays = {"ids": np.concatenate(ids), "test": ranked(model, halves.dataset.test)}
  if not learns:
    arrays["vectors"] = model.embed(train.texts[np.concatenate([halves.first, *halves.portions])])
  return {**arrays, "predict": predict, "learn": learnt}


def retrained(half: Model, halves: Halves, row: str, board: Board) -> Rankings:
  """Ranks each tenth of the portions by a run on all rows before it."""
  ids, model, done, train = [], half, halves.first, halves.dataset.train
  num = len(halves.portions)
  for number, at in enumerate(np.array_split(np.arange(num), min(10, num))):
    rows = np.concatenate([halves.portions[portion] for portion in at])
    if number:
      model = trained_on(halves.dataset, np.sort(done), row, board, f"tenth_{number}")
    ids.append(ranked(model, train.rows(rows)))
    done = np.concatenate([done, rows])
  return {"ids": np.concatenate(ids)}


def scores(ids: np.ndarray, truth, halves: Halves) -> dict[str, float | None]:
  """Returns the metrics of a ranking, and recalls of new labels alone; None if no row has one."""
  means = metrics.evaluate(ids, truth, ks=(1, 5, 10, 100), inverse_propensity=halves.inverse)
  new = truth.multiply(halves.is_new).tocsr()
  new.eliminate_zeros()
  of_new = metrics.evaluate(ids, new, ks=(10, 100)) if new.nnz else {}
  found = [(name, means[name]) for name in _SHOWN]
  found += [(f"new {name}", of_new.get(name)) for name in ("R@10", "R@100")]
  return {name: None if value is None else round(value, 4) for name, value in found}


def after(halves: Halves, curves: dict[str, np.ndarray], vectors: np.ndarray) -> dict[str, dict]:
  """Returns how often new labels are among the first ten of a text, by their number of earlier texts.

  `vectors` `[n, D]` are those of the first half and the portions, in order.
  """
  train, start, first = halves.dataset.train, len(halves.first), len(halves.first)
  texts = enumerate(train.texts[np.concatenate([halves.first, *halves.portions])])
  came = list({text: at for at, text in reversed(list(texts))}.values())  # where each text came first
  seen, example = np.zeros((2, len(halves.is_new)), int)
  cases = []
  for rows in halves.portions:
    of_row, labels = train.unfiltered_positives[rows].nonzero()
    of_pair = start + of_row, labels, seen[labels], example[labels], np.full(len(labels), start)
    cases.append(np.stack(of_pair)[:, halves.is_new[labels] & np.isin(start + of_row, came)])
    np.add.at(seen, labels, 1)
    example[labels] = start + of_row
    start += len(rows)
  places, labels, before, *_ = table = np.concatenate(cases, axis=1)
  closer = np.zeros(len(places), int)  # earlier texts that are more alike than the one with the label
  for case in np.flatnonzero(before == 1):
    at, _, _, one, end = table[:, case]
    closer[case] = (vectors[:end] @ vectors[at] > vectors[one] @ vectors[at]).sum()
  near = (before == 1) & (closer < _FIRST)
  groups = {"0": before == 0, "1": before == 1, "1, near": near, "2": before == 2}
  found = {}
  for name, chosen in groups.items():
    at, wanted = places[chosen] - first, labels[chosen, None]
    right = {curve: (ids[at, :_FIRST] == wanted).any(1) for curve, ids in curves.items() if len(at)}
    shares = {curve: round(float(is_right.mean()), 4) for curve, is_right in right.items()}
    found[name] = {"cases": len(at), **shares}
  return found


def summary(halves: Halves, found: dict[str, Rankings], of_all: dict[str, np.ndarray]) -> dict[str, Any]:
  """Computes what is shown of the rankings of each curve, and of test rows by runs on all rows."""
  train, truth = halves.dataset.train, halves.dataset.test.unfiltered_positives
  ends = np.cumsum([len(rows) for rows in halves.portions])
  curves: dict[str, dict[str, list]] = {}
  for name, of_curve in found.items():
    parts = zip(np.split(of_curve["ids"], ends[:-1]), halves.portions)
    each = [scores(ids, train.unfiltered_positives[rows], halves) for ids, rows in parts]
    curves[name] = {metric: [one[metric] for one in each] for metric in each[0]}
  of_test = {"half": found[_UNTAUGHT]["test"], "learnt": found[_TAUGHT]["test"], **of_all}
  pair, ks = [of_all["full"], of_test["learnt"]], (1, 5, 10, 100)
  differences = metrics.paired_differences(pair, truth, ks=ks, inverse_propensity=halves.inverse)[0]
  second = set(train.texts[np.concatenate(halves.portions)]) - set(train.texts[halves.first])
  learn, predict = found[_TAUGHT]["learn"], found[_TAUGHT]["predict"]
  seconds = {"learn": learn.sum(), "learn_median": np.median(learn), "predict_median": np.median(predict)}
  return {
    "rows": {"first": len(halves.first), "second": int(ends[-1]), "test": truth.shape[0]},
    "repeated": int(ends[-1]) - len(second),
    "labels": {"all": len(halves.is_new), "new": int(halves.is_new.sum())},
    "seconds": {name: round(float(value), 3) for name, value in seconds.items()},
    "test": {name: scores(ids, truth, halves) for name, ids in of_test.items()},
    "learnt_less_full": {name: [round(value, 4) for value in differences[name][:3]] for name in _SHOWN},
    "after": after(halves, {name: each["ids"] for name, each in found.items()}, found[_UNTAUGHT]["vectors"]),
    "curves": curves,
  }


def measured(given: argparse.Namespace, board: Board) -> dict[str, Any]:
  """Does the steps that are not done yet; returns what docs/results keeps."""
  config, row = accuracy_rows.config_of(board), given.row
  dataset = create.load_data(config, None, "")
  halves, found = halves_of(dataset, given.portions, config.eval), {}
  half = trained_on(dataset, halves.first, row, board, "half")
  boards = {"half": board._replace(name=f"{board.name}.half"), "full": board}
  of_half = boards["half"].folder(row, 0)
  if given.train_on:
    start = f"--config.init_from={of_half}", f"--config.train.num_epochs={given.train_on}"
    boards["trained on"] = board._replace(name=f"{board.name}.on", extra=(*board.extra, *start))
  for name in (_UNTAUGHT, _TAUGHT, *[_RETRAINED] * given.retrain):
    place = of_half.with_name(f"{row}, {name}, {given.portions}")
    if not place.with_suffix(".npz").exists():
      say(f"{board.name}: {name}")
      if name == _RETRAINED:
        arrays = retrained(half, halves, row, board)
      else:  # by a copy, as what is learnt stays in a run's folder
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(of_half, place)
        arrays = tested_then_taught(Model.load(place, scores="hybrid"), halves, name == _TAUGHT)
        shutil.rmtree(place)
      with atomic.written_whole(place.with_suffix(".npz")) as beside, beside.open("wb") as stream:
        np.savez(stream, **arrays)
    found[name] = dict(np.load(place.with_suffix(".npz")))
  of_all = {}
  for name in list(boards)[1:]:
    ranking = trained(dataset, row, boards[name]) / "predictions" / "test.npz"
    of_all[name] = evaluate.read_predictions(ranking, _DEPTH).ids
  kept = summary(halves, found, of_all)
  for name, place in boards.items():
    kept["seconds"][f"train_{name}"] = round(accuracy_rows.fit_seconds(row, 0, place), 3)
  return {"portions": given.portions, "machine": children.machine(), **kept}


def main() -> None:
  paths = {"data": pathlib.Path, "runs": _ROOT / "runs" / "learning"}
  usual = {"row": "rae_xmc", "preset": "debian", "settings": (), "portions": 50}
  given = flags.parse(__doc__, **paths, **usual, retrain=False, train_on=0)
  folder = given.data.expanduser().resolve()
  extra = tuple(map("--config.{}".format, given.settings))
  options = {name: vars(given)[name] for name in ("row", "preset", "settings", "train_on")}
  board = Board(folder.name, given.preset, str(folder), given.runs.resolve(), extra)
  found = {"set": folder.name, **options, **measured(given, board)}
  lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
  _RESULTS.mkdir(parents=True, exist_ok=True)
  atomic.write_text(_RESULTS / f"{folder.name}.json", "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
  main()
