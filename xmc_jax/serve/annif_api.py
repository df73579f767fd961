"""Speaks Annif's REST API, so that a catalogue that asks Annif can ask a run by another address.

A server has one project, the run. https://github.com/NatLibFi/Annif describes the API.
"""

import asyncio
import functools
import math
import urllib.parse
from collections.abc import Sequence
from typing import Any

import py3langid
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, Field

import xmc_jax
from xmc_jax.errors import UserError
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.serve import answers
from xmc_jax.serve.corrections import Corrections
from xmc_jax.serve.worker import Label, ModelWorker

_FORM = "application/x-www-form-urlencoded"
_LIMIT = 10  # suggestions where a request does not say, as in Annif
_BEGINNING = 5000  # characters that tell a language
_SAME = {"nb": "no"}  # codes of languages that py3langid calls otherwise


class Document(BaseModel):
  """Holds a text of a batch."""

  text: str
  document_id: str | None = None


class Batch(BaseModel):
  """Asks for suggestions for texts."""

  documents: list[Document] = Field(min_length=1)


class Subject(BaseModel):
  """Names a label by its key."""

  uri: str


class IndexedDocument(BaseModel):
  """Holds a text with its right labels."""

  text: str
  subjects: list[Subject]


class LanguageRequest(BaseModel):
  """Asks which of some languages a text is in."""

  text: str
  languages: list[str] = Field(min_length=1, max_length=100)


def add_routes(api: FastAPI, worker: ModelWorker, name: str) -> None:
  """Adds `/v1/…`: the project, suggestions for a text or for many, and a text's language."""

  @api.get("/v1/", include_in_schema=False)
  @api.get("/v1", include_in_schema=False)
  async def info() -> Response:
    return answers.as_json({"title": "xmc_jax", "version": xmc_jax.__version__})

  @api.get("/v1/projects")
  async def projects() -> Response:
    """Lists the run as the only project, as Annif does."""
    return answers.as_json({"projects": [_project(worker, name)]})

  @api.get("/v1/projects/{project_id}")
  async def project(project_id: str) -> Response:
    """Describes the project, as Annif does."""
    return _unknown(project_id) if project_id != name else answers.as_json(_project(worker, name))

  @api.post("/v1/projects/{project_id}/suggest")
  async def suggest(project_id: str, request: Request) -> Response:
    """Suggests labels for a text: a form with `text`, `limit`, `threshold` and `language`, as Annif's."""
    if project_id != name:
      return _unknown(project_id)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
      raise HTTPException(415, f"send a form, with the header Content-Type: {_FORM}")
    form = dict(urllib.parse.parse_qsl((await request.body()).decode("utf-8", "replace"), True))
    if "text" not in form:
      raise HTTPException(422, "the form has no text")
    (found,) = await _suggested(worker, [form["text"]], form, request)
    return answers.as_json({"results": found})

  @api.post("/v1/projects/{project_id}/suggest-batch")
  async def suggest_batch(project_id: str, body: Batch, request: Request) -> Response:
    """Suggests labels for texts: `limit`, `threshold` and `language` are in the address, as Annif's."""
    if project_id != name:
      return _unknown(project_id)
    texts = [document.text for document in body.documents]
    found = await _suggested(worker, texts, dict(request.query_params), request)
    each = zip(body.documents, found)
    return answers.as_json([{"document_id": one.document_id, "results": results} for one, results in each])

  @api.post("/v1/detect-language")
  async def detect_language(body: LanguageRequest) -> Response:
    """Returns the probability of each language for a text; that of all others as null, as Annif does."""
    known = {language: _SAME.get(language, language) for language in body.languages}
    identifier = await asyncio.to_thread(_identifier)  # the first time it is read from a file
    if unknown := set(known.values()) - set(identifier.labels):
      raise HTTPException(422, f"unsupported candidate languages: {', '.join(sorted(unknown))}")
    text = body.text.strip()[:_BEGINNING]
    shares = dict(await asyncio.to_thread(identifier.rank, text)) if text else {}
    found: dict[str | None, float] = {language: shares.get(of, 0.0) for language, of in known.items()}
    found[None] = max(1 - sum(found.values()), 0.0)
    best_first = sorted(found.items(), key=lambda one: -one[1])
    results = [{"language": language, "score": round(score, 6)} for language, score in best_first]
    return answers.as_json({"results": results})


def add_learn_route(api: FastAPI, worker: ModelWorker, name: str, corrections: Corrections) -> None:
  """Adds `/v1/projects/…/learn`."""
  path, dependencies = "/v1/projects/{project_id}/learn", [Depends(corrections.check)]

  @api.post(path, status_code=204, response_class=Response, dependencies=dependencies)
  async def learn(project_id: str, body: list[IndexedDocument], request: Request) -> Response:
    """Learns from documents whose labels are right, as Annif does; passes over those without a label."""
    if project_id != name:
      return _unknown(project_id)
    body = [document for document in body if document.subjects and document.text.strip()]
    if len(body) > worker.limits.max_texts:
      raise HTTPException(422, f"give at most {worker.limits.max_texts} documents")
    texts = [document.text[: worker.limits.max_text_length] for document in body]  # as they are asked for
    labels = [[subject.uri for subject in document.subjects] for document in body]
    await corrections.learn(texts, labels, request)
    return Response(status_code=204)


def _project(worker: ModelWorker, name: str) -> dict[str, Any]:
  return {
    "project_id": name,
    "name": name,
    "language": worker.model.language,
    "backend": {"backend_id": "xmc_jax"},
    "is_trained": True,
    "modification_time": None,
  }


async def _suggested(
  worker: ModelWorker, texts: Sequence[str], given: dict[str, str], request: Request
) -> list[list[dict[str, Any]]]:
  """Returns the suggestions for each text, those of `limit` labels that score at least `threshold`."""
  try:
    limit, least = int(given.get("limit", _LIMIT)), float(given.get("threshold", 0))
  except ValueError:
    raise HTTPException(422, "limit must be a whole number, and threshold a number") from None
  if not worker.model.gives_probabilities:
    raise HTTPException(422, "scores of this run are no probabilities; serve it with --scores=hybrid")
  limits = worker.limits
  if not limit >= 1 or math.isnan(least) or len(texts) > limits.max_texts:
    most = f"at most {limits.max_texts} documents"
    raise HTTPException(422, f"give a limit of 1 or more, a threshold from 0 to 1, and {most}")
  texts = [text[: limits.max_text_length] for text in texts]  # Annif drops a backend's errors
  language = given.get("language", "")
  try:
    worker.model.check_language(language)
  except UserError as fault:
    raise HTTPException(422, str(fault)) from None
  labels = LabelRequest(min(limit, limits.max_k), language=language)
  found: list[list[Label]] = await answers.answered(worker.predict(texts, labels), request)
  return [
    [_suggestion(label) for label in of_text if text.strip() and label["score"] >= least]
    for text, of_text in zip(texts, found)
  ]


def _suggestion(label: Label) -> dict[str, Any]:
  score = round(label["score"], 6)
  return {"uri": label["key"], "label": label["text"], "notation": label.get("notation"), "score": score}


@functools.cache
def _identifier() -> py3langid.langid.LanguageIdentifier:
  langid = py3langid.langid
  return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def _unknown(project_id: str) -> Response:
  detail = f"Project '{project_id:.80}' not found."
  return answers.as_json({"title": "Not Found", "status": 404, "detail": detail, "error": detail}, 404)
