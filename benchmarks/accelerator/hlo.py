"""Counts the kernels of a program's HLO for a GPU, the bytes that they move and the FLOPs of their products.

A kernel is an instruction that runs by itself: a fusion, a product, a copy, a sort. It reads its operands
once and writes its result once. Of an operand that it only slices or gathers it reads the slices; a result
that it updates in place is written where it is updated. A loop counts as often as XLA says that it
runs, and else once.
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_WIDTHS = {1: "pred s8 u8", 2: "bf16 f16 s16 u16", 4: "f32 s32 u32", 8: "f64 s64 u64"}
_BYTES = {kind: width for width, kinds in _WIDTHS.items() for kind in kinds.split()}
_ARRAY = re.compile(rf"({'|'.join(_BYTES)})\[([\d,]*)\]")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)\)?|\S+) ([\w\-]+)\((.*)$")
# They only name what is there, or wait for it.
_FREE = {
  *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota", "partition-id"),
  "optimization-barrier",
}
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
    if one.kind in _FREE or one.kind.endswith("-done"):
      continue
    called = _called(one)
    if one.kind == "while":
      known = re.search(r'known_trip_count":\{"n":"(\d+)"', one.rest)
      yield from _run(computations, called["body"], times * (int(known[1]) if known else 1))
    elif one.kind == "conditional":
      branches = [list(_run(computations, branch, times)) for branch in called["branches"]]
      yield from max(branches, key=lambda found: sum(kernel.times * kernel.num_bytes for kernel in found))
    elif one.kind in ("call", "async-start"):
      yield from _run(computations, called["calls"], times)
    else:
      yield _kernel(computations, inside, one, called.get("calls", ""), times)


def _called(one: Instruction) -> dict:
  """Returns the computations that an instruction names."""
  found = dict(re.findall(r"(body|calls|to_apply)=%?([\w.\-]+)", one.rest))
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
  """Returns the bytes of an array or of all arrays of a tuple."""
  return sum(_BYTES[kind] * _count(dims) for kind, dims in _ARRAY.findall(shape))


def _count(dims: str) -> int:
  return math.prod(int(dim) for dim in dims.split(",") if dim)


def _plain_bytes(one: Instruction, operands: list[Instruction]) -> tuple[int, int]:
  """Returns the bytes that an instruction by itself reads and writes."""
  result = _size(one.shape)
  if one.kind in ("gather", "dynamic-slice", "slice"):
    return result, result
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


def _flops(body: Mapping[str, Instruction]) -> dict[str, float]:
  """Returns the FLOPs of the products in a computation, by the type of what is multiplied."""
  found: collections.Counter[str] = collections.Counter()
  for one in body.values():
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
