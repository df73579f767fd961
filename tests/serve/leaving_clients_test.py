"""Clients that leave before their answer, or do not read it: neither holds the server up."""

import asyncio
import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from made_servers import StandIn

from xmc_jax import serve
from xmc_jax.serve import server
from xmc_jax.serve.worker import ModelWorker


class Client:
  """Asks an ASGI application for one text, and stays until it is told to leave."""

  def __init__(self, application, text: str):
    self.leaves, self.sent = asyncio.Event(), []
    self._messages = [{"type": "http.request", "body": json.dumps({"text": text}).encode()}]
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "root_path": ""}
    scope |= {"headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http"}
    self.asking = asyncio.ensure_future(application(scope, self._receive, self._send))

  async def _receive(self):
    if not self._messages:
      await self.leaves.wait()
    return self._messages.pop() if self._messages else {"type": "http.disconnect"}

  async def _send(self, message):
    self.sent.append(message)


class Unread(Client):
  """Does not read its answer."""

  async def _send(self, message):
    await asyncio.Event().wait()


@pytest.fixture
def application():
  """Makes applications over a model, and ends their workers."""
  made = []

  def make(model, **limits):
    made.append(serve.app(model, limits=serve.Limits(**limits)))
    return made[-1]

  yield make
  for one in made:
    one.state.worker.drain(0)
    one.state.worker.join(10)


async def until(holds):
  async with asyncio.timeout(10):
    while not holds():
      await asyncio.sleep(0.002)


def test_a_queued_text_of_a_client_that_left_is_not_computed(application):
  model = StandIn()
  served = application(model)

  async def ask():
    model.goes_on.clear()
    first = Client(served, "first")
    await until(lambda: model.batches)  # the model holds it, so that the others wait
    leaving, staying = Client(served, "leaves"), Client(served, "stays")
    await until(lambda: served.state.worker.num_waiting == 2)
    leaving.leaves.set()
    await asyncio.wait_for(leaving.asking, 10)  # at once, while the model still works
    assert not leaving.sent
    model.goes_on.set()
    await asyncio.wait_for(asyncio.gather(first.asking, staying.asking), 10)
    return [client.sent[0]["status"] for client in (first, staying)]

  assert asyncio.run(ask()) == [200, 200]
  assert [size for size, *_ in model.batches] == [1, 1]
  metrics = served.state.metrics.in_text().decode()
  assert 'xmc_jax_requests_total{route="/predict",status="499"} 1.0' in metrics


def test_a_client_that_leaves_while_the_model_works_on_its_text_harms_nobody(application, capsys):
  model = StandIn()
  served = application(model)

  async def ask():
    model.goes_on.clear()
    leaving = Client(served, "leaves")
    await until(lambda: model.batches)
    leaving.leaves.set()
    await asyncio.wait_for(leaving.asking, 10)
    model.goes_on.set()
    staying = Client(served, "stays")
    await asyncio.wait_for(staying.asking, 10)
    return leaving.sent, staying.sent[0]["status"]

  assert asyncio.run(ask()) == ([], 200)
  assert not capsys.readouterr().err


def test_an_answer_that_nobody_reads_gives_its_place_back(application, capsys):
  served = application(StandIn(), max_requests=1, answer_seconds=0.1)

  async def ask():
    await asyncio.wait_for(Unread(served, "a").asking, 10)
    reading = Client(served, "b")
    await asyncio.wait_for(reading.asking, 10)
    return reading.sent[0]["status"]

  assert asyncio.run(ask()) == 200
  assert 'status="499"} 1.0' in served.state.metrics.in_text().decode()
  assert not capsys.readouterr().err


@contextlib.contextmanager
def listening(application, limits):
  """Serves an application in a thread; gives its port and its open connections."""
  with server.bound_socket("127.0.0.1", 0) as taken:
    worker = ModelWorker(StandIn(), limits)  # only to be ended: the application has its own
    running = server._Server(server._settings(application, limits), worker, "")
    thread = threading.Thread(target=lambda: running.run(sockets=[taken]))
    thread.start()
    try:
      yield taken.getsockname()[1], running.server_state.connections
    finally:
      running.should_exit = True
      thread.join(20)
      assert not thread.is_alive()


def status_of_health(port: int) -> int:
  try:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
      return answer.status
  except urllib.error.HTTPError as error:
    error.close()
    return error.code
  except OSError:
    return 0  # it does not listen yet


def test_a_connection_that_reads_no_answers_is_dropped(application):
  limits = {"max_requests": 1, "answer_seconds": 1.0}
  served = application(StandIn(), **limits)

  def comes(port, status):
    end = time.monotonic() + 15
    while (found := status_of_health(port)) != status and time.monotonic() < end:
      time.sleep(0.02)
    return found == status

  with listening(served, serve.Limits(**limits)) as (port, open_ones), socket.socket() as client:
    assert comes(port, 200)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(15)
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1500)
    assert comes(port, 503)  # it holds the only place
    assert comes(port, 200)
    end = time.monotonic() + 10
    while open_ones and time.monotonic() < end:
      time.sleep(0.02)
    assert not open_ones
