"""Makes answers: JSON that is safe to print, and errors as one sentence."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import Response
from fastapi.exceptions import RequestValidationError

from xmc_jax import sanitize
from xmc_jax.serve.worker import Label

_LONGEST = 80  # characters of a key of the client's in a message


def as_json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
  """Returns a JSON answer; unsafe characters of texts are escaped, and lose none of their meaning."""
  text = sanitize.json(json.dumps(content, ensure_ascii=False, allow_nan=False))
  return Response(text.encode(), status, dict(headers or {}), "application/json")


def error(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
  return as_json({"error": sanitize.line(sentence)}, status, headers)


def predictions(found: Sequence[Sequence[Label]]) -> dict[str, Any]:
  """Returns the body of `/predict`: labels of each text."""
  return {"predictions": [{"labels": [_label(label) for label in of_text]} for of_text in found]}


def embeddings(vectors: np.ndarray) -> dict[str, Any]:
  """Returns the body of `/embed`; numbers that are not finite, which JSON lacks, are null."""
  rows = vectors.tolist()
  if not np.isfinite(vectors).all():
    rows = [[value if math.isfinite(value) else None for value in row] for row in rows]
  return {"embeddings": rows}


def _label(label: Label) -> dict[str, Any]:
  score = round(label.score, 6) if math.isfinite(label.score) else None
  why = {} if label.why is None else {"why": label.why}
  return {"id": label.id, "key": label.key, "text": label.text, "score": score, **why}


def sentence_of(refused: RequestValidationError) -> str:
  """Returns what is wrong with a body, in one sentence, without anything that the client sent but a key."""
  fault = refused.errors()[0]
  _, *place = fault["loc"]
  kind, where = fault["type"], _in_words(place)
  if kind == "json_invalid":
    return f"the body is not JSON (at character {place[0] if place else 0})"
  if kind == "extra_forbidden":
    return f"{where} is not a key of this request; /openapi.json lists the keys"
  if not place:
    return 'the body must be a JSON object, such as {"text": "a window manager"}'
  return f"{where} is wrong: {fault['msg'][:1].lower()}{fault['msg'][1:]}"


def _in_words(place: Sequence[str | int]) -> str:
  """Writes a place in a body as Python does: texts[3]."""
  keys = (f"[{key}]" if isinstance(key, int) else str(key)[:_LONGEST] for key in place)
  return "".join(keys) or "the body"
