"""sentence-transformers folders: what their files say is done, or refused in one line."""

import json
import types

import jax
import numpy as np
import pytest
import tiny_runs
from safetensors.numpy import save_file

from xmc_jax import data, models
from xmc_jax.errors import DataError
from xmc_jax.models.heads import pool

KEY = jax.random.key(0)
IDS = np.random.default_rng(0).integers(0, 600, (3, 6)).astype(np.int32)
MASK = np.arange(6) < np.array([[6], [1], [4]])
OLD = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
GELU, TANH, IDENTITY = (
  f"torch.nn.modules.{name}" for name in ("activation.GELU", "activation.Tanh", "Identity")
)
TEXTS = ["bamarn nuve", "kelt, lolt"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  return tiny_runs.tiny_bert(tmp_path_factory.mktemp("bert"))


def folder_of(path, bert, *modules, settings=None):
  """Writes an encoder's folder; `modules` are (kind, config.json) after the Transformer."""
  path.mkdir()
  for name in ("config.json", "model.safetensors"):
    (path / name).symlink_to(bert / name)
  listed = [{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
  for i, (kind, config) in enumerate(modules, 1):
    listed.append({"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"})
    (path / f"{i}_{kind}").mkdir()
    (path / f"{i}_{kind}" / "config.json").write_text(json.dumps(config))
    if kind == "Dense":
      weight = np.random.default_rng(1).normal(size=(config["out_features"], 16)).astype(np.float32)
      save_file({"linear.weight": weight}, path / f"{i}_{kind}" / "model.safetensors")
  (path / "modules.json").write_text(json.dumps(listed))
  if settings:
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings))
  return path


def embedded(folder, **options):
  settings = {"name": str(folder), "normalize": False, "dtype": "float32"} | options
  embedder = models.build(types.SimpleNamespace(**settings))
  return np.asarray(jax.jit(embedder.apply)(embedder.init(KEY), IDS, MASK))


@pytest.mark.parametrize(
  ("config", "pooling"),
  [
    ({"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True}, "cls"),
    ({"pooling_mode": ["max"]}, "max"),
    (OLD, "mean"),
    ({**OLD, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}, "max"),
    ({**OLD, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "lasttoken"),
  ],
)
def test_both_forms_of_pooling_are_read(bert, tmp_path, config, pooling):
  folder = folder_of(tmp_path / "folder", bert, ("Pooling", config))
  settings = types.SimpleNamespace(pooling="auto", projection_dim=0, projection_tanh=False)
  assert models.head_settings(settings, models.load_pretrained(str(folder)).modules)["pooling"] == pooling
  settings.pooling = "cls"
  assert models.head_settings(settings, models.load_pretrained(str(folder)).modules)["pooling"] == "cls"


@pytest.mark.parametrize(
  ("pooling", "of_text"),
  [
    ("mean", lambda text: text.mean(axis=0)),
    ("cls", lambda text: text[0]),
    ("lasttoken", lambda text: text[-1]),
    ("max", lambda text: text.max(axis=0)),
  ],
)
def test_poolings_read_real_tokens_alone(pooling, of_text):
  hidden = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)
  mask = np.concatenate([MASK, np.zeros((1, 6), bool)])  # and a text without a token
  pooled = pool(hidden, mask, pooling)
  expected = [of_text(row[:n]) for row, n in zip(hidden, MASK.sum(axis=1))]
  np.testing.assert_allclose(pooled[:3], expected, atol=1e-6)
  assert np.isfinite(pooled).all()


def test_pooling_and_dense_layer_are_followed(bert, tmp_path):
  dense = {"in_features": 16, "out_features": 8, "activation_function": TANH}
  modules = ("Pooling", {"pooling_mode": "max"}), ("Dense", dense), ("Normalize", {})
  folder = folder_of(tmp_path / "folder", bert, *modules)
  kernel = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32).T
  np.testing.assert_allclose(embedded(folder), np.tanh(embedded(bert, pooling="max") @ kernel), atol=1e-4)


@pytest.mark.parametrize(
  ("options", "kernel"),
  [
    ({}, 8),
    ({"pooling": "max"}, None),
    ({"projection_dim": 5}, 5),
    ({"pooling": "cls", "projection_dim": 8}, 8),
  ],
)
def test_settings_go_before_the_folders_dense_layer(bert, tmp_path, options, kernel):
  dense = {"out_features": 8, "activation_function": IDENTITY}
  folder = folder_of(tmp_path / "folder", bert, ("Pooling", OLD), ("Dense", dense))
  embedder = models.build(types.SimpleNamespace(name=str(folder), **options))
  projection = embedder.init(KEY).get("projection")
  assert embedder.width == (kernel or 16) and (projection and projection["kernel"].shape[1]) == kernel


@pytest.mark.parametrize(
  ("modules", "settings", "message"),
  [
    ([("Pooling", {**OLD, "pooling_mode_cls_token": True})], {}, r"1_Pooling: .*mean_tokens \+ cls_token"),
    ([("Pooling", {"pooling_mode": "weightedmean"})], {}, r"1_Pooling: Pooling \(weightedmean\)"),
    ([("Pooling", OLD), ("Dense", {"out_features": 8, "activation_function": GELU})], {}, r"2_Dense: .*GELU"),
    ([("Pooling", OLD), *[("Dense", {"out_features": 16})] * 2], {}, "3_Dense: .*a second one"),
    ([("Pooling", OLD), ("Dense", {"out_features": 16, "use_residual": True})], {}, "2_Dense: .*a residual"),
    ([("Dense", {"out_features": 16, "module_input_name": "token_embeddings"})], {}, "1_Dense: .*on tokens"),
    ([("Pooling", OLD), ("LayerNorm", {"dimension": 16})], {}, "2_LayerNorm: .*not supported"),
    ([("Pooling", OLD)], {"truncate_dim": 8}, "truncate_dim = 8"),
  ],
)
def test_what_cannot_be_followed_is_one_line(bert, tmp_path, modules, settings, message):
  folder = folder_of(tmp_path / "folder", bert, *modules, settings=settings)
  with pytest.raises(DataError, match=f"{message}.* cannot be followed; encoder.pooling=mean") as caught:
    models.build(types.SimpleNamespace(name=str(folder)))
  assert "\n" not in str(caught.value)
  assert models.build(types.SimpleNamespace(name=str(folder), pooling="mean")).width == 16


def test_a_dense_layer_of_another_width_is_one_line(bert, tmp_path):
  folder = folder_of(tmp_path / "folder", bert, ("Pooling", OLD), ("Dense", {"out_features": 8}))
  save_file({"linear.weight": np.zeros((8, 15), np.float32)}, folder / "2_Dense" / "model.safetensors")
  with pytest.raises(DataError, match=r"'linear.weight' has shape \(8, 15\), .* \(8, 16\)"):
    models.load_pretrained(str(folder))


def test_the_default_prompt_stands_before_each_text(bert, tmp_path):
  settings = {"prompts": {"query": "ask: ", "passage": "say: "}, "default_prompt_name": "query"}
  folder = folder_of(tmp_path / "folder", bert, ("Pooling", OLD), settings=settings)
  tokenizer = data.train_tokenizer([*TEXTS, "ask: say:"], 200)
  (folder / "tokenizer.json").write_text(tokenizer.to_str())
  *_, theirs = models.load_encoder(folder)
  expected = [encoding.ids for encoding in tokenizer.encode_batch([f"ask: {text}" for text in TEXTS])]
  assert theirs(TEXTS)["input_ids"] == expected

  raw = tiny_runs.write_data(tmp_path / "raw")
  run = tiny_runs.open_run(raw, tmp_path / "run", **{"encoder.name": str(folder), "encoder.tokenizer": ""})
  ids, wanted = run.dataset.tokenizer().encode(TEXTS[0]).ids, tokenizer.encode(f"ask: {TEXTS[0]}").ids
  assert ids == wanted
  bare = {"encoder.name": str(folder), "encoder.tokenizer": str(folder)}
  run = tiny_runs.open_run(raw, tmp_path / "bare", **bare)
  assert run.dataset.tokenizer().encode(TEXTS[0]).ids == tokenizer.encode(TEXTS[0]).ids


@pytest.mark.parametrize("tokenizer", ["", "folder", "train"])
def test_a_prompt_that_is_set_replaces_the_folders(bert, tmp_path, tokenizer):
  settings = {"prompts": {"query": "ask: "}, "default_prompt_name": "query"}
  folder = folder_of(tmp_path / "folder", bert, ("Pooling", OLD), settings=settings)
  data.train_tokenizer([*TEXTS, "ask: say:"], 200).save(str(folder / "tokenizer.json"))
  raw, words = tiny_runs.write_data(tmp_path / "raw"), str(folder) if tokenizer == "folder" else tokenizer
  options = {"encoder.name": str(folder), "encoder.tokenizer": words, "encoder.prompt": "say: "}
  run = tiny_runs.open_run(raw, tmp_path / "run", **options)
  bare = tiny_runs.open_run(
    raw, tmp_path / "bare", **options | {"encoder.tokenizer": words or str(folder), "encoder.prompt": ""}
  )
  plain = bare.dataset.tokenizer()
  assert run.dataset.tokenizer().encode(TEXTS[0]).ids == plain.encode(f"say: {TEXTS[0]}").ids
  assert run.dataset.test.tokens.lengths[0] > bare.dataset.test.tokens.lengths[0]


def test_a_run_keeps_pooling_and_dense_layer_of_its_folder(bert, tmp_path):
  dense = {"in_features": 16, "out_features": 8, "activation_function": TANH}
  pooling = {"pooling_mode": "cls"}
  folder = folder_of(tmp_path / "folder", bert, ("Pooling", pooling), ("Dense", dense))
  raw = tiny_runs.write_data(tmp_path / "raw")
  options = {"encoder.name": str(folder), "encoder.pooling": "auto", "encoder.dtype": "float32"}
  settings = tiny_runs.open_run(raw, tmp_path / "run", **options).config.encoder
  assert (settings.pooling, settings.projection_dim, settings.projection_tanh) == ("cls", 8, True)
  kept = {**settings.to_dict(), "name": str(tmp_path / "run" / "encoder"), "pretrained": False}
  assert models.build(types.SimpleNamespace(**kept)).width == 8


def test_a_static_embedding_is_a_bag_without_its_special_tokens(tmp_path):
  inner = tmp_path / "0_StaticEmbedding"
  inner.mkdir()
  tokenizer = data.train_tokenizer(TEXTS, 100)
  (inner / "tokenizer.json").write_text(tokenizer.to_str())
  table = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 5)).astype(np.float32)
  save_file({"embedding.weight": table}, inner / "model.safetensors")
  kind = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
  (tmp_path / "modules.json").write_text(json.dumps([{"path": inner.name, "type": kind}]))
  apply, params, theirs = models.load_encoder(tmp_path, normalize=False)
  batch = theirs(TEXTS, padding=True, return_tensors="np")
  expected = [table[tokenizer.encode(text, add_special_tokens=False).ids].mean(axis=0) for text in TEXTS]
  np.testing.assert_allclose(apply(params, batch["input_ids"], batch["attention_mask"]), expected, atol=1e-5)
  assert models.tokenizer_file(str(tmp_path)) == inner / "tokenizer.json"
  models.copy_description(str(tmp_path), tmp_path / "run")
  assert models.load_pretrained(str(tmp_path / "run"), weights=False).spec == models.BagSpec(*table.shape)
  save_file({"other": table}, inner / "model.safetensors")
  with pytest.raises(DataError, match="expected the table of a StaticEmbedding"):
    models.load_pretrained(str(tmp_path))
