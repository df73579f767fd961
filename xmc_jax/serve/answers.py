"""Makes answers: waits for the model, JSON that is safe to print, and errors as one sentence."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect

from xmc_jax import sanitize
from xmc_jax.serve.worker import Label

_LONGEST = 80  # characters of a key of the client's in a message
_EXAMPLES = '{"text": "a window manager"}', '[{"text": "a window manager", "subjects": [{"uri": "x11"}]}]'


def as_json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
  """Returns a JSON answer; unsafe characters of texts are escaped, and lose none of their meaning."""
  text = sanitize.json(json.dumps(content, ensure_ascii=False, allow_nan=False))
  return Response(text.encode(), status, headers, "application/json")


def error(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
  return as_json({"error": sanitize.line(sentence)}, status, headers)


def busy(why: str) -> Response:
  return error(503, why, {"Retry-After": "1"})


def predictions(found: Sequence[Sequence[Label]]) -> Response:
  """Answers `/predict` with the labels of each text."""
  return as_json({"predictions": [{"labels": list(map(_rounded, labels))} for labels in found]})


def embeddings(vectors: np.ndarray) -> Response:
  """Answers `/embed`; numbers that are not finite, which JSON lacks, are null."""
  rows = vectors.astype(object)
  rows[~np.isfinite(vectors)] = None
  return as_json({"embeddings": rows.tolist()})


def _rounded(label: Label) -> Label:
  return {**label, "score": round(label["score"], 6) if math.isfinite(label["score"]) else None}


def texts_of(asked: Any, longest: int) -> list[str]:
  """Returns the texts of a body, `text` or `texts`; refuses both, neither, and any too long."""
  if (asked.text is None) == (asked.texts is None):
    raise HTTPException(422, 'give either "text" or "texts"')
  texts = asked.texts if asked.text is None else [asked.text]
  # pydantic counts no letters of a text with half an emoji, which JSON may hold.
  if (length := max(map(len, texts), default=0)) > longest:
    raise HTTPException(422, f"a text has {length} characters, more than this server's limit of {longest}")
  return texts


async def answered(answer: Future, request: Request) -> Any:
  """Waits for the model's answer; if the client leaves first, takes its texts out of the queue.

  Raises:
    ClientDisconnect: the client has left.
  """
  waiting, leaving = asyncio.wrap_future(answer), asyncio.ensure_future(_leaving(request))
  try:
    await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
      raise ClientDisconnect
    return waiting.result()
  finally:
    leaving.cancel()
    waiting.cancel()  # nothing happens if it is done, or if the model works on it


async def _leaving(request: Request) -> None:
  """Returns when the client of a request has left; its body was read."""
  while (await request.receive())["type"] != "http.disconnect":
    pass


def sentence_of(refused: RequestValidationError) -> str:
  """Returns what is wrong with a body, in one sentence, without anything that the client sent but a key."""
  fault = refused.errors()[0]
  _, *place = fault["loc"]
  if not place:
    is_list = fault["type"] == "list_type"
    return f"the body must be a JSON {'list' if is_list else 'object'}, such as {_EXAMPLES[is_list]}"
  keys = (f"[{key}]" if isinstance(key, int) else f".{key}"[:_LONGEST] for key in place)
  where = "".join(keys).removeprefix(".")  # as in Python: texts[3]
  if fault["type"] == "extra_forbidden":
    return f"{where} is not a key of this request; /openapi.json lists the keys"
  told = fault["msg"].removeprefix("Value error, ")  # before what our own checks say
  return f"{where} is wrong: {told[:1].lower()}{told[1:]}"
