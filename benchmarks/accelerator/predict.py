"""Predicts, for a device that is not here, the steps of DEXML that a lease times.

  JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 python -m benchmarks.accelerator.predict h100

Writes docs/results/lease/TARGET_predicted.json.
"""

import json
import time

from benchmarks import flags
from benchmarks.accelerator import compiled, dexml_step, targets

RESULTS = compiled.RESULTS.with_name("lease")
STEPS = {
  "dexml_131k": ("lf_amazontitles_131k", {}),
  "dexml_1_3m": ("lf_amazontitles_1.3m", {}),
  "soft_top_5_1_3m": ("lf_amazontitles_1.3m", {"loss": "soft_top_k"}),
}


def main() -> None:
  target, predicted = flags.parse(__doc__, targets.NAMES).part, {}
  for name, (preset, values) in STEPS.items():
    start = time.perf_counter()
    config = dexml_step.config_of(preset, **values)
    account, _ = compiled.compile_step(config, target, *dexml_step.groups(config))
    predicted[name] = {**account, "model_flops": dexml_step.flops(config)}
    print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
  file = RESULTS / f"{target}_predicted.json"
  file.write_text(json.dumps(predicted, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main()
