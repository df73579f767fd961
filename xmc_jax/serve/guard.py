"""Stands before the application: refuses requests by their headers and size, and counts all of them."""

import asyncio
import ipaddress
import re
import time
import traceback
from collections.abc import Sequence

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xmc_jax.errors import UserError
from xmc_jax.serve import answers
from xmc_jax.serve.limits import Limits
from xmc_jax.serve.metrics import Metrics

# The page loads only its own files; nothing may frame it, and it sends no form anywhere.
_POLICY = (
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
  (b"content-security-policy", _POLICY.encode()),
  (b"x-content-type-options", b"nosniff"),
  (b"referrer-policy", b"no-referrer"),
  (b"cross-origin-resource-policy", b"same-origin"),
  (b"cross-origin-opener-policy", b"same-origin"),
  (b"cache-control", b"no-store"),
]
_MOST_IGNORED = 16  # times the largest body that is read to its end, so that the client reads the answer
_LEFT = 499  # status in the metrics of a client that left before its answer


class Guard:
  """Wraps an ASGI application.

  It checks the Host header, the media type and the body's size before the application sees a request; adds
  headers for browsers to every answer; counts requests; and answers an error of the application without a
  traceback, which goes to standard error.

  Args:
    app: the application.
    limits: of bodies and of requests at once.
    metrics: counts requests.
    routes: paths that are counted by name; the others count as 'other'.
    allowed_hosts: names of this server in the Host header, as `host_names` returns them; () is every name.
  """

  def __init__(
    self,
    app: ASGIApp,
    *,
    limits: Limits,
    metrics: Metrics,
    routes: Sequence[str],
    allowed_hosts: Sequence[str] = (),
  ):
    self._app, self._limits, self._metrics = app, limits, metrics
    self._routes, self._hosts = frozenset(routes), frozenset(allowed_hosts)
    self._running = 0

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
      return await self._app(scope, receive, send)
    start, status = time.perf_counter(), _LEFT

    async def send_with_headers(message: Message) -> None:
      nonlocal status
      if message["type"] == "http.response.start":
        status = message["status"]
        message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
      try:
        async with asyncio.timeout(self._limits.answer_seconds):
          await send(message)
      except TimeoutError:
        raise ClientDisconnect from None

    self._running += 1
    try:
      await self._answer(scope, receive, send_with_headers)
    except asyncio.CancelledError:  # the server stops, and this request has not ended in time
      if status != _LEFT:
        raise
      stopping = answers.error(503, "the server is stopping", {"Retry-After": "1", "Connection": "close"})
      await stopping(scope, receive, send_with_headers)
    except ClientDisconnect:  # or it stays, and does not read its answer
      status = _LEFT
    except Exception:
      traceback.print_exc()
      if status != _LEFT:  # half an answer is sent: the connection has to be closed
        raise
      failed = answers.error(500, "the server failed to answer this request; its own log says why")
      await failed(scope, receive, send_with_headers)
    finally:
      self._running -= 1
      path = scope["path"].removeprefix(scope.get("root_path", ""))
      self._metrics.request(path if path in self._routes else "other", status, time.perf_counter() - start)

  async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
    headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
    if refused := self._refused(scope, headers):
      return await answers.error(*refused)(scope, receive, send)
    try:
      async with asyncio.timeout(self._limits.body_seconds):
        body = await _read(receive, self._limits.max_body_bytes, headers.get("content-length", ""))
    except TimeoutError:
      late = f"the body took longer than this server's limit of {self._limits.body_seconds:g} seconds"
      return await answers.error(408, late, {"Connection": "close"})(scope, receive, send)
    if body is None:
      return  # the client has left
    if len(body) > self._limits.max_body_bytes:
      large = f"the body is larger than this server's limit of {self._limits.max_body_bytes} bytes"
      return await answers.error(413, large, {"Connection": "close"})(scope, receive, send)
    await self._app(scope, _replayed(body, receive), send)

  def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, dict[str, str]] | None:
    """Returns status, sentence and headers for a request that its headers already rule out."""
    if self._running > self._limits.max_requests:
      busy = f"the server is busy: at most {self._limits.max_requests} requests are answered at once"
      return 503, busy, {"Retry-After": "1", "Connection": "close"}
    if self._hosts and host_name(headers.get("host", "")) not in self._hosts:
      unknown = "the Host header does not name this server; --allowed_hosts adds names"
      return 421, unknown, {"Connection": "close"}
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page of another origin can send other media types without asking first.
    if scope["method"] == "POST" and media != "application/json":
      return 415, "send JSON, with the header Content-Type: application/json", {"Connection": "close"}
    return None


async def _read(receive: Receive, most: int, announced: str) -> bytes | None:
  """Reads a whole body, or a bit more than `most` bytes of one that is too large; None if the client left.

  The rest of a body that is too large is read and dropped, within reason.
  """
  parts: list[bytes] = []
  size = ignored = 0
  if announced.isdecimal() and int(announced[:20]) > _MOST_IGNORED * most:
    return bytes(most + 1)
  more = True
  while more and ignored <= _MOST_IGNORED * most:
    message = await receive()
    if message["type"] == "http.disconnect":
      return None
    part, more = message.get("body", b""), message.get("more_body", False)
    if size <= most:
      parts.append(part)
      size += len(part)
    else:
      ignored += len(part)
  return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
  """Returns a `receive` that gives a body that was read already, then what follows."""
  messages = [{"type": "http.request", "body": body, "more_body": False}]

  async def again() -> Message:
    return messages.pop() if messages else await receive()

  return again


def host_name(header: str) -> str:
  """Returns the name or address in a Host header, without port and brackets, in lower case; '' if none."""
  found = re.fullmatch(r"\[([^\]]*)\](?::\d+)?|([^:]*)(?::\d+)?", header.strip().lower())
  return (found[1] or found[2] or "") if found else ""


def host_names(entries: Sequence[str]) -> tuple[str, ...]:
  """Returns names and addresses as `host_name` gives them.

  Args:
    entries: names or addresses, with or without ports; an address of IPv6 without a port needs no brackets.

  Raises:
    UserError: an entry is neither, such as an address of the web.
  """
  names = []
  for entry in entries:
    name = entry.strip().lower() if _address(entry.strip()) else host_name(entry)
    if not name or "/" in name:
      raise UserError(
        f"allowed_hosts: {entry!r} is no name of a host; give names without http:// and path, such as "
        "labels.example.org"
      )
    names.append(name)
  return tuple(names)


def is_loopback(address: str) -> bool:
  """Returns whether only this machine can reach an address that a socket is bound to."""
  found = _address(address)
  return found is not None and (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
  try:
    return ipaddress.ip_address(text)
  except ValueError:
    return None
