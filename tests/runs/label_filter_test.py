"""Which labels may be answers, by key."""

import numpy as np
import pytest

from xmc_jax.errors import UserError
from xmc_jax.runs.label_filter import LabelFilter

KEYS = ("a", "b", "c", "d")


@pytest.mark.parametrize(
  ("include", "exclude", "expected"),
  [((), ("b",), [1, 0, 1, 1]), (("d", "b"), (), [0, 1, 0, 1]), (("b", "c"), ("c", "a"), [0, 1, 0, 0])],
)
def test_labels_are_included_then_excluded(include, exclude, expected):
  where = LabelFilter(KEYS).where(include, exclude)
  assert where.dtype == bool
  np.testing.assert_array_equal(where, expected)


def test_without_keys_all_labels_are_answers_and_a_stranger_is_refused():
  assert LabelFilter(KEYS).where() is None
  with pytest.raises(UserError, match="exclude: 'x' is the key of no label, such as 'a'"):
    LabelFilter(KEYS).where(exclude=("a", "x"))
