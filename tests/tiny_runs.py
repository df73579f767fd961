"""A tiny data set and runs on it, for all tests from batches to the command line."""

import json
import pathlib
from types import MappingProxyType

import jax
import numpy as np

from xmc_jax import data, methods, models, refresh
from xmc_jax.distributed import sharding
from xmc_jax.models import hf_names
from xmc_jax.ops import lazy_adam
from xmc_jax.runs import create
from xmc_jax.runs import run as runs
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.trained import Trained
from xmc_jax.training import loop, optimizer
from xmc_jax.training.step import TrainStep
from xmc_jax.types import Batch

NUM_LABELS = 60
_WORDS = [first + second for first in ("ba", "ke", "lo", "mi", "nu", "po", "ra", "su") for second in
          ("rn", "lt", "ma", "ve", "xo", "dy", "ck", "th", "ge", "ss")]  # fmt: skip


# Methods on the folder of `write_data`, without noise. Batches are clusters from the second epoch on.
NGAME = {
  "method.name": "ngame",
  "method.loss": "margin",
  "method.labels": "in_batch",
  "method.clusters_first_epoch": 1.0,
  "encoder.embedding_dropout": 0.0,
}
DEXA = {**NGAME, "method.name": "dexa", "method.num_label_clusters": 8, "train.table_learning_rate": 0.02}
# Needs `init_from`, and no `data.path`: it has the data of that run.
CLASSIFIER = {
  **NGAME,
  "method.name": "classifier",
  "method.labels": "in_batch_table",
  "method.num_positives": 0,
  "method.query_dropout": 0.0,
  "train.table_learning_rate": 0.02,
}

# Clusters and shortlists before every epoch.
UNIDEC = {
  "method.name": "unidec",
  "method.labels": "in_batch",
  "method.num_positives": 2,
  "method.num_hard_negatives": 2,
  "method.shortlist_size": 8,
  "method.shortlist_first_epoch": 0.0,
  "method.shortlist_every_epochs": 1.0,
  "method.clusters_first_epoch": 0.0,
  "method.clusters_every_epochs": 1.0,
  "method.classifier_dim": 8,
  "encoder.projection_dim": 12,
  "encoder.embedding_dropout": 0.0,
  "train.table_learning_rate": 0.05,
  "eval.fusion_rows": 0,
}

PRIME = {
  "method.name": "prime",
  "method.loss": "dynamic_margin",
  "method.labels": "in_batch",
  "method.num_positives": 2,
  "method.positive_sampling": "inverse_propensity",
  "method.margin_negatives": 20,
  "method.num_label_clusters": 8,
  "method.unit_texts": False,
  "method.centroids": "momentum",
  "method.prototype_width": 32,
  "method.clusters_first_epoch": 1.0,
  "encoder.embedding_dropout": 0.0,
}


# RAE-XMC with hard negatives from the second epoch on.
RAE_XMC = {
  "method.name": "rae_xmc",
  "method.labels": "in_batch",
  "method.num_hard_negatives": 2,
  "method.shortlist_size": 8,
  "method.shortlist_first_epoch": 1.0,
  "method.shortlist_every_epochs": 1.0,
  "eval.num_keys": 40,
  "encoder.embedding_dropout": 0.0,
}


# RAMEN on a folder with the files of `write_graphs`: edges are pruned before every epoch but the first.
RAMEN = {
  "method.name": "ramen",
  "method.loss": "margin",
  "method.labels": "in_batch",
  "method.clusters_first_epoch": 1.0,
  "method.walk_hops": 20,
  "method.walk_kept": 3,
  "method.pruning_first_epoch": 1.0,
  "method.pruning_every_epochs": 1.0,
  "method.pruning_threshold": 0.1,
  "encoder.embedding_dropout": 0.0,
}


def write_data(folder: pathlib.Path, num_train: int = 200, num_test: int = 50) -> pathlib.Path:
  """Writes raw JSON files. A point's text holds words of its 1 to 4 labels; every 20th point has none."""
  rng = np.random.default_rng(7)
  folder.mkdir(parents=True, exist_ok=True)
  labels = [list(rng.choice(_WORDS, rng.integers(1, 4), replace=False)) for _ in range(NUM_LABELS)]

  def points(count):
    for number in range(count):
      chosen = [] if number % 20 == 19 else sorted(rng.choice(NUM_LABELS, rng.integers(1, 5), replace=False))
      words = [word for label in chosen for word in labels[label]]
      words += list(rng.choice(_WORDS, rng.integers(0, 4)))
      rng.shuffle(words)
      ids = list(map(int, chosen))
      yield {"uid": f"p{number}", "title": " ".join(words), "target_ind": ids, "target_rel": [1.0] * len(ids)}

  for name, count in (("trn", num_train), ("tst", num_test)):
    (folder / f"{name}.json").write_text("".join(json.dumps(point) + "\n" for point in points(count)))
    pairs = zip(rng.choice(count, 15, replace=False), rng.integers(0, NUM_LABELS, 15))
    long_name = {"trn": "train", "tst": "test"}[name]
    lines = "".join(f"{row} {label}\n" for row, label in pairs)
    (folder / f"filter_labels_{long_name}.txt").write_text(lines)
  rows = [{"uid": f"l{number}", "title": " ".join(words)} for number, words in enumerate(labels)]
  (folder / "lbl.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return folder


def write_graphs(folder: pathlib.Path) -> pathlib.Path:
  """Writes two graphs beside the files of `write_data`: half of a text's words; lengths of training texts."""

  rng, words = np.random.default_rng(11), {word: number for number, word in enumerate(_WORDS)}
  titles = {
    side: [json.loads(line)["title"].split() for line in (folder / f"{name}.json").read_text().splitlines()]
    for side, name in (("trn", "trn"), ("lbl", "lbl"))
  }
  sides = {
    f"words_{side}": [[words[word] for word in dict.fromkeys(title) if rng.random() < 0.5] for title in texts]
    for side, texts in titles.items()
  }
  sides["length_trn"] = [[min(len(title), 9)] for title in titles["trn"]]
  anchors = {"words": _WORDS, "length": [f"{_WORDS[number]} {number}" for number in range(10)]}
  for side, rows in sides.items():
    graph = side.partition("_")[0]
    lines = [f"{len(rows)} {len(anchors[graph])}"] + [" ".join(f"{a}:1" for a in sorted(row)) for row in rows]
    (folder / f"{side}_X_Y.txt").write_text("\n".join(lines) + "\n")
  for graph, texts in anchors.items():
    (folder / f"{graph}_anchors.txt").write_text("\n".join(texts) + "\n")
  return folder


def config(path: pathlib.Path, **overrides):
  """Returns a config that trains on the folder of `write_data` in seconds; overrides are dotted keys."""
  made = methods.default_config(overrides.get("method.name", "dexml"))
  made.update_from_flattened_dict(
    {
      "name": "tiny",
      "data.path": str(path),
      "data.cache_dir": str(path.with_name("cache")),
      "data.max_length": 24,
      "data.num_validation": 20,
      "encoder.name": "bag",
      "encoder.tokenizer": "train",
      "encoder.width": 16,
      "encoder.embedding_dropout": 0.1,
      **({"method.label_chunk": 16} if "label_chunk" in made.method else {}),
      "train.num_epochs": 3,
      "train.batch_size": 32,
      "train.learning_rate": 0.02,
      "eval.every_epochs": 1.0,
      "eval.batch_size": 64,
      "eval.k": 10,
      "eval.scores": "fused",
      "eval.num_examples": 2,
      "eval.report_page": False,
    }
    | overrides
  )
  methods.check_config(made)
  return made


def open_run(path: pathlib.Path, workdir: pathlib.Path, **overrides) -> runs.Run:
  """Creates an untrained run, with its data and its method."""
  return create.create(config(path, **overrides), workdir, MetricWriter(workdir))


_CONFIG_FILE = """
import pathlib, sys
sys.path.insert(0, {tests!r})
import tiny_runs

def get_config():
  return tiny_runs.config(pathlib.Path({data!r}), **{overrides!r})
"""


def config_file(path: pathlib.Path, data_folder: pathlib.Path, **overrides) -> pathlib.Path:
  """Writes a file for `--config` that returns `config` of the same arguments."""
  tests = str(pathlib.Path(__file__).parent)
  path.write_text(_CONFIG_FILE.format(tests=tests, data=str(data_folder), overrides=overrides))
  return path


def open_initial(path: pathlib.Path, workdir: pathlib.Path, **overrides):
  """Creates an untrained run; returns `(run, params, extra_state)`."""
  run = open_run(path, workdir, **overrides)
  return run, *run.initial_parameters()


def renewed(run: runs.Run, params, extra_state, *names: str, step: int = 0):
  """Runs all refreshes of a method, or those named; returns what batches get of them, and `extra_state`."""
  refreshed: dict = {}
  for name in names or run.method.refreshes:
    snapshot = Trained(run, params, extra_state, step).snapshot()
    refreshed, extra_state = refresh.renew(name, run.method.refreshes[name], snapshot, refreshed, extra_state)
  return refreshed, extra_state


def placed_batch(run: runs.Run, step: int, refreshed=MappingProxyType({})) -> Batch:
  """Returns a batch on the devices, with all labels if it is compared with these."""
  batch = sharding.put_batch(run.batches.build(step, refreshed), run.mesh)
  return batch._replace(**loop.static_labels(run.batches, run.mesh))


def with_rows(run: runs.Run, params, extra_state, batch: Batch):
  """Returns the parameters as a step hands them to the loss: of sparse tables, the batch's rows."""
  rows = {
    name: lazy_adam.take(params[name], of(batch, extra_state))
    for name, of in run.method.sparse_params.items()
  }
  return {**params, **rows}


def loss(run: runs.Run, params, extra_state, batch: Batch, key: int = 0):
  """Returns what the method's loss returns when it is called as in a step."""
  rows = with_rows(run, params, extra_state, batch)
  return run.method.loss(rows, extra_state, batch, jax.random.key(key))


def train_step(run: runs.Run, total_steps: int = 10, **changes) -> TrainStep:
  """Returns the step of a run; `changes` replace parts of its optimiser."""
  optimiser = optimizer.make(run.config, total_steps)._replace(**changes)
  return TrainStep(run.method, run.mesh, run.config.train, optimiser, MetricWriter(run.workdir))


def bag_means(run: runs.Run, params, texts: data.TokenTable) -> np.ndarray:
  """Returns what a bag pools, `[n, D]` in float64: the mean over a text's tokens, without special ones."""
  words, special = (
    np.asarray(params["encoder"]["word"], np.float64),
    data.special_ids(run.dataset.tokenizer()),
  )
  tokens, rows = texts.gather(np.arange(len(texts)), run.config.data.max_length), []
  for ids, length in zip(tokens.ids, tokens.lengths):
    ordinary = ids[:length][~np.isin(ids[:length], special)]
    kept = ordinary if len(ordinary) else ids[:length]
    rows.append(words[kept].sum(0) / max(1, len(kept)))
  return np.stack(rows)


def log_inclusion(run: runs.Run, num_rows: float, num_others: float = 0) -> np.ndarray:
  """Returns log q `[L]` for a pool of 2 sampled positives of each row, and of uniform other labels."""
  true = run.data.train.unfiltered_positives.toarray() > 0
  true = true[true.any(axis=1)]
  sampled = min(1, 2 / true.sum(axis=1).mean()) * true.mean(axis=0)
  return np.log(np.clip(1 - (1 - sampled) ** num_rows + num_others / true.shape[1], 1e-9, 1))


def pool_batch(columns, positives, weights, excluded, rows=None) -> Batch:
  """Returns a batch without texts: only what losses over a pool read."""
  positives = np.array(positives, np.int32)
  return Batch(
    rows=np.array(np.arange(len(positives)) if rows is None else rows, np.int32),
    queries=(),
    columns=np.array(columns, np.int32),
    labels=(),
    positives=positives,
    weights=np.array(weights, np.float32),
    excluded=np.array(excluded, np.int32),
  )


def token_table(lengths, seed: int = 0) -> data.TokenTable:
  """Returns random tokens (1 to 99) in texts of the given lengths."""
  lengths = np.asarray(lengths, np.int64)
  ids = np.random.default_rng(seed).integers(1, 100, max(1, lengths.sum())).astype(np.int32)
  return data.TokenTable.of_offsets(ids, np.concatenate([[0], np.cumsum(lengths)]))


def tiny_bert(folder: pathlib.Path, kind: str = "bert", vocab_size: int = 600) -> pathlib.Path:
  """Writes a random one-layer encoder of width 16 as a Hugging Face folder."""
  sizes = {"width": 16, "num_layers": 1, "num_heads": 2, "ffn_width": 24, "max_positions": 40}
  spec = models.EncoderSpec(kind=kind, vocab_size=vocab_size, num_types=2 * (kind == "bert"), **sizes)
  rng = np.random.default_rng(0)
  params = {name: 0.2 * rng.normal(size=hf_names.shape(name, spec)) for name in hf_names.names(spec)}
  params = {name: value.astype(np.float32) + name.endswith("scale") for name, value in params.items()}
  models.save_pretrained(params, spec, folder)
  return folder


def metric_lines(workdir: pathlib.Path) -> list[dict]:
  """Reads metrics.jsonl, without the values that depend on time or memory."""

  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  timed = ("time", "memory", "train/examples_per_second")
  return [{name: value for name, value in line.items() if not name.startswith(timed)} for line in lines]
