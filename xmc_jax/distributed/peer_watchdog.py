"""Stops all processes of a run when one of them dies; without this they would wait for it.

JAX's own heartbeat ends them as well, but later, and by an abort with some twenty lines and a stack trace
(measured: docs/reliability.md). Here every process holds a connection to the main one; the system closes it
as soon as either end dies.
"""

import atexit
import contextlib
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from typing import cast

import numpy as np
from jax.experimental import multihost_utils

from xmc_jax.distributed import stderr

_SECONDS_TO_CONNECT, _SECONDS_TO_GREET, _SECONDS_TO_SPEAK = 60.0, 2.0, 2.0
_GREETING = struct.Struct("!16si")  # the run's token, the number of the process that sends it
_PLACE = struct.Struct("!16si256s")  # the token, and the port and host of the main process
_NUMBER = struct.Struct("!i")
_WELL = -1  # sent, in place of a dead process's number, by a process that ends well

_links: dict[int, socket.socket] = {}
_is_stopping = threading.Event()


def watch(own: int, count: int) -> None:
  """Watches all processes until `part`; each process must call it.

  Args:
    own: this process's number; 0 is the main one.
    count: the number of all processes.
  """
  if count == 1 or _links:
    return
  server = _server() if own == 0 else None
  place = b"".ljust(_PLACE.size, b"\0")
  if server:
    place = _PLACE.pack(secrets.token_bytes(16), server.getsockname()[1], _own_host().encode())
  place = multihost_utils.broadcast_one_to_all(np.frombuffer(place, np.uint8)).astype(np.uint8).tobytes()
  token, port, host = _PLACE.unpack(place)
  if server:
    _links.update(_accepted(server, token, count - 1))
  else:
    with contextlib.suppress(OSError):
      link = socket.create_connection((host.rstrip(b"\0").decode(), port), _SECONDS_TO_CONNECT)
      link.sendall(_GREETING.pack(token, own))
      _links[0] = _lively(link)
  if len(_links) < (count - 1 if server else 1):  # some hosts cannot connect but through JAX
    stderr.write_line(f"note: process {own} does not hear at once when another is gone, but within a minute")
  threading.Thread(target=_listen, daemon=True).start()
  atexit.register(_end)


def await_news() -> None:
  """Waits after an exception that a dead process may have caused; if one is dead, this process ends here."""
  if _links or _is_stopping.is_set():
    time.sleep(_SECONDS_TO_SPEAK + 2)


def part() -> None:
  """Tells the other processes that this one ends well."""
  for link in _taken():
    _say(link, _WELL)


def _end() -> None:
  """Exits immediately after a reported error, because JAX would wait for the other processes."""
  if _links:
    os._exit(1)


def _own_host() -> str:
  """Returns the address of this host: the one given to JAX, or its outgoing address."""
  if told := os.environ.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[0]:
    return told.strip("[]")
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
    probe.connect(("192.0.2.1", 9))  # sends nothing
    return probe.getsockname()[0]
  return "localhost"


def _server() -> socket.socket:
  if socket.has_dualstack_ipv6():
    return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
  return socket.create_server(("", 0))


def _accepted(server: socket.socket, token: bytes, count: int) -> dict[int, socket.socket]:
  """Returns connections to `count` other processes, or as many as connect in time, by number.

  A connection that does not send the token soon is closed.
  """
  found: dict[int, socket.socket] = {}
  end = time.monotonic() + _SECONDS_TO_CONNECT
  with server, contextlib.suppress(TimeoutError):
    while len(found) < count and (left := end - time.monotonic()) > 0:
      server.settimeout(left)
      link, said = server.accept()[0], b""
      with contextlib.suppress(OSError):
        link.settimeout(_SECONDS_TO_GREET)
        said = link.recv(_GREETING.size, socket.MSG_WAITALL)
      if len(said) == _GREETING.size and secrets.compare_digest(_GREETING.unpack(said)[0], token):
        found[_GREETING.unpack(said)[1]] = _lively(link)
      else:
        link.close()
  return found


def _lively(link: socket.socket) -> socket.socket:
  """Sets a connection to break within half a minute if the other host dies without closing it."""
  link.settimeout(None)
  link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
    if hasattr(socket, name):
      link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
  return link


def _listen() -> None:
  """Waits until a process dies, or all others have sent that they end well."""
  with selectors.DefaultSelector() as selector:
    for number, link in dict(_links).items():
      selector.register(link, selectors.EVENT_READ, number)
    while selector.get_map():
      for key, _ in selector.select():
        said = b""
        with contextlib.suppress(OSError):
          said = cast(socket.socket, key.fileobj).recv(_NUMBER.size, socket.MSG_WAITALL)
        dead = _NUMBER.unpack(said)[0] if len(said) == _NUMBER.size else key.data
        if dead != _WELL:
          _stop(dead)
        selector.unregister(key.fileobj)


def _stop(dead: int) -> None:
  _is_stopping.set()
  for link in _taken():
    _say(link, dead)  # the main process tells all others which one it was
  if dead:  # the same cause may end this one, with a better message; if the main one died, JAX aborts at once
    time.sleep(_SECONDS_TO_SPEAK)
  stderr.write_line(
    f"error: process {dead} of this run is gone, so this one stops, too; "
    "the same commands go on from the last checkpoint"
  )
  os._exit(1)


def _taken() -> list[socket.socket]:
  """Returns all connections and forgets them."""
  taken = list(_links.values())
  _links.clear()
  return taken


def _say(link: socket.socket, number: int) -> None:
  with contextlib.suppress(OSError):
    link.sendall(_NUMBER.pack(number))
