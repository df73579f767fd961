"""Counts, in a compiled program's HLO, the kernels, the bytes that they move and the FLOPs of their products.

A kernel is an instruction that runs by itself: a fusion, a product, a copy, a sort. It reads its operands
once and writes its result once. Of an operand that it only slices or gathers it reads the slices; a result
that it updates in place is written where it is updated. A loop counts as often as XLA or its condition
says that it runs, and else once.
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_WIDTHS = {1: "pred s8 u8", 2: "bf16 f16 s16 u16", 4: "f32 s32 u32", 8: "f64 s64 u64"}
_BYTES = {kind: width for width, kinds in _WIDTHS.items() for kind in kinds.split()}
_ARRAY = re.compile(rf"({'|'.join(_BYTES)})\[([\d,]*)\]")
_PLACED = re.compile(_ARRAY.pattern + r"(\{[^}]*\})?")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)\)?|\S+) ([\w\-]+)\((.*)$")
# They only name what is there, or wait for it.
_FREE = {
  *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota", "partition-id"),
  "optimization-barrier",
}
_NO_WORK = ('custom_call_target="AllocateBuffer"', 'custom_call_target="ConcatBitcast"')
_PRODUCTS = ("gemm", "cublas", "cudnn", "fmha", "dot", "matmul", "conv")  # in the names of library calls


class Instruction(NamedTuple):
  """Holds one instruction: its name, the text of its shape, its kind, its operands' names, and the rest."""

  name: str
  shape: str
  kind: str
  operands: tuple[str, ...]
  rest: str
  is_root: bool


class Kernel(NamedTuple):
  """Holds what one kernel does each time that it runs.

  Attributes:
    name, where: of the instruction, and the operation of the source that it came from.
    times: how often it runs.
    num_bytes: read and written.
    flops: of its products, by the type of what is multiplied.
  """

  name: str
  where: str
  times: int
  num_bytes: int
  flops: Mapping[str, float]

  @property
  def is_product(self) -> bool:
    return bool(self.flops)


def kernels(text: str) -> list[Kernel]:
  """Returns the kernels of a program's HLO, `compiled.as_text()`."""
  computations, entry = _computations(text)
  return list(_run(computations, entry, 1))


def _computations(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
  """Returns each computation's instructions by name, and the name of the computation that is the program."""
  found: dict[str, dict[str, Instruction]] = {}
  current, entry = "", ""
  for line in text.splitlines():
    if head := _HEAD.match(line):
      current = head[1]
      found[current] = {}
      entry = current if line.startswith("ENTRY") else entry
    elif current and (match := _INSTRUCTION.match(line)):
      root, name, shape, kind, rest = match.groups()
      operands = tuple(re.findall(r"%([\w.\-]+)", _arguments(rest)))
      found[current][name] = Instruction(name, shape, kind, operands, rest, bool(root))
  return found, entry


def _arguments(rest: str) -> str:
  """Returns the part before the bracket that closes an instruction's operands."""
  depth = 1
  for place, sign in enumerate(rest):
    depth += (sign == "(") - (sign == ")")
    if not depth:
      return rest[:place]
  return rest


def _run(computations, name: str, times: int) -> Iterator[Kernel]:
  """Yields the kernels of a computation that runs `times` times."""
  inside = computations[name]
  for one in inside.values():
    if one.kind in _FREE or one.kind.endswith("-done") or any(name in one.rest for name in _NO_WORK):
      continue
    called = _called(one)
    if one.kind == "while":
      trips = _trips(one, computations.get(called["condition"], {}))
      yield from _run(computations, called["body"], times * trips)
    elif one.kind == "conditional":
      branches = [list(_run(computations, branch, times)) for branch in called["branches"]]
      yield from max(branches, key=lambda found: sum(kernel.times * kernel.num_bytes for kernel in found))
    elif one.kind in ("call", "async-start"):
      yield from _run(computations, called["calls"], times)
    else:
      yield _kernel(computations, inside, one, called.get("calls", ""), times)


def _trips(loop: Instruction, condition: Mapping[str, Instruction]) -> int:
  """Returns how often a loop runs: as XLA says, or up to the constant that its counter is compared with."""
  if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest):
    return int(known[1])
  for last in (one for one in condition.values() if one.is_root and "direction=LT" in one.rest):
    limits = [condition[name] for name in last.operands if name in condition]
    return math.prod(int(one.rest.split(")")[0]) for one in limits if one.kind == "constant")
  return 1


def _called(one: Instruction) -> dict:
  """Returns the computations that an instruction names."""
  found = dict(re.findall(r"(body|condition|calls|to_apply)=%?([\w.\-]+)", one.rest))
  if one.kind == "call":
    found["calls"] = found.get("to_apply", "")
  if one.kind == "conditional":
    listed = re.search(r"branch_computations=\{([^}]*)\}", one.rest)
    pair = re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", one.rest)
    found["branches"] = re.findall(r"%?([\w.\-]+)", listed[1]) if listed else pair
  return found


def _kernel(computations, inside, one: Instruction, fused: str, times: int) -> Kernel:
  operands = [inside[name] for name in one.operands if name in inside]
  body = computations.get(fused, {})
  if body:
    read, written = _fusion_bytes(body, one.operands)
    flops = _flops(body)
  else:
    read, written = _plain_bytes(one, operands)
    flops = _flops({**{operand.name: operand for operand in operands}, one.name: one})
    target = re.search(r'custom_call_target="([^"]+)"', one.rest)
    if target and any(word in target[1].lower() for word in _PRODUCTS):
      flops = {"library": 0.0}  # a product whose FLOPs its text does not tell
  where = re.search(r'op_name="([^"]+)"', one.rest)
  return Kernel(one.name, where[1] if where else "", times, read + written, flops)


def _size(shape: str) -> int:
  """Returns the bytes of an array or of all arrays of a tuple, without those in a TPU's vector memory."""
  arrays = _PLACED.findall(shape)
  return sum(_BYTES[kind] * _count(dims) for kind, dims, layout in arrays if "S(1)" not in layout)


def _count(dims: str) -> int:
  return math.prod(int(dim) for dim in dims.split(",") if dim)


def _plain_bytes(one: Instruction, operands: list[Instruction]) -> tuple[int, int]:
  """Returns the bytes that an instruction by itself reads and writes."""
  result = _size(one.shape)
  if one.kind in ("gather", "dynamic-slice", "slice"):
    return result, result
  if one.kind == "slice-start":  # its shape is (what it is of, the slice, ...)
    kind, dims = _ARRAY.findall(one.shape)[1]
    return _BYTES[kind] * _count(dims), 0
  if one.kind == "dynamic-update-slice":
    return 2 * _size(operands[1].shape), 0
  if one.kind == "scatter":
    return 3 * _size(operands[-1].shape), 0
  read = sum(_size(operand.shape) for operand in operands)
  if one.kind.endswith("-start"):  # its shape has operands, too
    return read, result - read
  return read, result


def _fusion_bytes(body: dict[str, Instruction], operands: tuple[str, ...]) -> tuple[int, int]:
  """Returns the bytes that a fusion of these operands reads and writes."""
  users = collections.defaultdict(list)
  for one in body.values():
    for place, name in enumerate(one.operands):
      users[name].append((one, place))
  read_of: dict[str, int] = {}  # an array that is passed twice is read once
  for one in body.values():
    if one.kind == "parameter":
      name = operands[int(one.rest.split(")")[0])]
      read_of[name] = max(read_of.get(name, 0), _read_of(body, users, one))
  read = sum(read_of.values())
  root = next(one for one in body.values() if one.is_root)
  parts = [body[name] for name in root.operands] if root.kind == "tuple" else [root]
  return read, sum(_written_by(body, part) for part in parts)


def _read_of(body, users, one: Instruction) -> int:
  """Returns how many bytes of a fusion's parameter are read."""
  total, whole = 0, _size(one.shape)
  for user, place in users[one.name]:
    if user.kind == "bitcast":
      total += _read_of(body, users, user)
    elif user.kind in ("dynamic-slice", "slice", "gather") and place == 0:
      total += _size(user.shape)
    elif user.kind in ("dynamic-update-slice", "scatter") and place == 0:
      total += 0  # in place
    else:
      return whole
  return min(total, whole)


def _written_by(body, one: Instruction) -> int:
  """Returns how many bytes a fusion writes for one of its results; an update in place also reads."""
  while one.kind == "bitcast":
    one = body[one.operands[0]]
  if one.kind == "dynamic-update-slice":
    return _size(body[one.operands[1]].shape)
  if one.kind == "scatter":
    return 2 * _size(body[one.operands[-1]].shape)
  return 0 if one.kind == "parameter" else _size(one.shape)


def _convolved(left: str, right: str, one: Instruction) -> tuple[str, float]:
  """Returns the type and the FLOPs of a convolution, as which a TPU's compiler writes every product.

  Axes over which a product is batched are spatial there, with a window of which each result sees one place.
  """
  labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.rest)
  window = re.search(r"window=\{([^}]*)\}", one.rest)
  given = dict(part.split("=") for part in window[1].split()) if window else {}
  arrays = [_ARRAY.findall(shape)[0] for shape in (left, right, one.shape)]
  (kind, of_left), (_, of_right), (_, of_result) = arrays
  if not labels:
    return kind, 0.0
  sizes = [
    dict(zip(names, map(int, dims.split(",")), strict=True))
    for names, dims in zip(labels.groups(), (of_left, of_right, of_result), strict=True)
  ]
  inner = float(sizes[1]["i"])
  for axis in sorted(set(labels[2]) - {"i", "o"}):
    each = {key: value.split("x")[int(axis)] for key, value in given.items()}
    inner *= _places(sizes[0][axis], sizes[1][axis], sizes[2][axis], each)
  return kind, 2.0 * _count(of_result) * inner


def _places(left: int, right: int, result: int, window: Mapping[str, str]) -> float:
  """Returns how many places of one spatial axis a result sees on average, without padding and holes."""
  if int(window.get("lhs_dilate", 1)) > 1:
    return 1.0  # a batch
  start, stride = int(window.get("pad", "0_0").split("_")[0]), int(window.get("stride", 1))
  if not start:
    return float(right)
  seen = ((place * stride + offset - start) for place in range(result) for offset in range(right))
  return sum(0 <= position < left for position in seen) / result


def _flops(body: Mapping[str, Instruction]) -> dict[str, float]:
  """Returns the FLOPs of the products in a computation, by the type of what is multiplied."""
  found: collections.Counter[str] = collections.Counter()
  for one in body.values():
    if one.kind == "convolution" and all(name in body for name in one.operands):
      kind, number = _convolved(*(body[name].shape for name in one.operands), one)
      found[kind] += number
    if one.kind != "dot":
      continue
    left = body.get(one.operands[0])
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.rest)
    if left is None or not contracted:
      continue
    kind, dims = _ARRAY.findall(left.shape)[0]
    sizes = [int(dim) for dim in dims.split(",") if dim]
    inner = math.prod(sizes[int(place)] for place in contracted[1].split(",") if place)
    of_parts = re.search(r"algorithm=dot_(bf16|tf32)_\1_f32(?:_x(\d))?", one.rest)
    kind, times = (of_parts[1], int(of_parts[2] or 1)) if of_parts else (kind, 1)
    found[kind] += 2.0 * times * _count(_ARRAY.findall(one.shape)[0][1]) * inner
  return dict(found)
