"""Takes corrections, which the model learns one after the other, from clients that have the token."""

import hmac
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from xmc_jax.errors import UnavailableError, UserError
from xmc_jax.serve import answers, schemas
from xmc_jax.serve.options import check_token
from xmc_jax.serve.worker import Busy, ModelWorker

REFUSED = "The token is missing or wrong."
_MOST = 8  # corrections that are learnt, or wait for that
_Given = Annotated[
  HTTPAuthorizationCredentials | None,
  Depends(HTTPBearer(auto_error=False, description="The server's token.")),
]


class Corrections:
  """Lets a model learn, in a thread of its own; predictions go on meanwhile.

  Args:
    worker: has the model.
    token: what clients must send.

  Raises:
    UserError: the token is too short, or the model cannot learn.
  """

  def __init__(self, worker: ModelWorker, token: str):
    self._worker, self._token = worker, check_token(token, "learn_token").encode()
    worker.model.learn([], [])  # refuses scores that it would refuse later
    self._thread = ThreadPoolExecutor(1, "learn")
    self._jobs: set[Future] = set()

  def close(self) -> bool:
    """Refuses what waits; returns whether nothing is being learnt, which needs not be waited for.

    What is learnt then was not acknowledged, and counts wholly or not at all.
    """
    self._thread.shutdown(wait=False, cancel_futures=True)
    return not self._jobs

  async def check(self, given: _Given) -> None:
    """Refuses a request without the token; compares in a time that tells nothing of it."""
    sent = given.credentials if given else ""
    if not hmac.compare_digest(sent.encode(), self._token):
      sentence = "send the server's token, with the header Authorization: Bearer TOKEN"
      raise HTTPException(401, sentence, {"WWW-Authenticate": "Bearer"})

  async def learn(self, texts: Sequence[str], labels: Sequence[Sequence[str]], request: Request) -> list[int]:
    """Returns the numbers of texts once they are learnt, and on the disk.

    If the client leaves first, they are learnt if that has begun.

    Raises:
      HTTPException: a text is blank, or has no label or an unknown one; nothing was learnt.
      Busy: too many wait, another process learns for the run, or the disk is full.
      ClientDisconnect: the client has left.
    """
    if not all(labels) or not all(text.strip() for text in texts):
      raise HTTPException(422, "a text without labels would be forgotten, and a blank text has none")
    self._worker.start()
    if not self._worker.is_ready:
      raise Busy("the model is not ready yet")
    if len(self._jobs) >= _MOST:
      raise Busy(f"the server is busy: {_MOST} corrections wait, and no more may")
    job = self._thread.submit(self._worker.model.learn, texts, labels)
    self._jobs.add(job)
    job.add_done_callback(self._jobs.discard)
    try:
      return (await answers.answered(job, request)).tolist()
    except UnavailableError as fault:
      raise Busy(str(fault)) from None
    except UserError as fault:
      raise HTTPException(422, str(fault)) from None


def add_route(
  api: FastAPI,
  worker: ModelWorker,
  corrections: Corrections,
  responses: Mapping[int | str, dict[str, Any]],
) -> None:
  """Adds `/learn`; `responses` describes errors, by status, besides that of a wrong token."""
  _, _, LearnRequest = schemas.request_bodies(worker.limits)
  told = {**responses, 401: {"model": schemas.ErrorAnswer, "description": REFUSED}}
  dependencies = [Depends(corrections.check)]

  @api.post("/learn", response_model=schemas.LearnAnswer, responses=told, dependencies=dependencies)
  async def learn(body: LearnRequest, request: Request) -> Response:  # type: ignore[valid-type]
    """Remembers labelled texts from the next prediction on; those of a known text replace its own labels."""
    asked: Any = body
    texts = answers.texts_of(asked, worker.limits.max_text_length)
    labels = asked.labels if asked.text is None else [asked.labels]
    return answers.as_json({"numbers": await corrections.learn(texts, labels, request)})
