"""Every file of every layout, damaged: each either loads, or ends in one line that names it.

A case is a number: with a seed it says which file of which layout is damaged, and how.
"""

import gzip
import io
import random
import re
import shutil
import traceback
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import sample_folders as samples

from xmc_jax import data
from xmc_jax.data.formats import lines, separated
from xmc_jax.errors import UserError

_LONGEST_MESSAGE = 600  # without the folder's name
# What is put between, or in the place of, good pieces.
_NUMBERS = f"0 -0 -1 1.5 1_0 +1 1e5 1e300 1e400 0x1 nan NaN -inf Infinity {2**31} {2**32 + 1} {2**63}"
_MARKS = r"""" "" ' \ : :: , | ; -> = # [ ] { } [] {} null true [[1]] \ud800 \u0000 "title" "target_ind" """
_BLANKS = (b"", b" ", b"\t", b"\n", b"\n\n", b"\r", b"\r\n", b"\v", b" " * 5000)
_BYTES = (*_BLANKS, b"\0", b"\x1a", b"\x85", b"\xff", b"\xc3")
_ENCODED = (b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xf4\x90\x80\x80", "\u0663".encode())
_OUTSIDE = (*_ENCODED, b"\xef\xbb\xbf", b"\xff\xfe")
_LONG = (b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"x" * 70_000, b"0:1 " * 3000, b"1," * 3000)
_HOSTILE = (*f"{_NUMBERS} {_MARKS}".encode().split(), *_BYTES, *_OUTSIDE, *_LONG)
_PIECES = (rb"-?\d+(\.\d+)?", rb"[^\s:,|\[\]{}\"]+", rb"[^\n]*\n?")  # a number, a word, a line


def _replaced(content: bytes, rng: random.Random) -> bytes:
  """Replaces, drops, repeats or inserts a piece."""
  pieces = list(re.finditer(rng.choice(_PIECES), content))
  first, end = rng.choice(pieces).span() if pieces else (0, 0)
  new = rng.choice((rng.choice(_HOSTILE), b"", content[first:end] * rng.choice((2, 3, 500))))
  return content[:first] + new + content[end if rng.random() < 0.8 else first :]


def _bytes_changed(content: bytes, rng: random.Random) -> bytes:
  changed = bytearray(content)
  for _ in range(rng.choice((1, 1, 2, 8)) if changed else 0):
    changed[rng.randrange(len(changed))] = rng.choice((0, 9, 10, 13, 32, 128, 255, rng.randrange(256)))
  return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
  first, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
  return content[:first] + rng.choice((b"", content[end:], content[first:end] + content[first:]))


def _recoded(content: bytes, rng: random.Random) -> bytes:
  text = content.decode("latin-1")
  line_ends = content.replace(b"\n", rng.choice((b"\r\n", b"\r")))
  latin = content.decode("utf-8", "replace").encode("latin-1", "replace")
  return rng.choice((line_ends, text.encode("utf-16"), text.encode("utf-16-le"), latin, content.upper()))


def _all_replaced(content: bytes, rng: random.Random) -> bytes:
  return rng.choice((b"\0" * 4096, rng.randbytes(500), b"\x1f\x8b", b"PK\x03\x04", *_HOSTILE))


_CHANGES = (_replaced, _replaced, _replaced, _bytes_changed, _cut, _recoded, _all_replaced)


def _damaged(name: str, content: bytes, rng: random.Random) -> tuple[bytes, str]:
  """Damages a file from outside or, where it is packed, from inside; returns it, and what was done."""
  if name.endswith(".gz") and rng.random() < 0.7:
    inside, how = _damaged(name.removesuffix(".gz"), gzip.decompress(content), rng)
    return gzip.compress(inside, 1), f"inside: {how}"
  if name.endswith(".npz") and rng.random() < 0.8:
    with np.load(io.BytesIO(content)) as archive:
      arrays = dict(archive)
    member = rng.choice(sorted(arrays))
    arrays[member] = _hostile_array(arrays[member], rng)
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue(), f"{member}: {arrays[member].dtype} {arrays[member].shape}"
  changes = rng.choices(_CHANGES, k=rng.choice((1, 1, 1, 2, 3)))
  for change in changes:
    content = change(content, rng)
  return content, ", ".join(change.__name__ for change in changes)


def _hostile_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
  """Changes a value of an array, its type or its shape."""
  flat = array.ravel()
  if rng.random() < 0.4 and array.size and array.dtype.kind in "iuf":
    value = rng.choice((0, 1, -1, 3, 2**31 - 1, -(2**31), 10**12, 2**62, 1e300, np.nan, np.inf))
    flat = flat.astype(np.float64 if isinstance(value, float) else np.int64)
    flat[rng.randrange(flat.size)] = value
    return flat.reshape(array.shape)
  if rng.random() < 0.5:
    kind = rng.choice(("i1", "u8", "i8", "f2", "f8", "c16", "?", "U7", "S7", "O", "M8[s]", "i4,f4"))
    has_no_cast = kind in ("M8[s]", "i4,f4") or array.dtype.kind in "SU"
    return np.zeros(array.shape, kind) if has_no_cast else array.astype(kind)
  formats = [np.array(name) for name in (b"csc", b"coo", b"dia", b"lil", b"", "csr_array", b"\xff")]
  return rng.choice((array[None], flat[:-1], np.append(flat, flat), flat[:0], flat[:1], *formats))


class Outcome(NamedTuple):
  """What became of a case."""

  layout: str  # with .gz where all is packed
  name: str  # of the file that was damaged
  how: str
  kind: str  # 'loaded', 'refused', or 'failed'
  said: str  # the one line, or what went wrong


def _files_of(folder: Path) -> dict[str, bytes]:
  files = (path for path in sorted(folder.rglob("*")) if path.is_file())
  return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _with_label_table(folder: Path) -> Path:
  """Tables whose labels are described, with parents, in a third."""
  samples.separated(folder)
  (folder / "labels.txt").unlink()
  rows = [f'{at},"{text}",more,{at - 1 if at else ""}' for at, text in enumerate(samples.LABELS)]
  samples.write(folder / "labels.csv", samples.lines(["id,title,description,parent", *rows]))
  return folder


def _alone(folder: Path) -> Path:
  """One table of everything, labels by name."""
  samples.write(folder / "all.csv", 'text,tags\na,"x|y"\n"b\nc",x\nd,\n"e ""f""",z|x\n' + "g,y\n" * 5)
  return folder


_LAYOUTS = {**samples.LAYOUTS, "csv and a tree of labels": _with_label_table, "one table": _alone}
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

  def run(self, number: int) -> Outcome:
    """Runs one case; the same number and seed give the same case."""
    rng = random.Random(f"{self._seed} {number}")
    place = self._folder / "case"
    try:
      return self._run(place, rng)
    finally:
      shutil.rmtree(place, ignore_errors=True)

  def _run(self, place: Path, rng: random.Random) -> Outcome:
    layout = rng.choice(list(self._files))
    files = dict(self._files[layout])
    name = rng.choice(sorted(files))
    files[name], how = _damaged(name, files[name], rng)
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
