"""Vocabularies as labels: SKOS, Annif's TSV and CSV, languages, hierarchies, what is refused."""

import json
import sys

import pytest
import rdflib
import sample_folders as samples
from sample_folders import refused, write

from tests.data.data_layouts_test import rows_of
from xmc_jax import data
from xmc_jax.errors import ConfigError, DataError, UserError

PREFIXES = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> . @prefix : <http://a/> .
"""
SKOS = (
  PREFIXES
  + """
:scheme a skos:ConceptScheme ; skos:prefLabel "Eläimet"@fi .
:a a skos:Concept ; skos:prefLabel "Eläin"@fi, "Djur"@sv, "Animals"@en-GB ;
  skos:notation "59" ; skos:narrower :d .
:old a skos:Concept ; owl:deprecated true ; skos:prefLabel "Hurtta"@fi .
:older owl:deprecated true ; rdfs:label "Rakki"@fi ; skos:inScheme :scheme .
:none a skos:Concept ; skos:altLabel "nimetön"@fi .
:c a skos:Concept ; skos:prefLabel "Katt"@sv ; skos:broader :none, :d .
:d a skos:Concept ; skos:prefLabel "Koira"@fi, "Hund"@sv ; skos:altLabel "Hauva"@fi, "Piski"@fi, "Vovve"@sv ;
  skos:hiddenLabel "Koria"@fi ; skos:inScheme :scheme .
"""
)
A, OLD, OLDER, C, D = (f"http://a/{name}" for name in ("a", "old", "older", "c", "d"))
ROWS = f"karvainen koira\t<{D}> <{A}>\nvanha\tsana\t<{OLDER}>\nei mitään\t\n"


@pytest.fixture
def folder(tmp_path):
  write(tmp_path / "vocabulary.ttl", SKOS)
  write(tmp_path / "train.tsv", ROWS)
  return tmp_path


def load(path, **options):
  return data.load(path, **{"test_fraction": 0, **options})


def notes(dataset, about="vocabulary.ttl"):
  return [note for note in dataset.manifest["notices"] if note.startswith(about)]


@pytest.mark.parametrize("file", ["v.ttl", "v.ttl.gz", "v.rdf", "v.nt", "v.jsonld"])
def test_every_format_gives_the_same_labels(file, tmp_path):
  """A deprecated concept is a label only where a row has it; one without a name never is."""
  write(tmp_path / "train.tsv", ROWS)
  names = {"rdf": "xml", "nt": "nt", "jsonld": "json-ld"}
  kind = names.get(file.split(".")[1])
  text = rdflib.Graph().parse(data=SKOS, format="turtle").serialize(format=kind) if kind else SKOS
  write(tmp_path / file, text)
  found = load(tmp_path, language="fi")
  shown = dict(zip(found.label_keys, found.label_names))
  assert shown == {A: "Eläin", OLDER: "Rakki", C: "Katt", D: "Koira"}
  assert list(found.labels.texts) == list(found.label_names)
  labels = [{found.label_keys[label] for label in row} for row in rows_of(found.train.truth)]
  assert labels == [{A, D}, {OLDER}, set()]
  assert list(found.train.texts) == ["karvainen koira", "vanha\tsana", "ei mitään"]
  concept = next(one for one in map(json.loads, found.label_concepts) if one["uri"] == D)
  assert concept["names"] == {"fi": "Koira", "sv": "Hund"} and concept["broader"] == [A]
  assert sorted(concept["alternative"]["fi"]) == ["Hauva", "Piski"] and concept["hidden"] == {"fi": ["Koria"]}
  assert concept["schemes"] == ["http://a/scheme"] and concept["deprecated"] is False


def test_labels_are_in_the_order_of_the_file_and_notes_say_what_was_read(folder):
  found = load(folder, language="fi")
  assert list(found.label_keys) == [A, OLDER, C, D]
  assert notes(found) == [
    "vocabulary.ttl: 6 concepts, 1 without a name left out; names in fi (4), sv (3), en-gb (1): fi is read",
    "vocabulary.ttl: concepts without a name in fi have that of another language: 1, such as 'Katt'",
    "vocabulary.ttl: deprecated concepts that no row has are no labels: 1 of 2",
  ]
  (of_rows,) = notes(found, "train.tsv")
  assert (
    of_rows == "train.tsv: a text and its labels a line, such as 'Eläin', 'Rakki', 'Katt' in vocabulary.ttl"
  )


def test_languages_join_names_and_the_first_is_shown(folder):
  assert "fi is read, as texts look like it; --config.data.language " in notes(load(folder))[0]
  both = load(folder, language="sv+fi")
  assert list(both.label_names) == ["Djur", "Rakki", "Katt", "Hund"]
  assert list(both.labels.texts) == ["Djur Eläin", "Rakki", "Katt", "Hund Koira"]
  more = load(folder, language="fi", alternative_names=True)
  assert list(more.labels.texts)[-1] == "Koira Hauva Piski" and list(more.label_names)[-1] == "Koira"
  assert load(folder, language="en").label_names[0] == "Animals"  # of en-GB
  has = "languages that it has: fi (4), sv (3), en-gb (1)"
  said = "vocabulary.ttl: expected names in 'de', as --config.data.language=fi+de"
  refused(folder, said, has, language="fi+de")


def test_names_are_in_the_language_of_the_texts_and_not_that_of_most_concepts(tmp_path):
  names = [("koirat", "hundar"), ("kissat", "katter"), ("", "fåglar"), ("", "hästar")]
  rows = [f"http://a/{at},{fi},{sv}" for at, (fi, sv) in enumerate(names)]
  write(tmp_path / "v.csv", "\n".join(["uri,label_fi,label_sv", *rows]))
  write(tmp_path / "a-train.tsv", "Koirat ja kissat kotona\t<http://a/0>\nkoirien elämää\t<http://a/1>\n")
  assert list(load(tmp_path).label_names) == ["koirat", "kissat", "fåglar", "hästar"]
  write(tmp_path / "a-train.tsv", "Hundar och katter hemma\t<http://a/0>\nhundens liv\t<http://a/1>\n")
  assert load(tmp_path).label_names[0] == "hundar"


def test_broader_concepts_come_before_a_label(folder):
  found = load(folder, language="fi", label_parent="broader")
  assert list(found.labels.texts) == ["Eläin", "Rakki", "Eläin > Koira > Katt", "Eläin > Koira"]
  assert list(found.label_names) == ["Eläin", "Rakki", "Katt", "Koira"]
  write(folder / "vocabulary.ttl", f"{SKOS}\n:a skos:broader :c .")  # a > d > c > a
  cut = load(folder, language="fi", label_parent="broader")
  texts = dict(zip(cut.label_names, cut.labels.texts))
  assert max(text.count(" > ") for text in texts.values()) == 2 and len(set(texts.values())) == 4
  (note,) = [note for note in notes(cut) if "broader than themselves" in note]
  assert ": 1, such as 'http://a/" in note


CSV = "uri,notation,label_fi,label_en\nhttp://a/1,59,Eläin,Animal\nhttp://a/2,59.1,Koira,\nhttp://a/3,,,\n"
TSV = "<http://a/1>\tEläin\n\n<http://a/2>\tKoira\t59.1\n<http://a/3>\t\n"


@pytest.mark.parametrize(("file", "text"), [("v.csv", CSV), ("v.tsv", TSV), ("v.tsv.gz", TSV)])
def test_annifs_vocabularies_need_no_rdflib(file, text, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "rdflib", None)  # import raises
  write(tmp_path / file, text)
  write(tmp_path / "a-train.tsv", "x\t<http://a/2>\n")
  found = load(tmp_path)
  assert list(zip(found.label_keys, found.label_names)) == [("http://a/1", "Eläin"), ("http://a/2", "Koira")]
  assert json.loads(found.label_concepts[1])["notation"] == "59.1"
  assert notes(found, file)[0].startswith(f"{file}: 3 concepts, 1 without a name left out")


def test_cells_of_a_table_hold_uris_or_names_in_any_language(folder):
  (folder / "train.tsv").unlink()
  rows = [f"x,{D} {A}", f"y,<{D}>"]
  write(folder / "uris.csv", "\n".join(["text,subject_uris", *rows]))
  options = {"vocabulary": "vocabulary.ttl", "language": "fi"}
  found = load(folder / "uris.csv", **options)
  assert [[found.label_names[label] for label in row] for row in rows_of(found.train.truth)] == [
    ["Eläin", "Koira"],
    ["Koira"],
  ]
  write(folder / "names.csv", "text,labels\nx,Hund|Animals\ny,Katt|59\nz,Koira")
  found = load(folder / "names.csv", **options)
  assert [[found.label_keys[label] for label in row] for row in rows_of(found.train.truth)] == [
    [A, D],
    [A, C],
    [D],
  ]


def test_few_unknown_uris_are_left_out_and_many_refused(folder):
  known = f"x\t<{D}>\n" * 20
  write(folder / "train.tsv", f"{known}y\t<http://a/n> <{A}>\n")
  options = {"language": "fi", "merge_texts": False}
  found = load(folder, **options)
  assert "vocabulary.ttl: unknown labels: 1, such as 'http://a/n'; uses: 1; left out" in notes(found)
  assert found.train.truth.nnz == 21
  kept = load(folder, unknown_labels="keep", **options)
  uri = json.loads(kept.label_concepts[-1])["uri"]
  assert kept.label_keys[-1] == kept.label_names[-1] == uri == "http://a/n"
  assert kept.train.truth.nnz == 22
  write(folder / "train.tsv", f"x\t<{D}>\ny\t<http://a/n>\n")
  refused(
    folder, "line 2: expected a label of vocabulary.ttl, found 'http://a/n'", "--config.data.unknown_labels="
  )


V = {"vocabulary": "v.tsv"}
MANY = "".join(f"<{at}>\tx\n" for at in range(100))


@pytest.mark.parametrize(
  ("file", "text", "options", "said"),
  [
    (
      "b.nt",
      "",
      {},
      "several vocabularies, b.nt, vocabulary.ttl; take one with --config.data.vocabulary=",
    ),
    ("", "", {"vocabulary": "x.ttl"}, "x.ttl: no such file (--config.data.vocabulary=x.ttl)"),
    ("", "", {"vocabulary": "train.tsv"}, "train.tsv: expected a vocabulary: .ttl, .rdf, .nt, "),
    ("", "", {"label_text": "x"}, "vocabulary.ttl: has no columns for --config.data.label_text=x"),
    ("", "", {"label_parent": "up"}, "vocabulary.ttl: expected --config.data.label_parent=broader, or none"),
    ("vocabulary.ttl", f"{SKOS}\n:x :y", {}, "vocabulary.ttl: expected Turtle (it ends within a statement)"),
    ("vocabulary.ttl", f"{SKOS}\n:x :y .", {}, "vocabulary.ttl, line 15: expected Turtle (Bad syntax"),
    ("vocabulary.ttl", PREFIXES, {}, "vocabulary.ttl: expected SKOS, found no skos:Concept"),
    ("v.rdf", "<a>\n<b", {"vocabulary": "v.rdf"}, "v.rdf, line 2: expected RDF/XML ("),
    ("v.nt", SKOS, {"vocabulary": "v.nt"}, "v.nt: expected N-Triples ("),
    ("v.jsonld", "{", {"vocabulary": "v.jsonld"}, "v.jsonld: expected JSON-LD ("),
    ("v.jsonld", '[{"@context": ["http://x/c"]}]', {"vocabulary": "v.jsonld"}, "is a link: 'http://x/c'"),
    ("v.tsv", "<a>\tx\n<a>\ty\n", V, "v.tsv, line 2: expected another URI on each line, found 'a'"),
    (
      "v.tsv",
      f"{MANY}b\n",
      V,
      "v.tsv, line 101: expected a URI in angle brackets, a tab and a name",
    ),
    ("v.tsv", "<a>\tx\n", {**V, "label_parent": "broader"}, "v.tsv: has nothing for --config.data.label_par"),
    ("v.csv", "uri,label_fi\na,x\na,y\n", {"vocabulary": "v.csv"}, "v.csv, line 3: expected another URI "),
  ],
)
def test_what_is_refused(file, text, options, said, folder):
  if file:
    write(folder / file, text)
  refused(folder, said, **options)


def test_settings_of_vocabularies_need_one(folder):
  (folder / "vocabulary.ttl").unlink()
  refused(
    folder, "--config.data.language=fi is for tables with a vocabulary, and there is none", language="fi"
  )
  both = {"vocabulary": "a.ttl", "label_file": "b.csv"}
  refused(
    folder, "--config.data.vocabulary=a.ttl and --config.data.label_file=b.csv: ", error=ConfigError, **both
  )


def test_skos_without_rdflib(folder, monkeypatch):
  monkeypatch.setitem(sys.modules, "rdflib", None)  # import raises
  with pytest.raises(UserError, match=r'ttl: Turtle needs rdflib .*pip install "xmc_jax\[skos\]"$') as caught:
    load(folder)
  assert not isinstance(caught.value, DataError)


def test_a_label_file_comes_before_a_vocabulary(folder):
  samples.write(folder / "labels.csv", f"uri,title\n{A},x\n{D},y\n{OLDER},z\n")
  assert list(load(folder).labels.texts) == ["x", "y", "z"]


def test_a_table_takes_no_vocabulary_that_it_was_not_given(tmp_path):
  """What lies beside may be anything; a table may look like a vocabulary."""
  write(tmp_path / "meta.ttl", PREFIXES + ":x rdfs:label 'dogs'@en .")
  write(tmp_path / "train.csv", "uri,text,label_sport,label_music\n1,a match,1,0\n2,a song,0,1\n")
  found = load(tmp_path, label_column="label_sport+label_music")
  assert list(found.label_names) == ["label_sport", "label_music"] and found.label_concepts is None
