"""The concepts of a vocabulary, and which of their names a language means."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Of = TypeVar("Of")


class Concept(NamedTuple):
  """Holds one concept; languages are lower-case tags such as 'fi', '' for a name without one."""

  uri: str
  names: Mapping[str, str]  # the preferred name, by language
  alternative: Mapping[str, Sequence[str]] = {}
  hidden: Mapping[str, Sequence[str]] = {}
  notation: str = ""
  broader: Sequence[str] = ()  # URIs
  schemes: Sequence[str] = ()  # URIs
  deprecated: bool = False

  def cell_names(self) -> tuple[str, ...]:
    """Returns what a cell of a table may call the concept besides its URI."""
    return tuple(dict.fromkeys(filter(None, (*self.names.values(), self.notation))))


def languages(concepts: Iterable[Concept]) -> Counter[str]:
  """Returns how many concepts have a name in each language."""
  return Counter(language for concept in concepts for language in concept.names)


def in_language(by_language: Mapping[str, Of], language: str) -> Of | None:
  """Returns what is in a language: 'en' means also 'en-gb'; names without a language are in any."""
  near = (tag for tag in by_language if tag.partition("-")[0] == language)
  return by_language.get(language) or by_language.get(next(near, ""))
