"""Exports in the libraries that they are for; skipped where these are not installed."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.export import made_runs
from xmc_jax import models
from xmc_jax.export import sentence_transformers
from xmc_jax.runs.model import Model
from xmc_jax.runs.run import reopen

TEXTS = ["bamarn nuve", "keltbarn " * 30, "lolt", "Ramarass, SUTH!"]
_CODE = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
np.save(sys.argv[3], model.encode(json.loads(sys.argv[2]), convert_to_numpy=True))
"""


@pytest.mark.parametrize("kind", ["bert", "bert_cls_raw_head", "bag", "bag_raw", "unidec"])
def test_sentence_transformers_embeds_alike(folder, kind):
  pytest.importorskip("sentence_transformers", exc_type=ImportError)
  workdir = made_runs.exported(folder, kind)
  out = folder / f"{kind}.npy"
  # Another process: torch beside JAX warns, and a warning is an error here.
  given = [str(workdir / "export" / "sentence_transformers"), json.dumps(TEXTS), str(out)]
  subprocess.run([sys.executable, "-c", _CODE, *given], check=True)
  found, wanted = np.load(out), Model.load(workdir).embed(TEXTS)
  np.testing.assert_allclose(found, wanted[:, : found.shape[1]], atol=1e-5)
  assert found.shape[1] == (12 if kind == "unidec" else wanted.shape[1])


def test_faiss_opens_the_index(folder):
  faiss = pytest.importorskip("faiss", exc_type=ImportError)
  workdir = made_runs.exported(folder, "bag")
  index = faiss.read_index(str(workdir / "export" / "index" / "labels.faiss"))
  assert isinstance(index, faiss.IndexFlatIP) and index.metric_type == faiss.METRIC_INNER_PRODUCT
  model = Model.load(workdir)
  scores, ids = index.search(model.embed(TEXTS), 5)
  wanted = model.predict(TEXTS, 5)
  np.testing.assert_allclose(scores, wanted[1], atol=1e-5)
  np.testing.assert_array_equal(ids, wanted[0])


@pytest.mark.parametrize("kind", ["bag", "bert_cls_raw_head"])
def test_our_own_folder_loads_as_the_run(folder, kind):
  workdir = made_runs.exported(folder, kind)
  inner = workdir / "export" / "sentence_transformers"
  apply, params, tokenizer = models.load_encoder(inner, normalize=kind == "bag")
  batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=24, return_tensors="np")
  found = apply(params, batch["input_ids"], batch["attention_mask"])
  np.testing.assert_allclose(found, Model.load(workdir).embed(TEXTS), atol=1e-5)


def test_vectors_that_a_method_scales_in_any_case_are_scaled(folder, tmp_path):
  """PRIME, DEXA and classifiers do, whatever `encoder.normalize` is."""
  trained = reopen(made_runs.exported(folder, "bag")).trained()
  assert np.allclose(np.linalg.norm(trained.queries(trained.run.dataset.test.tokens), axis=1), 1, atol=1e-5)
  trained.run.config.encoder.normalize = False
  assert not sentence_transformers.write(tmp_path, trained, TEXTS).reason
  assert "Normalize" in (tmp_path / "modules.json").read_text()


def test_modules_say_what_the_run_does(folder):
  inner = made_runs.exported(folder, "bert_cls_raw_head") / "export" / "sentence_transformers"
  kinds = [module["type"].rpartition(".")[2] for module in json.loads((inner / "modules.json").read_text())]
  assert kinds == ["Transformer", "Pooling", "Dense"]
  assert json.loads((inner / "1_Pooling" / "config.json").read_text())["pooling_mode_cls_token"]
  assert json.loads((inner / "sentence_bert_config.json").read_text())["max_seq_length"] == 24
  dense = json.loads((inner / "2_Dense" / "config.json").read_text())
  assert dense["out_features"] == 8 and dense["activation_function"].endswith("Identity")


def test_a_folder_has_the_runs_prompt_and_says_where_it_cuts(folder):
  workdir = made_runs.exported(folder, "windows")
  exported, inner = workdir / "export", workdir / "export" / "sentence_transformers"
  assert json.loads((inner / "sentence_bert_config.json").read_text())["max_seq_length"] == 40
  assert json.loads((inner / "tokenizer_config.json").read_text())["model_max_length"] == 40
  assert "it cuts texts after 40 tokens" in (exported / "README.md").read_text()
  apply, params, tokenizer = models.load_encoder(inner)
  batch = tokenizer(TEXTS[:1], return_tensors="np")
  found = apply(params, batch["input_ids"], batch["attention_mask"])
  np.testing.assert_allclose(found, Model.load(workdir).embed(TEXTS[:1]), atol=1e-5)
