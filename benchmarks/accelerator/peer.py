"""Times PyTorch's step beside ours: Hugging Face's model, the papers' gradient cache, the same texts."""

import pathlib
import time
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from benchmarks.accelerator import dexml_step
from xmc_jax import models
from xmc_jax.distributed import sharding
from xmc_jax.models.hf_names import to_tensors

MOST = 3e-2  # difference of losses in bfloat16
_STEPS = 3


def write_weights(problem: dexml_step.Problem, folder: pathlib.Path) -> None:
  """Writes our first parameters as a Hugging Face model; `config.json` comes last."""
  import transformers

  params, _ = problem.made.method.init(jax.random.key(0))
  flat = {name: np.asarray(leaf) for name, leaf in sharding.by_path(params["encoder"]).items()}
  folder.mkdir(parents=True, exist_ok=True)
  save_file(to_tensors(flat, models.build(problem.config.encoder).spec), folder / "model.safetensors")
  described = transformers.DistilBertConfig(n_layers=problem.config.encoder.num_layers or 6)
  described.architectures = ["DistilBertModel"]
  described.save_pretrained(folder)


def steps(problem: dexml_step.Problem, folder: pathlib.Path) -> dict[str, Any]:
  """Times PyTorch's steps on its first device.

  JAX must not hold the device: start the process with JAX_PLATFORMS=cpu.
  """
  import torch

  from benchmarks.full_label_torch import Torch

  device = "cuda" if torch.cuda.is_available() else "cpu"
  system = Torch(problem, str(folder), device)
  losses, seconds = [], []
  for _ in range(_STEPS + 1):
    start = time.perf_counter()
    losses.append(system.step(problem.batch))
    seconds.append(time.perf_counter() - start)
  most = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0
  return {
    "step_seconds": round(float(np.median(seconds[1:])), 4),
    "all_seconds": [round(each, 3) for each in seconds],
    "losses": [round(loss, 4) for loss in losses],
    "gigabytes_at_most": round(most, 2),
    "label_tokens": problem.batch.labels[0].ids.size,
  }


def beside(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
  """Returns how many times as fast our step is, and how far the losses are apart, as a share."""
  pairs = list(zip(theirs["losses"], ours["losses"]))
  difference = max(abs(a / b - 1) for a, b in pairs)
  ratio = theirs["step_seconds"] / ours["step_seconds"]
  found = {"times_as_fast": round(ratio, 3), "losses_differ_by": round(difference, 5)}
  return found if difference <= MOST else {**found, "failed": "the losses differ"}
