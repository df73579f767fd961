"""Reads a training between its steps: its validation, an epoch's metrics, the line of the progress bar."""

from xmc_jax.console import say
from xmc_jax.distributed import runtime
from xmc_jax.runs import evaluate
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.trained import Trained
from xmc_jax.storage.checkpoints import TrainingRecord


def validate(trained: Trained, writer: MetricWriter, record: TrainingRecord) -> bool:
  """Scores the validation rows and records the score; returns whether it is the best so far.

  This decides on the best parameters, and on when to stop.
  """
  run, step = trained.run, trained.step
  with writer.stage("evaluate"):
    scores = evaluate.validate(trained)
  writer.scalars(step, {f"eval/{name}": value for name, value in scores.items()})
  name = run.config.eval.metric
  patience = run.config.train.early_stop_evals
  improved = record.add_score(step, scores[name], patience)
  names = [key for key in ("P@1", "P@5", "PSP@1", "R@10", "R@100") if key in scores]
  shown = "  ".join(f"{key} {100 * scores[key]:.2f}" for key in names)
  epoch, texts = step / run.batches.steps_per_epoch, f"{len(run.data.validation):,} held-out texts"
  say(f"epoch {round(epoch, 2):g} on {texts}: {shown}{'  (best so far)' if improved else ''}")
  if patience and record.evals_since_best >= patience:
    say(f"train: {name} has not risen for {record.evals_since_best} evaluations; stopping")
  return improved


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
