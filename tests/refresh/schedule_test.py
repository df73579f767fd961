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


def test_two_rhythms_by_hand():
  refreshes = {"a": Refresh(1.0, None), "b": Refresh(2.0, None, first_epoch=3.0)}
  assert _steps(refreshes, 35, 5) == {"a": [0, 5, 10, 15, 20, 25, 30], "b": [15, 25]}


@pytest.mark.parametrize("first, every, expected", [(0, 0, [0]), (2, 0, [6]), (0.5, 0.5, [2, 4, 6, 8])])
def test_once_and_parts_of_an_epoch(first, every, expected):
  assert _steps({"a": Refresh(every, None, first_epoch=first)}, 10, 3 if first != 0.5 else 4)["a"] == expected


def test_steps_in_place_of_epochs():
  assert _steps({"a": Refresh(5.0, None, first_epoch=1.0, every_steps=3)}, 14, 4)["a"] == [4, 7, 10, 13]


@pytest.mark.parametrize(
  "first, every_steps, expected",
  [(0, 3, [0, 5, 10, 15]), (0.5, 12, [5, 15, 30]), (2.0, 5, [10, 15, 20, 25, 30]), (1.0, 0, [5])],
)
def test_what_shapes_the_order_waits_for_an_epoch_to_begin(first, every_steps, expected):
  waiting = Refresh(0, None, first_epoch=first, every_steps=every_steps, at_epoch_start=True)
  found = _steps({"a": waiting}, 31, 5)["a"]
  assert found[: len(expected)] == expected and all(step % 5 == 0 for step in found)


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
  made = refresh.Snapshot(
    lambda: calls.append("q") or np.ones(1),
    lambda: calls.append("l") or np.zeros(2),
    lambda: calls.append("t") or np.zeros(3),
    truth=None,
    filtered=None,
    rows=None,
    step=3,
    steps_per_epoch=1,
    devices=None,
  )
  assert made.queries is made.queries and calls == ["q"]
  assert made.labels is made.labels and calls == ["q", "l"]
  assert made.texts is made.texts and calls == ["q", "l", "t"]
