"""The routes of the server: predictions, embeddings, health, metrics, and the page."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import xmc_jax
from xmc_jax.errors import UserError
from xmc_jax.serve import answers, page, schemas
from xmc_jax.serve.guard import Guard, host_names
from xmc_jax.serve.limits import Limits
from xmc_jax.serve.metrics import CONTENT_TYPE, Metrics
from xmc_jax.serve.worker import Busy, Label, ModelWorker

_ERRORS = {
  400: "The body is not JSON.",
  408: "The body did not arrive in time.",
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
_WITHOUT_BODY: dict[int | str, dict[str, Any]] = {421: _WITH_BODY[421]}
_NOT_READY: dict[int | str, dict[str, Any]] = {
  503: {"model": schemas.Health, "description": "The model is not ready yet, or has ended."}
}
router = APIRouter()


def build(
  worker: ModelWorker,
  *,
  k: int,
  name: str,
  allowed_hosts: Sequence[str],
  page_text: page.PageText,
  threshold: float,
) -> FastAPI:
  """Returns the ASGI application over a worker; it starts the worker with itself, and ends it.

  Args:
    worker: answers by the model; may have started already.
    k: labels per text where a request does not say.
    name: of the run.
    allowed_hosts: names of this server in the Host header, as in `host_names`; () is every name.
    page_text: the page's title, description and examples.
    threshold: the least score of a label where a request does not say.

  Raises:
    UserError: k is out of range, or an allowed host is no name.
  """
  if not 1 <= k <= worker.limits.max_k:
    raise UserError(f"k = {k}: the server ranks 1 to {worker.limits.max_k} labels; set one of these")
  api = FastAPI(
    title="xmc_jax",
    version=xmc_jax.__version__,
    description="Predicts labels of texts with a trained run. Every error is JSON with one sentence.",
    docs_url=None,  # these pages load scripts from elsewhere
    redoc_url=None,
    redirect_slashes=False,
    lifespan=_life,
  )
  metrics = Metrics(lambda: worker.num_waiting)
  worker.on_batch = metrics.batch
  api.state.worker, api.state.metrics = worker, metrics
  api.state.name, api.state.k, api.state.page_text, api.state.threshold = name, k, page_text, threshold
  api.include_router(router)
  for path, file in page.files().items():
    api.add_api_route(path, _giving(file), methods=["GET", "HEAD"], include_in_schema=False)
  api.add_exception_handler(RequestValidationError, _invalid)
  api.add_exception_handler(HTTPException, _refused)
  api.add_exception_handler(Busy, _busy)
  described = api.openapi
  api.openapi = lambda: schemas.add_limits(described(), worker.limits)  # type: ignore[method-assign]
  routes = (*described()["paths"], "/openapi.json", *page.files())
  api.add_middleware(
    Guard, limits=worker.limits, metrics=metrics, routes=routes, allowed_hosts=host_names(allowed_hosts)
  )
  return api


@contextlib.asynccontextmanager
async def _life(api: FastAPI) -> AsyncIterator[None]:
  """Waits until the model is ready; at the end, refuses what still waits."""
  worker: ModelWorker = api.state.worker
  await asyncio.wrap_future(worker.start())
  yield
  worker.drain(0.0)


@router.post("/predict", response_model=schemas.PredictAnswer, responses=_WITH_BODY)
async def predict(asked: schemas.PredictRequest, request: Request) -> Response:
  """Ranks the best labels of each text."""
  worker: ModelWorker = request.app.state.worker
  texts, most = _texts_of(asked, worker.limits), worker.limits.max_k
  k = request.app.state.k if asked.k is None else asked.k
  if k > most:
    raise HTTPException(422, f"k = {str(k)[:20]} is more than this server's limit of {most}")
  found = await _answered(worker.predict(texts, k, asked.explain), request) if texts else []
  least = request.app.state.threshold if asked.threshold is None else asked.threshold
  return answers.as_json(answers.predictions([_above(least, text, of) for text, of in zip(texts, found)]))


def _above(least: float, text: str, labels: Sequence[Label]) -> list[Label]:
  """Returns the labels whose score is not below `least`; none for a blank text."""
  return [label for label in labels if not label.score < least] if text.strip() else []


@router.post("/embed", response_model=schemas.EmbedAnswer, responses=_WITH_BODY)
async def embed(asked: schemas.EmbedRequest, request: Request) -> Response:
  """Embeds each text as a query."""
  worker: ModelWorker = request.app.state.worker
  texts = _texts_of(asked, worker.limits)
  if not texts:
    return answers.as_json({"embeddings": []})
  return answers.as_json(answers.embeddings(await _answered(worker.embed(texts), request)))


@router.get("/health", response_model=schemas.Health, responses={**_WITHOUT_BODY, **_NOT_READY})
async def health(request: Request) -> Response:
  """Tells that the server answers, and what it serves."""
  state, worker = request.app.state, request.app.state.worker
  worker.start()
  limits = {key: getattr(worker.limits, key) for key in schemas.LimitsAnswer.model_fields}
  about = {
    "ok": worker.is_ready,
    "run": state.name,
    "step": worker.model.step,
    "labels": len(worker.model.labels),
    "probabilities": worker.model.gives_probabilities,
    "calibration_error": worker.model.calibration_error,
    "calibrated": worker.model.is_calibrated,
    "k": state.k,
    "threshold": state.threshold if math.isfinite(state.threshold) else None,
    "limits": limits,
    **state.page_text._asdict(),
  }
  return answers.as_json(about, 200 if worker.is_ready else 503)


@router.get(
  "/metrics",
  response_class=Response,
  responses={200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}, **_WITHOUT_BODY},
)
async def metrics(request: Request) -> Response:
  """Gives the server's metrics in Prometheus's text format."""
  return Response(request.app.state.metrics.in_text(), headers={"Content-Type": CONTENT_TYPE})


def _texts_of(asked: schemas.EmbedRequest, limits: Limits) -> list[str]:
  """Returns the texts of a request; refuses too many, and texts that are too long."""
  if (asked.text is None) == (asked.texts is None):
    raise HTTPException(422, 'give either "text" or "texts"')
  texts = [asked.text] if asked.text is not None else asked.texts or []
  if len(texts) > limits.max_texts:
    raise HTTPException(
      422, f"texts has {len(texts)} texts, more than this server's limit of {limits.max_texts}"
    )
  longest = max(map(len, texts), default=0)
  if longest > limits.max_text_length:
    raise HTTPException(
      422,
      f"a text has {longest} characters, more than this server's limit of {limits.max_text_length}",
    )
  return texts


async def _answered(answer: Future, request: Request) -> Any:
  """Waits for the model's answer; if the client leaves first, takes its texts out of the queue.

  Raises:
    ClientDisconnect: the client has left.
  """
  waiting, leaving = asyncio.wrap_future(answer), asyncio.ensure_future(_left(request))
  try:
    await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
      raise ClientDisconnect
    return waiting.result()
  finally:
    leaving.cancel()
    waiting.cancel()  # nothing happens if it is done, or if the model works on it


async def _left(request: Request) -> None:
  """Returns when the client of a request has left; its body was read."""
  while (await request.receive())["type"] != "http.disconnect":
    pass


def _giving(file: page.File) -> Callable[[], Any]:
  """Returns a route that gives one file of the page, from memory."""

  async def give() -> Response:
    return Response(file.content, headers={"Content-Type": file.media_type})

  return give


async def _invalid(_: Request, refused: Exception) -> Response:
  fault = cast(RequestValidationError, refused)
  not_json = fault.errors()[0]["type"] == "json_invalid"
  return answers.error(400 if not_json else 422, answers.sentence_of(fault))


async def _refused(request: Request, refused: Exception) -> Response:
  """Answers errors of our own and of the router, whose sentences are short."""
  fault = cast(HTTPException, refused)
  status, sentence = fault.status_code, fault.detail
  if status == 404:
    sentence = "there is nothing at this address; /openapi.json lists what there is"
  elif status == 405:
    sentence = f"this address does not take {request.method}; /openapi.json lists what it takes"
  elif status == 400:
    sentence = "the body is not JSON that this server can read"
  return answers.error(status, sentence, fault.headers)


async def _busy(_: Request, refused: Exception) -> Response:
  return answers.error(503, str(refused), {"Retry-After": str(cast(Busy, refused).seconds)})
