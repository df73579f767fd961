"""Five thousand bodies that are broken somewhere: none gets a traceback, or a status from 500 on."""

import concurrent.futures
import contextlib
import http.client
import json
import random

import pytest
from made_servers import BEARER, learning, running, train

pytestmark = pytest.mark.slow
NUM_REQUESTS, CLIENTS = 5_000, 8
VALID = [
  {"text": "barn kelt", "k": 3},
  {"texts": ["loma", "mive nuxo"], "k": 2, "explain": True},
  {"texts": []},
  {"text": "suss"},
  {"text": "suss", "labels": ["l1", "l2"]},
  {"texts": ["barn", "loma"], "labels": [["l1"], ["l2"]]},
]
NUMBERS = [None, True, False, 0, -1, 1.5, 1e308, -(2**63), 2**70, float("nan"), float("inf")]
TEXTS = ["", "a" * 20_000, "\x00", "\ud800", "\u202e", "null", "<script>", "%s%n"]
ODD = [*NUMBERS, *TEXTS, [], {}, [[]], {"": {}}, ["a"] * 70, {"text": "a"}, [None]]


def broken_value(rng):
  """A valid request with a key that is odd, missing or unknown; sometimes no object at all."""
  value = dict(rng.choice(VALID))
  key = rng.choice(
    [*value, *("k", "text", "texts", "explain", "threshold", "labels", "", "__class__", "\ud800")]
  )
  if rng.random() < 0.2:
    value.pop(key, None)
  else:
    value[key] = rng.choice([*ODD, ["a", rng.choice(ODD)]])
  return value if rng.random() < 0.9 else rng.choice(ODD)


def broken_body(rng) -> bytes:
  """A valid body with a wrong part, or with wrong bytes."""
  sent = json.dumps(broken_value(rng)).encode()
  kind = rng.random()
  if kind < 0.5:
    return sent
  if kind < 0.6:
    return b"[" * rng.randrange(5_000) + sent
  changed = bytearray(sent)
  for _ in range(rng.randrange(1, 6)):
    place = rng.randrange(len(changed) + 1)
    if rng.random() < 0.5:
      changed[place:place] = rng.randbytes(rng.randrange(1, 4))
    else:
      del changed[place : place + rng.randrange(1, 5)]
  return bytes(changed)


def checked(status: int, content: bytes) -> int:
  assert status < 500, (status, content[:500])
  assert b"Traceback" not in content and b'File "' not in content
  if status >= 400:
    found = json.loads(content)
    assert list(found) == ["error"] and "\n" not in found["error"] and 0 < len(found["error"]) < 400
  return status


def ask(port: int, seed: int, number: int) -> list[int]:
  rng, found = random.Random(seed), []
  with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
    for _ in range(number):
      path = rng.choice(["/predict", "/predict", "/embed", "/learn", "/v1/projects/run/learn"])
      connection.request("POST", path, broken_body(rng), {"Content-Type": "application/json", **BEARER})
      answer = connection.getresponse()
      found.append(checked(answer.status, answer.read()))
  return found


def test_no_malformed_request_gets_a_traceback(tmp_path):
  with running(train(tmp_path, num_epochs=1), *learning(tmp_path)) as server:
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
      asked = [pool.submit(ask, server.port, seed, NUM_REQUESTS // CLIENTS) for seed in range(CLIENTS)]
      statuses = [status for one in asked for status in one.result()]
    assert len(statuses) == NUM_REQUESTS
    assert {200, 204, 400, 422} <= set(statuses) <= {200, 204, 400, 413, 422}
    assert len(server.predict(text="barn", k=3)[0]["labels"]) == 3
    assert "Traceback" not in "".join(server.said), "".join(server.said)[-3000:]
