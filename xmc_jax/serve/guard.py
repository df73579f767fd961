"""Stands before the application: hosts, sizes, headers for browsers, and the count of requests."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xmc_jax.errors import UserError
from xmc_jax.serve import answers
from xmc_jax.serve.metrics import Metrics

# The page loads only its own files; nothing may frame it, and it sends no form anywhere.
_HEADERS = {
  "content-security-policy": (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
  ),
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-resource-policy": "same-origin",
  "cross-origin-opener-policy": "same-origin",
  "cache-control": "no-store",
}


class Guard:
  """Wraps an ASGI application in Starlette's checks of the host and of the body's size, and counts requests.

  Args:
    app: the application.
    max_body_bytes: of a body; '' is any path that is not named.
    metrics: counts requests.
    routes: paths that are counted by name; the others count as 'other'.
    allowed_hosts: the result of `host_names`; [] is every name.
  """

  def __init__(
    self,
    app: ASGIApp,
    *,
    max_body_bytes: Mapping[str, int],
    metrics: Metrics,
    routes: Sequence[str],
    allowed_hosts: Sequence[str],
  ):
    self._apps = {
      path: TrustedHostMiddleware(
        RequestBodyLimitMiddleware(app, most), allowed_hosts or ["*"], www_redirect=False
      )
      for path, most in max_body_bytes.items()
    }
    self._metrics, self._routes, self._max_body_bytes = metrics, frozenset(routes), max_body_bytes

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
      return await self._apps[""](scope, receive, send)
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    limited = path if path in self._apps else ""
    start = time.perf_counter()
    status = 0  # of the answer, once it has begun
    refusal: Response | None = None  # in place of plain text

    async def send_json(message: Message) -> None:
      nonlocal status, refusal
      if message["type"] == "http.response.start":
        refusal = self._refusal(message, limited)
        if refusal:
          message.update(status=refusal.status_code, headers=refusal.raw_headers)
        MutableHeaders(scope=message).update(_HEADERS)
        status = message["status"]
      elif refusal:
        message.update(body=refusal.body)
      await send(message)

    try:
      await self._apps[limited](scope, receive, send_json)
    except asyncio.CancelledError:  # the server stops, and this request has not ended in time
      if not status:
        await answers.busy("the server is stopping")(scope, receive, send_json)
    finally:
      route, seconds = path if path in self._routes else "other", time.perf_counter() - start
      self._metrics.request(route, status or 500, seconds)

  def _refusal(self, message: Message, limited: str) -> Response | None:
    """Returns the error that an answer of Starlette's checks stands for; None if it is the application's."""
    in_plain_text = {  # by the status that Starlette gives
      400: (421, "the Host header does not name this server; --allowed_hosts adds names"),
      413: (413, f"the body is larger than this server's limit of {self._max_body_bytes[limited]} bytes"),
    }
    refusal = in_plain_text.get(message["status"])
    is_plain = Headers(scope=message).get("content-type", "").startswith("text/plain")
    return answers.error(*refusal) if refusal and is_plain else None


def host_names(entries: Sequence[str]) -> list[str]:
  """Returns names and addresses without ports, in lower case.

  Raises:
    UserError: an entry is neither, such as an address of the web.
  """
  names = []
  for entry in entries:
    match = re.fullmatch(r"(\[[\da-f:.]+\]|[\w.-]+)(:\d+)?", entry.strip().lower())
    if not match:
      raise UserError(
        f"allowed_hosts: {entry!r} is no name of a host; give names without http:// and path, such as "
        "labels.example.org or [2001:db8::1]"
      )
    names.append(match[1])
  return names
