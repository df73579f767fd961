"""`export`: from a run's folder to one for other tools."""

import json
import pathlib

import ml_collections
import numpy as np

from xmc_jax import disk, methods, runtime
from xmc_jax import run as runs
from xmc_jax.contract import UserError
from xmc_jax.export import card, exported, label_files, programs, sentence, whole
from xmc_jax.export.programs import Trained
from xmc_jax.report import say

_PROBES = 8  # texts by which the folder of sentence-transformers is checked
_SAMPLE = 200  # points that ScaNN's search is tuned by
_SLACK = 20e6  # bytes: tokenizers, programs, the card


def export(workdir: pathlib.Path, destination: str = "", scores: str = "") -> None:
  """Writes a finished run for other tools; docs/export.md says what stands where.

  Killed, it leaves no such folder, and the same call begins anew.

  Args:
    workdir: the run's folder.
    destination: the folder to write; '' is `export` in the run's. An earlier export there is replaced.
    scores: of a method that has several, what labels are ranked by: 'encoder', 'classifier', or 'fused',
      which here is their sum, or of a memory of keys label texts alone; '' is as the run was told.

  Raises:
    UserError: no run, nothing trained, no room, or something else at the destination.
  """
  if not runtime.is_alone():
    raise UserError("an export is made by one process; leave --distributed out")
  programs.check_available()
  folder = pathlib.Path(destination).expanduser() if destination else workdir / "export"
  run = _opened(workdir)
  chosen = scores or run.config.eval.scores
  methods.check_scores(chosen, run.config, run.method)
  view = chosen if chosen in run.method.views else ""
  if run.method.key_temperature and not view:
    say("export: labels rank by their texts; the memory of training points stays with the run")
    view = "encoder"
  params, aux, step = run.trained()
  with whole.written_whole(folder.absolute(), exported.is_export) as part:
    _write(part, run, Trained(params, aux), step, view)
  say(f"exported to {folder}: README.md says what is there")


def _opened(workdir: pathlib.Path) -> runs.Run:
  """The run on one device and in float32, which is what all of an export is made in."""
  run = runs.reopen(workdir, devices=ml_collections.ConfigDict({"data": 1, "label": 1}))
  if run.config.encoder.dtype == "float32":
    return run
  config = ml_collections.ConfigDict(run.config.to_dict())
  config.encoder.dtype = "float32"
  return runs.Run(config, workdir, run.dataset)


def _write(part: pathlib.Path, run: runs.Run, trained: Trained, step: int, view: str) -> None:
  texts, max_length = run.dataset.labels.texts, run.config.data.max_length
  vectors = run.embed_labels(trained.params, run.aux_to_rank(*trained), view)
  _check_room(part, run, trained, vectors)
  probes = [run.dataset.train.texts[row] for row in range(min(_PROBES, len(run.dataset.train)))]
  found = sentence.write(part / exported.SENTENCE, run, trained, probes)
  if found.reason:
    say(f"export: no {exported.SENTENCE}/: {found.reason}")
  functions = {
    exported.POINTS: lambda params, aux, tokens, ids: run.method.embed_queries(params, aux, tokens)
  }
  if by_text := _by_text(run, trained):
    functions[exported.LABELS] = by_text
  signature = programs.write(part / exported.PROGRAMS, functions, trained, max_length)
  tokenizer = run.dataset.tokenizer()
  tokenizer.enable_truncation(max_length)
  tokenizer.enable_padding()
  (part / exported.PROGRAMS / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
  signature["tokenizer"] = "tokenizer.json"
  _write_json(part / exported.PROGRAMS / "signature.json", signature)
  no_scann = label_files.write(part / exported.INDEX, [vectors], texts, _sample(run, trained))
  if no_scann:
    say(f"export: {no_scann}")
  facts = {
    "format": exported.FORMAT,
    "version": exported.VERSION,
    "method": run.config.method.name,
    "step": step,
    "max_length": max_length,
    "width": int(vectors.shape[1]),
    "ranks_by": _ranks_by(run, view),
    "trained_labels": len(texts),
    "adds_labels": exported.LABELS in functions,
    "encoder_run": pathlib.Path(run.config.init_from).name,
  }
  _write_json(part / exported.MARKER, facts)
  made = card.Made(facts, found, no_scann)
  (part / "README.md").write_text(card.text(run, made, view), encoding="utf-8")


def _by_text(run: runs.Run, trained: Trained) -> programs.Function | None:
  """What embeds a label that was not trained on, by its text alone; None where none of the method's does."""
  method, max_length = run.method, run.config.data.max_length
  known = [method.embed_texts, method.embed_labels, *method.views.values()]
  following = (f for f in known if f and programs.follows_from_text(f, trained, max_length))
  return next(following, None)


def _ranks_by(run: runs.Run, view: str) -> str:
  if not run.method.views:
    return "inner products"
  return f"inner products, by {view} alone" if view else "the sum of encoder and classifier inner products"


def _sample(run: runs.Run, trained: Trained) -> np.ndarray:
  """`[m, D]` embeddings of training points."""
  rows = np.random.default_rng(0).permutation(len(run.train))[:_SAMPLE]
  return run.embed_queries(*trained, run.train.tokens.rows(np.sort(rows)))


def _check_room(part: pathlib.Path, run: runs.Run, trained: Trained, vectors: np.ndarray) -> None:
  text_bytes = sum(len(text.encode()) for text in run.dataset.labels.texts)
  index = label_files.num_bytes(*vectors.shape, text_bytes)
  disk.need(part, 2 * programs.parameter_bytes(trained) + index + _SLACK, "the export")


def _write_json(path: pathlib.Path, content: dict) -> None:
  path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
