"""Path rules, and what lies where."""

import jax
import numpy as np
import pytest
import tiny_runs
from jax.sharding import PartitionSpec

from tests.methods.methods_test import CASES
from xmc_jax import methods
from xmc_jax.distributed import sharding as mesh
from xmc_jax.types import Batch, SampledAnchors, Tokens, TrainState


def _specs(tree, rules, shape=(2, 4)):
  return jax.tree.map(lambda sharding: sharding.spec, mesh.shard_tree(tree, rules, mesh.make(*shape)))


def test_the_first_rule_that_matches_wins():
  tree = {"table": np.zeros((8, 3)), "encoder": {"table": np.zeros((8, 3)), "bias": np.zeros(3)}}
  rules = (("encoder/.*", ()), ("table$", ("label",)), (".*", ("data",)))
  assert _specs(tree, rules) == {
    "table": PartitionSpec("label"),
    "encoder": {"table": PartitionSpec(), "bias": PartitionSpec()},
  }


def test_an_unmatched_path_is_refused_by_name():
  with pytest.raises(ValueError, match=r"'encoder/bias'.*'kernel\$'"):
    _specs({"encoder": {"bias": np.zeros(3)}}, (("kernel$", ()),))


def test_scalars_are_never_split():
  state = TrainState(np.zeros((), np.int32), {"w": np.zeros(8)}, (np.zeros(()), {"w": np.zeros(8)}), {})
  found = _specs(state, (("w$", ("data",)),))  # they need no rule
  assert found.step == found.opt_state[0] == PartitionSpec()
  assert found.params["w"] == found.opt_state[1]["w"] == PartitionSpec("data")


# By case of methods_test: the arrays that are split, and over what. All others are whole on every device.
EVERYWHERE = (mesh.LABEL_ROWS,)
SPLIT = {
  "dexml-fresh": {"extra_state/label_cache": EVERYWHERE},
  "ova": {"params/table": ("label",)},
  "dexa": {"params/auxiliary": EVERYWHERE},
  "classifier": {"params/classifiers": EVERYWHERE, "extra_state/label_vectors": EVERYWHERE},
  "unidec": {"params/classifiers": EVERYWHERE},
  "prime": {"params/free_vectors": EVERYWHERE, "extra_state/centroids": EVERYWHERE},
}


def test_methods_split_arrays_with_a_row_per_label_or_cluster(tmp_path):
  """Trainings by several processes are tried with two methods; others differ in these rules."""
  data = tiny_runs.write_graphs(tiny_runs.write_data(tmp_path / "data"))
  devices = mesh.make(2, 2)
  info = tiny_runs.open_run(data, tmp_path / "run")._info()._replace(mesh=devices)
  for name, settings in CASES.items():
    on_a_run = {"init_from": "run", "data.path": ""} if settings["method.name"] == "classifier" else {}
    method = methods.make(tiny_runs.config(data, **settings, **on_a_run), info)
    params, extra_state = jax.eval_shape(method.init, jax.random.key(0))
    state = {"params": params, "extra_state": extra_state}
    shardings = mesh.shard_tree(state, method.sharding_rules, devices)
    jax.tree.map(lambda leaf, sharding: sharding.shard_shape(leaf.shape), state, shardings)  # they divide
    split = {name: tuple(leaf.spec) for name, leaf in mesh.by_path(shardings).items() if any(leaf.spec)}
    assert split == SPLIT.get(name, {}), name


def test_a_batch_is_split_over_data_where_it_has_rows():
  groups = (Tokens(np.zeros((4, 8), np.int32), np.zeros(4, np.int32)),)
  texts = (Tokens(np.zeros((16, 8), np.int32), np.zeros(16, np.int32)),)
  host = Batch(
    rows=np.arange(4),
    queries=groups,
    columns=np.arange(6),
    labels=texts,
    positives=np.zeros((4, 1), np.int32),
    weights=np.ones((4, 1), np.float32),
    excluded=np.full((4, 1), -1, np.int32),
    sampled_anchors={
      "side": SampledAnchors(
        np.arange(4), np.arange(5), texts, np.zeros((4, 2), np.int32), np.ones((4, 2), np.float32)
      )
    },
  )
  placed = mesh.put_batch(host, mesh.make(4, 2))
  links = placed.sampled_anchors["side"]
  assert links.columns.sharding.is_fully_replicated
  for leaf in (links.rows, links.positives, links.weights):
    assert leaf.sharding.spec == PartitionSpec("data")
  for name in ("rows", "queries", "positives", "weights", "excluded"):
    for leaf in jax.tree.leaves(getattr(placed, name)):
      assert leaf.sharding.spec == PartitionSpec("data") and leaf.addressable_shards[0].data.shape[0] == 1
  assert placed.columns.sharding.is_fully_replicated
  for leaf in jax.tree.leaves((placed.labels, links.anchors)):  # over all eight devices, 'label' outermost
    assert (
      leaf.sharding.spec == PartitionSpec(("label", "data")) and leaf.sharding.shard_shape(leaf.shape)[0] == 2
    )
  for before, after in zip(jax.tree.leaves(host), jax.tree.leaves(placed), strict=True):
    np.testing.assert_array_equal(before, after)


def test_rows_are_padded_until_they_divide():
  devices = mesh.make(2, 4)
  rows = np.arange(10, dtype=np.float32).reshape(5, 2)
  for axes, length in ((("data",), 6), (("label",), 8), (mesh.LABEL_ROWS, 8)):
    placed = mesh.split_rows(rows, devices, *axes)
    assert placed.shape == (length, 2)
    np.testing.assert_array_equal(mesh.to_host(placed)[:5], rows)
    assert not mesh.to_host(placed)[5:].any()
  assert mesh.local_rows(8, devices, *mesh.LABEL_ROWS).all()  # one process holds everything


def test_fetch_passes_a_transfer_guard():
  array = jax.device_put(np.arange(3), mesh.replicated(mesh.make(2, 1)))
  with jax.transfer_guard("disallow"):
    np.testing.assert_array_equal(mesh.to_host(array), [0, 1, 2])
