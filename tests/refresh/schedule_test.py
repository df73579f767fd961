"""When refreshes run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmc_jax import refresh
from xmc_jax.types import Refresh


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


@pytest.mark.parametrize(
  "settings, per_epoch, expected",
  [
    ({"every_epochs": 1}, 5, [0, 5, 10, 15, 20, 25, 30]),
    ({"every_epochs": 2, "first_epoch": 3}, 5, [15, 25]),
    ({"every_epochs": 0.5, "first_epoch": 2.5}, 10, [25, 30]),
    ({"first_epoch": 2}, 3, [6]),  # once
    ({"every_epochs": 5, "first_epoch": 1, "every_steps": 12}, 4, [4, 16, 28]),
    ({"every_steps": 3, "at_epoch_start": True}, 5, [0, 5, 10, 15, 20, 25, 30]),
    ({"every_steps": 12, "first_epoch": 0.5, "at_epoch_start": True}, 5, [5, 15, 30]),
    ({"every_steps": 5, "first_epoch": 2, "at_epoch_start": True}, 5, [10, 15, 20, 25, 30]),
    ({"first_epoch": 1, "at_epoch_start": True}, 5, [5]),
  ],
)
def test_by_hand(settings, per_epoch, expected):
  """What shapes the order of points waits for an epoch to begin."""
  rhythm = Refresh(**{"every_epochs": 0.0, "compute": None, **settings})
  assert _steps({"a": rhythm, "b": Refresh(1, None)}, 31, per_epoch)["a"] == expected


@given(
  st.lists(
    st.builds(
      Refresh,
      st.sampled_from([0.0, 0.3, 1.0, 2.5]),
      st.none(),
      first_epoch=st.sampled_from([0.0, 0.7, 3.0]),
      every_steps=st.integers(0, 9),
      at_epoch_start=st.booleans(),
    ),
    max_size=3,
  ),
  st.integers(1, 7),
)
def test_no_step_is_passed_over(refreshes, per_epoch):
  """`_steps` checks that nothing is due between two stops; each is due at the first moment that it may be."""
  named = dict(zip("abc", refreshes))
  for name, steps in _steps(named, 40, per_epoch).items():
    first = max(1, round(named[name].first_epoch * per_epoch)) if named[name].first_epoch else 0
    unit = per_epoch if named[name].at_epoch_start else 1
    assert steps[:1] == ([-(-first // unit) * unit] if -(-first // unit) * unit < 40 else [])
    every = named[name].every_steps or named[name].every_epochs
    assert len(steps) > 1 or not every or first + every * per_epoch + 2 * unit > 39


def test_nothing_is_due_where_there_is_nothing():
  assert refresh.due({}, 0, 5) == [] and refresh.next_due({}, 3, 17, 5) == 17


def test_a_snapshot_embeds_once_and_only_what_is_asked_for():
  calls = []
  parts = [lambda name=name: calls.append(name) or np.ones(1) for name in "qlt"]
  nothing = dict.fromkeys(("truth", "filtered", "rows", "devices"))
  made = refresh.Snapshot(*parts, step=3, steps_per_epoch=1, **nothing)
  assert made.queries is made.queries and calls == ["q"]
  assert made.labels is made.labels and calls == ["q", "l"]
  assert made.texts is made.texts and calls == ["q", "l", "t"]
