"""RAMEN: links of points to anchors that are named like a label of other points."""

import json
import re

import numpy as np
import pytest
import tiny_runs

from xmc_jax.methods.components import graph_edges


def _words(text):
  return frozenset(re.findall(r"\w+", text.lower())) or text


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """Anchors are words; labels that have two of them are also anchors, in another order and case."""
  folder = tiny_runs.write_graphs(tiny_runs.write_data(tmp_path_factory.mktemp("named") / "data"))
  labels = [json.loads(line)["title"] for line in (folder / "lbl.json").read_text().splitlines()]
  path = folder / "words_anchors.txt"
  anchors = path.read_text().splitlines()
  for number, label in enumerate(labels[: len(anchors) // 2]):
    anchors[number] = ", ".join(reversed(label.title().split()))
  path.write_text("\n".join(anchors) + "\n")
  return folder


@pytest.mark.parametrize("sampling", ["uniform", "visits"])
def test_links_to_anchors_named_like_a_label_of_others_are_left_out(
  sampling, data, tmp_path, capsys, monkeypatch
):
  monkeypatch.setattr(graph_edges, "_NAMED_LIKE_OTHERS", 0.01)
  settings = tiny_runs.RAMEN | {"method.anchor_sampling": sampling, "method.graphs": ("words",)}
  kept, run = (
    tiny_runs.open_run(
      data,
      tmp_path / how,
      **settings,
      **{"method.label_like_anchors": how, "method.num_hard_negatives": num_hard, "method.shortlist_size": 8},
    )
    for how, num_hard in (("keep", 0), ("drop", 1))
  )
  train, names = run.data.train, [_words(text) for text in run.dataset.labels.texts]
  anchors = [_words(text) for text in run.dataset.graphs["words"].anchors.texts]

  def like(row, anchor):
    own = train.truth[row].indices
    return anchors[anchor] in names and anchors[anchor] not in {names[label] for label in own}

  before, after = kept.sides["words_query"], run.sides["words_query"]
  pairs = list(zip(*before.edges.nonzero()))
  dropped = [pair for pair in pairs if like(*pair)]
  own_named = [pair for pair in pairs if anchors[pair[1]] in names and not like(*pair)]
  assert dropped and own_named  # else nothing is told apart
  expected = before.edges.toarray() > 0
  expected[tuple(np.transpose(dropped))] = False
  np.testing.assert_array_equal(after.edges.toarray() > 0, expected)
  if sampling == "visits":
    weights = before.sampling_weights[[not like(*pair) for pair in pairs]]
    np.testing.assert_array_equal(after.sampling_weights, weights)
  labels = (found.sides["words_label"].edges.toarray() for found in (kept, run))
  np.testing.assert_array_equal(*labels)
  own = run.dataset.graphs["words"].query_edges[train.row_numbers]
  share = np.mean([like(*pair) for pair in zip(*own.nonzero())])
  said = f"({share:.0%} to anchors named like a label that is not the point's"
  lines = [line for line in capsys.readouterr().err.splitlines() if said in line]
  hinted = ["; try --config.method.num_hard_negatives=1, or leave" in line for line in lines]
  assert hinted == [True, False]


@pytest.mark.parametrize(
  "label, anchor, same",
  [("Turner, Joseph", "joseph TURNER", True), ("a b", "a", False), ("+", "-", False), ("+", "+", True)],
)
def test_names_are_compared_by_their_sets_of_words(label, anchor, same):
  found = graph_edges.same_words(["other", label], [anchor])
  assert found.toarray().tolist() == [[False], [same]]
