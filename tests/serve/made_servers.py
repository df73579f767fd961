"""A tiny run with a hostile label, a model that is none, and servers as processes."""

import contextlib
import http.client
import json
import pathlib
import re
import threading
from types import MappingProxyType

import numpy as np
import uvicorn

import xmc_jax
from tests import command_lines, tiny_runs
from xmc_jax.errors import UserError
from xmc_jax.runs.label_filter import LabelFilter

ROOT = pathlib.Path(__file__).parents[2]
_TAKEN = "document.title='taken'"
HOSTILE = f'<script>{_TAKEN}</script><img src=x onerror="{_TAKEN}"> \u202egnp\u202c barn'
HOSTILE_QUERY = "script document title taken barn"
TOKEN = "correct-horse-battery"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def train(place: pathlib.Path, report: bool = False) -> pathlib.Path:
  """Trains a run that ranks by all sources; its label 0 is `HOSTILE`. Returns its folder."""
  source = tiny_runs.write_data(place / "data")
  labels = (source / "lbl.json").read_text().splitlines()
  labels[0] = json.dumps({"uid": "l0", "title": HOSTILE})
  (source / "lbl.json").write_text("\n".join(labels) + "\n")
  points = [json.loads(line) for line in (source / "trn.json").read_text().splitlines()]
  for point in points:
    if 0 in point["target_ind"]:
      point["title"] += f" {HOSTILE_QUERY}"
  (source / "trn.json").write_text("".join(json.dumps(point) + "\n" for point in points))
  settings = {"train.num_epochs": 2, "eval.scores": "hybrid"}
  settings |= {"eval.num_examples": 0, "eval.report_page": report}
  xmc_jax.train(tiny_runs.config(source, **settings), place / "run")
  return place / "run"


class StandIn:
  """Answers as a model does, without JAX: label i of a text has the score 1 / (1 + i + length of the text).

  Attributes:
    goes_on, learns_on: predictions and learning wait while these are cleared.
    begun, learnt: texts that `learn` got, and those that it has learnt, with their labels.
  """

  step, gives_probabilities, calibration_error, is_calibrated = 7, True, None, None
  labels = tuple(f"label {number}" for number in range(30))
  keys = tuple(f"l{number}" for number in range(30))

  def __init__(self):
    self.batches = []
    self.goes_on = threading.Event()
    self.goes_on.set()
    self.learns_on = threading.Event()
    self.learns_on.set()
    self.begun, self.learnt = [], []

  def warm(self, num_texts, depths):
    pass

  language, languages, parts = "fi", ["fi", "sv"], (1,)
  notations = MappingProxyType({})

  def notation(self, label):
    return self.notations.get(label, "")

  def check_language(self, language):
    if language and language not in self.languages:
      raise UserError(f"language = {language!r}: labels have names in fi, sv")

  def where(self, include=(), exclude=()):
    return LabelFilter(self.keys).where(tuple(include), tuple(exclude))

  @property
  def label_keys(self):  # of the data, which it is, too
    return self.keys

  def ranked(self, texts, request, num_explained=0):
    k, _, explain, include, exclude, language = request
    self.batches.append((len(texts), k, explain))
    self.goes_on.wait(30)
    if "a bug" in texts:
      raise ZeroDivisionError("a bug")
    where = self.where(include, exclude)
    answers = np.arange(len(self.keys), dtype=np.int32) if where is None else np.flatnonzero(where)
    ids = np.tile(answers[:k], (len(texts), 1))
    lengths = np.array([[len(text)] for text in texts])
    scores = (1 / (1 + ids + lengths)).astype(np.float32)
    names = [[f"{self.labels[i]}{language and f'@{language}'}" for i in row] for row in ids]
    why = {"words": "1 similar text has it", "sources": {"memory": 1}}
    why["voters"] = [{"text": "a", "weight": 0.5}]
    whys = [[[why] * (num_explained or k) for _ in texts]] if explain else []
    return self, (ids, scores, names, *whys)

  def learn(self, texts, labels):
    self.begun += texts
    self.learns_on.wait(30)
    if unknown := [label for of_text in labels for label in of_text if label not in self.keys]:
      raise UserError(f"labels that the run lacks: {len(unknown)}, such as {unknown[0]!r}")
    self.learnt += zip(texts, labels, strict=True)
    return np.arange(len(self.learnt) - len(texts), len(self.learnt))

  def embed(self, texts):
    self.batches.append((len(texts), 0, False))
    return np.array([[len(text), np.nan] for text in texts], np.float32)


class Broken(StandIn):
  """Cannot warm up."""

  def warm(self, num_texts, depths):
    raise UserError("hybrid.json is damaged")


@contextlib.contextmanager
def in_thread(application):
  """Serves an application from a thread; yields its port."""
  server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error"))
  thread = threading.Thread(target=server.run, daemon=True)
  thread.start()
  while not server.started:
    thread.join(0.05)
  try:
    yield server.servers[0].sockets[0].getsockname()[1]
  finally:
    server.should_exit = True
    thread.join(10)


def learning(place: pathlib.Path) -> list[str]:
  """The arguments of a server that learns from those who have `TOKEN`, which is put into a file here."""
  (place / "learn.token").write_text(f"{TOKEN}\nmore\n")
  return ["--learn", f"--learn_token_file={place / 'learn.token'}"]


class Server:
  """A server as a process of its own.

  Attributes:
    process: the process; its standard output ends after the line that says where it serves.
    port: where it listens.
    said: the lines of its standard error so far.
  """

  def __init__(self, workdir: pathlib.Path, *arguments: str, port: int = 0):
    given = ["--mode=serve", f"--workdir={workdir}", f"--port={port}", *arguments]
    self.process = command_lines.started(given, ROOT)
    self.said: list[str] = []
    self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
    self._reader.start()
    self.line = self.process.stdout.readline()
    found = re.search(r"http://\S+?:(\d+);", self.line)
    self.port = int(found[1]) if found else 0

  def ended(self, seconds: float = 60) -> int:
    """Waits for the end; returns the exit status."""
    status = self.process.wait(seconds)
    self._reader.join(10)
    self.process.stdout.close()
    self.process.stderr.close()
    return status

  def ask(self, method: str, path: str, body=None, headers=None):
    """Returns status, headers and body of an answer; a body that is no bytes is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
    with contextlib.closing(connection):
      sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
      given = {"Content-Type": "application/json"} if method == "POST" else {}
      connection.request(method, path, sent, given | (headers or {}))
      answer = connection.getresponse()
      return answer.status, dict(answer.getheaders()), answer.read()

  def predict(self, **body):
    status, _, content = self.ask("POST", "/predict", body)
    assert status == 200, content
    return json.loads(content)["predictions"]


@contextlib.contextmanager
def running(workdir: pathlib.Path, *arguments: str, port: int = 0):
  """Starts a server, and ends it if the block did not."""
  server = Server(workdir, *arguments, port=port)
  try:
    assert server.port, server.said
    yield server
  finally:
    if server.process.poll() is None:
      server.process.kill()
    server.ended()
