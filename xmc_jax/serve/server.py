"""Runs the server in this process: its port, its signals, and a clean end."""

import errno
import ipaddress
import os
import signal
import socket
from collections.abc import Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

from xmc_jax.console import say, show
from xmc_jax.distributed import stderr
from xmc_jax.errors import UserError

_MAX_CONNECTIONS = 512
_DRAIN_SECONDS = 10  # how long a stopping server answers what waits
_MODEL_SECONDS = 2  # then, how long the model may take to end its last batch


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


def known_names(host: str, taken: socket.socket, allowed_hosts: Sequence[str]) -> tuple[str, ...]:
  """Returns the names by which a server may be asked; () is every name. Notes if other machines reach it.

  Args:
    host: as given by the user, who may spell an address of this machine in many ways.
    taken: the result of `bound_socket`; its address alone tells whether other machines can reach the server.
    allowed_hosts: more names.
  """
  address = taken.getsockname()[0]
  if not ipaddress.ip_address(address).is_loopback:
    say(
      f"note: --host={host} lets other machines in, without password or encryption; see docs/serving.md, "
      '"Behind a proxy"'
    )
    if not allowed_hosts:
      return ()
  return "localhost", "127.0.0.1", "[::1]", _in_address(host), _in_address(address), *allowed_hosts


def _in_address(host: str) -> str:
  return f"[{host}]" if ":" in host else host


def serve(application: FastAPI, taken: socket.socket, host: str) -> None:
  """Warms the model up, then answers requests until SIGTERM or Ctrl-C, and answers what waits.

  `taken` is the result of `bound_socket`, and `host` as given by the user.

  Raises:
    UserError: the run cannot rank, or the port was lost.
  """
  worker, port = application.state.worker, taken.getsockname()[1]
  config = uvicorn.Config(
    application,
    loop="asyncio",
    http="h11",
    ws="none",
    lifespan="on",
    log_config=None,
    log_level="error",  # a client's mistake is no line of the log
    access_log=False,
    proxy_headers=False,
    server_header=False,
    limit_concurrency=_MAX_CONNECTIONS,
    timeout_keep_alive=30,
    timeout_graceful_shutdown=_DRAIN_SECONDS,
  )
  labels = f"{len(worker.model.labels):,} labels of {application.state.name}"
  worker.start().result()  # a UserError of the run ends here, as one line
  try:
    announcement = f"serving {labels} on http://{_in_address(host)}:{port}; Ctrl-C ends it"
    _Server(config, announcement).run(sockets=[taken])
  except OSError as error:  # another process has begun to listen meanwhile
    raise _refused(host, port, error) from None
  learning = application.state.corrections
  if not worker.join(timeout=_MODEL_SECONDS) or (learning and not learning.close()):
    os._exit(0)  # the model does not come back: the interpreter would wait for it
  say("stopped")


class _Server(uvicorn.Server):
  """Announces when it listens, and stops with exit code 0; a second Ctrl-C ends the process at once."""

  def __init__(self, config: uvicorn.Config, announcement: str):
    super().__init__(config)
    self._announcement = announcement

  async def startup(self, sockets: list[socket.socket] | None = None) -> None:
    await super().startup(sockets)
    show(self._announcement, flush=True)

  def handle_exit(self, sig: int, frame: FrameType | None) -> None:
    if not self.should_exit:
      self.should_exit = True
      stderr.write_line("\nstopping: answers what waits; Ctrl-C again ends at once")
    elif sig == signal.SIGINT:
      stderr.write_line("ended at once")
      os._exit(130)
