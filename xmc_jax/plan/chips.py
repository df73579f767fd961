"""Accelerators that a plan can be made for, and how much of them it counts on."""

from typing import NamedTuple


class Chip(NamedTuple):
  """One device.

  Attributes:
    memory: bytes.
    bfloat16: peak FLOP/s of bfloat16 products, dense.
    float32: peak FLOP/s of products that keep float32's digits (`Precision.HIGHEST`): a GPU's units beside
      the tensor cores; on a TPU six bfloat16 passes.
    bandwidth: of the memory, bytes/s.
    kind: 'gpu' or 'tpu': whose compiler lays the program out; 'cpu' is for tests.
  """

  memory: float
  bfloat16: float
  float32: float
  bandwidth: float
  kind: str


# From the makers' data sheets (SXM boards) and cloud.google.com/tpu/docs. `plan.chip` has the names, too.
CHIPS = {
  "a100_40": Chip(40e9, 312e12, 19.5e12, 1.555e12, "gpu"),
  "a100_80": Chip(80e9, 312e12, 19.5e12, 2.039e12, "gpu"),
  "h100": Chip(80e9, 989e12, 67e12, 3.35e12, "gpu"),
  "h200": Chip(141e9, 989e12, 67e12, 4.8e12, "gpu"),
  "v5e": Chip(16e9, 197e12, 197e12 / 6, 0.819e12, "tpu"),
  "v5p": Chip(95e9, 459e12, 459e12 / 6, 2.765e12, "tpu"),
  "v6e": Chip(32e9, 918e12, 918e12 / 6, 1.638e12, "tpu"),
}
USABLE = 0.92  # of the memory: the rest is the driver's, and lost between buffers
PREALLOCATED = 0.75  # of a GPU's memory: what JAX takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise
# Assumed, not measured: the share of the peak that products reach, and that reading and writing reach.
OF_PEAK = 0.35
OF_BANDWIDTH = 0.70
