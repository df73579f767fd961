"""The routes of the server: predictions, embeddings, health, metrics, and the page."""

import asyncio
import contextlib
import math
import pathlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import xmc_jax
from xmc_jax.data import extracted
from xmc_jax.errors import DataError, UserError
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.runs.model import Model
from xmc_jax.serve import annif_api, answers, corrections, schemas
from xmc_jax.serve.guard import Guard, host_names
from xmc_jax.serve.metrics import CONTENT_TYPE, Metrics
from xmc_jax.serve.options import Limits, PageText
from xmc_jax.serve.worker import Busy, Label, ModelWorker

_ERRORS = {
  400: "The body is not JSON.",
  413: "The body is too large.",
  415: "The body is not announced as JSON.",
  421: "The Host header names another server.",
  422: "A key is missing, unknown, of a wrong type, or beyond a limit; the sentence names the limit.",
  500: "The server has a fault.",
  503: "Too many texts wait, or the server is stopping; `Retry-After` says when to come again.",
}
_WITH_BODY: dict[int | str, dict[str, Any]] = {
  status: {"model": schemas.ErrorAnswer, "description": why} for status, why in _ERRORS.items()
}
_PAGE = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}
_PAGE |= {"/correction.js": "correction.js"}
_FILES = ("application/pdf", "application/vnd.openxmlformats-officedocument.wordprocessingml.document")
_MOST_FILES = 4  # whose text is extracted, or waits for that
_MOST_PARTS = 100  # of a vocabulary, for the page to offer
_DEFAULTS, _USUAL = Limits(), PageText()
_NOT_READY = {"model": schemas.Health, "description": "The model is not ready yet, or has ended."}


def app(
  model: Model,
  *,
  k: int = 5,
  name: str = "",
  limits: Limits = _DEFAULTS,
  allowed_hosts: Sequence[str] = (),
  page_text: PageText = _USUAL,
  threshold: float = -math.inf,
  learn_token: str = "",
) -> FastAPI:
  """Returns the page and the API over a model as an ASGI application, for a server of your own.

  The model warms up when the application starts: from then on nothing is compiled. Run one process of it: a
  second one would hold a second copy of the model.

  Args:
    model: a trained run.
    k: labels per text where a request does not say.
    name: what the page and `/health` call the run.
    limits: sizes that are refused, and how requests are joined.
    allowed_hosts: names by which clients may reach the server; a port is ignored, and () is every name. Give
      them where only this machine should reach it, against DNS rebinding.
    page_text: the page's title, description and examples.
    threshold: the least score of a label where a request does not say.
    learn_token: lets clients that send it teach the model (`/learn`); '' lets nobody.

  Raises:
    UserError: a library of the extra `serve` is not installed, a limit or the token cannot work, an allowed
      host is no name, or the model cannot learn.

  Example:
    >>> application = xmc_jax.serve.app(xmc_jax.Model.load("runs/dexml-debian"))
  """
  name = name or "run"
  worker = ModelWorker(model, limits)
  if not 1 <= k <= worker.limits.max_k:
    raise UserError(f"k = {k}: the server ranks 1 to {worker.limits.max_k} labels; set one of these")
  api = _without_routes()
  api.state.worker, api.state.name = worker, name
  _add_model_routes(api, worker, k, threshold)
  _add_extraction(api)
  annif_api.add_routes(api, worker, name)
  _add_learning(api, worker, name, learn_token)
  _add_health(api, worker, k, threshold, {"learns": bool(learn_token), **page_text._asdict()})
  _add_metrics(api, worker)
  for path, file in _PAGE.items():
    _add_file(api, path, pathlib.Path(__file__).with_name("page") / file)
  api.add_middleware(
    Guard,
    max_body_bytes={"": limits.max_body_bytes, "/text": limits.max_file_bytes},
    metrics=api.state.metrics,
    routes=[route.path.replace("{project_id}", name) for route in api.routes if hasattr(route, "path")],
    allowed_hosts=host_names(allowed_hosts),
  )
  return api


def _without_routes() -> FastAPI:
  return FastAPI(
    title="xmc_jax",
    version=xmc_jax.__version__,
    description="Predicts labels of texts with a trained run. Every error is JSON with one sentence.",
    docs_url=None,  # these pages load scripts from elsewhere
    redoc_url=None,
    redirect_slashes=False,
    lifespan=_life,
    exception_handlers={
      RequestValidationError: _invalid,
      HTTPException: _refused,
      Busy: _busy,
      ClientDisconnect: _left,
      Exception: _failed,
    },
  )


@contextlib.asynccontextmanager
async def _life(api: FastAPI) -> AsyncIterator[None]:
  """Waits until the model is ready; at the end, refuses what still waits."""
  worker: ModelWorker = api.state.worker
  await asyncio.wrap_future(worker.start())
  yield
  worker.close()
  if api.state.corrections:
    api.state.corrections.close()


def _add_model_routes(api: FastAPI, worker: ModelWorker, default_k: int, least: float) -> None:
  EmbedRequest, PredictRequest, _ = schemas.request_bodies(worker.limits)

  @api.post("/predict", response_model=schemas.PredictAnswer, responses=_WITH_BODY)
  async def predict(body: PredictRequest, request: Request) -> Response:  # type: ignore[valid-type]
    """Ranks the best labels of each text."""
    asked: Any = body
    texts = answers.texts_of(asked, worker.limits.max_text_length)
    k = default_k if asked.k is None else asked.k
    include, exclude = tuple(asked.include), tuple(asked.exclude)
    try:
      await asyncio.to_thread(worker.model.where, include, exclude)
      worker.model.check_language(asked.language)
    except UserError as fault:
      raise HTTPException(422, str(fault)) from None
    labels = LabelRequest(k, explain=asked.explain, include=include, exclude=exclude, language=asked.language)
    found = await answers.answered(worker.predict(texts, labels), request) if texts else []
    threshold = least if asked.threshold is None else asked.threshold
    return answers.predictions([_above(threshold, text, of) for text, of in zip(texts, found)])

  @api.post("/embed", response_model=schemas.EmbedAnswer, responses=_WITH_BODY)
  async def embed(body: EmbedRequest, request: Request) -> Response:  # type: ignore[valid-type]
    """Embeds each text as a query."""
    texts = answers.texts_of(body, worker.limits.max_text_length)
    if not texts:
      return answers.as_json({"embeddings": []})
    return answers.embeddings(await answers.answered(worker.embed(texts), request))


def _add_extraction(api: FastAPI) -> None:
  one_at_a_time = asyncio.Lock()
  files = 0  # that are read or wait
  content_of = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in _FILES}
  of_request = {"requestBody": {"content": content_of}}

  @api.post("/text", response_model=schemas.TextAnswer, responses=_WITH_BODY, openapi_extra=of_request)
  async def text(request: Request) -> Response:
    """Extracts the text of a PDF or Word file, the body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _FILES:
      raise HTTPException(415, f"send a file, with the header Content-Type: {' or '.join(_FILES)}")
    nonlocal files
    if files >= _MOST_FILES:
      raise Busy(f"the server is busy: {files} files wait, and no more may")
    files += 1
    try:
      content = await request.body()
      async with one_at_a_time:
        if await request.is_disconnected():
          raise ClientDisconnect
        return answers.as_json({"text": await asyncio.to_thread(extracted.text_of, content, "the file")})
    except (DataError, UserError) as fault:
      raise HTTPException(422, str(fault)) from None
    finally:
      files -= 1


def _add_learning(api: FastAPI, worker: ModelWorker, name: str, token: str) -> None:
  api.state.corrections = None
  if token:
    api.state.corrections = taken = corrections.Corrections(worker, token)
    corrections.add_route(api, worker, taken, _WITH_BODY)
    annif_api.add_learn_route(api, worker, name, taken)


def _above(least: float, text: str, labels: Sequence[Label]) -> list[Label]:
  """Returns the labels whose score is not below `least`; none for a blank text."""
  return [label for label in labels if not label["score"] < least] if text.strip() else []


def _add_health(api: FastAPI, worker: ModelWorker, k: int, least: float, more: dict[str, Any]) -> None:
  @api.get("/health", response_model=schemas.Health, responses={421: _WITH_BODY[421], 503: _NOT_READY})
  async def health() -> Response:
    """Tells that the server answers, and what it serves."""
    worker.start()
    model, is_ready = worker.model, worker.is_ready
    num_labels = await asyncio.to_thread(lambda: len(model.labels))  # may read what others have learnt
    about = {
      "ok": is_ready,
      "run": api.state.name,
      "step": model.step,
      "labels": num_labels,
      "probabilities": model.gives_probabilities,
      "calibration_error": model.calibration_error,
      "calibrated": model.is_calibrated,
      "k": k,
      "threshold": least if math.isfinite(least) else None,
      "limits": {key: getattr(worker.limits, key) for key in schemas.LimitsAnswer.model_fields},
      **(_vocabulary(model) if is_ready else {"languages": [], "language": "", "parts": []}),
      **more,
    }
    return answers.as_json(about, 200 if is_ready else 503)


def _vocabulary(model: Model) -> dict[str, Any]:
  tops = model.parts
  few = tops if len(tops) <= _MOST_PARTS else []
  parts = [{"include": f"below:{model.keys[label]}", "name": model.labels[label]} for label in few]
  return {"languages": model.languages, "language": model.language, "parts": parts}


def _add_metrics(api: FastAPI, worker: ModelWorker) -> None:
  api.state.metrics = Metrics(lambda: worker.num_waiting)
  worker.on_batch = api.state.metrics.batch
  of_text = {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}

  @api.get("/metrics", response_class=Response, responses={200: of_text, 421: _WITH_BODY[421]})
  async def metrics() -> Response:
    """Gives the server's metrics in Prometheus's text format."""
    return Response(api.state.metrics.in_text(), headers={"Content-Type": CONTENT_TYPE})


def _add_file(api: FastAPI, path: str, file: pathlib.Path) -> None:
  @api.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)
  async def give() -> FileResponse:
    return FileResponse(file)


async def _invalid(request: Request, refused: Exception) -> Response:
  fault = cast(RequestValidationError, refused)
  # A page of another origin can send other media types without asking first; FastAPI reads none of them.
  if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
    return answers.error(415, "send JSON, with the header Content-Type: application/json")
  if fault.errors()[0]["type"] == "json_invalid":
    return await _refused(request, HTTPException(400))
  return answers.error(422, answers.sentence_of(fault))


async def _refused(request: Request, refused: Exception) -> Response:
  """Answers errors of our own and of the router, whose sentences are short."""
  fault = cast(HTTPException, refused)
  sentences = {
    400: "the body is not JSON that this server can read",
    404: "there is nothing at this address; /openapi.json lists what there is",
    405: f"this address does not take {request.method}; /openapi.json lists what it takes",
  }
  return answers.error(fault.status_code, sentences.get(fault.status_code, fault.detail), fault.headers)


async def _busy(_: Request, refused: Exception) -> Response:
  return answers.busy(str(refused))


async def _left(_: Request, refused: Exception) -> Response:
  return Response(status_code=499)  # for the metrics: nobody reads it


async def _failed(_: Request, fault: Exception) -> Response:
  return answers.error(500, "the server failed to answer this request; its own log says why")
