"""Damage to files, as disks, downloads, editors and ill will do it: from bytes to bytes, by a seed."""

import gzip
import io
import random
import re
import zipfile
from collections.abc import Callable

import numpy as np

# What is put between, or in the place of, good pieces.
_NUMBERS = (
  "0 -0 -1 1.5 1_0 +1 1e5 1e300 1e400 0x1 nan NaN -inf Infinity 2147483648 4294967297 1000000000000 "
  "9223372036854775808 " + "9" * 40 + " " + "9" * 5000
)
_MARKS = r"""" "" ' \ : :: , | ; -> = # [ ] { } [] {} null true [[1]] \ud800 \u0000 "title" "target_ind" """
_BLANKS = (b"", b" ", b"\t", b"\n", b"\n\n", b"\r", b"\r\n", b"\v", b"\f", b" " * 5000)
_CONTROLS = (b"\x00", b"\x1a", b"\x1c", b"\x7f", b"\x85", b"\xff", b"\xc3", b"\xed\xa0\x80")
_OUTSIDE = (b"\xc2\x85", b"\xe2\x80\xa8", b"\xf4\x90\x80\x80", "٣".encode(), "é́".encode())
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe")
_LONG = (b"[" * 2000, b"[" * 950 + b"]" * 950, b'{"a":' * 2000, b"x" * 70_000, b"0:1 " * 3000, b"1," * 3000)
_WORDS = tuple(word.encode() for words in (_NUMBERS, _MARKS) for word in words.split())
HOSTILE = (*_WORDS, *_BLANKS, *_CONTROLS, *_OUTSIDE, *_BYTE_ORDER_MARKS, *_LONG)
_NUMBER = re.compile(rb"-?\d+(\.\d+)?")
_WORD = re.compile(rb"[^\s:,|\[\]{}\"]+")


def _flip_bits(content: bytes, rng: random.Random) -> bytes:
  changed = bytearray(content)
  for _ in range(rng.choice((1, 1, 2, 8)) if changed else 0):
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
  return bytes(changed)


def _set_bytes(content: bytes, rng: random.Random) -> bytes:
  changed = bytearray(content)
  for _ in range(rng.choice((1, 2, 4)) if changed else 0):
    new = rng.choice((0, 1, 9, 10, 13, 32, 127, 128, 255, rng.randrange(256)))
    changed[rng.randrange(len(changed))] = new
  return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
  return content[: rng.randrange(len(content) + 1)]


def _drop_piece(content: bytes, rng: random.Random) -> bytes:
  first, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
  return content[:first] + content[min(end, first + rng.choice((1, 4, 64, 10_000))) :]


def _splice(content: bytes, rng: random.Random) -> bytes:
  first, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
  at = rng.randrange(len(content) + 1)
  return content[:at] + content[first:end] + content[at:]


def _insert(content: bytes, rng: random.Random) -> bytes:
  at = rng.randrange(len(content) + 1)
  return content[:at] + rng.choice(HOSTILE) * rng.choice((1, 1, 1, 3)) + content[at:]


def _replaced(pattern: re.Pattern) -> Callable[[bytes, random.Random], bytes]:
  def replace(content: bytes, rng: random.Random) -> bytes:
    found = list(pattern.finditer(content))
    if not found:
      return _insert(content, rng)
    match = rng.choice(found)
    return content[: match.start()] + rng.choice(HOSTILE) + content[match.end() :]

  return replace


def _lines(change: Callable[[list[bytes], random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
  def change_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    change(lines, rng)
    return b"\n".join(lines)

  return change_lines


def _drop_line(lines: list[bytes], rng: random.Random) -> None:
  del lines[rng.randrange(len(lines))]


def _repeat_line(lines: list[bytes], rng: random.Random) -> None:
  at = rng.randrange(len(lines))
  lines[at:at] = [lines[at]] * rng.choice((1, 1, 3, 500))


def _swap_lines(lines: list[bytes], rng: random.Random) -> None:
  one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
  lines[one], lines[two] = lines[two], lines[one]


def _replace_line(lines: list[bytes], rng: random.Random) -> None:
  lines[rng.randrange(len(lines))] = rng.choice(HOSTILE)


def _recode(content: bytes, rng: random.Random) -> bytes:
  text = content.decode("latin-1")
  return rng.choice(
    (
      content.replace(b"\n", b"\r\n"),
      content.replace(b"\n", b"\r"),
      text.encode("utf-16"),
      text.encode("utf-16-le"),
      b"\xef\xbb\xbf" + content,
      content.decode("utf-8", "replace").encode("latin-1", "replace"),
      content.rstrip(b"\n"),
      content.upper(),
    )
  )


def _replace_all(content: bytes, rng: random.Random) -> bytes:
  return rng.choice((b"", b"\n", b"\0" * 4096, rng.randbytes(500), b"\x1f\x8b", b"PK\x03\x04", *HOSTILE))


CHANGES = {
  "bits flipped": _flip_bits,
  "bytes set": _set_bytes,
  "cut short": _cut,
  "a piece dropped": _drop_piece,
  "a piece repeated": _splice,
  "a piece inserted": _insert,
  "a number replaced": _replaced(_NUMBER),
  "a word replaced": _replaced(_WORD),
  "a line dropped": _lines(_drop_line),
  "a line repeated": _lines(_repeat_line),
  "lines swapped": _lines(_swap_lines),
  "a line replaced": _lines(_replace_line),
  "recoded": _recode,
  "all replaced": _replace_all,
}


def changed(content: bytes, rng: random.Random) -> tuple[bytes, str]:
  """The content after one to three changes, and what they were."""
  names = rng.choices(list(CHANGES), k=rng.choice((1, 1, 1, 2, 3)))
  for name in names:
    content = CHANGES[name](content, rng)
  return content, ", ".join(names)


def damaged(name: str, content: bytes, rng: random.Random) -> tuple[bytes, str]:
  """A damaged file: from outside, or, where it is packed, from inside, so that what unpacks it is content."""
  if name.endswith(".gz") and rng.random() < 0.7:
    inside, how = damaged(name.removesuffix(".gz"), gzip.decompress(content), rng)
    return gzip.compress(inside, 1), f"inside: {how}"
  if name.endswith(".npz") and rng.random() < 0.8:
    return _damaged_archive(content, rng)
  return changed(content, rng)


def _damaged_archive(content: bytes, rng: random.Random) -> tuple[bytes, str]:
  """A .npz with one of its arrays changed, and everything else in order."""
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    members = {name: archive.read(name) for name in archive.namelist()}
  name = rng.choice(sorted(members))
  if rng.random() < 0.3:
    members[name], how = changed(members[name], rng)
  else:
    array = _hostile_array(np.load(io.BytesIO(members[name])), rng)
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    members[name], how = file.getvalue(), f"{array.dtype} {array.shape}"
  if rng.random() < 0.05:
    del members[name]
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
    for member, data in members.items():
      archive.writestr(member, data)
  return file.getvalue(), f"{name}: {how}"


def _hostile_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
  """An array with one value, its type, or its shape changed."""
  match rng.randrange(4):
    case 0 if array.size and array.dtype.kind in "iuf":
      value = rng.choice((0, 1, -1, 3, 2**31 - 1, -(2**31), 10**12, 2**62, 1e300, np.nan, np.inf))
      with np.errstate(all="ignore"):
        flat = array.ravel().astype(np.float64 if isinstance(value, float) else np.int64)
      flat[rng.randrange(flat.size)] = value
      return flat.reshape(array.shape)
    case 1:
      kind = rng.choice(("i1", "u8", "i8", "f2", "f8", "c16", "?", "U7", "S7", "O", "M8[s]", "i4,f4"))
      try:
        return array.astype(kind)
      except (ValueError, TypeError):
        return np.zeros(array.shape, kind)
    case 2:
      flat = array.ravel()
      return rng.choice((array[None], flat[:-1], np.append(flat, flat), flat[:0], flat[:1]))
    case _:
      texts = (b"csc", b"coo", b"bsr", b"dia", b"lil", b"", "csr", b"csr_array", b"__class__", b"\xff")
      return np.array(rng.choice(texts)) if array.dtype.kind == "S" else array[::-1] if array.ndim else array
