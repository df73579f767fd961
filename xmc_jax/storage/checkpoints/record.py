"""Keeps the part of a training's state that is not an array."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass
class TrainingRecord:
  """Holds the part of a checkpoint that is JSON.

  Attributes:
    best: the best validation score so far; None before the first.
    best_step: the step with that score.
    evals_since_best: the number of validations since then.
    stopped: whether training stopped early, because the score has not risen for long enough or time was up.
    unscored: whether the training was stopped before this step was validated.
    skipped: steps that were left out because their loss or gradient was not finite.
    seconds: time by stage, of all processes up to the restored step.
  """

  best: float | None = None
  best_step: int | None = None
  evals_since_best: int = 0
  stopped: bool = False
  unscored: bool = False
  skipped: int = 0
  seconds: dict[str, float] = dataclasses.field(default_factory=dict)

  def to_json(self, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Returns the record as JSON for a checkpoint, with the current stage times."""
    return {**dataclasses.asdict(self), "seconds": dict(seconds)}

  def add_score(self, step: int, score: float, patience: int) -> bool:
    """Notes the validation of a step.

    Args:
      step: the step.
      score: its score; higher is better.
      patience: stop after this many validations without a better score; 0 never stops.

    Returns:
      Whether it is the best so far.
    """
    self.unscored = False
    if self.best is None or score > self.best:
      self.best = score
      self.best_step = step
      self.evals_since_best = 0
      return True
    self.evals_since_best += 1
    self.stopped = self.stopped or (bool(patience) and self.evals_since_best >= patience)
    return False
