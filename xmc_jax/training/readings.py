"""Makes what a training shows of its steps: the line beside the progress bar, and an epoch's metrics."""

from xmc_jax.distributed import runtime
from xmc_jax.runs.metric_writer import MetricWriter


def epoch_metrics(numbers: dict[str, float], rate: float, writer: MetricWriter) -> dict[str, float]:
  """Returns an epoch's entries for metrics.jsonl."""
  return {
    **{f"train/{name}": value for name, value in numbers.items()},
    "train/examples_per_second": rate,
    **{f"time/{stage}": seconds for stage, seconds in writer.seconds.items()},
    **{f"memory/{where}_bytes": peak for where, peak in runtime.peak_memory().items()},
  }


def status(step: int, per_epoch: int, numbers: dict[str, float], best: float | None, metric: str) -> str:
  """Returns epoch, loss and best validation so far, for the progress bar."""
  parts = [f"epoch {1 + (step - 1) // per_epoch}"]
  if numbers:
    parts.append(f"loss {numbers['loss']:.4f}")
  if best is not None:
    parts.append(f"best {metric} {100 * best:.2f}")
  return ", ".join(parts)
