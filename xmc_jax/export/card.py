"""Writes the model card of an export: README.md with the metadata header that Hugging Face reads.

Names and texts from the data are untrusted: they are escaped so that they act as no Markdown, HTML or YAML.
"""

import json
import pathlib
import re
from typing import Any

from xmc_jax import data, methods, sanitize
from xmc_jax.config import checks
from xmc_jax.export import measured
from xmc_jax.export.exported import HYBRID
from xmc_jax.export.sentence_transformers import Sentence
from xmc_jax.runs.run import Run

_PATHS = (
  *("data.path", "data.label_file", "data.vocabulary", "init_from"),
  *("encoder.name", "encoder.init_table", "encoder.tokenizer"),
)
_LONGEST = 200  # characters of a name

_USE = """\
```python
# Labels for texts: pip install xmc_jax, or put its folder on PYTHONPATH.
from xmc_jax.export import Exported

exported = Exported.load("FOLDER")
ids, scores, labels = exported.predict(["a text"], k=5)
```
"""
_USE_SENTENCE = """\
```python
# Embeddings: pip install sentence-transformers
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("FOLDER/sentence_transformers").encode(["a text"])
```
"""
_USE_PROGRAM = """\
```python
# The same with JAX alone: pip install jax flatbuffers safetensors tokenizers
import numpy as np
from jax import export
from safetensors.numpy import load_file
from tokenizers import Tokenizer

found = Tokenizer.from_file("FOLDER/stablehlo/tokenizer.json").encode_batch(["a text", "another"])
ids, mask = (np.array([getattr(one, part) for one in found], np.int32) for part in ("ids", "attention_mask"))
with open("FOLDER/stablehlo/embed_points.stablehlo", "rb") as file:
  embed = export.deserialize(bytearray(file.read())).call
vectors = np.array(embed(load_file("FOLDER/stablehlo/parameters.safetensors"), ids, mask))
```

```python
# Search: pip install faiss-cpu. The index takes vectors of the StableHLO function.
import faiss
APPEND
scores, ids = faiss.read_index("FOLDER/index/labels.faiss").search(vectors, 5)
```
"""
_APPEND = """
# The last column of a label is its frequency, which is added to its score: texts have a 1 there.
vectors = np.pad(vectors, ((0, 0), (0, 1)), constant_values=1)
"""
_TOOLS = """\
| tool | what it ranks by |
|---|---|
| `Exported` | all of it: the encoder, the memory of training texts, words, and the model that joins them |
| FAISS, ScaNN | the encoder alone, with classifiers if it has any: no memory, no words, no joining model |
| FAISS, by `index/both.faiss` | the encoder and near training points, whose labels the caller has to count |
| sentence-transformers, StableHLO | the encoder: they embed texts, to be ranked by FAISS or ScaNN |
"""
_PRODUCTS = "Scores are inner products, no probabilities; compare them within one model only."
_PROBABILITIES = (
  "Scores of `Exported` are probabilities that a label is right, fitted on held-out rows of the data; where "
  "these were too few, by weights from other data. Scores of the other tools are inner products."
)
_TEXTS_INSIDE = (
  "`memory/` holds the training texts as they are, and `Exported` shows them as reasons: whoever gets this "
  "folder can read them."
)


def text(run: Run, facts: dict[str, Any], sentence: Sentence, no_scann: str, scores: str) -> str:
  """Returns the text of the model card.

  `facts` is the content of export.json, `no_scann` why there is no ScaNN index, or '' if there is one.
  """
  config = _shareable(run.workdir)
  report = measured.read(run.workdir, "" if scores == config["eval.scores"] else scores, facts["step"])
  name, is_hybrid = run.dataset.name, facts["ranks_by"] == HYBRID
  parts = [
    _head(name, report, sentence),
    f"# {escaped(facts['method'])} on {escaped(name)}\n",
    f"An extreme multi-label classifier of `xmc_jax`: it ranks {len(run.dataset.labels):,} labels for a text "
    f"by {_in_words(facts)} ({facts['width']} numbers a vector).\n",
    f"## Files\n\n{_files(facts, sentence, no_scann)}",
    f"## What ranks where\n\n{_TOOLS}" if is_hybrid else "",
    "## Use\n",
    _USE,
    "" if sentence.reason else _USE_SENTENCE,
    _USE_PROGRAM.replace("APPEND\n", _APPEND if facts.get("adds_frequency") else "\n"),
    f"## Data\n\n{_code(data.summary(run.dataset.manifest))}",
    f"## Test metrics\n\n{measured.table(report, facts)}",
    f"## Settings\n\nStep {facts['step']:,}. Paths are cut to their last part.\n\n",
    _code(json.dumps(config, indent=2, default=str, ensure_ascii=False), "json"),
    f"## Limits\n\n{_limits(facts, run)}",
    "## Licence\n\nThat of the data and of the encoder that training began from; this tool adds none. Say "
    "which before you publish this folder.\n",
  ]
  return "\n".join(part for part in parts if part)


def text_of_combined(run: Run, facts: dict[str, Any]) -> str:
  """Returns the text of the model card of combined runs; each member has its own."""
  report, name = measured.read(run.workdir, "", facts["step"]), run.dataset.name
  members = [f"- `members/{name}/`: {escaped(one.config.method.name)}\n" for name, one in run.members.items()]
  parts = [
    _head(name, report, Sentence(reason="combined runs have several encoders")),
    f"# {len(members)} models combined on {escaped(name)}\n",
    f"An extreme multi-label classifier of `xmc_jax`: it ranks {len(run.dataset.labels):,} labels for a text "
    "by a weighted mean of the log-odds that its members give; `hybrid.json` calibrates it. Each member is "
    "an export of its own, with a README and with files for other tools:\n",
    "".join(members),
    f"## Use\n\n{_USE}",
    f"## Data\n\n{_code(data.summary(run.dataset.manifest))}",
    f"## Test metrics\n\n{measured.table(report, facts)}",
    f"## Limits\n\n- {_PROBABILITIES}\n- {_TEXTS_INSIDE}\n",
  ]
  return "\n".join(parts)


def escaped(shown: str) -> str:
  """Returns a text as one line of Markdown, with every special character escaped.

  Example:
    >>> escaped("<b> [x](y)")
    '\\\\<b\\\\> \\\\[x\\\\]\\\\(y\\\\)'
  """
  return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", sanitize.line(shown)[:_LONGEST])


def _head(name: str, report: dict, sentence: Sentence) -> str:
  name = sanitize.line(name)[:_LONGEST]
  slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "data"
  means = report.get("metrics", {})
  metrics = [{"type": shown, "name": shown, "value": round(100 * means[shown], 2)} for shown in means]
  task = {"type": "text-classification", "name": "extreme multi-label classification"}
  result = {"task": task, "dataset": {"type": slug, "name": name, "split": "test"}, "metrics": metrics}
  tags = ["extreme-multi-label-classification", "feature-extraction", "dense-retrieval", "jax", "xmc_jax"]
  fields = {
    "license": "other",
    "license_name": "of-the-data-and-the-encoder",
    "license_link": "README.md",
    "library_name": "xmc_jax",
    "pipeline_tag": "feature-extraction",
    "tags": tags if sentence.reason else [*tags, "sentence-transformers"],
    "datasets": [slug],
    "metrics": sorted({shown.partition("@")[0] for shown in means}),
    "model-index": [{"name": slug, "results": [result]}] if metrics else [],
  }
  lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items() if value]
  # JSON of printable characters is YAML.
  lines = ["".join(letter if letter.isprintable() else "\ufffd" for letter in line) for line in lines]
  return "\n".join(["---", *lines, "---", ""])


def _files(facts: dict[str, Any], sentence: Sentence, no_scann: str) -> str:
  embeds = "; ".join([f"the encoder, {sentence.width} numbers a text", *sentence.notes])
  rows = [
    ("sentence_transformers/", f"left out: {sentence.reason}" if sentence.reason else embeds),
    ("index/labels.npy", f"float32, what the index ranks by: {facts['index_ranks_by']}"),
    ("index/labels.jsonl", "ids, keys and texts of labels"),
    ("index/labels.faiss", "the vectors as an IndexFlatIP"),
    ("index/scann/", f"left out: {no_scann}" if no_scann else "ScaNN's files; see scann.json"),
    ("stablehlo/", "functions from tokens to vectors, parameters beside them; see signature.json"),
  ]
  if facts["ranks_by"] == HYBRID:
    points = f"{facts['points']:,} training points"
    if len(facts["scorers"]) > 1:
      scorers = ", ".join(facts["scorers"])
      rows.append(("index/labels_SCORER.npy", f"label vectors of one scorer each: {scorers}"))
    rows += [
      ("index/both.faiss", f"an IndexFlatIP: first the {points}, each of length 1, then the labels"),
      ("memory/points.npy", f"float32 embeddings of {points}"),
      ("memory/points.jsonl", "their texts: the training texts themselves"),
      ("memory/point_labels.npy", "their labels; point_labels_offsets.npy says where rows begin"),
      ("memory/hybrid.json", "the model that joins the sources"),
    ]
  return measured.rows([("file", "what"), *((f"`{file}`", what) for file, what in rows)])


def _in_words(facts: dict[str, Any]) -> str:
  if facts["ranks_by"] != HYBRID:
    return facts["ranks_by"]
  kinds = "encoder and classifiers" if len(facts["scorers"]) > 1 else "encoder"
  return f"what its {kinds}, the labels of the nearest of {facts['points']:,} training texts, and words say"


def _limits(facts: dict[str, Any], run: Run) -> str:
  is_hybrid = facts["ranks_by"] == HYBRID
  lines = [
    f"Texts are cut after {facts['max_length']} tokens. All is in float32: a run trained in bfloat16 rounds "
    "otherwise, so its own scores differ in the third digit.",
    _PROBABILITIES if is_hybrid else _PRODUCTS,
    "Labels are what the training data hold, with all that is wrong or one-sided in it.",
  ]
  if is_hybrid:
    lines.append(_TEXTS_INSIDE)
  if facts["adds_labels"]:
    lines.append(
      "Labels can be added by their texts (`Exported.add_labels`). They have what the encoder makes of their "
      "texts" + (", and their words, but no training point" if is_hybrid else "") + ", and nothing that "
      "training adds to a label: they may rank lower than they should."
    )
  else:
    lines.append("No label can be added: label vectors are trained, they do not follow from texts.")
  if run.method.scorers and facts["index_ranks_by"].startswith("the sum"):
    lines.append("The run itself may fuse its two scores by a decision tree; the index ranks by their sum.")
  return "".join(f"- {line}\n" for line in lines)


def _code(block: str, language: str = "text") -> str:
  """Returns a Markdown code block; replaces backticks, so that the content cannot end the block."""
  return f"```{language}\n{sanitize.text(block).replace('`', chr(39))}\n```\n"


def _shareable(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns the run's config with dotted keys, without what describes the machine it was trained on."""
  config = checks.flatten(methods.read_config(workdir / "config.json"))
  for key in _PATHS:
    config[key] = pathlib.PurePath(str(config[key])).name
  return {key: value for key, value in config.items() if not key.startswith(("plan.", "data.cache_dir"))}
