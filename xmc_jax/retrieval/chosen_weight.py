"""Stores a ranking weight that was chosen on validation rows."""

import json
import pathlib
from typing import NamedTuple

from xmc_jax.errors import UserError
from xmc_jax.storage import atomic


class ChosenWeight(NamedTuple):
  """Holds a weight in a ranking, and how it was chosen.

  Attributes:
    weight: at least 0.
    metric: the metric that chose it; '' if none did.
    values: the metric of each candidate weight, a fraction; () if none was tried.
  """

  weight: float
  metric: str = ""
  values: tuple[float, ...] = ()

  def save(self, path: pathlib.Path) -> None:
    """Writes a JSON file, whole or not at all."""
    atomic.write_text(path, json.dumps(self._asdict()) + "\n")

  @classmethod
  def load(cls, path: pathlib.Path, most: float) -> "ChosenWeight":
    """Reads what `save` wrote.

    Raises:
      UserError: the file cannot be read, or its weight is not from 0 to `most`.
    """
    try:
      content = json.loads(path.read_text(encoding="utf-8"))
      weight = content["weight"]
      if type(weight) not in (int, float) or not 0 <= weight <= most:
        raise ValueError(f"weight = {weight!r:.40} is no number from 0 to {most:g}")
      return cls(float(weight), str(content["metric"]), tuple(map(float, content["values"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
      why = " ".join(str(error).split())[:200]
      raise UserError(f"{path}: not readable ({why}); delete it, and the weight is chosen anew") from None
