"""Data sets of BEIR: `corpus.jsonl` (the labels), `queries.jsonl` and `qrels/{train,test}.tsv`.

Queries, the keys of documents and the pairs of one split are in memory.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from xmc_jax.data.formats.json_records import joined_text, objects
from xmc_jax.data.formats.lines import CHUNK_ROWS, find, need
from xmc_jax.data.formats.source import KeyedTexts, Options, Pairs, Place, Rows
from xmc_jax.data.formats.table_files import records

LOOKS_FOR = "corpus.jsonl, queries.jsonl, qrels/train.tsv"
_COLUMNS = ("query-id", "corpus-id", "score")


def recognise(folder: Path, options: Options, notices: list[str]) -> dict | None:
  """Returns the `Source` fields of this layout, or None if the folder does not have its files."""
  corpus, queries = find(folder, "corpus.jsonl"), find(folder, "queries.jsonl")
  if corpus is None or queries is None:
    return None
  train = need(folder / "qrels", "train.tsv", beside=corpus)
  test = find(folder / "qrels", "test.tsv")
  keys: dict[str, int] = {}

  def labels() -> Iterator[KeyedTexts]:
    names = tuple((options.label_text or "title+text").split("+"))
    for place, rows in objects(corpus, notices, options):
      for at, row in enumerate(rows):
        if (key := str(row.get("_id"))) in keys:
          raise place.refuse(at, "an _id that no other document has", key)
        keys[key] = len(keys)
      texts = [joined_text({"title": None, **row}, names, place, at) for at, row in enumerate(rows)]
      yield KeyedTexts(texts, [str(row.get("_id")) for row in rows])

  def points(judgements: Path | None, num_labels: int) -> Iterator[Rows]:
    return _points(queries, judgements, keys, options, notices) if judgements else iter(())

  return {
    "files": (corpus, queries, train, *([test] if test else [])),
    "labels_file": corpus,
    "labels": labels,
    "splits": {"train": partial(points, train), "test": partial(points, test)},
  }


def _points(
  queries: Path, judgements: Path, keys: dict[str, int], options: Options, notices: list[str]
) -> Iterator[Rows]:
  """Yields the queries that have judgements, in the order of these."""
  judged: dict[str, list[tuple[int, float, int]]] = {}  # the label, its relevance, the line
  for place, rows in records(judgements, _COLUMNS, notices, options._replace(text="")):
    for at, row in enumerate(rows):
      query, key, score = (str(row.get(name)) for name in _COLUMNS)
      if key not in keys:
        raise place.refuse(
          at, "a line of query-id, corpus-id and score, whose corpus-id is in the corpus", key
        )
      if not score.replace(".", "", 1).isdecimal():
        raise place.refuse(at, "a score that is a number, at least 0", score)
      judged.setdefault(query, []).append((keys[key], float(score), place.numbers[at]))
  texts: dict[str, str] = {}
  for place, rows in objects(queries, notices, options):
    for at, row in enumerate(rows):
      if (query := str(row.get("_id"))) in judged:
        texts[query] = joined_text(row, ("text",), place, at)
  items = iter(judged.items())
  while chunk := list(islice(items, CHUNK_ROWS)):
    place = Place(judgements, [pairs[0][2] for _, pairs in chunk])
    for at, (query, _) in enumerate(chunk):
      if query not in texts:
        raise place.refuse(at, f"a query of {queries.name}", query)
    ids = [[label for label, *_ in pairs] for _, pairs in chunk]
    values = [[relevance for _, relevance, _ in pairs] for _, pairs in chunk]
    yield Rows([texts[query] for query, _ in chunk], Pairs.of_lists(ids, values, place))
