"""Ten thousand requests that are broken somewhere: none gets a traceback, or a status from 500 on."""

import concurrent.futures
import contextlib
import errno
import http.client
import json
import random
import socket

import pytest
from made_servers import running, train

pytestmark = pytest.mark.slow
NUM_REQUESTS, CLIENTS = 10_000, 8
GONE = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}  # a reset before sendall, and before shutdown
VALID = [
  {"text": "barn kelt", "k": 3},
  {"texts": ["loma", "mive nuxo"], "k": 2, "explain": True},
  {"texts": []},
  {"text": "suss"},
]
ODD = [
  *(
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    -(2**63),
    2**70,
    "",
    "a" * 20_000,
    "\x00",
    "\ud800",
    "\u202e",
    [],
    {},
  ),
  *(
    [[]],
    {"": {}},
    ["a"] * 70,
    {"text": "a"},
    [None],
    "null",
    float("nan"),
    float("inf"),
    "<script>",
    "%s%n",
  ),
]
PIECES = [
  *(
    b"GET / HTTP/1.1\r\n",
    b"POST /predict HTTP/1.1\r\n",
    b"POST /embed HTTP/1.0\r\n",
    b"PUT /health HTTP/1.1\r\n",
  ),
  *(
    b"Host: localhost\r\n",
    b"Host: \xff\r\n",
    b"Content-Type: application/json\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
  ),
  *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n"),
  *(
    b"Transfer-Encoding: chunked\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"{}",
    b'{"text":"a"}',
  ),
  *(
    b"Expect: 100-continue\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    b"X: " + b"y" * 70_000 + b"\r\n",
  ),
  *(
    b"GET http://evil.example/ HTTP/1.1\r\n",
    b"CONNECT evil:80 HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
  ),
  *(b"GET /%00%ff/..%2f HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00", b" ", b":", b"\xc3\x28"),
]


def broken_value(rng, value):
  """Replaces a part of a JSON value by an odd one."""
  if isinstance(value, dict) and value and rng.random() < 0.8:
    key = rng.choice(list(value))
    kept = dict(value)
    if rng.random() < 0.2:
      kept.pop(key)
    if rng.random() < 0.3:
      kept[rng.choice(["k", "text", "texts", "explain", "", "__class__", "\ud800"])] = rng.choice(ODD)
    else:
      kept[key] = broken_value(rng, kept.get(key))
    return kept
  if isinstance(value, list) and value and rng.random() < 0.7:
    number = rng.randrange(len(value))
    return [*value[:number], broken_value(rng, value[number]), *value[number + 1 :]]
  return rng.choice(ODD)


def broken_body(rng) -> bytes:
  """A valid body with a wrong part, or with wrong bytes."""
  sent = json.dumps(broken_value(rng, rng.choice(VALID))).encode()
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


def ask_by_bodies(port: int, seed: int, number: int) -> list[int]:
  rng, found = random.Random(seed), []
  with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
    for _ in range(number):
      path = rng.choice(["/predict", "/predict", "/embed"])
      connection.request("POST", path, broken_body(rng), {"Content-Type": "application/json"})
      answer = connection.getresponse()
      found.append(checked(answer.status, answer.read()))
  return found


def exchange(client: socket.socket, sent: bytes) -> bytes:
  """Returns what the server answers to `sent`, also where it closes the connection before the end of it."""
  answer = b""
  with contextlib.suppress(ConnectionError):
    try:
      client.sendall(sent)
      client.shutdown(socket.SHUT_WR)
    except OSError as err:
      if err.errno not in GONE:
        raise
    while part := client.recv(65536):  # what arrived before a reset can still be read
      answer += part
  return answer


def ask_by_bytes(port: int, seed: int, number: int) -> list[int]:
  """Sends what is hardly HTTP over connections of their own; an answer, if there is one, is a whole one."""
  rng, found = random.Random(seed), []
  for _ in range(number):
    sent = b"".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 9)))
    if rng.random() < 0.5:  # with a head that makes sense
      sent = rng.choice(PIECES[:4]) + b"Host: localhost\r\n" + sent + b"\r\n"
    if rng.random() < 0.3:
      sent += rng.randbytes(rng.randrange(200))
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
      answer = exchange(client, sent)
    while answer:
      head, _, rest = answer.partition(b"\r\n\r\n")
      status = int(head.split()[1])
      if status == 100:
        answer = rest
        continue
      length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
      is_head = len(rest) < length and not rest
      found.append(checked(status, b'{"error": "-"}' if is_head else rest[:length]))
      answer = rest[length:]
  return found


def test_no_malformed_request_gets_a_traceback(tmp_path):
  with running(train(tmp_path, num_epochs=1)) as server:
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
      share = NUM_REQUESTS // 2 // CLIENTS
      work = [pool.submit(ask_by_bodies, server.port, seed, share) for seed in range(CLIENTS)]
      work += [pool.submit(ask_by_bytes, server.port, 100 + seed, share) for seed in range(CLIENTS)]
      bodies, by_bytes = ([one.result() for one in part] for part in (work[:CLIENTS], work[CLIENTS:]))
    statuses = [status for part in bodies for status in part]
    assert len(statuses) == NUM_REQUESTS // 2
    assert {200, 400, 422} <= set(statuses) <= {200, 400, 413, 422}
    raw = {status for part in by_bytes for status in part}
    assert {400, 404, 405} <= raw, raw
    assert len(server.predict(text="barn", k=3)[0]["labels"]) == 3
    assert "Traceback" not in "".join(server.said), "".join(server.said)[-3000:]
