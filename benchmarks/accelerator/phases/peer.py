"""Compares the full-label step with PyTorch's: gradient cache, bfloat16, the same texts and weights."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any

import jax
import ml_collections
import numpy as np
from safetensors.numpy import save_file

from benchmarks.accelerator import abstract_step, compiled, real_step
from xmc_jax import models
from xmc_jax.data.tokens import TokenTable
from xmc_jax.distributed import sharding
from xmc_jax.models.hf_names import to_hf
from xmc_jax.types import Batch

_SIZES = {
  "full": (4096, 16, 131_072, 12),
  "tiny": (16, 8, 64, 8),
}  # points and their tokens, labels and theirs
_CHUNK = {"full": 4096, "tiny": 32}  # labels that PyTorch encodes at a time
_STEPS = {"full": 3, "tiny": 2}
_MOST = 3e-2  # difference of losses in bfloat16


def peer(size: str) -> dict[str, Any]:
  """Returns seconds of a step of each, one after the other on the same device, and their losses."""
  if not importlib.util.find_spec("torch"):
    return {"failed": "PyTorch is not installed"}
  with tempfile.TemporaryDirectory() as folder:
    run = lambda which, **environment: subprocess.run(
      [sys.executable, "-m", __name__, which, size, folder], check=True, env={**os.environ, **environment}
    )
    run("weights", JAX_PLATFORMS="cpu")
    run("torch")  # before JAX takes the device's memory
    run("ours")
    theirs, ours = (dict(np.load(pathlib.Path(folder, f"{name}.npz"))) for name in ("torch", "ours"))
  found = {
    "times_as_fast": round(float(theirs["seconds"] / ours["seconds"]), 2),
    "ours_seconds": round(float(ours["seconds"]), 4),
    "torch_seconds": round(float(theirs["seconds"]), 4),
    "ours_losses": [round(float(loss), 4) for loss in ours["losses"]],
    "torch_losses": [round(float(loss), 4) for loss in theirs["losses"]],
  }
  difference = np.max(np.abs(ours["losses"] / theirs["losses"] - 1))
  return found | ({} if difference <= _MOST else {"failed": f"losses differ by {difference:.3f}"})


def _made(size: str) -> tuple[ml_collections.ConfigDict, abstract_step.AbstractStep, Batch]:
  """Returns the config, the step and the host's batch that both systems take."""
  points, points_width, labels, labels_width = _SIZES[size]
  config = compiled.config_of("dexml:lf_amazontitles_131k", [])
  config.update_from_flattened_dict(
    {
      "encoder.dropout": 0.0,
      "encoder.attention_dropout": 0.0,
      "encoder.embedding_dropout": 0.0,
      "encoder.num_layers": 1 if size == "tiny" else 0,
      "encoder.dtype": "float32" if size == "tiny" else "bfloat16",
      "data.max_length": max(points_width, labels_width),
      "train.batch_size": points,
      "train.warmup_fraction": 0.0,
      "plan.num_labels": labels,
      "plan.tokens_per_label": float(labels_width),
      "plan.tokens_per_point": float(points_width),
    }
  )
  config = real_step.with_chunks(config)
  made = abstract_step.make(
    config,
    sharding.make(),
    vocab_size=real_step.VOCABULARY,
    num_positives=real_step.NUM_POSITIVES,
    points=[(points_width, points)],
    labels=[(labels_width, labels)],
  )
  return config, made, real_step.random_batch(made.batch, real_step.VOCABULARY)


def _weights(size: str, folder: pathlib.Path) -> None:
  """Writes our first parameters as a Hugging Face model."""
  import transformers

  config, made, _ = _made(size)
  params, _ = made.method.init(jax.random.key(0))
  described = transformers.DistilBertConfig(n_layers=config.encoder.num_layers or 6)
  described.architectures = ["DistilBertModel"]
  described.save_pretrained(folder)
  leaves = jax.tree_util.tree_leaves_with_path(params["encoder"])
  flat = {sharding.path_name(path): np.asarray(leaf) for path, leaf in leaves}
  save_file(to_hf(flat, models.build(config.encoder).spec), folder / "model.safetensors")


def _torch(size: str, folder: pathlib.Path) -> None:
  """Times PyTorch's steps."""
  import torch

  from benchmarks.full_label_torch import Torch

  config, _, batch = _made(size)
  tables = {}
  for name, (group,) in (("points", batch.queries), ("labels", batch.labels)):
    offsets = np.arange(len(group.ids) + 1) * group.ids.shape[1]
    tables[name] = TokenTable.of_offsets(group.ids.ravel(), offsets)
  problem = SimpleNamespace(
    config=config, folder=str(folder), batches=SimpleNamespace(label_columns=batch.columns), **tables
  )
  device = "cuda" if torch.cuda.is_available() else "cpu"
  system = Torch(problem, _CHUNK[size], to_longest=False, device=device)
  _time(folder / "torch.npz", lambda: system.step(batch), size)


def _ours(size: str, folder: pathlib.Path) -> None:
  """Times our steps."""
  _, made, host = _made(size)
  state = made.step.first_state(*made.method.init(jax.random.key(0)))
  batch = sharding.put_batch(host, sharding.make())
  program = made.step.lower(state, batch).compile()

  def step() -> float:
    nonlocal state
    state, metrics = program(state, batch)
    return float(metrics["loss"])

  _time(folder / "ours.npz", step, size)


def _time(result: pathlib.Path, step, size: str) -> None:
  losses, seconds = [], []
  for _ in range(_STEPS[size] + 1):
    start = time.perf_counter()
    losses.append(step())
    seconds.append(time.perf_counter() - start)
  np.savez(result, losses=losses, seconds=np.median(seconds[1:]))


if __name__ == "__main__":
  {"weights": _weights, "torch": _torch, "ours": _ours}[sys.argv[1]](sys.argv[2], pathlib.Path(sys.argv[3]))
