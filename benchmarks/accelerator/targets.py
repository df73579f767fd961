"""Describes devices that are not here, to compile programs for them (`jax.experimental.topologies`).

It needs `JAX_PLATFORMS=cpu`; for a GPU `JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1` and jax with its CUDA plugin, for
a TPU libtpu. XLA does not tune kernels in this mode: it chooses them as without measurements.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from unittest import mock

import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from xmc_jax.distributed import platform
from xmc_jax.models import fused_attention

_H200 = pathlib.Path(__file__).with_name("h200.txtpb")  # XLA's description of one
# What an H100 (SXM, 80 GB) has otherwise.
_H100 = {
  "151397597184": "85520809984",
  "memory_bandwidth: 4800000000000": "memory_bandwidth: 3350000000000",
  "3750000KHz": "2619000KHz",
  "NVIDIA H200 141GB HBM3e": "NVIDIA H100 80GB HBM3",
}
_TPUS = {"v5e": "v5e:2x2"}
_GPUS = {"h200": {}, "h100": _H100}
NAMES = (*_GPUS, *_TPUS)


def mesh(name: str, data: int = 1, label: int = 1) -> Mesh:
  """Returns a mesh of the devices that `name`, one of NAMES, stands for.

  Raises:
    RuntimeError: the platform's plugin is not installed.
    ValueError: it has fewer devices.
  """
  if name in _GPUS:
    target = _H200.read_text(encoding="utf-8")
    for before, after in _GPUS[name].items():
      target = target.replace(before, after)
    found = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=target)
  else:
    found = topologies.get_topology_desc(platform="tpu", topology_name=_TPUS[name])
  if data * label > len(found.devices):
    raise ValueError(f"a mesh of {data} x {label} is larger than {name} with {len(found.devices)} devices")
  devices = np.array(found.devices[: data * label]).reshape(data, label)
  return Mesh(devices, ("data", "label"), axis_types=(AxisType.Auto,) * 2)


@contextlib.contextmanager
def as_default(name: str) -> Iterator[None]:
  """Makes code that asks for the default backend believe that it runs on a target, without cuDNN."""
  replaced = (
    (fused_attention, "_cudnn_runs", lambda head_dim: False),
    (fused_attention, "_cudnn_takes_lengths", lambda head_dim: False),
    (fused_attention, "is_faster", lambda *sizes: False),
  )
  with contextlib.ExitStack() as stack:
    stack.enter_context(platform.traced_for("gpu" if name in _GPUS else "tpu"))
    for place, function, instead in replaced:
      stack.enter_context(mock.patch.object(place, function, instead))
    yield
