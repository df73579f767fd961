"""Clients that leave before their answer hold the server up for nobody."""

import asyncio
import contextlib
import json

import pytest
from made_servers import BEARER, TOKEN, StandIn

from xmc_jax import serve


class Client:
  """Asks an ASGI application for one text, or with labels teaches it, and stays until it is told to leave."""

  def __init__(self, application, text: str, **labels):
    self.leaves, self.sent = asyncio.Event(), []
    self._messages = [{"type": "http.request", "body": json.dumps({"text": text, **labels}).encode()}]
    path = "/learn" if labels else "/predict"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "root_path": ""}
    given = {"content-type": "application/json", **BEARER}
    headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    scope |= {"headers": headers, "http_version": "1.1", "scheme": "http"}
    self.asking = asyncio.ensure_future(application(scope, self._receive, self._send))

  async def _receive(self):
    if not self._messages:
      await self.leaves.wait()
    return self._messages.pop() if self._messages else {"type": "http.disconnect"}

  async def _send(self, message):
    self.sent.append(message)


@pytest.fixture
def application():
  """Makes applications over a model, and ends their workers."""
  with contextlib.ExitStack() as stack:

    def make(model):
      served = serve.app(model, learn_token=TOKEN)
      stack.callback(served.state.worker.close)
      return served

    yield make


async def until(holds):
  async with asyncio.timeout(10):
    while not holds():
      await asyncio.sleep(0.002)


def test_texts_of_clients_that_left_are_not_computed_and_harm_nobody(application, capsys):
  model = StandIn()
  served = application(model)

  async def ask():
    model.goes_on.clear()
    first = Client(served, "first")
    await until(lambda: model.batches)  # the model holds it, so that the others wait
    queued, staying = Client(served, "queued"), Client(served, "stays")
    await until(lambda: served.state.worker.num_waiting == 2)
    for leaving in (queued, first):
      leaving.leaves.set()
      await asyncio.wait_for(leaving.asking, 10)  # at once, while the model still works
    model.goes_on.set()
    await asyncio.wait_for(staying.asking, 10)
    return [client.sent[0]["status"] for client in (first, queued, staying)]

  assert asyncio.run(ask()) == [499, 499, 200] and not capsys.readouterr().err
  assert [size for size, *_ in model.batches] == [1, 1]
  metrics = served.state.metrics.in_text().decode()
  assert 'xmc_jax_requests_total{route="/predict",status="499"} 2.0' in metrics


def test_a_correction_that_was_begun_is_learnt_and_one_that_waits_is_not(application):
  model = StandIn()
  served = application(model)

  async def teach():
    await asyncio.wrap_future(served.state.worker.start())
    model.learns_on.clear()
    begun = Client(served, "begun", labels=["l1"])
    await until(lambda: "begun" in model.begun)
    waiting, staying = (Client(served, text, labels=["l2"]) for text in ("waits", "stays"))
    await asyncio.sleep(0.1)
    asking = Client(served, "a text to predict")
    await asyncio.wait_for(asking.asking, 10)  # meanwhile
    for client in (begun, waiting):
      client.leaves.set()
      await asyncio.wait_for(client.asking, 10)
    model.learns_on.set()
    await asyncio.wait_for(staying.asking, 10)
    return [client.sent[0]["status"] for client in (begun, waiting, staying, asking)]

  assert asyncio.run(teach()) == [499, 499, 200, 200]
  assert model.learnt == [("begun", ["l1"]), ("stays", ["l2"])]
