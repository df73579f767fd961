"""When refreshes run."""

import numpy as np
import pytest

from xmc_jax import refresh
from xmc_jax.contract import Refresh


def _steps(refreshes, last, per_epoch):
  """Every step at which each is due, walking as the loop walks."""
  found, step = {name: [] for name in refreshes}, 0
  while step < last:
    for name in refresh.due(refreshes, step, per_epoch):
      found[name].append(step)
    after = refresh.next_due(refreshes, step, last, per_epoch)
    assert step < after <= last
    skipped = [refresh.due(refreshes, between, per_epoch) for between in range(step + 1, after)]
    assert not any(skipped)
    step = after
  return found


def test_two_rhythms_by_hand():
  refreshes = {"a": Refresh(1.0, None), "b": Refresh(2.0, None, first_epoch=3.0)}
  assert _steps(refreshes, 35, 5) == {"a": [0, 5, 10, 15, 20, 25, 30], "b": [15, 25]}


@pytest.mark.parametrize("first, every, expected", [(0, 0, [0]), (2, 0, [6]), (0.5, 0.5, [2, 4, 6, 8])])
def test_once_and_parts_of_an_epoch(first, every, expected):
  assert _steps({"a": Refresh(every, None, first_epoch=first)}, 10, 3 if first != 0.5 else 4)["a"] == expected


def test_nothing_is_due_where_there_is_nothing():
  assert refresh.due({}, 0, 5) == [] and refresh.next_due({}, 3, 17, 5) == 17


def test_a_snapshot_embeds_once_and_only_what_is_asked_for():
  calls = []
  made = refresh.Snapshot(lambda: calls.append("q") or np.ones(1), lambda: calls.append("l"), None, 3, None)
  assert made.queries is made.queries and calls == ["q"]
