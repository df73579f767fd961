"""Writes a finished run as a folder for other tools: `export`."""

import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import ml_collections
import numpy as np

from xmc_jax import config as configs
from xmc_jax.console import say
from xmc_jax.distributed import runtime, split_table
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.export import card, exported, label_files, memory_files, programs, sentence_transformers
from xmc_jax.retrieval.sources import Corpus
from xmc_jax.runs import corpora, label_frequency, label_functions, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import atomic, whole_folder

_PROBES = 8  # texts that the folder of sentence-transformers is checked with
_SAMPLE = 200  # points that ScaNN's search is tuned with
_SLACK = 20e6  # bytes: tokenizers, programs, texts, the model that combines the sources


class _Source(NamedTuple):
  """Holds what is exported.

  Attributes:
    original: the run as it was trained.
    trained: the same run in float32.
    scores: the scores that rank: 'hybrid', 'fused', or one of the method's scorers.
  """

  original: Trained
  trained: Trained
  scores: str

  @property
  def scorer(self) -> str:
    """Returns the method's scorer that `index/` ranks by; '' for the sum of all, or if it has none."""
    method = self.trained.run.method
    alone = self.scores if self.scores in method.scorers else ""
    return alone or ("encoder" if method.key_temperature else "")

  @property
  def scorers(self) -> list[str]:
    """Returns the kinds of label vectors that rank."""
    scorers = self.trained.run.method.scorers if self.scores == exported.HYBRID else ()
    return list(scorers or ("encoder",))


def export(workdir: pathlib.Path, destination: str = "", scores: str = "") -> None:
  """Writes a finished run for other tools; docs/export.md describes the files.

  If the process is killed, the destination is not created, and the same call starts again.

  Args:
    workdir: the run's folder.
    destination: the folder to write; '' is `export` in `workdir`. An earlier export there is replaced.
    scores: what `Exported` ranks by. 'hybrid' is all sources. For a method with scorers: 'encoder',
      'classifier', or 'fused', which here is their sum. For a method with a memory of keys, 'fused' ranks
      by label texts alone. '' takes the scores of the run's config.

  Raises:
    UserError: no run, nothing trained, unknown scores, a full disk, or other files at the destination.
  """
  if not runtime.is_alone():
    raise UserError("an export is made by one process; leave --distributed out")
  folder = pathlib.Path(destination).expanduser() if destination else workdir / "export"
  # The whole export is made on one device and in float32.
  run = runs.reopen(workdir, devices=ml_collections.ConfigDict({"data": 1, "label": 1}))
  chosen = scores or run.config.eval.scores
  _check_scores(chosen, run)
  trained = run.trained()
  with whole_folder.written_whole(folder.absolute(), lambda path: bool(exported.read_facts(path))) as part:
    if run.members:
      _write_members(part, trained)
    else:
      _write(part, _Source(trained, _in_float32(trained), chosen))
  say(f"exported to {folder}: README.md says what is there")


def _check_scores(scores: str, run: runs.Run) -> None:
  run.check_scores(scores)
  if scores in configs.SOURCES:
    raise ConfigError(
      f"scores = {scores!r}: an export ranks by all sources or by inner products, not by this one alone; "
      "give --scores=hybrid, which joins it with the others, or --scores=encoder"
    )
  if scores == "fused" and run.method.key_temperature:
    say("export: labels rank by their texts; the memory of training points stays with the run")


def _in_float32(trained: Trained) -> Trained:
  run = trained.run
  if run.config.encoder.dtype == "float32":
    return trained
  run = runs.Run(configs.changed(run.config, {"encoder.dtype": "float32"}), run.workdir, run.dataset)
  return Trained(run, trained.params, trained.extra_state, trained.step)


def _write(part: pathlib.Path, source: _Source) -> None:
  run, trained = source.trained.run, source.trained
  vectors = label_frequency.add_label_column(
    run, split_table.whole(trained.labels(source.scorer)), source.scorer
  )
  is_hybrid, rows = source.scores == exported.HYBRID, np.zeros(0, int)
  if is_hybrid:
    rows, votes = corpora.labelled(run, np.arange(len(run.dataset.train)))
  parameters = sum(leaf.nbytes for leaf in jax.tree.leaves(trained.tree))
  of_points = len(rows) * vectors[0].nbytes
  atomic.check_room(part, 2 * parameters + 6 * vectors.nbytes + 2 * of_points + _SLACK, "the export")
  probes = [run.dataset.train.texts[row] for row in range(min(_PROBES, len(run.dataset.train)))]
  sentence = sentence_transformers.write(part / exported.SENTENCE, trained, probes)
  if sentence.reason:
    say(f"export: no {exported.SENTENCE}/: {sentence.reason}")
  functions = _write_programs(part / exported.PROGRAMS, source)
  points = None
  if is_hybrid:
    texts, temperature = run.dataset.train.texts[rows], run.config.method.temperature
    corpus = Corpus({}, np.zeros((0, 0), np.float32), votes, texts, (), temperature)
    model = ranking.hybrid_model(source.original)
    points = memory_files.write(part / exported.MEMORY, corpus, model, _point_blocks(source, rows))
  no_scann = _write_index(part / exported.INDEX, source, vectors, points)
  adds_frequency = label_frequency.has_column(run)
  facts = {
    "format": exported.FORMAT,
    "version": exported.VERSION,
    "method": run.config.method.name,
    "step": trained.step,
    "max_length": run.config.data.max_length,
    "width": int(vectors.shape[1]) - adds_frequency,
    "ranks_by": exported.HYBRID if is_hybrid else _ranks_by(run, source.scorer),
    "index_ranks_by": _ranks_by(run, source.scorer),
    "scorers": source.scorers,
    "trained_labels": len(vectors),
    "points": len(rows),
    "adds_labels": exported.LABELS in functions,
    "adds_frequency": adds_frequency,
    "encoder_run": pathlib.Path(run.config.init_from).name,
  }
  atomic.write_json(part / exported.MARKER, facts)
  content = card.text(run, facts, sentence, no_scann, source.scores)
  (part / "README.md").write_text(content, encoding="utf-8")


def _write_members(part: pathlib.Path, trained: Trained) -> None:
  """Writes each of combined runs as an export of its own, and how they are joined."""
  run = trained.run
  for name, member in trained.members.items():
    folder = part / exported.MEMBERS / name
    folder.mkdir(parents=True)
    _write(folder, _Source(member, _in_float32(member), exported.HYBRID))
  ranking.hybrid_model(trained).save(part / memory_files.MODEL)
  facts = {
    "format": exported.FORMAT,
    "version": exported.VERSION,
    "step": trained.step,
    "members": list(run.members),
    "ranks_by": exported.HYBRID,
    "index_ranks_by": "the encoder of one member",
  }
  atomic.write_json(part / exported.MARKER, facts)
  (part / "README.md").write_text(card.text_of_combined(run, facts), encoding="utf-8")


def _write_programs(folder: pathlib.Path, source: _Source) -> dict[str, label_functions.Function]:
  """Writes the embedding functions and the tokenizer; returns the functions by name."""
  run, max_length = source.trained.run, source.trained.run.config.data.max_length
  functions = {
    exported.POINTS: lambda params, extra_state, tokens, ids: run.method.embed_queries(
      params, extra_state, tokens
    )
  }
  if by_text := label_functions.by_text(source.trained):
    functions[exported.LABELS] = label_frequency.by_text(run, by_text)
  signature = programs.write(folder, functions, source.trained, max_length)
  tokenizer = run.dataset.tokenizer()
  tokenizer.enable_truncation(max_length)
  tokenizer.enable_padding()
  (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
  signature["tokenizer"] = "tokenizer.json"
  atomic.write_json(folder / "signature.json", signature)
  return functions


def _write_index(
  folder: pathlib.Path, source: _Source, vectors: np.ndarray, points: np.ndarray | None
) -> str:
  """Writes the label index; returns why there is no ScaNN index, '' if there is one."""
  run, scorers = source.trained.run, {}
  if len(source.scorers) > 1:
    scorers = {scorer: [array] for scorer, array in corpora.label_vectors(source.trained).items()}
  sample = _sample(source.trained)
  data = run.dataset
  facts = [
    {name: concept[name] for name in ("notation", "deprecated") if concept.get(name)}
    for concept in map(data.concept, range(data.num_labels))
  ]
  of_labels = {"keys": data.label_keys, "names": data.label_names, "facts": facts}
  no_scann = label_files.write(
    folder, [vectors], data.labels.texts, sample, **of_labels, scorers=scorers, points=points
  )
  if no_scann:
    say(f"export: {no_scann}")
  return no_scann


def _point_blocks(source: _Source, rows: np.ndarray) -> Iterator[np.ndarray]:
  """Yields `[n, D]` float32 embeddings of these training rows, block by block."""
  trained, tokens = source.trained, source.trained.run.dataset.train.tokens
  for start in range(0, len(rows), label_files.BLOCK):
    some = rows[start : start + label_files.BLOCK]
    yield trained.points[some] if trained is source.original else trained.queries(tokens.rows(some))


def _ranks_by(run: runs.Run, scorer: str) -> str:
  if not run.method.scorers:
    return "inner products"
  return (
    f"inner products, by {scorer} alone" if scorer else "the sum of encoder and classifier inner products"
  )


def _sample(trained: Trained) -> np.ndarray:
  """Returns `[m, D]` embeddings of a random sample of training points."""
  train = trained.run.data.train
  rows = np.random.default_rng(0).permutation(len(train))[:_SAMPLE]
  return trained.queries(train.tokens.rows(np.sort(rows)))
