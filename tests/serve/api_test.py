"""The JSON API: its answers, its limits, and what it refuses."""

import contextlib
import io
import json
import sys

import docx
import jax
import jsonschema
import numpy as np
import pytest
from made_servers import HOSTILE, HOSTILE_QUERY, Broken, StandIn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import xmc_jax
from xmc_jax import serve
from xmc_jax.errors import UserError
from xmc_jax.retrieval.index import Index
from xmc_jax.serve import answers, api
from xmc_jax.serve.server import bound_socket, known_names

COMPILED: list[str] = []  # what JAX traces or compiles in this process
jax.monitoring.register_event_duration_secs_listener(
  lambda event, *_, **__: COMPILED.append(event) if "compile" in event else None
)
KNOWN_HOSTS = ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000")
TEXTS = ["barn kelt", "", "loma mive nuxo", HOSTILE_QUERY, "\u202e\u0000 \U0001f600 " + "suss " * 300]


@contextlib.contextmanager
def client_of(model, base_url="http://localhost:8000", **options):
  with TestClient(serve.app(model, **options), base_url, raise_server_exceptions=False) as client:
    yield client


@pytest.fixture(scope="module")
def stand_in():
  with client_of(StandIn(), name="a run", allowed_hosts=("localhost",)) as client:
    yield client


@pytest.fixture(scope="module")
def model(trained):
  return xmc_jax.Model.load(trained, warm=False)


@pytest.fixture(scope="module")
def client(model):
  with client_of(model, k=3, name="tiny") as client:
    yield client


# --- answers ---


def test_predictions_are_those_of_the_model(client, model):
  answer = client.post("/predict", json={"texts": TEXTS, "k": 4, "explain": True})
  assert answer.status_code == 200
  found = answer.json()["predictions"]
  ids, scores, names, why = model.predict(TEXTS, 4, explain=True)
  for row, of_text in enumerate(found):
    labels = of_text["labels"]
    if not TEXTS[row]:
      assert labels == []
      continue
    assert [label["id"] for label in labels] == ids[row].tolist()
    assert [label["key"] for label in labels] == [f"l{number}" for number in ids[row]]
    assert [label["text"] for label in labels] == names[row]
    assert [label["why"] for label in labels] == json.loads(json.dumps(why[row]))
    np.testing.assert_allclose([label["score"] for label in labels], scores[row], atol=1e-6)
    assert all(0 <= label["score"] <= 1 for label in labels)


def test_a_single_text_gets_the_servers_number_of_labels(client, model):
  (found,) = client.post("/predict", json={"text": "barn kelt"}).json()["predictions"]
  assert [label["id"] for label in found["labels"]] == model.predict(["barn kelt"], 3)[0][0].tolist()
  assert "why" not in found["labels"][0]


def test_embeddings_are_those_of_the_model(client, model):
  found = client.post("/embed", json={"texts": TEXTS}).json()["embeddings"]
  np.testing.assert_array_equal(np.float32(found), model.embed(TEXTS))
  assert client.post("/embed", json={"texts": []}).json() == {"embeddings": []}
  assert client.post("/predict", json={"texts": []}).json() == {"predictions": []}


def test_few_shapes_change_no_embedding(client, model):
  """The server's model pads texts otherwise than one that is not warm."""
  other = xmc_jax.Model.load(model._run.workdir, warm=False)
  np.testing.assert_allclose(model.embed(TEXTS), other.embed(TEXTS), rtol=1e-5, atol=1e-6)


def test_a_label_arrives_as_it_is_and_safe_to_print(client):
  answer = client.post("/predict", json={"text": HOSTILE_QUERY, "k": 5})
  labels = answer.json()["predictions"][0]["labels"]
  assert HOSTILE in [label["text"] for label in labels]
  assert "\u202e" not in answer.text and "\\u202e" in answer.text


def test_nothing_is_compiled_after_the_warm_up(client):
  """By texts of every length and number, and with reasons by every k."""
  assert COMPILED
  COMPILED.clear()
  for number, words in ((1, 1), (1, 60), (2, 9), (8, 3), (9, 14), (40, 5), (64, 30)):
    assert client.post("/embed", json={"texts": ["barn " * words] * number}).status_code == 200
    assert client.post("/predict", json={"texts": ["barn " * words] * number}).status_code == 200
  for number, k in ((1, 11), (3, 17), (40, 23)):
    asked = {"texts": ["barn"] * number, "k": k, "explain": True}
    found = client.post("/predict", json=asked).json()["predictions"]
    assert all(len(of["labels"]) == k and "voters" in of["labels"][-1]["why"] for of in found)
  assert not COMPILED


@pytest.mark.parametrize("scores", ["encoder", "hybrid"])
def test_no_depth_is_searched_that_the_warm_up_has_not_searched(model, monkeypatch, scores):
  """ScaNN tunes itself for each, and accelerators compile for each."""
  searched: set[tuple[int, int]] = set()  # by index, k
  search = Index.search

  def recorded(index, vectors, k, **options):
    searched.add((id(index), k))
    return search(index, vectors, k, **options)

  monkeypatch.setattr(Index, "search", recorded)
  other = xmc_jax.Model.load(model._run.workdir, scores=scores, warm=False)
  with client_of(other) as client:
    assert client.get("/health").json()["probabilities"] is (scores == "hybrid")
    in_warm_up = frozenset(searched)
    assert in_warm_up
    for k in (1, 11, 17, 23, 60):
      for explain in (False, True):
        found = client.post("/predict", json={"text": "barn", "k": k, "explain": explain}).json()
        assert len(found["predictions"][0]["labels"]) == k
    assert searched == in_warm_up
    ids = [label["id"] for label in found["predictions"][0]["labels"][:2]]
    assert ids == other.predict(["barn"], 2)[0][0].tolist()


def test_health_says_what_is_served(client, model):
  found = client.get("/health").json()
  assert found["ok"] is True and found["run"] == "tiny" and found["labels"] == len(model.labels)
  assert found["step"] == model.step and found["probabilities"] is True and found["k"] == 3
  report = json.loads((model._run.workdir / "report" / "metrics.json").read_text())
  assert found["calibration_error"] == report["calibration"]["ece_first"]
  assert found["calibrated"] is (not report["calibration"]["note"])
  assert found["limits"]["max_k"] == len(model.labels)
  assert found["threshold"] is None and found["examples"] == []
  assert found["title"] == found["description"] == ""


def test_metrics_count_requests_batches_and_texts():
  with client_of(StandIn()) as client:
    client.post("/predict", json={"texts": ["a"] * 3})
    client.post("/predict", json={"text": 1})
    client.get("/nothing/here")
    found = client.get("/metrics")
  assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
  lines = dict(line.rsplit(" ", 1) for line in found.text.splitlines() if not line.startswith("#"))
  assert lines['xmc_jax_requests_total{route="/predict",status="200"}'] == "1.0"
  assert lines['xmc_jax_requests_total{route="/predict",status="422"}'] == "1.0"
  assert lines['xmc_jax_requests_total{route="other",status="404"}'] == "1.0"
  assert lines["xmc_jax_texts_total"] == "3.0" and lines["xmc_jax_queue_texts"] == "0.0"
  assert lines['xmc_jax_batch_texts_bucket{le="4.0"}'] == "1.0"
  assert lines['xmc_jax_request_seconds_count{route="/predict"}'] == "2.0"


def test_labels_below_a_threshold_are_left_out():
  """Label i of 'abc' has the score 1 / (4 + i). A text without a letter has no labels."""
  with client_of(StandIn(), threshold=0.19) as client:
    asked = [({}, 2), ({"threshold": 0.15}, 3), ({"threshold": 0}, 5), ({"threshold": 0.5}, 0)]
    for more, count in asked:
      found, blank = client.post("/predict", json={"texts": ["abc", " "], **more}).json()["predictions"]
      assert len(found["labels"]) == count and blank["labels"] == []


def test_only_labels_that_are_asked_for_are_answers(stand_in):
  ask = lambda **more: stand_in.post("/predict", json={"text": "abc", "k": 2, **more})
  keys = lambda **more: [label["key"] for label in ask(**more).json()["predictions"][0]["labels"]]
  assert keys(include=["l5", "l9", "l3"]) == ["l3", "l5"] and keys(exclude=["l0", "l2"]) == ["l1", "l3"]
  assert keys(include=["l5"], exclude=["l5"]) == []
  refused = ask(include=["l5", "x"])
  assert refused.status_code == 422
  assert refused.json()["error"] == "include: 'x' is the key of no label, such as 'l0'"


def test_names_are_in_the_language_asked_for(stand_in):
  ask = lambda language: stand_in.post("/predict", json={"text": "abc", "k": 1, "language": language})
  assert ask("sv").json()["predictions"][0]["labels"][0]["text"] == "label 0@sv"
  assert ask("de").status_code == 422 and "labels have names in fi, sv" in ask("de").json()["error"]


def test_the_text_of_a_word_file_is_extracted(monkeypatch):
  word, content = docx.Document(), io.BytesIO()
  word.add_paragraph("Art and music")
  word.save(content)
  pdf, of_word = api._FILES
  with client_of(StandIn(), limits=serve.Limits(max_body_bytes=100, max_file_bytes=100_000)) as client:
    send = lambda content, kind: client.post("/text", content=content, headers={"content-type": kind})
    assert send(content.getvalue(), of_word).json() == {"text": "Art and music"}
    broken, wrong, large = send(b"%PDF", pdf), send(b"a", "text/plain"), send(b"a" * 100_001, pdf)
    assert broken.status_code == 422 and "the file: expected a PDF or Word file" in broken.json()["error"]
    assert wrong.status_code == 415 and "send a file" in wrong.json()["error"]
    assert large.status_code == 413 and "limit of 100000 bytes" in large.json()["error"]
    assert client.post("/predict", json={"text": "a" * 101}).status_code == 413
    monkeypatch.setattr(api, "_MOST_FILES", 0)
    busy = send(content.getvalue(), of_word)
    assert busy.status_code == 503 and busy.headers["Retry-After"] == "1"


def test_the_schema_describes_real_answers_and_names_the_limits(stand_in):
  schema = stand_in.get("/openapi.json").json()
  own = {path for path in schema["paths"] if not path.startswith("/v1/")}  # those of Annif's API
  assert own == {"/predict", "/embed", "/text", "/health", "/metrics"}
  parts = schema["components"]["schemas"]
  assert parts["PredictRequest"]["properties"]["k"]["anyOf"][0]["maximum"] == 30
  assert parts["EmbedRequest"]["properties"]["texts"]["anyOf"][0]["maxItems"] == 64
  assert parts["EmbedRequest"]["properties"]["text"]["anyOf"][0]["maxLength"] == 10_000
  told = []
  for path, method in (("/predict", "post"), ("/embed", "post"), ("/health", "get")):
    answers_of = schema["paths"][path][method]["responses"]
    body = {"json": {"texts": ["a", "b"]}} if method == "post" else {}
    answer = stand_in.request(method, path, **body)
    of_answer = answers_of["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**of_answer, "components": schema["components"]})
    told += [status for status in answers_of if status != "200"]
  assert {"400", "413", "415", "422", "503"} <= set(told)
  for name, path in (("PredictRequest", "/predict"), ("EmbedRequest", "/embed")):
    assert {stand_in.post(path, json=example).status_code for example in parts[name]["examples"]} == {200}


# --- what is refused ---

REFUSED = {
  "not JSON": (b"{", 400, "not JSON"),
  "not UTF-8": (b'{"text": "\xff"}', 400, "not JSON"),
  "too deep": (b"[" * 100_000, 400, "not JSON"),
  "nothing": (b"", 422, "JSON object"),
  "a list": (b"[]", 422, "JSON object"),
  "no text": (b"{}", 422, 'either "text" or "texts"'),
  "both": (b'{"text": "a", "texts": ["b"]}', 422, 'either "text" or "texts"'),
  "a number for a text": (b'{"text": 1}', 422, "text is wrong"),
  "a number among texts": (b'{"texts": ["a", 1]}', 422, "texts[1] is wrong"),
  "half a million numbers": (b'{"texts": [' + b"1," * 500_000 + b"1]}", 422, "texts[0] is wrong"),
  "an unknown key": (b'{"text": "a", "top_k": 1}', 422, "top_k is not a key"),
  "k below 1": (b'{"text": "a", "k": 0}', 422, "k is wrong"),
  "k above the limit": (b'{"text": "a", "k": 31}', 422, "equal to 30"),
  "too many texts": (json.dumps({"texts": ["a"] * 65}).encode(), 422, "at most 64"),
  "a long text": (json.dumps({"text": "a" * 10_001}).encode(), 422, "limit of 10000"),
  "a large body": (b" " * (1 << 20) + b"{}", 413, "limit of 1048576 bytes"),
}


def sentence(answer, status: int) -> str:
  """The error of an answer: one plain sentence."""
  assert answer.status_code == status, answer.text
  assert answer.headers["content-type"] == "application/json" and list(answer.json()) == ["error"]
  said = answer.json()["error"]
  assert said and "\n" not in said and len(said) < 300 and "Traceback" not in said
  return said


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_body_is_refused_in_one_sentence(stand_in, name):
  body, status, said = REFUSED[name]
  answer = stand_in.post("/predict", content=body, headers={"Content-Type": "application/json"})
  assert said in sentence(answer, status)


def test_a_lone_surrogate_is_no_fault(client):
  sent = b'{"texts": ["\\ud800 barn", "\\u0000"]}'
  for path in ("/predict", "/embed"):
    assert client.post(path, content=sent, headers={"Content-Type": "application/json"}).status_code == 200


def test_other_media_types_are_refused(stand_in):
  """A page of another origin may send these without asking."""
  for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
    answer = stand_in.post("/predict", content=b'{"text": "a"}', headers={"Content-Type": media})
    assert "application/json" in sentence(answer, 415)
  ours = {"Content-Type": "Application/JSON; charset=utf-8"}
  assert stand_in.post("/predict", content=b'{"text": "a"}', headers=ours).status_code == 200


def test_other_addresses_and_methods_are_refused(stand_in):
  for path in ("/docs", "/predict/", "/../../etc/passwd", "/..%2fapi.py", "/%00", "/index.html"):
    answer = stand_in.get(path)
    assert "/openapi.json" in sentence(answer, 404), path
  answer = stand_in.get("/predict")
  assert "does not take GET" in sentence(answer, 405) and answer.headers["allow"] == "POST"
  assert "does not take DELETE" in sentence(stand_in.delete("/health"), 405)


@pytest.mark.parametrize("spelling", ["127.0.0.1", "127.1", "localhost", "127.0.1.1"])
def test_the_host_is_checked_however_the_loopback_is_spelled(spelling):
  with bound_socket(spelling, 0) as taken:
    names = known_names(spelling, taken, ())
  with client_of(StandIn(), allowed_hosts=names) as client:
    statuses = [client.get("/health", headers={"Host": host}).status_code for host in KNOWN_HOSTS]
    assert statuses == [200] * len(KNOWN_HOSTS)
    assert "--allowed_hosts" in sentence(client.get("/health", headers={"Host": "evil.example"}), 421)


def test_a_server_for_other_machines_knows_its_own_names_and_those_given(capsys):
  with bound_socket("0.0.0.0", 0) as taken:
    assert known_names("0.0.0.0", taken, ()) == ()  # every name
    assert "lets other machines in" in capsys.readouterr().err
    names = known_names("0.0.0.0", taken, ("labels.example.org", "A.org:8443", "[2001:db8::1]:8000"))
  with client_of(StandIn(), allowed_hosts=names) as client:
    for host in (*KNOWN_HOSTS, "labels.example.org", "a.org:8443", "a.org", "[2001:db8::1]", "0.0.0.0:8000"):
      assert client.get("/health", headers={"Host": host}).status_code == 200, host
    for host in ("", "evil.example", "localhost.evil.example:8000", "example.org", "[2001:db8::3]", "[::1"):
      assert client.get("/health", headers={"Host": host}).status_code == 421, host


@pytest.mark.parametrize("entry", ["http://a.org", "a.org/labels", "", "a.org:port"])
def test_an_allowed_host_that_can_never_match_is_refused(entry):
  with pytest.raises(UserError, match="no name of a host"):
    serve.app(StandIn(), allowed_hosts=[entry])


def test_headers_keep_the_page_to_itself(stand_in):
  for path in ("/", "/page.js", "/health", "/nothing"):
    headers = stand_in.get(path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_a_bug_is_told_without_a_traceback(stand_in):
  said = sentence(stand_in.post("/predict", json={"text": "a bug"}), 500)
  assert "its own log" in said and "Zero" not in said
  assert stand_in.post("/predict", json={"text": "fine"}).status_code == 200


def test_an_embedding_that_is_not_finite_is_null(stand_in):
  assert stand_in.post("/embed", json={"text": "abc"}).json() == {"embeddings": [[3.0, None]]}
  labels = [{"score": value} for value in (np.nan, -np.inf, 0.25)]
  found = json.loads(answers.predictions([labels]).body)["predictions"][0]["labels"]
  assert [label["score"] for label in found] == [None, None, 0.25]


# --- from Python ---


def test_it_can_be_mounted_in_another_application():
  """Where nobody starts it, the first request does."""
  outer = Starlette(routes=[Mount("/labels", serve.app(StandIn(), name="inner"))])
  with TestClient(outer) as client:
    assert len(client.post("/labels/predict", json={"text": "a"}).json()["predictions"][0]["labels"]) == 5
    assert "<textarea" in client.get("/labels/").text and client.get("/labels/page.js").status_code == 200
    assert 'requests_total{route="/predict",status="200"} 1.0' in client.get("/labels/metrics").text


def test_a_model_that_cannot_warm_up_refuses_instead_of_waiting():
  with TestClient(Starlette(routes=[Mount("/", serve.app(Broken()))])) as client:
    refused = client.post("/predict", json={"text": "a"})
    assert sentence(refused, 503) == "the server is stopping" and int(refused.headers["retry-after"]) >= 1
    assert client.get("/health").status_code == 503


def test_what_cannot_work_is_said_in_one_line(monkeypatch):
  for k in (0, 31):
    with pytest.raises(UserError, match="1 to 30"):
      serve.app(StandIn(), k=k)
  monkeypatch.setitem(sys.modules, "fastapi", None)
  with pytest.raises(UserError, match=r'pip install "xmc_jax\[serve\]"'):
    serve.app(StandIn())
