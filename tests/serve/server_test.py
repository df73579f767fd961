"""The server as a process: its port, signals, kills and a full queue, with real clients."""

import concurrent.futures
import http.client
import itertools
import json
import signal
import socket
import sys
import threading
import time

import pytest
from made_servers import BEARER, ROOT, learning, running

import xmc_jax
from tests import command_lines

pytestmark = pytest.mark.slow
TEXTS = ["barn kelt", "loma mive nuxo", "suss", "rath pove dyck kelt"]


@pytest.fixture(scope="module")
def expected(trained):
  return xmc_jax.Model.load(trained, warm=False).predict(TEXTS, 3)[0].tolist()


class Load:
  """Clients that ask one after the other until they are told to stop, or the server is gone."""

  def __init__(self, server, clients=12):
    self.server, self.stop = server, threading.Event()
    self.answered, self.refused, self.broken = [], [], []
    self.pool = concurrent.futures.ThreadPoolExecutor(clients)
    self.work = [self.pool.submit(self._ask, number) for number in range(clients)]

  def _ask(self, number):
    while not self.stop.is_set():
      row = number % len(TEXTS)
      try:
        status, headers, body = self.server.ask("POST", "/predict", {"text": TEXTS[row], "k": 3})
      except http.client.IncompleteRead as error:
        self.broken.append(error)
        return
      except (OSError, http.client.HTTPException) as error:
        self.refused.append(error)
        return
      found = json.loads(body)
      if status == 200:
        self.answered.append((row, [label["id"] for label in found["predictions"][0]["labels"]]))
      else:
        self.refused.append((status, found["error"], headers))

  def wait_for(self, number):
    until = time.monotonic() + 60
    while len(self.answered) < number and time.monotonic() < until:
      time.sleep(0.01)
    assert len(self.answered) >= number

  def end(self):
    self.stop.set()
    concurrent.futures.wait(self.work, 90)
    self.pool.shutdown()
    for work in self.work:
      work.result(0)


def line_of(*arguments) -> str:
  """The one line of a command that fails."""
  ended = command_lines.run(sys.executable, "-m", "xmc_jax.main", "--mode=serve", *arguments)
  assert ended.returncode == 1 and not ended.stdout and "Traceback" not in ended.stderr, ended.stderr
  *_, last = ended.stderr.splitlines()
  assert last.startswith("error: ")
  return last


def test_it_says_where_it_serves_and_then_answers(workdir, expected):
  with running(workdir, "--allowed_hosts=labels.example:8443") as server:
    assert server.line.startswith("serving 60 labels of run on http://127.0.0.1:")
    assert not any("other machines" in line for line in server.said)
    found = server.predict(texts=TEXTS, k=3)
    assert [[label["id"] for label in of["labels"]] for of in found] == expected
    status, headers, page = server.ask("GET", "/")
    assert status == 200 and b"<!doctype html>" in page and "server" not in {name.lower() for name in headers}
    for host, expected_status in (("labels.example", 200), ("evil.example", 421)):
      assert server.ask("GET", "/health", headers={"Host": host})[0] == expected_status


def test_a_stop_under_load_answers_what_waits(workdir, expected):
  with running(workdir) as server:
    load = Load(server)
    load.wait_for(50)
    server.process.send_signal(signal.SIGTERM)
    assert server.ended(30) == 0
    load.end()
    assert not load.broken, load.broken
    assert all(ids == expected[row] for row, ids in load.answered)
    # Whoever came after the stop was told so, or found no server.
    assert all(isinstance(one, OSError | http.client.HTTPException) or one[0] == 503 for one in load.refused)
    assert server.said[-1] == "stopped\n" and "Traceback" not in "".join(server.said)


def test_after_a_kill_under_load_it_starts_again_on_the_same_port(workdir, expected):
  with running(workdir) as server:
    port, load = server.port, Load(server)
    load.wait_for(50)
    server.process.kill()
    assert server.ended() == -signal.SIGKILL
    load.end()
    assert all(ids == expected[row] for row, ids in load.answered)
  with running(workdir, port=port) as again:
    assert again.port == port
    found = again.predict(texts=TEXTS, k=3)
    assert [[label["id"] for label in of["labels"]] for of in found] == expected


def test_what_was_acknowledged_before_a_kill_is_there_at_the_next_start(workdir, tmp_path):
  """Of clients that teach one text after the other: all that got an answer, and at most one more of each."""
  arguments, answered = learning(tmp_path), []

  def teach(server, client):
    for number in itertools.count():
      text, label = f"taught {client} {number}", f"l{(7 * client + number) % 60}"
      try:
        status, _, content = server.ask("POST", "/learn", {"text": text, "labels": [label]}, BEARER)
      except (OSError, http.client.HTTPException):
        return
      assert status == 200, content
      answered.append((text, label, json.loads(content)["numbers"]))

  for least in (3, 12):  # a kill at once after an answer, and one of a server that had replayed
    with running(workdir, *arguments) as server, concurrent.futures.ThreadPoolExecutor(3) as pool:
      teaching = [pool.submit(teach, server, client) for client in range(least, least + 3)]
      while len(answered) < least and not any(one.done() for one in teaching):
        time.sleep(0.001)
      server.process.kill()
      assert server.ended() == -signal.SIGKILL
      _ = [one.result(30) for one in teaching]
  numbers = [number for *_, of_text in answered for number in of_text]
  assert len(answered) >= 12 and len(set(numbers)) == len(numbers)
  with running(workdir, *arguments) as again:
    found = again.predict(texts=[text for text, *_ in answered], k=60, explain=True)
    for (text, label, _), of_text in zip(answered, found, strict=True):
      (why,) = (one["why"] for one in of_text["labels"] if one["key"] == label)
      assert text in [voter["text"] for voter in why["voters"]]
  assert len((workdir / "learnt.jsonl").read_text().splitlines()) <= len(answered) + 6


def test_a_run_that_cannot_learn_and_a_bad_token_end_in_one_line(workdir, tmp_path):
  _, token_file = learning(tmp_path)
  given = (f"--workdir={workdir}", "--port=0", "--learn", token_file)
  assert "remember nothing; give --scores=hybrid" in line_of(*given, "--scores=fused")
  (tmp_path / "learn.token").write_text("short\n")
  assert "the first line must be a token: 16 or more" in line_of(*given)


def test_a_full_queue_is_refused_with_a_time_to_come_again(workdir):
  with running(workdir) as server, concurrent.futures.ThreadPoolExecutor(48) as pool:
    ask = lambda _: server.ask("POST", "/predict", {"texts": [TEXTS[3] * 20] * 64, "k": 60, "explain": True})
    found = list(pool.map(ask, range(48)))  # six times as many texts as may wait
    refused = [(headers, json.loads(body)) for status, headers, body in found if status == 503]
    assert {status for status, *_ in found} == {200, 503}
    for headers, body in refused:
      assert "at most 512 may" in body["error"]
      assert 1 <= int({name.lower(): value for name, value in headers.items()}["retry-after"]) < 120
    assert server.ask("GET", "/health")[0] == 200 and server.predict(text="barn")


def slow_request(server) -> socket.socket:
  """Begins a request and does not send its body."""
  client = socket.create_connection(("127.0.0.1", server.port))
  lines = ("POST /predict HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Content-Length: 9")
  client.sendall("\r\n".join([*lines, "", "{"]).encode())
  time.sleep(0.3)
  return client


def test_ctrl_c_ends_it_and_the_second_one_at_once(workdir):
  with running(workdir) as server:
    server.process.send_signal(signal.SIGINT)
    assert server.ended(30) == 0
    assert "Ctrl-C again ends at once" in "".join(server.said)
  with running(workdir) as server, slow_request(server):
    start = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert server.process.poll() is None  # it waits for the request
    server.process.send_signal(signal.SIGINT)
    assert server.ended(30) == 130 and time.monotonic() - start < 8
    assert "Traceback" not in "".join(server.said)


def test_a_client_that_sends_nothing_does_not_hold_up_the_end(workdir):
  with running(workdir) as server, slow_request(server) as client:
    assert server.predict(text="barn")  # nor other clients
    server.process.send_signal(signal.SIGTERM)
    assert server.ended(30) == 0 and "Traceback" not in "".join(server.said)
    assert client.recv(65536).startswith(b"HTTP/1.1 503 ")


def test_a_port_in_use_and_a_missing_address_end_in_one_line(workdir):
  with socket.create_server(("127.0.0.1", 0)) as other:
    port = other.getsockname()[1]
    said = line_of(f"--workdir={workdir}", f"--port={port}")
    assert f"--port={port} is in use on 127.0.0.1" in said and "--port=0" in said
  assert "--host=192.0.2.1" in line_of(f"--workdir={workdir}", "--host=192.0.2.1")
  assert "--host=no.such.host.invalid" in line_of(f"--workdir={workdir}", "--host=no.such.host.invalid")
  assert "no/such/run/config.json: no such file" in line_of("--workdir=no/such/run")


def test_other_machines_are_let_in_only_on_request_and_with_a_note(workdir):
  with running(workdir, "--host=0.0.0.0", "--k=2") as server:
    assert any("--host=0.0.0.0 lets other machines in" in line for line in server.said)
    assert server.ask("GET", "/health", headers={"Host": "any.example"})[0] == 200
    assert len(server.predict(text="barn")[0]["labels"]) == 2


def test_a_stop_before_it_is_ready_ends_it(workdir):
  with command_lines.started(["--mode=serve", f"--workdir={workdir}", "--port=0"], ROOT) as process:
    assert process.stderr.readline().startswith("opening ")
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=60)
    assert "Traceback" not in said and (process.returncode == 0 or not out)
