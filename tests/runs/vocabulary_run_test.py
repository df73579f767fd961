"""A run on a vocabulary shows names, calls labels by URI, and reads more than it shows."""

import json

import pytest
import tiny_runs

import xmc_jax
from xmc_jax import export
from xmc_jax.errors import UserError
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.runs.predict import predict_command

URIS = [f"http://a/{number}" for number in range(12)]
WORDS = ["barn", "kelt", "loma", "mive", "nuxo", "pody", "rack", "suth", "bage", "keva", "lomi", "susa"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """Returns a run on labels such as `BARN barn`, of which `BARN` is shown."""
  place = tmp_path_factory.mktemp("vocabulary")
  (place / "data").mkdir()
  concepts = [f"{uri},{word.upper()},{word},{word[0]}7\n" for uri, word in zip(URIS, WORDS)]
  (place / "data" / "vocabulary.csv").write_text("".join(["uri,label_fi,label_sv,notation\n", *concepts]))
  rows = [f"{WORDS[at % 12]} {WORDS[at % 7]} {at}\t<{URIS[at % 12]}> <{URIS[at % 7]}>\n" for at in range(72)]
  (place / "data" / "train.tsv").write_text("".join(rows[:60]))
  (place / "data" / "test.tsv").write_text("".join(rows[60:]))
  options = {
    "data.language": "fi+sv",
    "data.num_validation": 10,
    "train.num_epochs": 1,
    "train.batch_size": 16,
  }
  xmc_jax.train(tiny_runs.config(place / "data", **options), place / "run")
  return place / "run"


@pytest.fixture(scope="module")
def model(workdir):
  return xmc_jax.Model.load(workdir)


def test_names_are_shown_and_keys_are_uris(model, workdir, tmp_path):
  assert list(model.labels) == [word.upper() for word in WORDS] and list(model.keys) == URIS
  assert list(model._run.dataset.labels.texts) == [f"{word.upper()} {word}" for word in WORDS]
  (tmp_path / "texts.txt").write_text("barn kelt\n")
  predict_command(workdir, str(tmp_path / "texts.txt"), str(tmp_path / "out.jsonl"), LabelRequest(12))
  labels = json.loads((tmp_path / "out.jsonl").read_text())["labels"]
  shown = {(uri, word.upper(), f"{word[0]}7") for uri, word in zip(URIS, WORDS)}
  assert {(one["key"], one["text"], one["notation"]) for one in labels} == shown
  assert model.predict(["barn"], 2)[2][0][0] in model.labels


def test_names_are_shown_in_the_language_asked_for(model, workdir, tmp_path):
  assert (model.language, model.languages) == ("fi", ["fi", "sv"])
  (ids,), _, (names,), reasons = model.predict(["barn kelt"], 3, explain=True, language="sv")
  assert names == [WORDS[label] for label in ids] and len(reasons[0]) == 3
  (tmp_path / "texts.txt").write_text("barn kelt\n")
  asked = LabelRequest(3, language="sv")
  predict_command(workdir, str(tmp_path / "texts.txt"), str(tmp_path / "out.jsonl"), asked)
  assert [one["text"] for one in json.loads((tmp_path / "out.jsonl").read_text())["labels"]] == names
  with pytest.raises(UserError, match="language = 'de': labels have names in fi, sv"):
    model.predict(["barn"], 3, language="de")


def test_added_labels_keep_the_names_of_the_others(workdir):
  model = xmc_jax.Model.load(
    workdir, scores="hybrid", add_labels={"http://a/new": "zorn", URIS[0]: "x", "y": "KELT"}
  )
  assert list(model.labels)[-2:] == ["SUSA", "zorn"] and model.keys[-1] == "http://a/new"
  assert model.dataset.concept(11)["names"] == {"fi": "SUSA", "sv": "susa"}
  assert model.dataset.concept(12) == {}
  ids = model.predict(["barn"], 13, include=["http://a/new", URIS[3]])[0][0]
  assert sorted(ids[ids >= 0].tolist()) == [3, 12]


def test_an_export_shows_names_and_reads_texts(workdir, tmp_path):
  export.export(workdir, str(tmp_path / "export"))
  lines = (tmp_path / "export" / "index" / "labels.jsonl").read_text().splitlines()
  first = {"id": 0, "key": URIS[0], "text": "BARN", "encoder_text": "BARN barn", "notation": "b7"}
  assert json.loads(lines[0]) == first
  exported = export.Exported.load(tmp_path / "export")
  ids = exported.add_labels(["zorn", "KELT"])
  assert ids.tolist() == [12, 1]  # KELT is known by its name
  again = export.Exported.load(tmp_path / "export")
  assert list(again.labels) == [*map(str.upper, WORDS), "zorn"] and again._texts[0] == "BARN barn"
