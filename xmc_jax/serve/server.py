"""Runs the server in this process: its port, its signals, and a clean end."""

import asyncio
import contextlib
import errno
import functools
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from xmc_jax.console import say, show
from xmc_jax.distributed import stderr
from xmc_jax.errors import UserError
from xmc_jax.runs.model import Model
from xmc_jax.serve import answers, api
from xmc_jax.serve.guard import is_loopback
from xmc_jax.serve.limits import Limits
from xmc_jax.serve.page import PageText
from xmc_jax.serve.worker import ModelWorker

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SPARE_SECONDS = 2  # after the last answer, for clients to read it
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")


def bound_socket(host: str, port: int) -> socket.socket:
  """Takes a port, without listening yet: a client that comes early is refused, and does not hang.

  Raises:
    UserError: the port is in use or needs rights, or this machine does not have the address.
  """
  try:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # Only where the protocol is named does asyncio turn off Nagle's algorithm, which costs 40 ms an answer.
    taken = socket.socket(family, kind, protocol)
    # After a kill, old connections keep the port for a minute; this takes it nevertheless.
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(address)
  except (OSError, UnicodeError) as error:
    raise _refused(host, port, error) from None
  return taken


def _refused(host: str, port: int, error: Exception) -> UserError:
  number = getattr(error, "errno", None)
  if number == errno.EADDRINUSE:
    return UserError(f"--port={port} is in use on {host}; give another, or --port=0 for any that is free")
  if number == errno.EACCES:
    return UserError(f"--port={port} needs the rights of root; give one from 1024 on, such as --port=8000")
  why = getattr(error, "strerror", None) or str(error)
  return UserError(f"--host={host}: this machine cannot listen there ({why}); give one of its own addresses")


def serve(
  model: Model,
  taken: socket.socket,
  *,
  name: str,
  host: str,
  k: int,
  limits: Limits,
  allowed_hosts: tuple[str, ...],
  page_text: PageText,
  threshold: float,
) -> None:
  """Warms the model up, then answers requests until SIGTERM or Ctrl-C, and answers what waits.

  Args:
    model: a trained run.
    taken: the result of `bound_socket`.
    name: of the run.
    host: as given by the user; a note warns if other machines can reach it.
    k: labels per text where a request does not say.
    limits: of requests.
    allowed_hosts: names by which clients reach this server through a proxy, besides its own.
    page_text: the page's title, description and examples.
    threshold: the least score of a label where a request does not say.

  Raises:
    UserError: the run cannot rank, the port was lost, or an allowed host is no name.
  """
  worker, (address, port, *_) = ModelWorker(model, limits), taken.getsockname()
  if not is_loopback(address):
    say(
      f"note: --host={host} lets other machines in, without password or encryption; see docs/serving.md, "
      '"Behind a proxy"'
    )
  names = known_names(host, address, allowed_hosts)
  application = api.build(
    worker, k=k, name=name, allowed_hosts=names, page_text=page_text, threshold=threshold
  )
  config = _settings(application, limits)
  shown = f"[{host}]" if ":" in host else host
  ready = f"serving {len(model.labels):,} labels of {name} on http://{shown}:{port}; Ctrl-C ends it"
  server = _Server(config, worker, ready)
  with _stopping(server):
    worker.start().result()  # a UserError of the run ends here, as one line
    try:
      server.run(sockets=[taken])
    except OSError as error:
      if error.errno != errno.EADDRINUSE:
        raise
      raise _refused(host, port, error) from None  # another process has begun to listen meanwhile
  worker.join(timeout=_SPARE_SECONDS)
  if worker.is_alive:
    os._exit(0)  # the model does not come back: the interpreter would wait for it
  say("stopped")


def known_names(host: str, address: str, allowed_hosts: Sequence[str]) -> tuple[str, ...]:
  """Returns the names by which a server may be asked; () is every name.

  Args:
    host: as given by the user, who may spell an address of this machine in many ways.
    address: that the socket is bound to; it alone tells whether other machines can reach the server.
    allowed_hosts: more names.
  """
  if not allowed_hosts and not is_loopback(address):
    return ()
  return *_OWN_NAMES, host, address, *allowed_hosts


def _settings(application: FastAPI, limits: Limits) -> uvicorn.Config:
  return uvicorn.Config(
    application,
    loop="asyncio",
    http=functools.partial(_Protocol, answer_seconds=limits.answer_seconds),  # type: ignore[arg-type]
    ws="none",
    lifespan="on",
    log_config=None,
    log_level="error",  # a client's mistake is no line of the log
    access_log=False,
    proxy_headers=False,
    server_header=False,
    timeout_keep_alive=30,
    timeout_graceful_shutdown=math.ceil(limits.drain_seconds) + _SPARE_SECONDS,
  )


class _Server(uvicorn.Server):
  """Announces when it listens, leaves signals to `_stopping`, and ends its worker."""

  def __init__(self, config: uvicorn.Config, worker: ModelWorker, ready: str):
    super().__init__(config)
    self._worker, self._announcement = worker, ready

  def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
    return contextlib.nullcontext()

  async def startup(self, sockets: list[socket.socket] | None = None) -> None:
    await super().startup(sockets)
    show(self._announcement, flush=True)

  async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
    self._worker.drain(self._worker.limits.drain_seconds)
    await super().shutdown(sockets)


class _Protocol(H11Protocol):
  """Answers what is no HTTP as JSON, like every other error, and drops clients that do not read.

  Args:
    answer_seconds: how long a client may leave answers unread; uvicorn would wait for it without end.
  """

  def __init__(self, *args: Any, answer_seconds: float, **options: Any):
    super().__init__(*args, **options)
    self._answer_seconds = answer_seconds
    self._dropping: asyncio.TimerHandle | None = None

  def pause_writing(self) -> None:
    super().pause_writing()
    # Not `close`, which would wait until the client has read what is written.
    self._dropping = self.loop.call_later(self._answer_seconds, self.transport.abort)

  def resume_writing(self) -> None:
    super().resume_writing()
    self._keep()

  def connection_lost(self, exc: Exception | None) -> None:
    super().connection_lost(exc)
    self._keep()

  def _keep(self) -> None:
    if self._dropping is not None:
      self._dropping.cancel()
    self._dropping = None

  def send_400_response(self, msg: str) -> None:
    answer = answers.error(400, "this is not an HTTP request that the server can read")
    lines = ["HTTP/1.1 400 Bad Request", "connection: close"]
    lines += [f"{key.decode()}: {value.decode()}" for key, value in answer.raw_headers]
    self.transport.write("\r\n".join([*lines, "", ""]).encode() + bytes(answer.body))
    self.transport.close()


@contextlib.contextmanager
def _stopping(server: uvicorn.Server) -> Iterator[None]:
  """Lets SIGTERM and Ctrl-C end the server cleanly; the second Ctrl-C ends the process at once.

  Before the server listens, nothing waits for an answer, and both end the process at once.
  """

  def receive(number: int, _: FrameType | None) -> None:
    if not server.started:
      stderr.write_line("stopped before the server was ready")
      os._exit(0 if number == signal.SIGTERM else 130)
    if not server.should_exit:
      server.should_exit = True
      stderr.write_line("\nstopping: answers what waits; Ctrl-C again ends at once")
    elif number == signal.SIGINT:
      stderr.write_line("ended at once")
      os._exit(130)

  if threading.current_thread() is not threading.main_thread():
    yield
    return
  before = {number: signal.getsignal(number) for number in _SIGNALS}
  heeded = [number for number in _SIGNALS if before[number] != signal.SIG_IGN]  # a background job ignores it
  try:
    for number in heeded:
      signal.signal(number, receive)
    yield
  finally:
    for number in heeded:
      signal.signal(number, before[number])
