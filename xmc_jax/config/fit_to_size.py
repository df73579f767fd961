"""Fits settings to the size of the data. Loads no jax.

Three keys are fitted: `data.num_validation`, which is automatic by default, and for small data `eval.k` and
`train.batch_size`. A run chooses once, when it begins, and its config.json holds the chosen values.
"""

import ml_collections

from xmc_jax.config import checks
from xmc_jax.config.defaults import KEYS as DECLARED

AUTOMATIC = -1  # data.num_validation: by `num_validation`
KEYS = ("data.num_validation", "eval.k", "train.batch_size")

_MOST_HELD_OUT = 1000
_STEPS_PER_EPOCH, _LEAST_ROWS = 16, 8


def num_validation(num_labelled: int) -> int:
  """Returns how many of the labelled rows to hold out if that is automatic: a tenth, and at most 1,000."""
  return min(_MOST_HELD_OUT, (num_labelled + 5) // 10)


def batch_size(num_rows: int, data_axis: int = 1) -> int:
  """Returns the batch size for small data: the largest power of two with 16 steps or more in an epoch.

  It is at least 8, if there are 8 rows, and is rounded up to a multiple of `data_axis`, which is `mesh.data`.
  """
  most = max(num_rows // _STEPS_PER_EPOCH, min(_LEAST_ROWS, num_rows))
  size = 1 << (most.bit_length() - 1)
  return size + -size % data_axis


def fitted(
  config: ml_collections.ConfigDict,
  num_labelled: int,
  num_labels: int,
  begun: ml_collections.ConfigDict | None = None,
) -> ml_collections.ConfigDict:
  """Returns a copy of a config whose settings fit the data; settings that fit already stay.

  `eval.k` becomes at most the number of labels if it has its default; another number was set by the user, and
  `config.check_against_data` refuses it if too large. A batch larger than the rows to train on becomes
  smaller: every preset has its own size, so we cannot know whether the user has set it.

  Args:
    config: as asked for.
    num_labelled: training rows with a label; 0 is unknown, and keys that depend on it stay.
    num_labels: L.
    begun: the config of the run that goes on. Its batch size stays, also one that was fitted to another
      mesh.
  """
  found = ml_collections.ConfigDict(config.to_dict())
  if found.eval.k == DECLARED["eval"]["k"].default:
    found.eval.k = max(1, min(found.eval.k, num_labels))
  if not num_labelled:
    return found
  if found.data.num_validation == AUTOMATIC:
    found.data.num_validation = num_validation(num_labelled)
  rows, asked = num_labelled - found.data.num_validation, found.train.batch_size
  if asked > rows > 0 and not (begun and begun.train.batch_size == asked):
    found.train.batch_size = min(asked, batch_size(rows, (begun or found).mesh.data))
  return found


def note(
  asked: ml_collections.ConfigDict, used: ml_collections.ConfigDict, num_labelled: int, num_labels: int
) -> str:
  """Writes one line about what `fitted` changed; '' if only `data.num_validation`, or nothing, changed."""
  before, after = checks.flatten(asked), checks.flatten(used)
  changed = [key for key in KEYS if before[key] != after[key]]
  if changed in ([], ["data.num_validation"]):
    return ""
  rows = f"{num_labelled:,} rows and " if num_labelled else ""
  chosen = ", ".join(f"{key}={after[key]}" for key in changed)
  return f"note: fitted to {rows}{num_labels:,} labels: {chosen}"
