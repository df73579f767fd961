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
  rows = vectors.tolist()
  if not np.isfinite(vectors).all():
    rows = [[value if math.isfinite(value) else None for value in row] for row in rows]
  return as_json({"embeddings": rows})


def _rounded(label: Label) -> Label:
  return {**label, "score": round(label["score"], 6) if math.isfinite(label["score"]) else None}


def sentence_of(refused: RequestValidationError) -> str:
  """Returns what is wrong with a body, in one sentence, without anything that the client sent but a key."""
  fault = refused.errors()[0]
  _, *place = fault["loc"]
  if not place:
    return 'the body must be a JSON object, such as {"text": "a window manager"}'
  keys = (f"[{key}]" if isinstance(key, int) else str(key)[:_LONGEST] for key in place)
  where = "".join(keys)  # as in Python: texts[3]
  if fault["type"] == "extra_forbidden":
    return f"{where} is not a key of this request; /openapi.json lists the keys"
  return f"{where} is wrong: {fault['msg'][:1].lower()}{fault['msg'][1:]}"
