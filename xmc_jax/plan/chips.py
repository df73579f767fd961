"""Lists the accelerators that a plan can be made for, and the share of their capacity that it assumes."""

from typing import NamedTuple


class Rates(NamedTuple):
  """Holds the FLOPs of a device in a second, by the type of a product's operands."""

  bfloat16: float
  float32: float


class Chip(NamedTuple):
  """Describes one device.

  Attributes:
    memory: bytes.
    bfloat16: peak FLOP/s of bfloat16 products, dense.
    float32: peak FLOP/s of products in full float32 precision (`Precision.HIGHEST`): on a GPU without the
      tensor cores; on a TPU in six bfloat16 passes.
    bandwidth: memory bandwidth in bytes/s.
    kind: 'gpu' or 'tpu'; JAX takes only a part of a GPU's memory.
  """

  memory: float
  bfloat16: float
  float32: float
  bandwidth: float
  kind: str

  @property
  def memory_of_jax(self) -> float:
    """Returns the bytes that JAX takes unless XLA_PYTHON_CLIENT_MEM_FRACTION is set."""
    return self.memory * (PREALLOCATED if self.kind == "gpu" else 1)


# From vendors' data sheets (SXM boards) and cloud.google.com/tpu/docs; config/defaults.py has the names too.
CHIPS = {
  "a100_40": Chip(40e9, 312e12, 19.5e12, 1.555e12, "gpu"),
  "a100_80": Chip(80e9, 312e12, 19.5e12, 2.039e12, "gpu"),
  "h100": Chip(80e9, 989e12, 67e12, 3.35e12, "gpu"),
  "h200": Chip(141e9, 989e12, 67e12, 4.8e12, "gpu"),
  "v5e": Chip(16e9, 197e12, 197e12 / 6, 0.819e12, "tpu"),
  "v5p": Chip(95e9, 459e12, 459e12 / 6, 2.765e12, "tpu"),
  "v6e": Chip(32e9, 918e12, 918e12 / 6, 1.638e12, "tpu"),
}
"""Holds what a plan knows of each chip that `plan.chip` may name."""
USABLE = 0.92
"""Gives the share of a chip's memory that a plan may use: the driver and fragmentation take the rest."""
PREALLOCATED = 0.75  # share of a GPU's memory that JAX takes unless XLA_PYTHON_CLIENT_MEM_FRACTION is set
# Assumed, not measured: the shares of the peak rates that products, and reads and writes, reach.
OF_PEAK = 0.35
OF_BANDWIDTH = 0.70
