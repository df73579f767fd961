"""The connections between processes: who is let in, what is heard. Real deaths: distributed_test.py."""

import socket
import struct
import threading

import pytest

from xmc_jax.distributed import peer_watchdog


def _greet(server, token, number):
  link = socket.create_connection(server.getsockname())
  link.sendall(peer_watchdog._GREETING.pack(token, number))
  return link


def test_only_who_knows_the_token_is_let_in():
  server, token = socket.create_server(("localhost", 0)), b"t" * 16
  found = {}
  accepting = threading.Thread(target=lambda: found.update(peer_watchdog._accepted(server, token, 2)))
  accepting.start()
  stranger = _greet(server, b"x" * 16, 1)
  short = socket.create_connection(server.getsockname())
  short.sendall(b"GET / HTTP")
  short.shutdown(socket.SHUT_WR)
  links = [_greet(server, token, number) for number in (2, 1)]
  accepting.join(30)
  assert sorted(found) == [1, 2]
  assert stranger.recv(1) == b"" and short.recv(1) == b""
  for link in (*links, *found.values(), stranger, short):
    link.close()


_NAMED, _WELL = (peer_watchdog._NUMBER.pack(number) for number in (5, -1))


@pytest.mark.parametrize(("said", "dead"), [(b"", 2), (_NAMED, 5), (_WELL, None)])
def test_what_is_heard(said, dead, monkeypatch):
  """The end of a connection is that of its process; the main one may name another; -1 is a good end."""
  here, there = socket.socketpair()
  heard = []
  monkeypatch.setattr(peer_watchdog, "_links", {2: here})
  monkeypatch.setattr(peer_watchdog, "_stop", heard.append)
  there.sendall(said)
  there.close()
  peer_watchdog._listen()
  assert heard == ([] if dead is None else [dead])
  here.close()


def test_who_does_not_come_or_does_not_speak_stops_nobody(monkeypatch):
  """A scanner that holds its connection open, one that breaks it off, and a process that never comes."""
  monkeypatch.setattr(peer_watchdog, "_SECONDS_TO_CONNECT", 2.0)
  monkeypatch.setattr(peer_watchdog, "_SECONDS_TO_GREET", 0.1)
  server, token = socket.create_server(("localhost", 0)), b"t" * 16
  silent = socket.create_connection(server.getsockname())
  rude = socket.create_connection(server.getsockname())
  rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
  rude.close()  # a reset
  link = _greet(server, token, 2)
  found = peer_watchdog._accepted(server, token, 2)
  assert sorted(found) == [2]
  for each in (silent, link, *found.values()):
    each.close()
