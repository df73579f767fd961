"""Reads SKOS from Turtle, RDF/XML, N-Triples and JSON-LD."""

import json
import logging
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xmc_jax.data.formats.lines import open_bytes, reading
from xmc_jax.data.formats.source import excerpt, one_line
from xmc_jax.data.formats.table_files import suffix
from xmc_jax.data.vocabulary.concepts import Concept
from xmc_jax.errors import DataError, UserError

FORMATS = {
  ".ttl": ("turtle", "Turtle"),
  ".rdf": ("xml", "RDF/XML"),
  ".nt": ("nt", "N-Triples"),
  ".jsonld": ("json-ld", "JSON-LD"),
}
"""Names the format of a file by its suffix: as rdflib calls it, and as a message does."""
_SKOS, _OWL = "http://www.w3.org/2004/02/skos/core#", "http://www.w3.org/2002/07/owl#"
_RDF, _RDFS = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://www.w3.org/2000/01/rdf-schema#"
_OF_SKOS = ("prefLabel", "altLabel", "hiddenLabel", "notation", "broader", "narrower", "inScheme")
_READ = {
  **{_SKOS + name: name for name in _OF_SKOS},
  _RDF + "type": "type",
  _RDFS + "label": "label",
  _OWL + "deprecated": "deprecated",
}
_ITS_PLACE = re.compile(r"^(at line \d+ of <>|<unknown>:\d+:\d+): ")  # in messages of rdflib and expat
_Facts = Mapping[str, list[Any]]  # the values of a subject's properties, as rdflib's terms


def read(path: Path) -> list[Concept]:
  """Returns the concepts of a SKOS file, in its order; deprecated ones need not be a `skos:Concept`.

  Raises:
    UserError: rdflib is not installed.
    DataError: the file is not in the format of its name, or has no concept.
  """
  facts: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
  broader: dict[str, list[str]] = defaultdict(list)

  def collect(subject: Any, predicate: Any, value: Any) -> None:
    name = _READ.get(str(predicate))
    if name == "narrower":
      broader[str(value)].append(str(subject))
    elif name:
      facts[str(subject)][name].append(value)

  _parse(path, collect)
  concepts = [
    _concept(uri, of_subject, broader[uri]) for uri, of_subject in facts.items() if _is_concept(of_subject)
  ]
  if not concepts:
    raise DataError(f"{path}: expected SKOS, found no skos:Concept")
  return concepts


def _parse(path: Path, collect: Callable[[Any, Any, Any], None]) -> None:
  """Passes each triple of a file on; rdflib's own store would take as long as parsing."""
  name, shown = FORMATS[suffix(path)]
  try:
    import rdflib
    import rdflib.store
  except ImportError as error:
    raise UserError(f'{path}: {shown} needs rdflib ({error}): pip install "xmc_jax[skos]"') from None

  class Sink(rdflib.store.Store):
    context_aware = True  # as JSON-LD's parser asks

    def add(self, triple: Any, context: Any, quoted: bool = False) -> None:
      if not isinstance(triple[0], rdflib.BNode):  # which has no URI
        collect(*triple)

    def bind(self, *_: Any, **__: Any) -> None:
      """Leaves prefixes out."""

    prefix = namespace = bind

    def namespaces(self) -> Iterator[Any]:
      return iter(())

  logging.getLogger("rdflib").setLevel(logging.CRITICAL)  # it warns of URIs with a space, and of odd dates
  with reading(path), open_bytes(path) as file:
    content = file.read()
  try:
    if name == "json-ld":
      json.loads(content, object_hook=_refuse_links)
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # rdflib's own, of what it will rename
      rdflib.Graph(store=Sink(), bind_namespaces="none").parse(data=content, format=name)
  except Exception as error:  # each parser has its own
    line = getattr(error, "lines", None)  # of Turtle, from 0
    line = error.getLineNumber() if hasattr(error, "getLineNumber") else line and line + 1
    where = f"{path}, line {line}" if line else f"{path}"
    reason = "it ends within a statement" if isinstance(error, IndexError) else one_line(error)
    raise DataError(f"{where}: expected {shown} ({_ITS_PLACE.sub('', reason)})") from None


def _refuse_links(record: dict) -> dict:
  """Refuses a JSON-LD context that is elsewhere: rdflib would ask the network for it."""
  context = record.get("@context")
  for one in (*(context if isinstance(context, list) else [context]), record.get("@import")):
    if isinstance(one, str):
      raise ValueError(f"its context must be in the file, and is a link: {excerpt(one)}")
  return record


def _is_concept(facts: _Facts) -> bool:
  is_typed = any(str(kind) == _SKOS + "Concept" for kind in facts.get("type", ()))
  return is_typed or (_is_deprecated(facts) and "inScheme" in facts)  # such as STW's old descriptors


def _is_deprecated(facts: _Facts) -> bool:
  return any(str(value).lower() in ("true", "1") for value in facts.get("deprecated", ()))


def _concept(uri: str, facts: _Facts, broader: list[str]) -> Concept:
  names = _by_language([*facts.get("prefLabel", ()), *facts.get("label", ())])
  return Concept(
    uri,
    {language: texts[0] for language, texts in names.items()},
    _by_language(facts.get("altLabel", ())),
    _by_language(facts.get("hiddenLabel", ())),
    next(map(str, facts.get("notation", ())), ""),
    list(dict.fromkeys([*map(str, facts.get("broader", ())), *broader])),
    list(map(str, facts.get("inScheme", ()))),
    _is_deprecated(facts),
  )


def _by_language(literals: Iterable[Any]) -> dict[str, list[str]]:
  texts: dict[str, list[str]] = defaultdict(list)
  for literal in literals:
    if text := " ".join(str(literal).split()):
      texts[(getattr(literal, "language", None) or "").lower()].append(text)
  return dict(texts)
