"""RAMEN on graphs that link nothing on one side, or only what is held out."""

import json

import pytest
import tiny_runs

from xmc_jax.cli import commands
from xmc_jax.errors import ConfigError
from xmc_jax.runs import run as runs

WORDS, LABELS, LENGTH = "words_trn_X_Y.txt", "words_lbl_X_Y.txt", "length_trn_X_Y.txt"


@pytest.fixture
def data(tmp_path):
  return tiny_runs.write_graphs(tiny_runs.write_data(tmp_path / "data"))


def _unlink(path, kept=frozenset()):
  """Takes the links of all rows but `kept` out of a graph's file."""
  first, *rows = path.read_text().split("\n")
  path.write_text("\n".join([first, *(row if number in kept else "" for number, row in enumerate(rows))]))


@pytest.mark.slow
def test_sides_without_links_are_left_out_and_those_of_held_out_points_are_not_pruned(data, tmp_path):
  """Orbax saves no array of size 0, and such a training ended at its first checkpoint after pruning."""
  points = set(
    tiny_runs.open_run(data, tmp_path / "points", **tiny_runs.RAMEN).data.train.row_numbers.tolist()
  )
  _unlink(data / LABELS)
  _unlink(data / LENGTH, kept=set(range(200)) - points)
  commands.train_and_test(tiny_runs.config(data, **tiny_runs.RAMEN), tmp_path / "run")
  run = runs.reopen(tmp_path / "run")
  assert run.dataset.graph_kinds == {"words": ("query",), "length": ("query",)}
  assert run.sides.keys() == {"words_query", "length_query"} and run.sides["length_query"].edges.nnz == 0
  lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  refreshed = {name for line in lines for name in line if name.startswith("refresh/kept_")}
  assert refreshed == {"refresh/kept_words_query"}


def test_graphs_without_any_link_are_no_graphs(data, tmp_path):
  for name in (WORDS, LABELS, LENGTH):
    _unlink(data / name)
  with pytest.raises(ConfigError, match=r"the data have none with a link"):
    tiny_runs.open_run(data, tmp_path / "run", **tiny_runs.RAMEN)
