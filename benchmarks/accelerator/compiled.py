"""Compiles a preset's training step for a device that is not here, and counts what it would do.

  JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 python -m benchmarks.accelerator.compiled h200 \\
    dexml:lf_amazontitles_131k --points=16x4096 --labels=12x131072 --set encoder.num_layers=2

Prints a JSON object, and the kernels that take longest with `--kernels=N`. `--name` adds it to
docs/results/accelerator.json.
"""

import argparse
import importlib
import json
import pathlib
import sys
import time
from typing import Any

import jax
import ml_collections

from benchmarks.accelerator import abstract_step, hlo, targets
from xmc_jax import config as configs
from xmc_jax import plan as plans
from xmc_jax.distributed import runtime
from xmc_jax.plan import CHIPS, chunks

RESULTS = pathlib.Path(__file__).parents[2] / "docs" / "results" / "accelerator.json"
_CHUNKS = ("_chunk", "uncached_tokens", "keep_scores")  # ends of keys
_VOCABULARY, _NUM_POSITIVES = 30_522, 16
# FLOP/s of products by the type of their operands, and bytes per second. Assumed for an H200: 78 % of the 790
# TFLOP/s that large bfloat16 products reach on one (in float32 of the data sheet's 67), 85 % of 4.3 TB/s; for
# an H100 of 798 and 3.0. Of a TPU there is no account.
_RATES = {
  "h200": ({"bf16": 0.78 * 790e12, "f32": 0.78 * 67e12}, 0.85 * 4.3e12),
  "h100": ({"bf16": 0.78 * 798e12, "f32": 0.78 * 67e12}, 0.85 * 3.0e12),
}

# Without a device XLA has no settings for Triton's products that it has not tuned; so libraries multiply.
_DETERMINISTIC = {"xla_gpu_deterministic_ops": True, "xla_gpu_enable_triton_gemm": False}


def config_of(preset: str, changes: list[str]) -> ml_collections.ConfigDict:
  """Returns the config of `FILE:PRESET` of experiments/, with `KEY=VALUE` changed and no weights read."""
  module, _, name = preset.partition(":")
  config = importlib.import_module(f"xmc_jax.experiments.{module}").get_config(name)
  pairs = [one.split("=", 1) for one in changes]
  config.update_from_flattened_dict({key: _value(value) for key, value in pairs})
  config.encoder.pretrained = False
  return config


def _value(text: str) -> Any:
  try:
    return json.loads(text)
  except json.JSONDecodeError:
    return {"True": True, "False": False}.get(text, text)


def with_chunks(config: ml_collections.ConfigDict, memory: float, kind: str) -> ml_collections.ConfigDict:
  """Returns the config with the chunk sizes that it leaves open chosen for a device's bytes and kind."""
  found = chunks.choose(config, plans.sizes_of(config), memory, kind)
  return configs.changed(config, {f"method.{key}": size for key, size in found.items()})


def account(text: str, target: str) -> dict[str, Any]:
  """Returns what a program does, from its HLO: kernels, gigabytes, teraflops, predicted seconds."""
  found = hlo.kernels(text)
  products, others = ([one for one in found if one.is_product is wanted] for wanted in (True, False))
  gigabytes = lambda of: sum(one.times * one.num_bytes for one in of) / 1e9
  flops = {
    kind: sum(one.times * one.flops.get(kind, 0) for one in products) / 1e12
    for kind in sorted({kind for one in products for kind in one.flops} - {"library"})
  }
  return {
    "kernels": sum(one.times for one in found),
    "gigabytes_of_products": round(gigabytes(products), 2),
    "gigabytes_of_the_rest": round(gigabytes(others), 2),
    "teraflops": {kind: round(number, 2) for kind, number in flops.items()},
    "library_products": sum(one.times for one in products if "library" in one.flops),  # of unknown FLOPs
    "predicted_seconds": round(sum(seconds(one, target) for one in found), 4),
  }


def seconds(one: hlo.Kernel, target: str) -> float:
  """Predicts the seconds of a kernel, all times that it runs: of its products, or of its bytes if longer."""
  flops, num_bytes = _RATES[target]
  of_products = sum(number / flops.get(kind, flops["bf16"]) for kind, number in one.flops.items())
  return one.times * max(of_products, one.num_bytes / num_bytes)


def compile_step(
  config: ml_collections.ConfigDict, target: str, points=None, labels=None
) -> tuple[dict[str, Any], str]:
  """Returns the account of a step on a target, and its HLO; groups as in `abstract_step.make`."""
  with targets.as_default(target):
    config = with_chunks(config, CHIPS[target].memory_of_jax, CHIPS[target].kind)
    devices = targets.mesh(target, config.mesh.data, config.mesh.label)
    sizes = {"vocab_size": _VOCABULARY, "num_positives": _NUM_POSITIVES}
    made = abstract_step.make(config, devices, points=points, labels=labels, **sizes)
    start = time.perf_counter()
    lowered = made.lower()
    traced = time.perf_counter()
    options = _DETERMINISTIC if config.runtime.deterministic else {}
    program = lowered.compile(compiler_options=options)
    ended = time.perf_counter()
  memory, text = program.memory_analysis(), program.as_text()
  plan = plans.plan(config, plans.sizes_of(config), CHIPS[target])
  found = {
    **(account(text, target) if target in _RATES else {}),
    "planned_seconds": round(plan.seconds, 4),
    "planned_gigabytes": round(sum(plan.moments["training"].values()) / 1e9, 2),
    "trace_seconds": round(traced - start, 1),
    "compile_seconds": round(ended - traced, 1),
    "gigabytes_of_arguments": round(memory.argument_size_in_bytes / 1e9, 2),
    "gigabytes_of_temporaries": round(memory.temp_size_in_bytes / 1e9, 2),
    "chunks": {key: size for key, size in config.method.items() if key.endswith(_CHUNKS)},
    "adds_in_order": runtime.adds_in_order(text),
    "jax": jax.__version__,
  }
  return found, text


def _groups(text: str) -> list[tuple[int, int]] | None:
  """Returns [(width, texts), ...] of '12x65536,16x65536'."""
  pairs = [one.split("x") for one in text.split(",") if one]
  return [(int(width), int(number)) for width, number in pairs] or None


def main(arguments: list[str]) -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("target", choices=targets.NAMES)
  parser.add_argument("preset", help="FILE:PRESET of experiments/")
  parser.add_argument("--points", default="", help="groups of a batch's texts: WIDTHxNUMBER,…")
  parser.add_argument("--labels", default="", help="groups of the pool's texts")
  parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
  parser.add_argument("--kernels", type=int, default=0, help="how many kernels to print, the longest first")
  parser.add_argument("--name", default="", help="where to put the result in docs/results/accelerator.json")
  options = parser.parse_args(arguments)
  config = config_of(options.preset, options.set)
  points, labels = _groups(options.points), _groups(options.labels)
  found, text = compile_step(config, options.target, points, labels)
  print(json.dumps(found, indent=2))
  kernels = hlo.kernels(text) if options.kernels else []
  for one in sorted(kernels, key=lambda kernel: -seconds(kernel, options.target))[: options.kernels]:
    kind = "product" if one.is_product else ""
    print(
      f"{1e3 * seconds(one, options.target):8.2f} ms {one.num_bytes / 1e6:9.1f} MB x{one.times:<5d} {kind:8s}"
      f"{one.name[:36]:37s}{one.where[-80:]}"
    )
  if options.name:
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    kept[options.name] = kept.get(options.name, {}) | {"command": " ".join(arguments), **found}
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main(sys.argv[1:])
