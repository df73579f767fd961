"""`POST /learn`: who may teach, what is refused, and answers from before or after, never from between."""

import concurrent.futures
import contextlib
import itertools
import json
import shutil
import threading
from unittest import mock

import jax
import numpy as np
import pytest
from made_servers import BEARER, TOKEN, StandIn
from starlette.testclient import TestClient

import xmc_jax
from tests import command_lines
from xmc_jax import serve
from xmc_jax.cli import flags
from xmc_jax.errors import UserError
from xmc_jax.runs import learning
from xmc_jax.serve import corrections, options
from xmc_jax.storage import locks

JSON = {"Content-Type": "application/json"}
ROUTES = ("/learn", "/v1/projects/tags/learn")
NEW = "zathura quux of the unseen"


@contextlib.contextmanager
def client_of(model, **more):
  application = serve.app(model, name="tags", **{"learn_token": TOKEN, **more})
  with TestClient(application, raise_server_exceptions=False) as client:
    yield client


@pytest.fixture
def model():
  return StandIn()


@pytest.fixture
def client(model):
  with client_of(model) as client:
    yield client


# --- who may ---


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("given", ["", TOKEN, "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer ä"])
def test_without_the_token_nothing_is_learnt(client, model, path, given):
  for body in (b'{"text": "a", "labels": ["l1"]}', b'[{"text": "a", "subjects": [{"uri": "l1"}]}]', b"1"):
    headers = JSON | ({"Authorization": given.encode("latin-1")} if given else {})
    answer = client.post(path, content=body, headers=headers)
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert answer.json() == {"error": "send the server's token, with the header Authorization: Bearer TOKEN"}
  assert not model.begun


def test_where_learning_is_off_there_is_no_such_address():
  with client_of(StandIn(), learn_token="") as client:
    for path in ROUTES:
      answer = client.post(path, json={"text": "a", "labels": ["l1"]}, headers=BEARER)
      assert answer.status_code == 404 and "nothing at this address" in answer.json()["error"]
    assert client.get("/health").json()["learns"] is False
    assert not [path for path in client.get("/openapi.json").json()["paths"] if path.endswith("learn")]


def test_a_model_that_cannot_learn_and_a_weak_token_are_refused(trained, tmp_path):
  with pytest.raises(UserError, match="remember nothing; give --scores=hybrid"):
    serve.app(xmc_jax.Model.load(trained, scores="fused", warm=False), learn_token=TOKEN)
  with pytest.raises(UserError, match="learn_token must be a token: 16 or more"):
    serve.app(StandIn(), learn_token="short")
  file = tmp_path / "learn.token"
  with pytest.raises(UserError, match="cannot be read"):
    options.read_token(file)
  for content in ("", "\n", "fifteen-letters\n", "sixteen or more letters\n", "sechzehn-zeichen-ä\n"):
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"--learn_token_file=\S+ the first line must be a token"):
      options.read_token(file)
  file.write_text(f"{TOKEN} \r\nmore\n")
  assert options.read_token(file) == TOKEN


@pytest.mark.parametrize("one", ["--learn", "--learn_token_file=x"])
def test_one_flag_without_the_other_is_refused(one):
  refused = pytest.raises(UserError, match="--learn and --learn_token_file=FILE go together")
  with command_lines.given("--mode=serve", "--workdir=x", one) as argv, refused:
    flags.check(flags.parse(argv))


# --- what is learnt ---


def test_texts_are_learnt_and_get_their_numbers(client, model):
  teach = lambda **body: client.post("/learn", json=body, headers={"authorization": f"bearer {TOKEN}"})
  assert teach(text="a", labels=["l1", "l2"]).json() == {"numbers": [0]}
  assert teach(texts=["b", "c"], labels=[["l3"], ["l4"]]).json() == {"numbers": [1, 2]}
  assert teach(texts=[], labels=[]).json() == {"numbers": []}
  assert model.learnt == [("a", ["l1", "l2"]), ("b", ["l3"]), ("c", ["l4"])]
  assert client.get("/health").json()["learns"] is True
  client.post("/v1/projects/tags/learn", json=[], headers=BEARER)
  metrics = client.get("/metrics").text
  assert 'xmc_jax_requests_total{route="/learn",status="200"} 3.0' in metrics
  assert 'xmc_jax_requests_total{route="/v1/projects/tags/learn",status="204"} 1.0' in metrics


WAYS = 'labels is wrong: give a list of keys or names; with "texts", a list of these for each text'
REFUSED = [
  ({"text": "a"}, "labels is wrong: field required"),
  ({"text": "a", "labels": []}, "a text without labels would be forgotten"),
  ({"texts": ["a", "b"], "labels": [["l1"], []]}, "would be forgotten"),
  ({"text": "a", "labels": "l1"}, WAYS),
  ({"text": "a", "labels": ["l1", ["l2"]]}, WAYS),
  ({"text": "a" * 101, "labels": ["l1"]}, "limit of 100"),
  ({"text": "a", "labels": ["l0", "nix\ud800"]}, "labels that the run lacks: 1, such as 'nix\ufffd'"),
  ({"text": "a", "labels": [["l0"]]}, "labels: expected keys or names, found ['l0']"),
  ({"texts": ["a"], "labels": ["l0"]}, "labels: expected a list of labels for each of the 1 texts"),
  ({"texts": ["a", "b"], "labels": [["l0"]]}, "labels: expected a list of labels for each of the 2 texts"),
]


def test_what_is_refused_is_not_learnt(workdir):
  limits = serve.Limits(max_text_length=100)
  with client_of(xmc_jax.Model.load(workdir, warm=False), limits=limits) as client:
    for body, words in REFUSED:
      answer = client.post("/learn", content=json.dumps(body), headers=JSON | BEARER)
      assert answer.status_code == 422 and words in answer.json()["error"]
  assert not (workdir / "learnt.jsonl").exists()


def test_the_schema_describes_it(client):
  schema = client.get("/openapi.json").json()
  for path, status in zip(ROUTES, ("200", "204")):
    described = schema["paths"][path.replace("tags", "{project_id}")]["post"]
    assert status in described["responses"] and described["security"] == [{"HTTPBearer": []}]
  assert "401" in schema["paths"]["/learn"]["post"]["responses"]
  assert "401" not in schema["paths"]["/predict"]["post"]["responses"]
  for example in schema["components"]["schemas"]["LearnRequest"]["examples"]:
    keys = json.loads(json.dumps(example).replace("mpd", "l1").replace("cmus", "l2"))
    assert client.post("/learn", json=keys, headers=BEARER).status_code == 200


# --- one writer, many readers ---


def test_learning_compiles_nothing(workdir):
  compiled: list[str] = []
  with client_of(xmc_jax.Model.load(workdir, warm=False)) as client:
    listen = lambda event, *_, **__: compiled.append(event) if "compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    for number in (1, 9, 40):
      lesson = {"texts": [f"{NEW} {row}" for row in range(number)], "labels": [["l7"]] * number}
      assert client.post("/learn", json=lesson, headers=BEARER).status_code == 200
      found = client.post("/predict", json={"text": NEW, "explain": True}).json()["predictions"]
      assert found[0]["labels"][0]["key"] == "l7"
  assert not compiled


def test_few_corrections_wait_and_one_is_learnt_at_a_time(client, model, monkeypatch):
  monkeypatch.setattr(corrections, "_MOST", 3)
  teach = lambda text: client.post("/learn", json={"text": text, "labels": ["l1"]}, headers=BEARER)
  model.learns_on.clear()
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    asked = [pool.submit(teach, text) for text in "abcdefgh"]
    refused = [one.result() for one in itertools.islice(concurrent.futures.as_completed(asked, 30), 5)]
    assert len(model.begun) == 1
    model.learns_on.set()
    statuses = sorted(one.result().status_code for one in asked)
  assert statuses == [200] * 3 + [503] * 5 and len(model.learnt) == 3
  for answer in refused:
    assert answer.headers["retry-after"] == "1" and "3 corrections wait" in answer.json()["error"]
  assert teach("later").status_code == 200


def test_another_process_that_learns_and_a_full_disk_are_told_to_come_again(workdir, monkeypatch):
  with client_of(xmc_jax.Model.load(workdir, warm=False)) as client:
    teach = lambda: client.post("/learn", json={"text": NEW, "labels": ["l7"]}, headers=BEARER)
    with locks.in_use(workdir, learning.LOCK, learning.LEARNS):
      busy = teach()
    assert busy.status_code == 503 and busy.headers["retry-after"] == "1"
    assert "is learning for this run; try again" in busy.json()["error"]
    with monkeypatch.context() as patch:
      patch.setattr("os.fsync", mock.Mock(side_effect=OSError(28, "No space left on device")))
      full = teach()
    assert full.status_code == 503 and "No space left" in full.json()["error"]
    assert teach().json() == {"numbers": [0]}


@pytest.mark.parametrize("explain", [False, True])
def test_every_answer_while_it_learns_is_one_from_before_or_after(workdir, tmp_path, explain):
  """Labels and scores are those after 0, 1, 2, ... corrections, and never fewer than were acknowledged."""
  lessons = [(f"{NEW} {number}", [f"l{7 + number}"]) for number in range(6)]
  asked = {"texts": [NEW, lessons[-1][0], "barn kelt"], "k": 5, "explain": explain}

  def answer_of(client):
    labels = [of["labels"] for of in client.post("/predict", json=asked).json()["predictions"]]
    whys = [[one.get("why", {"voters": ()}) for one in of] for of in labels]
    votes = [[sorted(voter["text"] for voter in why["voters"]) for why in of] for of in whys]
    return [[(one["id"], one["score"]) for one in of] for of in labels], votes

  def same(found, expected):
    (labels, votes), (of, their) = found, expected
    return votes == their and np.allclose(labels, of, atol=2e-6)

  def teach(client, lesson):
    text, labels = lesson
    return client.post("/learn", json={"text": text, "labels": labels}, headers=BEARER)

  with client_of(xmc_jax.Model.load(shutil.copytree(workdir, tmp_path / "other"), warm=False)) as client:
    states = [answer_of(client)]
    for lesson in lessons:
      assert teach(client, lesson).status_code == 200
      states.append(answer_of(client))
  assert len({str(state) for state in states}) == len(states)
  with client_of(xmc_jax.Model.load(workdir, warm=False)) as client:
    learnt, over, found = [0], threading.Event(), []

    def ask():
      while not over.is_set():
        least = learnt[0]
        found.append((least, answer_of(client), learnt[0]))

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
      asking = [pool.submit(ask) for _ in range(3)]
      for lesson in lessons:
        assert teach(client, lesson).status_code == 200
        learnt[0] += 1
        while not any(least == learnt[0] for least, *_ in found):
          over.wait(0.01)
      over.set()
      _ = [one.result() for one in asking]
  for least, answer, most in found:
    # One more may count already, whose answer has not come.
    assert any(same(answer, state) for state in states[least : most + 2]), (least, most)
