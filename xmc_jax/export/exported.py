"""Opens an exported run: predicts without the run's folder, and accepts new labels by their texts."""

import functools
import json
import pathlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from xmc_jax import data
from xmc_jax.console import say
from xmc_jax.data.tokens import Encoder
from xmc_jax.distributed import sharding
from xmc_jax.errors import DataError, UserError
from xmc_jax.export import label_files, memory_files
from xmc_jax.export.programs import Programs
from xmc_jax.retrieval import Index, embed_table, texts_at_a_time
from xmc_jax.retrieval.combined import CombinedRetriever
from xmc_jax.retrieval.hybrid import HybridRanker
from xmc_jax.retrieval.hybrid_model import HybridModel
from xmc_jax.retrieval.search import Ranking
from xmc_jax.retrieval.sources import Corpus, Queries, Retriever
from xmc_jax.runs.best_labels import best_labels, check_k, check_texts, reasons
from xmc_jax.storage import path_safety, whole_folder

FORMAT, VERSION, MARKER = "xmc_jax export", 3, "export.json"
SENTENCE, PROGRAMS, INDEX, MEMORY = "sentence_transformers", "stablehlo", "index", "memory"
MEMBERS = "members"  # combined runs alone
HYBRID = "hybrid"  # value of `ranks_by` in export.json if all sources rank together
POINTS, LABELS = "embed_points", "embed_labels"  # functions in `PROGRAMS`
_BATCH_SIZE = 256


def read_facts(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the content of export.json; {} if the folder holds no complete export."""
  try:
    facts = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    return facts if facts["format"] == FORMAT else {}
  except (OSError, ValueError, KeyError, TypeError):
    return {}


class Exported:
  """Predicts labels from what `export` wrote.

  Labels are ranked exactly, by all sources or by inner products: see `ranks_by` in export.json. Embeddings
  come from the StableHLO functions, so the method's code is not used.

  Example:
    >>> exported = xmc_jax.export.Exported.load("runs/dexml-debian/export")
    >>> exported.add_labels(["zathura: document viewer"])
    >>> ids, scores, texts = exported.predict(["a viewer for PDF files"], k=3)
  """

  def __init__(self, folder: pathlib.Path, facts: dict, programs: Programs):
    self._folder, self._facts, self._programs = folder, facts, programs
    tokenizer = data.load_tokenizer(folder / PROGRAMS)
    self._tokens = Encoder(tokenizer, facts["max_length"])
    self._memory: Corpus | None = None
    self._reread()
    if facts["ranks_by"] == HYBRID:
      self._memory, self._model = memory_files.read(folder / MEMORY, len(self._vectors), facts["scorers"])

  @classmethod
  def load(cls, folder: str | pathlib.Path) -> "Exported":
    """Opens an exported folder.

    Raises:
      UserError: the folder holds no export, or the export is damaged.
    """
    folder = whole_folder.current(pathlib.Path(folder).expanduser())
    facts = read_facts(folder)
    if not facts:
      raise UserError(f"{folder} is no exported run; --mode=export --workdir=RUN makes one")
    if facts["version"] != VERSION:
      version = f"expected format version {VERSION}, found {facts['version']}"
      raise DataError(f"{folder / MARKER}: {version}; export again")
    if facts.get("members"):
      return Combination(folder, facts)
    return cls(folder, facts, Programs(folder / PROGRAMS))

  @property
  def labels(self) -> Sequence[str]:
    """Returns what is shown of the L labels, their names or texts; a label's id is its position."""
    return self._names

  @property
  def keys(self) -> Sequence[str]:
    """Returns the keys of the L labels, by id: the user's own names for them; texts where there are none."""
    return self._keys

  def embed(self, texts: Sequence[str]) -> np.ndarray:
    """Returns `[n, D]` float32 embeddings of texts, as queries.

    Raises:
      UserError: `texts` is not a list of texts.
    """
    return self._embed(POINTS, texts)

  def predict(
    self, texts: Sequence[str], k: int = 5, explain: bool = False
  ) -> tuple[np.ndarray, np.ndarray, list[list[str]]] | tuple:
    """Returns the k best labels of each text.

    Args:
      texts: n texts; an empty text is allowed.
      k: labels per text, 1 to L.
      explain: also return the reasons, as a fourth result.

    Returns:
      ids `[n, k]` int32, scores `[n, k]` float32, best first, and the labels' texts, a list of k for each.
      Scores are probabilities that a label is right if all sources rank, else inner products. If fewer
      labels are found, ids are padded with -1, scores with -inf, and the list is shorter. With `explain`,
      also the reasons, as in `Model.predict`.

    Raises:
      UserError: k is out of range, `texts` is not a list of texts, or `explain` while one source ranks.
    """
    if explain and self._memory is None:
      raise UserError(f"explain=True: {self._folder} ranks by one source; export with --scores=hybrid")
    check_k(k, len(self.labels))
    check_texts(texts)
    why = (lambda *ranked: reasons(self._hybrid, *ranked)) if explain else None
    return best_labels(texts, k, self.labels.__getitem__, self.embed, self._rank, why, self._where)

  def add_labels(self, texts: Sequence[str], keys: Sequence[str] | None = None) -> np.ndarray:
    """Adds labels by their texts alone; nothing is trained.

    The index on the disk is replaced atomically: a killed process leaves the old index or the new one.

    Args:
      texts: n texts; existing labels stay unchanged.
      keys: their n keys; None if they are the texts.

    Returns:
      `[n]` int32 ids of the labels with these texts.

    Raises:
      UserError: the method cannot compute label vectors from texts, a text is empty, or the disk is full.
    """
    self._check_can_add()
    texts = _cleaned(texts)
    key_of = dict(zip(texts, texts if keys is None else keys))
    path_safety.check(self._folder)
    self._reread()
    if new := self._unknown(texts):
      is_index = lambda folder: (folder / label_files.VECTORS).is_file()
      with whole_folder.written_whole(self._folder / INDEX, is_index) as part:
        self._reread()  # another process may have added labels meanwhile
        new = self._unknown(texts)
        self._write(part, new, [key_of[text] for text in new])
      self._reread()
    known = len(set(texts)) - len(new)
    plural = "s" * (len(new) != 1)
    say(f"{len(new):,} label{plural} added, {known:,} were there already; {len(self.labels):,} in all")
    return np.array([self._id_of[text] for text in texts], np.int32)

  def _rank(self, queries: Queries, k: int) -> Ranking:
    if self._memory is not None:
      return self._hybrid.rank(queries, k)
    return self._index.search(queries.vectors, k)

  @functools.cached_property
  def _index(self) -> Index:
    return Index(np.asarray(self._vectors), backend="exact", name="exported labels")

  @functools.cached_property
  def _hybrid(self) -> HybridRanker:
    return HybridRanker(Retriever(self._corpus()), self._model)

  def _corpus(self) -> Corpus:
    memory = cast(Corpus, self._memory)  # a hybrid export has one
    vectors = {scorer: np.asarray(array) for scorer, array in self._by_scorer.items()}
    known = memory.truth  # labels that were added since belong to no point
    truth = sp.csr_matrix((known.data, known.indices, known.indptr), (known.shape[0], len(self._texts)))
    return memory._replace(label_vectors=vectors, truth=truth, label_texts=self._texts)

  def _unknown(self, texts: Sequence[str]) -> list[str]:
    """Returns the texts that are not labels yet, each once."""
    return [text for text in dict.fromkeys(texts) if text not in self._id_of]

  def _write(self, part: pathlib.Path, new: list[str], new_keys: list[str]) -> None:
    """Writes the index to `part`, with the new labels after the existing ones."""
    points = self._memory.point_vectors if self._memory else None
    vectors = self._embed(LABELS, new)
    # A new label has only its text. It has no classifier, so its classifier vector is 0.
    added = {scorer: vectors if scorer == "encoder" else np.zeros_like(vectors) for scorer in self._by_scorer}
    scorers = {scorer: [array, added[scorer]] for scorer, array in self._by_scorer.items()}
    label_files.write(
      part,
      [self._vectors, vectors],
      [*self._texts, *new],
      label_files.read_sample(whole_folder.current(self._folder / INDEX)),
      keys=[*self._keys, *new_keys],
      names=[*self._names, *new],
      facts=[*self._label_facts, *[{} for _ in new]],
      scorers=scorers,
      points=points,
    )

  def _check_can_add(self) -> None:
    if self._facts["adds_labels"]:
      return
    encoder = self._facts["encoder_run"]
    instead = f"; export the run of its encoder, {encoder}, and add them there" if encoder else ""
    raise UserError(
      f"{self._folder}: method {self._facts['method']!r} learns a vector for each label, which does not "
      f"follow from the label's text, so no label can be added without training{instead}"
    )

  def _reread(self) -> None:
    folder, scorers = whole_folder.current(self._folder / INDEX), self._facts["scorers"]
    self._texts, self._keys, self._names, self._label_facts = label_files.read_texts(
      folder / label_files.TEXTS
    )
    where = np.array([not of_label.get("deprecated") for of_label in self._label_facts])
    self._where = None if where.all() else where
    open_rows = functools.partial(label_files.open_array, num_rows=len(self._texts))
    self._vectors = open_rows(folder / label_files.VECTORS)
    self._by_scorer = {"encoder": self._vectors}
    if len(scorers) > 1:
      self._by_scorer = {scorer: open_rows(folder / label_files.file_of(scorer)) for scorer in scorers}
    self._id_of: dict[str, int] = {}
    for number, text in chain(enumerate(self._texts), enumerate(self._names)):
      self._id_of.setdefault(text, number)  # data sets may have labels with one text
    for opened in ("_index", "_hybrid"):
      self.__dict__.pop(opened, None)

  def _embed(self, function: str, texts: Sequence[str]) -> np.ndarray:
    check_texts(texts)
    if not len(texts):
      return np.zeros((0, self._facts["width"]), np.float32)
    return embed_table(
      lambda part, ids: sharding.to_host(self._programs(function, part)),
      self._tokens.table(texts),
      batch_size=texts_at_a_time(len(texts), _BATCH_SIZE),
      max_length=self._facts["max_length"],
    )


class Combination(Exported):
  """Predicts by exported runs together; each is an export of its own, in `MEMBERS`."""

  def __init__(self, folder: pathlib.Path, facts: dict):
    self._folder, self._facts = folder, facts
    self._members = {name: Exported.load(folder / MEMBERS / name) for name in facts["members"]}
    self._model = HybridModel.load(folder / memory_files.MODEL, remedy="export again")
    self._first = next(iter(self._members.values()))
    self._memory, self._where = self._first._memory, self._first._where

  @property
  def labels(self) -> Sequence[str]:
    return self._first.labels

  @property
  def keys(self) -> Sequence[str]:
    return self._first.keys

  def embed(self, texts: Sequence[str]) -> np.ndarray:
    return np.concatenate([member.embed(texts) for member in self._members.values()], axis=1)

  def add_labels(self, texts: Sequence[str], keys: Sequence[str] | None = None) -> np.ndarray:
    for member in self._members.values():
      member._check_can_add()
    # After a kill, those that have the labels already leave them as they are.
    ids = [member.add_labels(texts, keys) for member in self._members.values()]
    self._where = self._first._where
    self.__dict__.pop("_hybrid", None)
    return ids[0]

  @functools.cached_property
  def _hybrid(self) -> HybridRanker:
    corpora = ((name, member._corpus()) for name, member in self._members.items())
    return HybridRanker(CombinedRetriever(corpora), self._model)


def add_labels(exported: pathlib.Path, texts: Sequence[str], keys: Sequence[str] | None = None) -> np.ndarray:
  """Opens an exported folder and calls `Exported.add_labels`."""
  return Exported.load(exported).add_labels(texts, keys)


def _cleaned(texts: Sequence[str]) -> list[str]:
  """Returns the texts, each as one line without surrounding space."""
  check_texts(texts)
  texts = [" ".join(text.split()) for text in texts]
  texts = [text.encode("utf-8", "replace").decode() for text in texts]  # no lone surrogates
  if not all(texts):
    raise UserError(f"label {texts.index('') + 1} of {len(texts)} has no text; leave empty lines out")
  return texts
