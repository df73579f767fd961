"""Five thousand bodies that are broken somewhere: none gets a traceback, or a status from 500 on."""

import json
import random

import pytest
from made_servers import BEARER, TOKEN
from starlette.testclient import TestClient

import xmc_jax
from xmc_jax import serve

PATHS = ["/predict", "/predict", "/embed", "/learn", "/v1/projects/run/learn"]
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


@pytest.mark.slow
def test_no_malformed_request_gets_a_traceback(workdir):
  """The client raises what the application does not answer."""
  rng, statuses = random.Random(0), set()
  with TestClient(serve.app(xmc_jax.Model.load(workdir, warm=False), learn_token=TOKEN)) as client:
    for _ in range(5_000):
      headers = {"Content-Type": "application/json", **BEARER}
      answer = client.post(rng.choice(PATHS), content=broken_body(rng), headers=headers)
      statuses.add(answer.status_code)
      if answer.status_code >= 400:
        ((key, said),) = answer.json().items()
        assert key == "error" and "\n" not in said and 'File "' not in said and 0 < len(said) < 400
    assert {200, 204, 400, 422} <= statuses <= {200, 204, 400, 413, 422}
    (found,) = client.post("/predict", json={"text": "barn", "k": 3}).json()["predictions"]
    assert len(found["labels"]) == 3
