"""What docs/serving.md tells about requests, limits, errors and metrics is so."""

import json
import re
import shlex

import pytest
from made_servers import ROOT, TOKEN, StandIn, learning, running
from starlette.testclient import TestClient

from xmc_jax import serve
from xmc_jax.serve import api, corrections, server

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
LEARNING = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")


def section(title: str) -> str:
  """The text below a title."""
  return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)[1]


def requests(page: str = PAGE) -> list[tuple[str, str, dict, bytes | None]]:
  """(method, path, headers, body) of every curl command on a page; a label to learn is one of the tests'."""
  found = []
  for line in re.findall(r"^curl .*", page, re.M):
    _, address, *options = shlex.split(
      line.replace("$(cat learn.token)", TOKEN).replace('["mpg321"]', '["l7"]')
    )
    given = list(zip(options[::2], options[1::2]))
    assert {name for name, _ in given} <= {"-H", "-d"}
    headers = dict(value.split(": ") for name, value in given if name == "-H")
    body = next((value.encode() for name, value in given if name == "-d"), None)
    found.append(("POST" if body else "GET", address.removeprefix("http://127.0.0.1:8000"), headers, body))
  return found


@pytest.fixture(scope="module")
def client():
  with TestClient(serve.app(StandIn(), learn_token=TOKEN)) as client:
    yield client


def test_the_requests_are_answered(client):
  assert len(requests()) >= 6
  for method, path, headers, body in requests():
    assert client.request(method, path, headers=headers, content=body).status_code == 200, path


def test_the_answer_has_this_form(client):
  (shown,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)
  method, path, headers, body = requests()[0]
  answer = client.request(method, path, headers=headers, content=body).json()
  form = lambda found: [[sorted(label) for label in text["labels"]] for text in found["predictions"]]
  assert form(json.loads(shown)) == form(answer)


def test_the_limits_are_these(client):
  limits, said = serve.Limits(), " ".join(PAGE.split())
  assert limits.max_body_bytes == 1 << 20 and "more than 1 MiB" in said
  assert f"more than {limits.max_texts} texts" in said and f"up to {limits.max_batch_texts} texts" in said
  assert f"more than {limits.max_text_length:,} characters" in said and f"`k` above {limits.max_k}" in said
  assert f"{limits.max_waiting_texts} texts wait" in said and f"{server._MAX_CONNECTIONS} connections" in said
  assert f"up to {server._DRAIN_SECONDS} seconds" in said
  assert f"up to {1000 * limits.max_wait_seconds:g} ms" in said
  assert f"{corrections._MOST} corrections wait" in said


def test_routes_statuses_and_metrics_are_listed(client):
  statuses = set(map(int, re.findall(r"\d{3}", "".join(re.findall(r"^\| ([\d, ]+) \|", PAGE, re.M)))))
  assert set(api._ERRORS) | {401, 404, 405} == statuses
  schema = client.get("/openapi.json").json()
  of_schema = {(method.upper(), path) for path, methods in schema["paths"].items() for method in methods}
  routes = re.findall(r"^\| `(GET|POST) (\S+)` \|", PAGE, re.M)
  assert set(routes) == of_schema | {("GET", "/openapi.json")}
  real = set(re.findall(r"^# TYPE (xmc_jax_\w+)", client.get("/metrics").text, re.M))
  told = set(re.findall(r"`(xmc_jax_\w+)", section("Metrics")))
  assert {name for name in real if not name.endswith("_created")} == told


@pytest.mark.slow
def test_the_command_serves(workdir, tmp_path):
  with running(workdir, *learning(tmp_path)) as server:
    answers = [server.ask(method, path, body, headers) for method, path, headers, body in requests(LEARNING)]
    assert [status for status, *_ in answers] == [200] * 3
    before, after = (json.loads(answers[at][2])["predictions"][0]["labels"][0]["key"] for at in (0, 2))
    assert before != after == "l7"  # as docs/learning.md says
    for method, path, headers, body in requests():
      assert server.ask(method, path, body, headers)[0] == 200, path
    shown = re.search(r"`(serving .*? labels of .*?)`", PAGE)[1]
    pattern = re.sub(r"[\d,]+(?= labels)|auto-debian|8000", "@", shown)
    assert re.sub(r"(?<=serving )[\d,]+|(?<=of )\S+|(?<=127.0.0.1:)\d+", "@", server.line.strip()) == pattern
