"""The command line with instrumentation: logs its stages and steps, and gets a signal at a chosen moment.

  STAGES=FILE STEPS=FILE FAULT=stage,entry,seconds,signal python -m benchmarks.instrumented_main --config=...

The file STAGES gets a line `[stage, seconds]` for each stage that ends. The file STEPS gets the number of
each step that begins. FAULT sends the process a signal `seconds` after it enters `stage` the `entry`-th time.
"""

import collections
import contextlib
import json
import os
import threading

from xmc_jax import main
from xmc_jax.runs import metric_writer
from xmc_jax.training import step


def _watch_stages() -> None:
  stage, entry, seconds, number = os.environ.get("FAULT", ",0,0,0").split(",")
  entered, original, log = collections.Counter(), metric_writer.MetricWriter.stage, os.environ.get("STAGES")

  @contextlib.contextmanager
  def watched(self, name, less=""):
    entered[name] += 1
    if name == stage and entered[name] == int(entry):
      timer = threading.Timer(float(seconds), os.kill, (os.getpid(), int(number)))
      timer.daemon = True
      timer.start()
    before = self.seconds[name]
    with original(self, name, less):
      yield
    if log:
      with open(log, "a") as file:
        file.write(json.dumps([name, self.seconds[name] - before]) + "\n")

  metric_writer.MetricWriter.stage = watched


def _watch_steps(log: str) -> None:
  original = step.TrainStep.__call__

  def watched(self, state, batch):
    with open(log, "a") as file:
      file.write(f"{int(state.step) + 1}\n")
    return original(self, state, batch)

  step.TrainStep.__call__ = watched


if __name__ == "__main__":
  _watch_stages()
  if "STEPS" in os.environ:
    _watch_steps(os.environ["STEPS"])
  main.cli()
