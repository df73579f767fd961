"""Settings that fit themselves to the size of the data. Knows nothing of jax.

Three keys do: `data.num_validation`, which is automatic by default, and where data are small `eval.k` and
`train.batch_size`. A run decides once, when it begins, and its config.json holds what was chosen.
"""

import ml_collections

from xmc_jax.config import checks
from xmc_jax.config.defaults import KEYS as DECLARED

AUTOMATIC = -1  # data.num_validation: by `num_validation`
KEYS = ("data.num_validation", "eval.k", "train.batch_size")

_MOST_HELD_OUT = 1000
_STEPS_PER_EPOCH, _LEAST_ROWS = 16, 8


def num_validation(num_labelled: int) -> int:
  """Rows to hold out where their number is automatic: a tenth, rounded, and at most 1,000.

  So these are 50 or more of 500 rows, and none of 4 or fewer.

  Args:
    num_labelled: training rows with a label.
  """
  return min(_MOST_HELD_OUT, (num_labelled + 5) // 10)


def batch_size(num_rows: int, data_axis: int = 1) -> int:
  """Rows of a batch of small data: the largest power of two that makes 16 steps or more of an epoch.

  It is 8 at least, where there are so many rows, and is rounded up to what the devices divide.

  Args:
    num_rows: rows to train on, 1 or more.
    data_axis: `mesh.data`, by which the result divides.
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
  """A copy of a config whose settings fit the data; what fits already stays.

  `eval.k` becomes the number of labels where it is its default; any other number was meant, and
  `config.check_against_data` refuses it. A batch that is larger than the rows to train on becomes smaller:
  every preset has a size of its own, so nobody can tell which one was meant.

  Args:
    config: as asked for.
    num_labelled: training rows with a label; 0 is unknown, and leaves what depends on it as it is.
    num_labels: L.
    begun: the config of the run that goes on. The batch that it was begun with stays, and so does one that
      was fitted to another mesh.
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
  """One line that says what `fitted` chose; '' where that is at most an automatic `data.num_validation`.

  Args:
    asked, used: the config before and after.
    num_labelled, num_labels: as `fitted` had them.
  """
  before, after = checks.flatten(asked), checks.flatten(used)
  changed = [key for key in KEYS if before[key] != after[key]]
  if changed in ([], ["data.num_validation"]):
    return ""
  rows = f"{num_labelled:,} rows and " if num_labelled else ""
  chosen = ", ".join(f"{key}={after[key]}" for key in changed)
  return f"note: fitted to {rows}{num_labels:,} labels: {chosen}"
