"""The bidirectional GRU against PyTorch's equations in NumPy, and through `build`."""

import functools
import json
import pathlib
import types

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_references import compiled, random_texts
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from safetensors.numpy import save_file

from xmc_jax import data, models
from xmc_jax.errors import DataError
from xmc_jax.models import bag_gru_files
from xmc_jax.models.layers import dropout
from xmc_jax.types import Tokens

KEY = jax.random.key(0)
SPEC = models.GruSpec(vocab_size=13, embedding_width=3, width=4)


PARTS = {"weight_ih": (6, 3), "weight_hh": (6, 2), "bias_ih": (6,), "bias_hh": (6,)}


@functools.cache
def _tensors():
  """Random tensors of a PyTorch model; biases that are not zero, which would hide a wrong one."""
  generator = np.random.default_rng(0)
  shapes = {f"gru.{part}_{end}": shape for end in ("l0", "l0_reverse") for part, shape in PARTS.items()}
  shapes["word_embeddings.weight"] = (13, 3)
  return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@functools.cache
def _params():
  return flax.traverse_util.unflatten_dict(
    bag_gru_files.from_tensors(_tensors(), pathlib.Path("here"), SPEC), sep="/"
  )


_inputs = functools.partial(random_texts, length=6, vocab_size=13)


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _mean_state(x, weight_ih, weight_hh, bias_ih, bias_hh):
  """One direction over one text, `[T, E]` -> `[H]`: the equations in the documentation of `torch.nn.GRU`."""
  w_r, w_z, w_n = np.split(weight_ih, 3)
  u_r, u_z, u_n = np.split(weight_hh, 3)
  b_r, b_z, b_n = np.split(bias_ih, 3)
  d_r, d_z, d_n = np.split(bias_hh, 3)
  state = np.zeros(len(u_n))
  total = np.zeros(len(u_n))
  for token in x:
    reset = _sigmoid(w_r @ token + b_r + u_r @ state + d_r)
    update = _sigmoid(w_z @ token + b_z + u_z @ state + d_z)
    new = np.tanh(w_n @ token + b_n + reset * (u_n @ state + d_n))
    state = (1 - update) * new + update * state
    total += state
  return total / max(len(x), 1)


def _reference(texts):
  """Texts, each `[T]` ids of its real tokens or `[T, E]` embeddings -> `[n, D]` float64."""
  tensors = {name: value.astype(np.float64) for name, value in _tensors().items()}
  rows = []
  for text in texts:
    x = tensors["word_embeddings.weight"][text] if np.ndim(text) == 1 else np.asarray(text, np.float64)
    states = (
      _mean_state(order, *(tensors[f"gru.{part}_{end}"] for part in PARTS))
      for end, order in (("l0", x), ("l0_reverse", x[::-1]))
    )
    rows.append(np.concatenate([*states]))
  return np.stack(rows)


@given(seed=st.integers(0, 9999), share=st.sampled_from([0.0, 0.3, 0.8, 1.0]))
def test_states_are_the_references_under_any_mask(seed, share):
  ids, _ = _inputs(seed=seed)
  mask = np.random.default_rng(seed).random(ids.shape) < share
  expected = _reference([row[real] for row, real in zip(ids, mask)])
  actual = compiled(models.Gru(SPEC))(_params(), ids, mask)
  assert actual.dtype == jnp.float32
  np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.slow
def test_dropout_acts_on_the_token_embeddings():
  ids, mask = _inputs()
  embed = compiled(models.Gru(SPEC, dropout=0.4))
  dropped = jax.jit(lambda x: dropout(x, 0.4, KEY))(_params()["word"][ids.T]).swapaxes(0, 1)
  expected = _reference([row[real] for row, real in zip(np.asarray(dropped), mask)])
  np.testing.assert_allclose(embed(_params(), ids, mask, KEY), expected, atol=1e-5)
  np.testing.assert_array_equal(embed(_params(), ids, mask), compiled(models.Gru(SPEC))(_params(), ids, mask))


@pytest.mark.slow
def test_remat_and_bfloat16_change_little():
  ids, mask = _inputs()

  def value_and_gradients(gru):
    return jax.jit(jax.value_and_grad(lambda p: jnp.sin(gru.apply({"params": p}, ids, mask)).sum()))(
      _params()
    )

  plain = value_and_gradients(models.Gru(SPEC))
  again = value_and_gradients(models.Gru(SPEC, remat=True))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), again, plain)
  rounded = value_and_gradients(models.Gru(SPEC, jnp.bfloat16))
  for a, b in zip(jax.tree.leaves(rounded), jax.tree.leaves(plain)):
    assert a.dtype == jnp.float32
    assert np.linalg.norm(a - b) <= 0.05 * np.linalg.norm(b) + 0.02


def test_one_product_for_all_inputs_and_one_scan_for_both_directions():
  program = str(jax.make_jaxpr(compiled(models.Gru(SPEC)))(_params(), *_inputs()))
  assert (program.count("scan["), program.count("dot_general[")) == (1, 2)


def test_rows_split_over_devices_need_no_exchange():
  ids, mask = _inputs(n=16)
  devices = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  placed = jax.device_put((ids, mask), NamedSharding(devices, PartitionSpec("data")))
  params = jax.device_put(_params(), NamedSharding(devices, PartitionSpec()))
  program = compiled(models.Gru(SPEC)).lower(params, *placed).compile()
  np.testing.assert_allclose(
    program(params, *placed), compiled(models.Gru(SPEC))(_params(), ids, mask), atol=1e-6
  )
  assert not any(f" all-{kind}" in program.as_text() for kind in ("gather", "reduce", "to-all"))


def _config(name="gru", **options):
  return types.SimpleNamespace(name=name, dtype="float32", **options)


def test_kernels_start_orthogonal_and_parameters_have_the_documented_paths():
  embedder = models.build(_config(width=8), vocab_size=13)
  params = embedder.init(KEY)
  assert (embedder.spec, embedder.tokenizer_file) == (models.GruSpec(13, 8, 8), None)
  shapes = {
    path: leaf.shape for path, leaf in flax.traverse_util.flatten_dict(params["encoder"], sep="/").items()
  }
  assert shapes == {
    "word": (13, 8),
    **{f"{name}_input/kernel": (8, 12) for name in ("forward", "backward")},
    **{f"{name}_input/bias": (12,) for name in ("forward", "backward")},
    **{f"{name}_state/kernel": (4, 12) for name in ("forward", "backward")},
    **{f"{name}_state/bias": (4,) for name in ("forward", "backward")},
  }
  gates = np.split(np.asarray(params["encoder"]["backward_state"]["kernel"]), 3, axis=1)
  for gate in gates:
    np.testing.assert_allclose(gate @ gate.T, np.eye(4), atol=1e-5)
  assert np.abs(gates[0] - gates[1]).max() > 0.1


@pytest.mark.slow
def test_a_gru_starts_from_another_encoders_table(tmp_path):
  table = models.build(_config("bag", width=6), vocab_size=13)
  saved = table.init(KEY)
  table.save(saved, tmp_path)
  embedder = models.build(_config(init_table=str(tmp_path), width=8, pooling="auto"), vocab_size=13)
  assert embedder.spec == models.GruSpec(13, 6, 8)
  assert embedder.source == f"token embeddings of directory {tmp_path}"
  params = embedder.init(jax.random.key(1))["encoder"]
  np.testing.assert_array_equal(params["word"], saved["encoder"]["word"])
  assert params["forward_input"]["kernel"].shape == (6, 12)
  scratch = models.build(_config(init_table=str(tmp_path), width=8, pretrained=False))
  assert (scratch.spec, "scratch" in scratch.source) == (embedder.spec, True)


def _folder(path, tensors, **sizes):
  """Writes a GRU of PyTorch's as a folder."""
  save_file(tensors, path / "model.safetensors")
  config = {"model_type": "xmc_jax_gru", "vocab_size": 13, "embedding_width": 3, "width": 4}
  (path / "config.json").write_text(json.dumps(config | sizes))
  return str(path)


def test_a_folder_with_pytorchs_tensors_gives_pytorchs_states(tmp_path):
  embedder = models.build(_config(_folder(tmp_path, _tensors()), normalize=False))
  tokens = Tokens(_inputs()[0], np.array([6, 0, 3, 1, 5], np.int32))
  expected = _reference([row[:length] for row, length in zip(tokens.ids, tokens.lengths)])
  np.testing.assert_allclose(jax.jit(embedder.embed)(embedder.init(KEY), tokens), expected, atol=1e-5)


def test_a_saved_gru_is_loaded_with_its_tokenizer(tmp_path):
  tokenizer = data.train_tokenizer(["a text", "of words"], 100)
  embedder = models.build(_config(width=8), vocab_size=tokenizer.get_vocab_size())
  embedder.save(embedder.init(KEY), tmp_path)
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  *_, found = models.load_encoder(tmp_path)
  assert found("a text")["input_ids"] == tokenizer.encode("a text").ids


@pytest.mark.parametrize(
  ("changed", "sizes", "message"),
  [
    ({}, {"width": 6}, r"\(6, 3\).*\(9, 3\)"),
    ({"gru.weight_hh_l0_reverse": None}, {}, "weight_hh_l0_reverse"),
    ({"gru.bias_ih_l0": np.zeros(5, np.float32)}, {}, r"bias_ih_l0.*\(5,\).*\(6,\)"),
  ],
)
def test_a_damaged_folder_is_named(tmp_path, changed, sizes, message):
  tensors = {name: value for name, value in (_tensors() | changed).items() if value is not None}
  with pytest.raises(DataError, match=message):
    models.load_pretrained(_folder(tmp_path, tensors, **sizes))
