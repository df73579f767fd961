"""Trains whole runs: a few steps of each method with the host's part, and encoders to their end."""

import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.accelerator import pack
from benchmarks.input_wait import Watched
from xmc_jax.runs import create
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.training import loop

_METHODS = {"full": ("unidec", "ngame", "dexa", "prime", "ramen", "rae_xmc"), "tiny": ("ngame",)}
_STEPS = {"full": 20, "tiny": 2}
# Of the bundled data by MiniLM's sizes; random weights do for times.
ENCODER = {
  "encoder.name": "all-MiniLM-L6-v2",
  "encoder.pretrained": False,
  "encoder.init_table": "",
  "encoder.tokenizer": "train",
  "encoder.dropout": 0.1,
}
_TINY = {"encoder.name": "bag", "encoder.width": 16, "encoder.num_layers": 0, "train.batch_size": 1024}
_ALIKE = {"eval.every_epochs": 0.0, "checkpoint.every_epochs": 0.0, "train.num_epochs": 1}
_SHOWN = ("P@1", "P@5", "PSP@1", "PSP@5", "R@10", "R@100")
_FINE_TUNING_SECONDS = {"full": 70, "tiny": 280}  # of one data set: four of them fit into the phase


def trainings(size: str) -> dict[str, Any]:
  """Returns for each method milliseconds of a step, of building a batch, and of waiting for one."""
  found = {}
  for method in _METHODS[size]:
    with tempfile.TemporaryDirectory() as folder:
      found[method] = _train(method, size, pathlib.Path(folder))
      print(method, found[method], flush=True)
  return found


def _train(method: str, size: str, folder: pathlib.Path) -> dict[str, Any]:
  config = importlib.import_module(f"experiments.{method}").get_config("debian")
  config.update_from_flattened_dict({**ENCODER, **_ALIKE, **(_TINY if size == "tiny" else {})})
  writer, watched = MetricWriter(folder), Watched()
  run = create.create(config, folder, writer)
  loop.prefetch = watched.prefetch
  loop.train(run, writer, last_step=_STEPS[size])
  number = len(watched.waited)
  return {
    "step_ms": round(1e3 * writer.seconds["train"] / number, 2),
    "batch_ms": round(1e3 * statistics.median(watched.built), 2),
    "waited_ms": round(1e3 * sum(seconds for _, seconds in watched.waited) / number, 2),
    "compile_seconds": round(writer.seconds["compile"], 1),
  }


def fine_tuning(size: str) -> dict[str, Any]:
  """Fine-tunes MiniLM-L6 on each data set at hand, by the command line; returns its test metrics and seconds.

  Data sets and weights are those that pack.py collected, or the bundled set and a small encoder from scratch.
  """
  packed = pack.folder()
  model = packed / "model"
  sets = {"debian": ""} | {path.name: str(path) for path in sorted((packed / "data").glob("*"))}
  found: dict[str, Any] = {}
  for name, path in sets.items():
    changes = (
      {"data.path": path, "encoder.name": str(model)} if model.exists() else {"data.path": path, **ENCODER}
    )
    if size == "tiny":
      changes = {
        **ENCODER,
        **_TINY,
        "train.num_epochs": 1,
        "encoder.attention_dropout": 0.0,
        "data.max_length": 8,
        "data.path": path,
      }
    found[name] = _fine_tuned(changes, _FINE_TUNING_SECONDS[size])
    print(name, found[name], flush=True)
  return found


def _fine_tuned(changes: dict[str, Any], seconds: float) -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    overrides = [f"--config.{key}={value}" for key, value in changes.items()]
    preset = "--config=experiments/rae_xmc.py:debian_minilm6"
    command = [sys.executable, "-m", "xmc_jax.main", preset, f"--workdir={folder}/run", *overrides]
    start = time.perf_counter()
    try:
      subprocess.run(command, check=True, timeout=seconds)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
      return {"failed": str(error)[-100:]}
    report = json.loads(pathlib.Path(folder, "run", "report", "metrics.json").read_text(encoding="utf-8"))
    shown = {name: round(100 * report["metrics"][name], 2) for name in _SHOWN}
    return {"seconds_in_all": round(time.perf_counter() - start, 1), **shown}
