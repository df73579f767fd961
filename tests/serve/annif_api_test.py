"""Annif's REST API: its fields, Annif's own client, and what is refused."""

from types import MappingProxyType, SimpleNamespace

import pytest
from annif_client import AnnifClient
from made_servers import BEARER, TOKEN, StandIn, in_thread
from starlette.testclient import TestClient

from xmc_jax import serve

URL = "/v1/projects/tags/suggest"


class Library(StandIn):
  notations = MappingProxyType({1: "n1"})


@pytest.fixture(scope="module")
def application():
  return serve.app(Library(), name="tags", limits=serve.Limits(max_text_length=100, max_texts=3))


@pytest.fixture(scope="module")
def client(application):
  with TestClient(application, raise_server_exceptions=False) as client:
    yield client


def test_the_run_is_the_only_project(client):
  assert client.get("/v1/").json()["title"] == "xmc_jax"
  (project,) = client.get("/v1/projects").json()["projects"]
  assert project == client.get("/v1/projects/tags").json()
  assert (project["project_id"], project["language"], project["is_trained"]) == ("tags", "fi", True)


def test_suggestions_for_a_text_of_a_form(client):
  """Label i of 'abc' has the score 1 / (4 + i)."""
  found = client.post(URL, data={"text": "abc", "limit": 2}).json()["results"]
  assert found[0] == {"uri": "l0", "label": "label 0", "notation": None, "score": 0.25}
  assert found[1] == {"uri": "l1", "label": "label 1", "notation": "n1", "score": 0.2}
  assert len(client.post(URL, data={"text": "abc"}).json()["results"]) == 10
  assert len(client.post(URL, data={"text": "abc", "limit": 999, "threshold": 0.15}).json()["results"]) == 3
  (swedish,) = client.post(URL, data={"text": "abc", "limit": 1, "language": "sv"}).json()["results"]
  assert swedish["label"] == "label 0@sv"
  cut = client.post(URL, data={"text": "a" * 101, "limit": 1}).json()["results"]
  assert cut[0]["score"] == round(1 / 101, 6)
  assert client.post(URL, data={"text": " "}).json() == {"results": []}
  assert client.post(URL, data={"text": "ä€" * 3, "limit": 1}).json()["results"][0]["score"] == 0.142857


@pytest.mark.parametrize(
  ("data", "status", "words"),
  [
    ({"texts": "a"}, 422, "the form has no text"),
    ({"text": "a", "limit": "many"}, 422, "limit must be a whole number"),
    ({"text": "a", "limit": 0}, 422, "a limit of 1 or more"),
    ({"text": "a", "threshold": "nan"}, 422, "a threshold from 0 to 1"),
    ({"text": "a", "language": "de"}, 422, "labels have names in fi, sv"),
  ],
)
def test_what_is_refused(client, data, status, words):
  answer = client.post(URL, data=data)
  assert answer.status_code == status and words in answer.json()["error"]


def test_annifs_own_client_gets_suggestions(application):
  with in_thread(application) as port:
    client = AnnifClient(f"http://127.0.0.1:{port}/v1/")
    assert client.api_info["title"] == "xmc_jax"
    assert client.projects == [client.get_project("tags")]
    (first, second) = client.suggest("tags", "abc", limit=3, threshold=0.2)
    assert (first["uri"], second["notation"], second["score"]) == ("l0", "n1", 0.2)
    documents = [{"text": "abc", "document_id": "7"}, {"text": ""}, {"text": "a"}]
    of_first, of_second, of_third = client.suggest_batch("tags", documents, limit=1)
    assert of_first == {"document_id": "7", "results": [first]}
    assert of_second == {"document_id": None, "results": []} and of_third["results"][0]["score"] == 0.5
    assert client.detect_language("Tietoa kirjastoista", ["sv", "fi"])["results"][0]["language"] == "fi"
    with pytest.raises(ValueError, match="Project 'other' not found"):
      client.suggest("other", "abc")


def test_annif_asks_the_server_as_one_of_its_backends(tmp_path):
  pytest.importorskip("annif")
  from annif.backend.http import HTTPBackend
  from annif.corpus import Document
  from annif.vocab.subject_index import SubjectIndexFile
  from annif.vocab.types import Subject

  subjects = SubjectIndexFile()
  for label in range(5):
    subjects.append(Subject(f"l{label}", {"fi": f"label {label}"}, None))
  project = SimpleNamespace(subjects=subjects, datadir=str(tmp_path))
  with in_thread(serve.app(Library(), name="tags")) as port:
    given = {"endpoint": f"http://127.0.0.1:{port}/v1/projects/tags/suggest", "limit": 3}
    backend = HTTPBackend("xmc", given, project)
    assert backend.is_trained
    found = backend.suggest([Document(text="abc"), Document(text="")])
  of_first, of_second = ([(one.subject_id, one.score) for one in of_text] for of_text in found)
  assert of_first == [(0, 0.25), (1, pytest.approx(0.2)), (2, pytest.approx(0.166667))] and of_second == []


@pytest.mark.parametrize(
  ("text", "language"),
  [
    ("Tietoa kirjastoista", "fi"),
    ("Det är en bok om biblioteken", "sv"),
    ("et bibliotek for de som ikke leser på skjerm", "nb"),
    (" " * 5000 + "Tietoa kirjastoista", "fi"),
    ("Die Bibliotheken dieser Stadt haben auch sonntags geöffnet", None),
    ("12345", None),
  ],
)
def test_the_language_of_a_text(client, text, language):
  body = {"text": text, "languages": ["fi", "sv", "nb", "fi"]}
  found = client.post("/v1/detect-language", json=body).json()["results"]
  scores = {one["language"]: one["score"] for one in found}
  assert len(found) == 4 and scores.keys() == {"fi", "sv", "nb", None}
  assert found[0]["language"] == language and found[0]["score"] > 0.5
  assert sum(scores.values()) == pytest.approx(1, abs=3e-6)


def test_languages_that_are_not_told(client):
  def ask(**body):
    return client.post("/v1/detect-language", json=body)

  nothing = [{"language": None, "score": 1.0}, {"language": "en", "score": 0.0}]
  assert ask(text=" ", languages=["en"]).json() == {"results": nothing}
  for text in ("a text", " "):
    refused = ask(text=text, languages=["en", "xx"])
    assert refused.status_code == 422 and refused.json()["error"] == "unsupported candidate languages: xx"
  assert ask(text="a text", languages=[]).status_code == 422


def test_another_project_is_not_found_as_annifs_client_expects(client):
  for answer in (client.get("/v1/projects/x"), client.post("/v1/projects/x/suggest", data={"text": "a"})):
    assert answer.status_code == 404 and answer.json()["detail"] == "Project 'x' not found."
  body = {"documents": [{"text": "a"}] * 4}
  assert client.post(f"{URL}-batch", json=body).json()["error"].endswith("at most 3 documents")


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "multipart/form-data; boundary=x"])
def test_only_forms_are_read(client, kind):
  answer = client.post(URL, content="text=abc", headers={"content-type": kind})
  assert answer.status_code == 415 and "send a form" in answer.json()["error"]


def test_annifs_own_client_teaches():
  model = Library()
  limits = serve.Limits(max_text_length=5, max_texts=2)
  document = {"text": "abcdefg", "metadata": {"a": "b"}, "document_id": "7"}
  document["subjects"] = [{"uri": "l1", "label": "another"}, {"uri": "l2"}]
  with in_thread(serve.app(model, name="tags", limits=limits, learn_token=TOKEN)) as port:
    client = AnnifClient(f"http://127.0.0.1:{port}/v1/")
    with pytest.raises(IOError, match="401"):
      client.learn("tags", [document])
    client._headers = BEARER
    passed_over = [{"text": "c", "subjects": []}, {"text": " ", "subjects": [{"uri": "l3"}]}]
    answer = client.learn("tags", [document, *passed_over, {"text": "b", "subjects": [{"uri": "l3"}]}])
    assert answer.status_code == 204 and not answer.content
    assert model.learnt == [("abcde", ["l1", "l2"]), ("b", ["l3"])]
    with pytest.raises(ValueError, match="Project 'other' not found"):
      client.learn("other", [document])


@pytest.mark.parametrize(
  ("body", "words"),
  [
    ([{"text": "a", "subjects": [{"uri": "nix"}]}], "labels that the run lacks: 1, such as 'nix'"),
    ([{"text": "a", "subjects": [{"uri": "l1"}]}] * 4, "at most 3 documents"),
    ([{"text": "a"}], "[0].subjects is wrong: field required"),
    ([{"text": "a", "subjects": [{"label": "l1"}]}], "[0].subjects[0].uri is wrong"),
    ({"text": "a", "subjects": []}, "the body must be a JSON list, such as [{"),
  ],
)
def test_documents_that_are_not_learnt(body, words):
  model = Library()
  limits = serve.Limits(max_texts=3)
  with TestClient(serve.app(model, name="tags", limits=limits, learn_token=TOKEN)) as client:
    answer = client.post("/v1/projects/tags/learn", json=body, headers=BEARER)
  assert answer.status_code == 422 and words in answer.json()["error"]
  assert not model.learnt
