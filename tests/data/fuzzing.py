"""Every file of every layout, damaged: each either loads, or ends in one line that names it.

A case is a number: with a seed it says which file of which layout is damaged, and how.
"""

import gzip
import random
import shutil
import traceback
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import mutations
import sample_folders as samples

from xmc_jax import data
from xmc_jax.data.formats import lines, separated
from xmc_jax.errors import UserError

_LONGEST_MESSAGE = 600  # without the folder's name


class Outcome(NamedTuple):
  """What became of a case.

  Attributes:
    layout: the layout, 'prepared' for a prepared folder; with .gz where all is packed.
    name: the file that was damaged.
    how: what was done to it.
    kind: 'loaded', 'refused', or 'failed'.
    said: the one line, or what went wrong.
  """

  layout: str
  name: str
  how: str
  kind: str
  said: str


def _files_of(folder: Path) -> dict[str, bytes]:
  files = (path for path in sorted(folder.rglob("*")) if path.is_file())
  return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _with_label_table(folder: Path, kind: str) -> Path:
  """Tables whose labels are described in a third."""
  samples.separated(folder, "csv")
  (folder / "labels.txt").unlink()
  if kind == "tree":
    rows = [f'k{at},"{text}",more,{f"k{at - 1}" if at else ""}' for at, text in enumerate(samples.LABELS)]
    samples.write(folder / "labels.csv", samples.lines(["id,title,description,parent", *rows]))
    for name in ("train", "test"):
      cells = (folder / f"{name}.csv").read_text().replace("0", "k0").replace("1", "k1").replace("3", "k3")
      samples.write(folder / f"{name}.csv", cells)
  elif kind == "csv":
    rows = ["id,title", *(f'{at},"{text}"' for at, text in enumerate(samples.LABELS))]
    samples.write(folder / "labels.csv", samples.lines(rows))
  else:
    rows = [f'{{"id": {at}, "title": "{text}"}}' for at, text in enumerate(samples.LABELS)]
    samples.write(folder / "labels.jsonl", samples.lines(rows))
  return folder


def _alone(folder: Path) -> Path:
  """One table of everything, labels by name."""
  samples.write(folder / "all.csv", 'text,tags\na,"x|y"\n"b\nc",x\nd,\n"e ""f""",z|x\n' + "g,y\n" * 5)
  return folder


_LAYOUTS = {
  **samples.LAYOUTS,
  "csv and labels.csv": partial(_with_label_table, kind="csv"),
  "csv and labels.jsonl": partial(_with_label_table, kind="jsonl"),
  "csv and a tree of labels": partial(_with_label_table, kind="tree"),
  "one table": _alone,
}
_OPTIONS = {"csv and a tree of labels": {"label_text": "title+description", "label_parent": "parent"}}


class Cases:
  """Runs cases in a folder, which it fills and empties as it needs."""

  def __init__(self, folder: Path, seed: int):
    self._folder, self._seed = folder, seed
    self._tokenizer = data.train_tokenizer(["apple tree boat grün red view pear dunes nothing"], 120)
    self._files = {}
    for layout, make in _LAYOUTS.items():
      plain = _files_of(make(folder / "plain"))
      shutil.rmtree(folder / "plain")
      self._files[layout] = plain
      if layout == "huggingface":  # which `datasets` never packs
        continue
      self._files[f"{layout} .gz"] = {f"{name}.gz": gzip.compress(content) for name, content in plain.items()}
    raw = samples.index(folder / "raw")
    prepared = data.prepare(raw, folder / "prepared", tokenizer=self._tokenizer).folder
    self._raw, self._prepared = raw, _files_of(prepared)
    shutil.rmtree(prepared)

  def run(self, number: int) -> Outcome:
    """Runs one case; the same number and seed give the same case."""
    rng = random.Random(f"{self._seed} {number}")
    place = self._folder / "case"
    try:
      return self._of_prepared(place, rng) if rng.random() < 0.2 else self._of_raw(place, rng)
    finally:
      shutil.rmtree(place, ignore_errors=True)

  def _of_raw(self, place: Path, rng: random.Random) -> Outcome:
    layout = rng.choice(list(self._files))
    files = dict(self._files[layout])
    name = rng.choice(sorted(files))
    files[name], how = mutations.damaged(name, files[name], rng)
    for other, content in files.items():
      path = place / "raw" / other
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content)
    tokenizer = self._tokenizer if rng.random() < 0.1 else None
    options = _OPTIONS.get(layout.removesuffix(" .gz"), {})

    def work():
      prepared = data.prepare(place / "raw", place / "out", tokenizer=tokenizer, **options)
      _look_at_all(data.load_prepared(place / "out"))
      counts.append(prepared.manifest["counts"])

    counts = []
    kind, said = _judged(work, place)
    if kind == "refused" and (left := [path.name for path in place.iterdir() if path.name != "raw"]):
      kind, said = "failed", f"left behind: {left}"
    if rng.random() < 0.1:
      shutil.rmtree(place / "out", ignore_errors=True)
      with mock.patch.object(lines, "CHUNK_BYTES", 99), mock.patch.object(separated, "CHUNK_BYTES", 99):
        in_pieces, said_of_pieces = _judged(work, place)
      if in_pieces != kind or counts[1:] != counts[:-1]:
        in_pieces += f" in small pieces ({said_of_pieces})"
        kind, said = "failed", f"{kind} ({said}), but {in_pieces}; {counts}"
    return Outcome(layout, name, how, kind, said)

  def _of_prepared(self, place: Path, rng: random.Random) -> Outcome:
    files = dict(self._prepared)
    name = rng.choice([*files, *["manifest.json"] * 10])
    before = len(files[name])
    files[name], how = mutations.damaged(name, files[name], rng)
    if name != "manifest.json" and rng.random() < 0.8:
      # As if it had been written so: otherwise its size alone gives it away.
      old, new = (f'"{name}": {{\n   "size": {size},'.encode() for size in (before, len(files[name])))
      assert old in files["manifest.json"]
      files["manifest.json"] = files["manifest.json"].replace(old, new)
    (place / "out").mkdir(parents=True)
    for other, content in files.items():
      (place / "out" / other).write_bytes(content)

    def work():
      dataset = data.load_prepared(place / "out")
      data.summary(dataset.manifest), dataset.graphs, list(dataset.labels.texts)[:2]

    if rng.random() < 0.3:
      work = lambda: data.prepare(self._raw, place / "out", tokenizer=self._tokenizer)
    return Outcome("prepared", name, how, *_judged(work, place))


def _look_at_all(dataset) -> None:
  """What has loaded is sound."""
  for split in (dataset.train, dataset.test):
    split.truth.copy().check_format(full_check=True)
    split.filter.copy().check_format(full_check=True)
    assert len(list(split.texts)) == split.truth.shape[0] == split.filter.shape[0]
    assert (split.truth.data > 0).all()
  assert len(list(dataset.labels.texts)) == dataset.num_labels > 0
  for graph in dataset.graphs.values():
    assert len(list(graph.anchors.texts)) == len(graph.anchors)
  data.summary(dataset.manifest)


def _judged(work, place: Path) -> tuple[str, str]:
  """(kind, said) of an Outcome."""
  try:
    work()
  except UserError as error:
    said = str(error)
    if "\n" in said or str(place) not in said:
      return "failed", f"not one line that names the file: {said!r}"
    if len(said.replace(str(place), "")) > _LONGEST_MESSAGE:
      return "failed", f"{len(said)} characters: {said[:_LONGEST_MESSAGE]}"
    return "refused", said
  except Exception as error:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "xmc_jax" in frame.filename][-1:] + frames[-1:]
    where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in ours)
    return "failed", f"{type(error).__name__} at {where}: {str(error)[:200]}"
  return "loaded", ""
