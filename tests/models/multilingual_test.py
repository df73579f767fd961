"""Small random checkpoints in the layouts of multilingual ones: tokens, pooling, prompt, and a training."""

import json
import shlex

import flax
import numpy as np
import pytest
import tokenizers
from encoder_references import random_params
from safetensors.numpy import load_file, save_file
from tokenizers import normalizers, pre_tokenizers, processors, trainers

from tests import tiny_runs
from xmc_jax import models
from xmc_jax.cli import commands
from xmc_jax.errors import DataError, UserError
from xmc_jax.models import hf_names
from xmc_jax.models.encoder import Encoder
from xmc_jax.models.locate import tokenizer_file
from xmc_jax.runs.model import Model
from xmc_jax.runs.run import reopen

pytestmark = pytest.mark.slow

LABELS = ["kirjasto", "bibliotek", "図書館"]
TEXTS = [
  "Kirjastojen historiaa ja kirjastonhoitajien muistoja äidiltä",
  "Bibliotekens historia och bibliotekariernas minnen, på öarna",
  "図書館の歴史と司書の思い出。",
]
NEW = ["kirjastonhoitajat ja ｶﾀｶﾅ", "Bibliotek på öarna 🙂", "司書の歴史", ""]
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
XLM_R = {
  "model_type": "xlm-roberta",
  "pad_token_id": 1,
  "type_vocab_size": 1,
  "layer_norm_eps": 1e-05,
  **SIZES,
}
BERT = {"model_type": "bert", "pad_token_id": 0, "type_vocab_size": 2, "layer_norm_eps": 1e-12, **SIZES}
DISTILBERT = {
  "model_type": "distilbert",
  "pad_token_id": 0,
  "sinusoidal_pos_embds": False,
  "tie_weights_": True,
}
DISTILBERT |= {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24, "activation": "gelu"}
PIECES, WORDS = "XLMRobertaTokenizer", "DistilBertTokenizer"
# config.json, the tokenizer's class, sentence-transformers' modules, and the prompt that its authors ask for.
LAYOUTS = {
  "xlm-roberta-base": (XLM_R, PIECES, (), ""),
  "multilingual-e5-base": (XLM_R, PIECES, ("Pooling", "Normalize"), "query: "),
  "multilingual-e5-small": (BERT, PIECES, ("Pooling", "Normalize"), "query: "),
  "paraphrase-multilingual-MiniLM-L12-v2": (BERT, PIECES, ("Pooling",), ""),
  "distiluse-base-multilingual-cased-v2": (DISTILBERT, WORDS, ("Pooling", "Dense"), ""),
}


def of_pieces():
  """Returns a tokenizer in XLM-R's layout: Unigram over words that begin with ▁, <s> … </s>, padding 1."""
  special = ["<s>", "<pad>", "</s>", "<unk>"]
  made = tokenizers.Tokenizer(tokenizers.models.Unigram())
  made.normalizer = normalizers.NFKC()
  made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
  made.train_from_iterator(
    [*TEXTS, *LABELS, "query:"],
    trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False),
  )
  made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
  ends = [(name, made.token_to_id(name)) for name in ("<s>", "</s>")]
  made.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", ends)
  made.enable_padding(pad_id=1, pad_token="<pad>")
  return made


def of_words():
  """Returns a tokenizer in cased multilingual BERT's layout."""
  made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
  made.normalizer, made.pre_tokenizer = (
    normalizers.BertNormalizer(lowercase=False),
    pre_tokenizers.BertPreTokenizer(),
  )
  special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
  made.train_from_iterator([*TEXTS, *LABELS], trainer)
  ends = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
  made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
  return made


@pytest.fixture
def layout(request, tmp_path):
  """Returns a folder as the hub has it, and its prompt."""
  config, tokenizer_class, modules, prompt = LAYOUTS[request.param]
  folder = tmp_path / request.param
  folder.mkdir()
  tokenizer = of_pieces() if tokenizer_class == PIECES else of_words()
  tokenizer.enable_truncation(512)
  tokenizer.save(str(folder / "tokenizer.json"))
  # Some tables have more rows than the tokenizer has tokens: E5 small's has 35.
  config = {**config, "vocab_size": tokenizer.get_vocab_size() + 35, "max_position_embeddings": 42}
  spec = hf_names.spec_from_config(config, folder)
  params = flax.traverse_util.flatten_dict(random_params(spec), sep="/")
  tensors = hf_names.to_tensors(params, spec) | {"embeddings.position_ids": np.arange(42)[None]}
  save_file(tensors, folder / "model.safetensors")
  listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
  for i, kind in enumerate(modules, 1):
    listed.append({"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"})
    (folder / f"{i}_{kind}").mkdir()
  settings = {"tokenizer_class": tokenizer_class, "do_lower_case": False}
  files = {"config.json": config, "tokenizer_config.json": settings}
  if modules:
    files |= {"modules.json": listed, "sentence_bert_config.json": {"max_seq_length": 128}}
    files |= {"1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}}
  if "Dense" in modules:
    dense = {"in_features": 16, "out_features": 8, "bias": True}
    files["2_Dense/config.json"] = dense | {"activation_function": "torch.nn.modules.activation.Tanh"}
    rng = np.random.default_rng(1)
    weights = {"linear.weight": rng.normal(size=(8, 16)), "linear.bias": rng.normal(size=8)}
    save_file({k: v.astype(np.float32) for k, v in weights.items()}, folder / "2_Dense" / "model.safetensors")
  for name, content in files.items():
    (folder / name).write_text(json.dumps(content))
  return folder, prompt


def token_ids(folder, texts):
  """What the tokenizers library makes of texts."""
  tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  tokenizer.no_padding()
  return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def by_hand(folder, rows):
  """Pools each text alone: the mean of its hidden states, the dense layer, length 1."""
  read = models.load_pretrained(str(folder))
  params, encoder = flax.traverse_util.unflatten_dict(read.params, sep="/"), Encoder(read.spec)
  hidden = [
    encoder.apply({"params": params}, np.array([ids]), np.ones((1, len(ids)), bool))[0] for ids in rows
  ]
  vectors = np.stack([states.mean(axis=0) for states in hidden])
  if (file := folder / "2_Dense" / "model.safetensors").is_file():
    dense = load_file(file)
    vectors = np.tanh(vectors @ dense["linear.weight"].T + dense["linear.bias"])
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("layout", list(LAYOUTS), indirect=True)
def test_an_encoder_loads_with_its_tokens_and_pooling(layout):
  folder, prompt = layout
  apply, params, tokenizer = models.load_encoder(folder)
  texts = [prompt + text for text in (*TEXTS, *NEW)]
  rows = token_ids(folder, texts)
  batch = tokenizer(texts, padding=True, return_tensors="np")
  ids, mask = batch["input_ids"], batch["attention_mask"]
  assert [row[real > 0].tolist() for row, real in zip(ids, mask)] == rows
  first = models.load_pretrained(str(folder), weights=False).spec.first_position
  assert first == (2 if "xlm" in (folder / "config.json").read_text() else 0)
  found = apply(params, ids, mask)
  np.testing.assert_allclose(found, by_hand(folder, rows), atol=1e-5)
  for padding in (0, 1, 7):
    np.testing.assert_allclose(apply(params, np.where(mask, ids, padding), mask), found, atol=1e-6)


@pytest.mark.parametrize("layout", ["multilingual-e5-base"], indirect=True)
def test_two_steps_are_trained_on_texts_in_three_languages(layout, tmp_path):
  folder, prompt = layout
  raw = tmp_path / "raw"
  raw.mkdir()
  texts = [f"{text} {number}" for number in range(8) for text in TEXTS]
  points = {"trn": texts, "tst": NEW[:3]}
  for name, titles in points.items():
    lines = [{"uid": str(i), "title": title, "target_ind": [i % 3]} for i, title in enumerate(titles)]
    (raw / f"{name}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
  lines = [json.dumps({"uid": str(i), "title": label}) + "\n" for i, label in enumerate(LABELS)]
  (raw / "lbl.json").write_text("".join(lines))
  settings = {"encoder.name": str(folder), "encoder.tokenizer": "", "encoder.prompt": prompt, "eval.k": 3}
  settings |= {"train.num_epochs": 1, "train.batch_size": 12, "data.num_validation": 0, "data.max_length": 40}
  commands.train_and_test(tiny_runs.config(raw, **settings), tmp_path / "run")
  run = reopen(tmp_path / "run")
  assert run.trained().step == 2
  for group, texts in ((run.dataset.test, NEW[:3]), (run.dataset.labels, LABELS)):
    tokens = group.tokens.gather(np.arange(3), 40)
    rows = [ids[:length].tolist() for ids, length in zip(tokens.ids, tokens.lengths)]
    assert rows == token_ids(folder, [prompt + text for text in texts])
  found = Model.load(tmp_path / "run").embed(NEW[:3])
  untrained = by_hand(folder, token_ids(folder, [prompt + text for text in NEW[:3]]))
  assert found.shape == untrained.shape and np.isfinite(found).all()
  assert 0.01 < np.abs(found - untrained).max() < 1


@pytest.mark.parametrize("layout", ["xlm-roberta-base"], indirect=True)
def test_a_sentencepiece_model_alone_says_what_makes_a_tokenizer(layout):
  folder, _ = layout
  (folder / "tokenizer.json").rename(folder / "sentencepiece.bpe.model")
  for ask, error in ((tokenizer_file, UserError), (models.load_encoder, DataError)):
    with pytest.raises(error, match=r"no tokenizer.json in .*; make it of sentencepiece.bpe.model") as caught:
      ask(str(folder))
    message = str(caught.value)
    assert "\n" not in message
    command = shlex.split(message.partition("then ")[2])
    assert command[:2] == ["python", "-c"]
    compile(command[2], "command", "exec")
    assert f'from_pretrained("{folder}").save_pretrained("{folder}")' in command[2]
