"""A prepared folder as a Dataset: memory-mapped, so that it opens quickly."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from tokenizers import Tokenizer

from xmc_jax.data.arrays import Texts, read_csr, read_ragged
from xmc_jax.data.prepared import TOKENIZER, read_manifest, why_damaged
from xmc_jax.data.tokenizers import load_tokenizer
from xmc_jax.data.tokens import TokenTable
from xmc_jax.data.vocabulary.concepts import in_language
from xmc_jax.errors import ConfigError, DataError

QUERY, LABEL = "query", "label"  # what a metadata graph links to its anchors


class TextSet(NamedTuple):
  """Holds the texts of labels, or of the anchors of a graph.

  Attributes:
    texts: `[n]` texts, decoded on access.
    tokens: their token ids; None if the data were prepared without a tokenizer, which whoever trains has.
  """

  texts: Texts
  tokens: TokenTable | Any

  def __len__(self) -> int:
    return len(self.texts)


@dataclasses.dataclass(eq=False, repr=False)
class Split:
  """Holds points with their labels.

  Attributes:
    texts: `[N]` texts, decoded on access.
    tokens: their token ids; None if the data were prepared without a tokenizer, which whoever trains has.
    truth: csr `[N, L]` float32, the relevance of each true label, always positive. Read-only.
    filter: csr `[N, L]` bool, pairs that count neither as a hit nor as a miss. Read-only.
    row_numbers: `[N]` int64, the row of each point in the split as prepared.
  """

  texts: Texts
  tokens: TokenTable | Any
  truth: sp.csr_matrix
  filter: sp.csr_matrix
  row_numbers: np.ndarray

  def __len__(self) -> int:
    return len(self.texts)

  @property
  def num_labelled(self) -> int:
    """Returns how many of the points have a label."""
    return int(np.count_nonzero(np.diff(self.truth.indptr)))

  @functools.cached_property
  def unfiltered_positives(self) -> sp.csr_matrix:
    """Returns csr `[N, L]`, the truth without the filter pairs: the labels to learn, and the hits."""
    return unfiltered(self.truth, self.filter)

  def rows(self, indices: Sequence[int] | np.ndarray) -> "Split":
    """Returns the split of these `[n]` rows alone, in this order."""
    indices = np.asarray(indices, np.int64)
    tokens = self.tokens and self.tokens.rows(indices)
    numbers = self.row_numbers[indices]
    return Split(self.texts[indices], tokens, self.truth[indices], self.filter[indices], numbers)

  def __repr__(self) -> str:
    return f"Split({len(self):,} points, {self.truth.nnz:,} label pairs)"


class Graph(NamedTuple):
  """Holds a metadata graph: points and labels linked to anchors.

  Attributes:
    name: the graph's name.
    anchors: texts and tokens of the A anchors.
    query_edges: csr `[N, A]` float32 over training points (their `row_numbers`), or None.
    label_edges: csr `[L, A]` float32, or None.
  """

  name: str
  anchors: TextSet
  query_edges: sp.csr_matrix | None
  label_edges: sp.csr_matrix | None


class Truth(NamedTuple):
  """Holds the true labels: csr `[N, L]` of the training and of the test points."""

  train: sp.csr_matrix
  test: sp.csr_matrix


def unfiltered(truth: sp.csr_matrix, filter_pairs: sp.csr_matrix) -> sp.csr_matrix:
  """Returns CSR `[N, L]`, the relevances of true labels without the filter pairs: to learn, and the hits."""
  left = truth - truth.multiply(filter_pairs)
  left.eliminate_zeros()
  left.sort_indices()
  return left.tocsr()


class Dataset:
  """Holds the contents of a prepared folder.

  Attributes:
    folder: the prepared folder.
    manifest: its manifest; `data.summary(manifest)` returns it as a table.
    name: the data set's name.
    train, test: the points, as Split.
    labels: the label texts, as TextSet.
    label_keys: `[L]` what the user calls each label (URI, SKU, uid); its text if the data name no key.
    label_names: `[L]` what is shown of each label: its name in a vocabulary; elsewhere its text.
    graphs: name -> Graph.
    graph_kinds: name -> the sides that have links: 'query', 'label' or both; graphs without links are absent.
    truth: NamedTuple (train, test) of csr.
    num_labels: L.
    num_validation: labelled rows at the end of train that come from a validation file.
  """

  def __init__(self, folder: Path, manifest: dict):
    self.folder, self.manifest, self.name = folder, manifest, manifest["name"]
    self.labels = self._text_set("labels")
    self.num_labels = len(self.labels)
    self.label_keys = self._of_labels("keys") or self.labels.texts
    self.label_names = self._of_labels("names") or self.labels.texts
    self.num_validation = manifest["counts"]["train"].get("validation", 0)
    self.train, self.test = self._split("train"), self._split("test")
    self.truth = Truth(self.train.truth, self.test.truth)
    kinds = {
      name: tuple(kind for kind in (QUERY, LABEL) if counts.get(f"{kind}_edges"))
      for name, counts in manifest["counts"]["graphs"].items()
    }
    self.graph_kinds = {name: of_graph for name, of_graph in kinds.items() if of_graph}

  @functools.cached_property
  def graphs(self) -> dict[str, Graph]:
    """Opens the metadata graphs on first access; refuses damaged files."""
    if damaged := why_damaged(self.folder, self.manifest):
      raise DataError(f"{self.folder}: {damaged}; prepare the data again")
    return {name: self._graph(name) for name in self.graph_kinds}

  @functools.cached_property
  def label_concepts(self) -> Texts | None:
    """Returns `[L]` concepts of the prepared labels, each as JSON with the fields of `vocabulary.Concept`.

    None if the data have no vocabulary.
    """
    return self._of_labels("concepts")

  def notation(self, label: int) -> str:
    """Returns a label's notation in the vocabulary; '' if it has none."""
    return self._notations[label] if label < len(self._notations) else ""

  @functools.cached_property
  def _notations(self) -> list[str]:
    return [json.loads(concept)["notation"] for concept in self.label_concepts or ()]

  def concept(self, label: int) -> dict[str, Any]:
    """Returns what the vocabulary says of a label, as `vocabulary.Concept`; {} without one."""
    concepts = self.label_concepts or ()
    return json.loads(concepts[label]) if label < len(concepts) else {}

  def label_name(self, label: int, language: str) -> str:
    """Returns a label's name in a language, and without one, or for '', the one that is shown."""
    return in_language(self.concept(label).get("names", {}), language) or self.label_names[label]

  def _of_labels(self, what: str) -> Texts | None:
    if f"labels.{what}.npy" not in self.manifest["files"]:
      return None
    return Texts.of_offsets(*read_ragged(self.folder, f"labels.{what}"))

  def tokenizer(self) -> Tokenizer:
    """Loads the `tokenizers.Tokenizer` that the data were prepared with; DataError if it was without one."""
    return load_tokenizer(self.folder / TOKENIZER)

  def _text_set(self, name: str) -> TextSet:
    texts = Texts.of_offsets(*read_ragged(self.folder, f"{name}.texts"))
    if not self.manifest["tokenizer"]:
      return TextSet(texts, None)
    return TextSet(texts, TokenTable.of_offsets(*read_ragged(self.folder, f"{name}.tokens")))

  def _split(self, name: str) -> Split:
    texts, tokens = self._text_set(name)
    shape = (len(texts), self.num_labels)
    truth, filtered = (read_csr(self.folder, f"{name}.{what}", shape) for what in ("truth", "filter"))
    return Split(texts, tokens, truth, filtered, np.arange(len(texts)))

  def _graph(self, name: str) -> Graph:
    anchors = self._text_set(f"graph.{name}.anchors")
    sides = {"query_edges": len(self.train), "label_edges": self.num_labels}
    edges = {
      side: read_csr(self.folder, f"graph.{name}.{side}", (num, len(anchors)))
      if f"graph.{name}.{side}.values.npy" in self.manifest["files"]
      else None
      for side, num in sides.items()
    }
    return Graph(name, anchors, **edges)

  def __repr__(self) -> str:
    sizes = f"{len(self.train):,} train, {len(self.test):,} test, {self.num_labels:,} labels"
    return f"Dataset({self.name!r}: {sizes})"


def load_prepared(folder: str | Path) -> Dataset:
  """Opens a prepared folder. The files of metadata graphs may be missing: only training needs them.

  Raises:
    DataError: `folder` is not a prepared folder, has another version, or is damaged.
  """
  folder = Path(folder).expanduser()
  manifest = read_manifest(folder)
  if damaged := why_damaged(folder, manifest, graphs=False):
    raise DataError(f"{folder}: {damaged}; prepare the data again")
  return Dataset(folder, manifest)


def hold_out(
  split: Split, num: int, seed: int, num_last: int = 0, known: np.ndarray | None = None
) -> tuple[Split, Split]:
  """Sets rows aside for validation: the same ones for the same seed, all of them with labels.

  Args:
    split: the points to divide.
    num: how many rows to hold out.
    seed: seed of the random choice.
    num_last: how many labelled rows at the end are meant for it; they are taken if `num` is the same.
    known: `[n]` bool, rows that are held out only where there are no others; None has no such rows.

  Returns:
    (the rest, the rows held out), both in their original order; `row_numbers` has their row numbers.

  Raises:
    ConfigError: `num` is negative, or there are not more than `num` rows with labels.
  """
  labelled = np.flatnonzero(np.diff(split.truth.indptr))
  if not 0 <= num < max(len(labelled), 1):
    limit = max(len(labelled) - 1, 0)
    raise ConfigError(f"num_validation={num}: expected 0 to {limit}, as {len(labelled)} rows have labels")
  is_held_out = np.zeros(len(split), bool)
  if num and num == num_last:
    is_held_out[labelled[-num:]] = True
  elif known is not None:
    order = np.random.default_rng(seed).permutation(labelled)
    is_held_out[order[np.argsort(known[order], kind="stable")][:num]] = True
  else:
    is_held_out[np.random.default_rng(seed).choice(labelled, num, replace=False)] = True
  return split.rows(np.flatnonzero(~is_held_out)), split.rows(np.flatnonzero(is_held_out))
