"""Accounts for a traced program: the bytes, FLOPs and seconds that it takes on one device of a mesh.

Operations are fused as XLA for accelerators does: an array has memory of its own if a product, a reduction or
a loop makes it, or if a product or a loop reads it. All others are computed where they are read.
"""

import collections
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jax.extend import core

from xmc_jax.plan.chips import Rates

# Beginnings of the names of primitives.
_REDUCTIONS = ("reduce_", "arg", "cum")  # they compute what they read
_KERNELS = ("dot_general", "gather", "sort", "top_k", "concatenate", "psum", "all_", "reduce_scatter")
_IN_PLACE = ("scatter", "dynamic_update_slice")
_VIEWS = ("reshape", "transpose", "squeeze", "copy", "optimization_barrier", "sharding_constraint", "name")
_RESIZES = ("slice", "pad", "concatenate")  # a dimension stays at its place
_LOOPS = ("scan", "while", "cond")
_PROGRAMS = ("jaxpr", "call_jaxpr", "body_jaxpr", "branches")  # parameters of a primitive
_PRODUCTS_OF_PARTS = {"BF16_BF16_F32": 1, "BF16_BF16_F32_X3": 3, "BF16_BF16_F32_X6": 6}

Program = Any  # core.Jaxpr; jax.extend types avals without shapes
Equation = Any  # core.JaxprEqn
Split = Mapping[int, frozenset[str]]  # axes of the mesh, by the size of the dimension that they split


class Account(NamedTuple):
  """Holds what a program takes on one device.

  Attributes:
    peak: the most bytes at a time, without its arguments.
    arrays: bytes at that time by type and shape of the whole array.
    flops: of its products.
    moved: bytes read and written.
    seconds: of its products.
  """

  peak: float
  arrays: Mapping[str, float]
  flops: float
  moved: float
  seconds: float


class _Array:
  """Describes an array of the program.

  Attributes:
    shape: the whole shape.
    split: how it is split over the mesh.
    size: bytes on a device.
    sources: arrays that it is computed from, if it is fused.
    is_view: whether it is the first of these, seen in another shape.
    in_memory: whether it has memory of its own.
    is_constant: whether it is computed from constants alone.
    readers: how many operations read it.
    roots: arrays in memory that reading it reads.
  """

  def __init__(
    self, aval: Any, split: Split, shards: int, sources: Iterable["_Array"] = (), in_memory: bool = True
  ):
    self.shape, self.split, self.sources, self.in_memory = aval.shape, split, list(sources), in_memory
    self.is_view, self.readers = False, 0
    self.is_constant: bool = not in_memory and all(source.is_constant for source in self.sources)
    self.name = f"{aval.dtype}{list(aval.shape)}"
    self.size = math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 4) / shards
    self.roots: set[_Array] = {self} if in_memory else set()

  def keep(self) -> None:
    """Gives it memory for a kernel to read; a view has that of what it shows, a constant none."""
    array = self
    while array.is_view and not array.in_memory:
      array = array.sources[0]
    array.in_memory = not array.is_constant

  def settle(self) -> None:
    """Finds `roots`, once it is known which arrays are in memory. A mask with several readers is."""
    self.in_memory = self.in_memory or (self.readers > 1 and self.name.startswith("bool"))
    self.roots = {self} if self.in_memory else _roots(self.sources)


def _roots(arrays: Iterable[_Array]) -> set[_Array]:
  return set().union(*(array.roots for array in arrays))


class _Kernel(NamedTuple):
  """Holds an operation: what it reads and makes, what one turn of it takes besides, and how many it has."""

  reads: list[_Array]
  makes: list[_Array]
  inner: Account = Account(0.0, {}, 0.0, 0.0, 0.0)
  times: int = 1
  is_loop: bool = False

  def roots(self) -> set[_Array]:
    """Returns the arrays in memory that it reads; none if it is fused into what reads its results."""
    in_memory = self.is_loop or any(array.in_memory for array in self.makes)
    return _roots(self.reads) if in_memory else set()


class Accountant:
  """Walks through programs of one mesh.

  Args:
    mesh: devices by axis.
    rates: of a device.
  """

  def __init__(self, mesh: Mapping[str, int], rates: Rates):
    self._mesh, self._rates = mesh, rates

  def program(self, closed: Program, shardings: Iterable[Any]) -> Account:
    """Accounts for a program, whose arguments lie on the mesh by `shardings`."""
    pairs = zip(closed.jaxpr.invars, shardings)
    return self._account(
      closed.jaxpr, [self._array(var, _split(var.aval.shape, at.spec)) for var, at in pairs]
    )

  def _array(self, var: Any, split: Split, **about: Any) -> _Array:
    return _Array(var.aval, split, self._shards(split), **about)

  def _shards(self, split: Split) -> int:
    return math.prod(self._mesh[axis] for axis in set().union(*split.values()))

  def _account(self, jaxpr: Program, inputs: list[_Array], num_carried: int = 0) -> Account:
    kernels: list[_Kernel] = []
    outputs = self._walk(jaxpr, inputs, kernels, local=False)
    for array in outputs[num_carried:]:
      array.keep()
    for array in (made for kernel in kernels for made in kernel.makes):
      array.settle()
    return _total(kernels, outputs)

  def _walk(self, jaxpr: Program, inputs: list[_Array], kernels: list[_Kernel], local: bool) -> list[_Array]:
    """Appends a program's operations; returns its outputs. `local` programs have the shapes of one device."""
    arrays = dict(zip(jaxpr.invars, inputs)) | {var: self._array(var, {}) for var in jaxpr.constvars}

    def of(atom: Any) -> _Array:
      return arrays[atom] if isinstance(atom, core.Var) else _Array(atom.aval, {}, 1, in_memory=False)

    for equation in jaxpr.eqns:
      reads = [of(atom) for atom in equation.invars]
      for array in reads:
        array.readers += 1
      is_call = equation.primitive.name not in _LOOPS and _programs(equation)
      run = self._call if is_call else self._operation
      arrays |= dict(zip(equation.outvars, run(equation, reads, kernels, local)))
    return [of(atom) for atom in jaxpr.outvars]

  def _call(
    self, equation: Equation, reads: list[_Array], kernels: list[_Kernel], local: bool
  ) -> list[_Array]:
    inner = _programs(equation)[0]
    if equation.primitive.name != "shard_map":
      return self._walk(inner, reads, kernels, local)
    reads = [self._gathered(array, var, kernels) for array, var in zip(reads, inner.invars)]
    makes = self._walk(inner, reads, kernels, local=True)
    for array, var, spec in zip(makes, equation.outvars, equation.params["out_specs"]):
      array.shape, array.split = var.aval.shape, _split(var.aval.shape, spec)
    return makes

  def _gathered(self, array: _Array, var: Any, kernels: list[_Kernel]) -> _Array:
    """Returns the array as a program of one device reads it: a copy, if other devices have parts of it."""
    array.keep()
    gathered = self._array(var, {})
    if gathered.size <= array.size:
      return array
    kernels.append(_Kernel([array], [gathered]))
    return gathered

  def _operation(
    self, equation: Equation, reads: list[_Array], kernels: list[_Kernel], local: bool
  ) -> list[_Array]:
    name = equation.primitive.name
    is_kernel = name.startswith((*_REDUCTIONS, *_KERNELS)) or name in _LOOPS
    in_place = name.startswith(_IN_PLACE)
    if in_place or (is_kernel and not name.startswith(_REDUCTIONS)):
      for array in reads:
        array.keep()
    merged = {} if local else _merged(reads)
    for array in reads:
      self._split_like(array, merged)
    makes = []
    for var in equation.outvars:
      split = _fitting(merged, var.aval.shape, is_reshape=name == "reshape")
      if name in _RESIZES and not local:
        of = reads[0].split
        split |= {size: of[was] for size, was in zip(var.aval.shape, reads[0].shape) if was in of}
      if name == "sharding_constraint" and not local:
        split = _split(var.aval.shape, equation.params["sharding"].spec)
      array = self._array(var, split, sources=reads, in_memory=is_kernel)
      array.is_view = in_place or (name in _VIEWS and array.size >= reads[0].size)
      array.in_memory |= name == "sharding_constraint" and not array.is_view  # gathered, or split
      makes.append(array)
    if name in _LOOPS:
      turn = self._turn(equation, reads)
      kernels.append(_Kernel(reads, makes, turn, equation.params.get("length", 1), is_loop=True))
      return makes
    flops = _flops(equation) / self._shards(merged) if name == "dot_general" else 0.0
    seconds = self._seconds(equation, flops) if flops else 0.0
    kernels.append(_Kernel(reads, makes, Account(0.0, {}, flops, 0.0, seconds)))
    return makes

  def _split_like(self, array: _Array, split: Split) -> None:
    """Splits an array that is fused into one that is split, as a random mask is; nothing else says how."""
    if array.in_memory or array.split or not (fitting := _fitting(split, array.shape)):
      return
    array.split, array.size = fitting, array.size / self._shards(fitting)
    for source in array.sources:
      self._split_like(source, split)

  def _turn(self, equation: Equation, reads: list[_Array]) -> Account:
    """Returns the account of one turn of a loop, or of the branch that takes most."""
    accounts = []
    for inner in _programs(equation):
      pairs = zip(reads[-len(inner.invars) :], inner.invars)
      inputs = [self._array(var, _fitting(array.split, var.aval.shape)) for array, var in pairs]
      accounts.append(self._account(inner, inputs, equation.params.get("num_carry", 0)))
    return max(accounts, key=lambda account: account.seconds)

  def _seconds(self, equation: Equation, flops: float) -> float:
    if {str(atom.aval.dtype) for atom in equation.invars} != {"float32"}:
      return flops / self._rates.bfloat16
    precision = equation.params["precision"]
    parts = _PRODUCTS_OF_PARTS.get(getattr(precision, "name", ""))
    return flops / self._rates.float32 if parts is None else parts * flops / self._rates.bfloat16


def _total(kernels: list[_Kernel], outputs: list[_Array]) -> Account:
  roots = [kernel.roots() for kernel in kernels]
  roots.append(_roots(outputs))
  last = {array: number for number, arrays in enumerate(roots) for array in arrays}
  live: set[_Array] = set()
  size = peak = flops = moved = seconds = 0.0
  arrays: collections.Counter = collections.Counter()
  for number, kernel in enumerate(kernels):
    made = {array for array in kernel.makes if array.in_memory}
    live |= made
    size += sum(array.size for array in made)
    if size + kernel.inner.peak > peak:
      peak, arrays = size + kernel.inner.peak, collections.Counter(kernel.inner.arrays)
      for array in live:
        arrays[array.name] += array.size
    freed = {array for array in roots[number] | made if last.get(array, number) == number} & live
    live -= freed
    size -= sum(array.size for array in freed)
    flops += kernel.times * kernel.inner.flops
    seconds += kernel.times * kernel.inner.seconds
    moved += kernel.times * kernel.inner.moved
    if made and not kernel.is_loop:
      moved += sum(array.size for array in made.union(kernel.reads))
  return Account(peak, arrays, flops, moved, seconds)


def _programs(equation: Equation) -> list[Program]:
  """Returns the programs that an operation runs."""
  value: Any = next((equation.params[name] for name in _PROGRAMS if name in equation.params), ())
  programs = value if isinstance(value, tuple) else (value,)
  return [program.jaxpr if isinstance(program, core.ClosedJaxpr) else program for program in programs]


def _split(shape: tuple[int, ...], spec: Iterable[Any]) -> dict[int, frozenset[str]]:
  axes = [() if part is None else (part,) if isinstance(part, str) else tuple(part) for part in spec]
  return {size: frozenset(of) for size, of in zip(shape, axes) if of}


def _merged(arrays: list[_Array]) -> dict[int, frozenset[str]]:
  found: dict[int, frozenset[str]] = {}
  for array in arrays:
    for size, axes in array.split.items():
      found[size] = found.get(size, frozenset()) | axes
  return found


def _fitting(split: Split, shape: tuple[int, ...], is_reshape: bool = False) -> dict[int, frozenset[str]]:
  """Returns how an array is split that is computed from arrays split like this.

  A dimension keeps its axes. One that a reshape joins or cuts gives them to the first that it divides or that
  divides it.
  """
  fitting: dict[int, frozenset[str]] = {}
  for size, axes in split.items():
    joined = [other for other in shape if other > 1 and size and (other % size == 0 or size % other == 0)]
    if size in shape:
      fitting[size] = axes
    elif is_reshape and joined:
      fitting[joined[0]] = fitting.get(joined[0], frozenset()) | axes
  return fitting


def _flops(equation: Equation) -> float:
  (contracted, _), _ = equation.params["dimension_numbers"]
  shape = equation.invars[0].aval.shape
  return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(shape[axis] for axis in contracted)
