"""Turns the concepts of a vocabulary into labels: a text to read, a name to show, a URI as key."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from xmc_jax.data.formats.ancestors import with_ancestors
from xmc_jax.data.formats.source import LabelTable, Options, Place, excerpt
from xmc_jax.data.vocabulary import files
from xmc_jax.data.vocabulary.concepts import Concept, in_language, languages
from xmc_jax.errors import DataError

_SAMPLE, _START = 5000, 500  # concepts, and characters of a text, that tell a language
BROADER = "broader"
"""Is the value of `data.label_parent` that puts the names of broader concepts before a label."""


def read(path: Path, options: Options, notices: list[str], texts: Sequence[str] = ()) -> LabelTable:
  """Returns the concepts that have a name as labels, in the order of the file; deprecated ones, too.

  Without `options.language`, names are in the language that looks most like that of some `texts`.

  Raises:
    UserError: rdflib is needed, and not installed.
    DataError: the file is damaged, no concept has a name in a language, or a setting cannot apply.
  """
  concepts = files.read(path, options, notices)
  named = [concept for concept in concepts if concept.names]
  if not named:
    raise DataError(f"{path}: expected at least one concept with a name, found none")
  _refuse_settings(path, named, options)
  wanted = _languages(path, named, options) or [_language_of(texts, named)]
  found = [[name for tag in wanted if (name := in_language(one.names, tag))] for one in named]
  others = [at for at, names in enumerate(found) if not names]
  names = [own[0] if own else next(iter(one.names.values())) for own, one in zip(found, named)]
  read_as = [" ".join(dict.fromkeys([name, *own])) for name, own in zip(names, found)]
  if options.alternative_names:
    read_as = [_with_alternatives(text, one, wanted) for text, one in zip(read_as, named)]
  notices.append(_languages_read(path, concepts, named, wanted, options))
  if others:
    such = f"{len(others):,}, such as {excerpt(names[others[0]])}"
    elsewhere = f"concepts without a name in {'+'.join(wanted)} have that of another language"
    notices.append(f"{path.name}: {elsewhere}: {such}")
  if options.label_parent:
    parents = _parents(path, named, notices)
    place = Place(path, range(1, len(named) + 1), "concept")
    read_as = with_ancestors(read_as, names, [one.uri for one in named], parents, place)
  return LabelTable(read_as, [one.uri for one in named], "uri", names, named)


def _refuse_settings(path: Path, concepts: Sequence[Concept], options: Options) -> None:
  if options.label_text:
    instead = "data.language and data.alternative_names choose the names of a vocabulary"
    raise DataError(f"{path}: has no columns for --config.data.label_text={options.label_text}; {instead}")
  if options.label_parent not in ("", BROADER):
    expected = f"--config.data.label_parent={BROADER}, or none"
    raise DataError(f"{path}: expected {expected}, of a vocabulary, found {excerpt(options.label_parent)}")
  for setting, has_any in (
    (f"label_parent={BROADER}", any(one.broader for one in concepts)),
    ("alternative_names=True", any(one.alternative for one in concepts)),
  ):
    key = setting.partition("=")[0]
    if getattr(options, key) and not has_any:
      raise DataError(f"{path}: has nothing for --config.data.{setting}; leave it out")


def _languages(path: Path, concepts: Sequence[Concept], options: Options) -> list[str]:
  """Returns the languages of the options, which some concept must have."""
  have = languages(concepts)
  wanted = [language.strip().lower() for language in options.language.split("+") if language.strip()]
  for language in wanted:
    if [*have] != [""] and in_language({tag: tag or " " for tag in have if tag}, language) is None:
      tags = ", ".join(f"{tag or 'none'} ({num:,})" for tag, num in have.most_common())
      expected = f"names in {excerpt(language)}, as --config.data.language={options.language}"
      raise DataError(f"{path}: expected {expected}; languages that it has: {tags}")
  return wanted


def _language_of(texts: Sequence[str], concepts: Sequence[Concept]) -> str:
  """Returns the language whose names have letters as texts do; without texts, that of most concepts."""
  have = languages(concepts)
  of_texts = _triples(texts)

  def likeness(language: str) -> float:
    names = [
      one.names[language] for one in concepts[:: 1 + len(concepts) // _SAMPLE] if language in one.names
    ]
    of_names = _triples(names)
    length = math.sqrt(sum(count**2 for count in of_names.values())) or 1.0
    return sum(count * of_texts[triple] for triple, count in of_names.items()) / length

  return max(have, key=lambda language: (likeness(language), have[language]))


def _triples(texts: Sequence[str]) -> Counter[str]:
  """Counts three letters in a row in the beginnings of texts, word boundaries included."""
  words = (f" {' '.join(text[:_START].lower().split())} " for text in texts)
  return Counter(text[at : at + 3] for text in words for at in range(len(text) - 2))


def _languages_read(
  path: Path, concepts: Sequence[Concept], named: Sequence[Concept], wanted: list[str], options: Options
) -> str:
  """Returns a notice on the size of a vocabulary, its languages and which are read."""
  have = languages(named)
  tags = ", ".join(f"{tag} ({num:,})" for tag, num in have.most_common() if tag)
  most = ", as texts look like it; --config.data.language sets another" if not options.language else ""
  names = f"; names in {tags}: {'+'.join(wanted)} is read{most}" if tags else ""
  nameless = f", {len(concepts) - len(named):,} without a name left out" if len(named) < len(concepts) else ""
  return f"{path.name}: {len(concepts):,} concepts{nameless}{names}"


def _with_alternatives(text: str, concept: Concept, wanted: Sequence[str]) -> str:
  more = chain.from_iterable(in_language(concept.alternative, tag) or () for tag in wanted)
  return " ".join([text, *(name for name in dict.fromkeys(more) if name != text)])


def _parents(path: Path, concepts: Sequence[Concept], notices: list[str]) -> list[int]:
  """Returns the number of each concept's first broader one, -1 if none; cuts cycles, with a notice."""
  ids = {concept.uri: at for at, concept in enumerate(concepts)}
  parents = [next((ids[uri] for uri in one.broader if uri in ids), -1) for one in concepts]
  is_done, cut = [False] * len(concepts), []
  for start in range(len(concepts)):
    above: dict[int, None] = {}
    at = start
    while at >= 0 and not is_done[at] and at not in above:
      above[at] = None
      at = parents[at]
    if at in above:
      cut.append(last := next(reversed(above)))
      parents[last] = -1
    for at in above:
      is_done[at] = True
  if cut:
    such = f"{len(cut):,}, such as {excerpt(concepts[cut[0]].uri)}"
    notices.append(f"{path.name}: concepts that are broader than themselves begin without a parent: {such}")
  return parents
