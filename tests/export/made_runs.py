"""Runs to export: every kind of encoder and method, with the parameters of step 0 saved as if trained."""

import json
import pathlib

import jax
import jax.numpy as jnp

from tests import tiny_runs
from xmc_jax import export
from xmc_jax.distributed import sharding
from xmc_jax.runs import run as runs
from xmc_jax.storage.checkpoints import StepFolder

BERT = "BERT"  # stands for `tiny_bert`'s folder
_CLUSTERS = {"method.labels": "in_batch", "method.loss": "margin", "encoder.embedding_dropout": 0.0}
_RAW = {"encoder.normalize": False, "method.temperature": 1.0}
KINDS = {
  "bag": {},
  "prior": {"method.log_prior": 1.0},
  "bag_raw": _RAW,
  "bert": {"encoder.name": BERT},
  # Of 40 positions.
  "windows": {"encoder.name": BERT, "data.max_length": 100, "encoder.prompt": "lolt nuve: "},
  "bert_cls_raw_head": {"encoder.name": BERT, "encoder.pooling": "cls", "encoder.projection_dim": 8, **_RAW},
  "gru": {"encoder.name": "gru"},
  "dpr": {"method.name": "dpr", "method.loss": "softmax", "method.labels": "in_batch"},
  "ance": {"method.name": "ance", "method.loss": "softmax", "method.labels": "in_batch"},
  "ngame": {"method.name": "ngame", **_CLUSTERS},
  "dexa": {"method.name": "dexa", **_CLUSTERS, "method.num_label_clusters": 8},
  "ova": {"method.name": "ova", "method.loss": "binary", "method.labels": "table"},
  "unidec": {"encoder.name": BERT, **tiny_runs.UNIDEC},
  "depsl": {**tiny_runs.UNIDEC, "method.classifier_dim": 0},
  "prime": {**tiny_runs.PRIME, "method.exact_centroids": True},
  "ramen": tiny_runs.RAMEN,
  "rae_xmc": tiny_runs.RAE_XMC,
}
NO_NEW_LABELS = ("ova", "classifier")
CLASSIFIER = {**_CLUSTERS, "method.name": "classifier", "method.labels": "in_batch_table"}


def write_data(folder: pathlib.Path) -> pathlib.Path:
  """`tiny_runs`' data with graphs, and an encoder beside them."""
  tiny_runs.write_graphs(tiny_runs.write_data(folder / "raw"))
  tiny_runs.tiny_bert(folder / "bert")
  return folder


def make(folder: pathlib.Path, kind: str, scores: str = "fused", **more) -> pathlib.Path:
  """The folder of a run of one of the kinds, or of a 'classifier' on an NGAME run; `more` as in tiny_runs."""
  workdir = _place(folder, kind, scores)
  if kind == "classifier":
    overrides = {**CLASSIFIER, "init_from": str(made(folder, "ngame"))}
  else:
    overrides = KINDS[kind]
  overrides = {key: str(folder / "bert") if value == BERT else value for key, value in overrides.items()}
  told = {"encoder.dtype": "float32", "eval.scores": scores, **overrides, **more}
  run = tiny_runs.open_run(folder / "raw", workdir, **told)
  save(run)
  return workdir


def made(folder: pathlib.Path, kind: str, scores: str = "fused") -> pathlib.Path:
  """`make`, once."""
  workdir = _place(folder, kind, scores)
  return workdir if (workdir / "best").exists() else make(folder, kind, scores)


def exported(folder: pathlib.Path, kind: str, scores: str = "fused") -> pathlib.Path:
  """`made`, and its export made anew in its folder."""
  workdir = made(folder, kind, scores)
  export.export(workdir)
  return workdir


def _place(folder: pathlib.Path, kind: str, scores: str) -> pathlib.Path:
  return folder / "runs" / (kind if scores == "fused" else f"{kind}_{scores}")


def save(run: runs.Run) -> None:
  """Saves a run's first parameters as its best, with a report of them."""
  params, extra_state = run.initial_parameters()
  if "label_cluster" in extra_state:
    extra_state["label_cluster"] = jnp.arange(run.dataset.num_labels, dtype=jnp.int32) % 8
  if "centroids" in extra_state:
    extra_state["centroids"] = jax.random.normal(jax.random.key(1), extra_state["centroids"].shape)
  trained = {"params": params, "extra_state": extra_state}
  places = sharding.shard_tree(trained, run.method.sharding_rules, run.mesh)
  placed = jax.tree.map(sharding.place, trained, places)
  StepFolder(run.workdir / "best").save(1, placed, {}, {"best": 0.5})
  report = {"step": 1, "rows": 50, "rows_without_labels": 30}
  report |= {"metrics": {"P@1": 0.5}, "intervals_95": {"P@1": [0.4, 0.6]}}
  (run.workdir / "report").mkdir(exist_ok=True)
  (run.workdir / "report" / "metrics.json").write_text(json.dumps(report))
