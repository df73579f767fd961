"""Opens the parameters in a run's folder, and holds the vectors that they give, each computed once."""

import contextlib
import functools
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import ml_collections
import numpy as np

from xmc_jax import config as configs
from xmc_jax.data import TokenTable
from xmc_jax.data.tokens import Encoder
from xmc_jax.distributed import runtime, split_table
from xmc_jax.distributed.split_table import SplitTable, Table
from xmc_jax.errors import UserError
from xmc_jax.refresh import Snapshot
from xmc_jax.runs import label_functions, ranking
from xmc_jax.storage import locks, npy, run_folder
from xmc_jax.storage.checkpoints import StepFolder
from xmc_jax.types import PyTree

if TYPE_CHECKING:
  from xmc_jax.runs.run import Run

_LOCK = ".last.lock"  # held by the process that uses the folder of the last step
_TESTS = "tests the last step in this folder; wait for it, or stop it"


class SavedSteps:
  """Reads the folders of steps of one run.

  Attributes:
    newest: the newest steps, which a training continues from.
    best: the parameters with the best validation score.
    refitted: the parameters of the training on all rows (`train.refit`).
  """

  def __init__(self, workdir: pathlib.Path, config: ml_collections.ConfigDict):
    self._workdir, self._refits = workdir, config.train.refit
    self.newest = StepFolder(workdir / run_folder.NEWEST, read_only=True)
    self.best = StepFolder(workdir / run_folder.BEST, read_only=True)
    self.refitted = StepFolder(workdir / run_folder.REFIT / run_folder.BEST, read_only=True)

  def is_refitted(self) -> bool:
    """Returns whether the training on all rows has ended."""
    return self._refits and self.refitted.latest_valid() is not None

  def to_use(self, last: bool = False) -> tuple[StepFolder, int]:
    """Returns the step to use: that of the training on all rows, else the best, else the newest.

    Args:
      last: the newest step in any case.

    Returns:
      `(folder, step)`.

    Raises:
      UserError: nothing was saved yet, or every step is damaged.
    """
    better = [] if last else [*[self.refitted] * self._refits, self.best]
    for folder in (*better, self.newest):
      if (step := folder.latest_valid()) is not None:
        return folder, step
    if run_folder.has_checkpoints(self._workdir):
      raise UserError(f"{self._workdir}: every checkpoint is damaged; train anew with another --workdir")
    raise UserError(f"{self._workdir}: no checkpoint yet; run --mode=train with this --workdir first")


class Trained:
  """Embeds and ranks with the parameters of a run.

  Vectors of labels and of training points are computed at their first use, and kept until `release`. With
  several processes each of them keeps its rows of a label table.

  Args:
    run: the run.
    params, extra_state: its parameters; see `types.Method`. Of a combination, those of its first member.
    step: the training step that they are of.
    combined: by name, the members of a combination.

  Attributes:
    run, params, extra_state, step: as given.
    members: by name, what embeds texts for the hybrid ranking: itself, or the members of a combination.
    tokens: turns texts into tokens.
  """

  def __init__(
    self,
    run: "Run",
    params: PyTree,
    extra_state: PyTree,
    step: int = 0,
    combined: Mapping[str, "Trained"] | None = None,
  ):
    self.run, self.params, self.extra_state, self.step = run, params, extra_state, step
    self._combined = combined or {}
    self._labels: dict[str, Table] = {}

  def check_fit(self, saved: pathlib.Path) -> None:
    """Raises UserError if the parameters, which were read from `saved`, were trained with another config."""
    run, parts = self.run, (self.params, self.extra_state)
    none = np.full(run.mesh.size, -1)
    tokens = run.dataset.test.tokens.gather(none, run.config.data.max_length)
    try:
      jax.eval_shape(run.method.embed_queries, *parts, tokens)
      jax.eval_shape(run.method.embed_labels, *parts, tokens, none)
    except Exception as error:  # Flax's of shapes, a KeyError, ...
      why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
      raise UserError(f"{saved} does not fit config.json or encoder/, which were changed ({why})") from None

  @classmethod
  def combining(cls, run: "Run", last: bool) -> "Trained":
    """Opens the members of a combination."""
    if last:
      raise UserError(f"{run.workdir}: combined runs have no last step; leave --checkpoint out")
    members = {name: member.trained() for name, member in run.members.items()}
    first = next(iter(members.values()))
    return cls(run, first.params, first.extra_state, first.step, members)

  def with_labels(self, texts: Sequence[str], keys: Sequence[str] | None = None) -> "Trained":
    """Returns a copy that ranks more labels; see `Run.with_labels`."""
    members = {name: member.with_labels(texts, keys) for name, member in self._combined.items()}
    return Trained(self.run.with_labels(texts, keys), self.params, self.extra_state, self.step, members)

  @property
  def members(self) -> Mapping[str, "Trained"]:
    return self._combined or {"": self}

  @functools.cached_property
  def tokens(self) -> Encoder:
    return Encoder(self.run.dataset.tokenizer(), self.run.config.data.max_length)

  @functools.cached_property
  def embed_by_text(self) -> label_functions.Function | None:
    """Returns the method's function that embeds an unseen label by its text; None if it has none."""
    return label_functions.by_text(self)

  @property
  def tree(self) -> dict[str, PyTree]:
    """Returns all arrays, as checkpoints hold them."""
    return {"params": self.params, "extra_state": self.extra_state}

  @functools.cached_property
  def extra_state_to_rank(self) -> PyTree:
    """Returns the extra state that labels are embedded with for ranking."""
    exact = self.run.method.extra_state_to_rank
    return exact(self.snapshot()) if exact else self.extra_state

  def queries(
    self, tokens: TokenTable, progress: Callable[[int], None] | None = None, few_shapes: bool = False
  ) -> np.ndarray:
    """Returns `[n, D]` embeddings of points; see `TableEmbedder.queries`."""
    vectors = self.run.embedder.queries(self.params, self.extra_state, tokens, progress, few_shapes)
    return split_table.whole(vectors)

  def embed(
    self, texts: Sequence[str], progress: Callable[[int], None] | None = None, few_shapes: bool = False
  ) -> np.ndarray:
    """Returns `[n, D]` embeddings of texts; of a combination, those by each member, side by side."""
    parts = [one.queries(one.tokens.table(texts), progress, few_shapes) for one in self.members.values()]
    return np.concatenate(parts, axis=1)

  def labels(self, scorer: str = "") -> Table:
    """Returns the vectors of all labels by a scorer of the method; '' is their sum."""
    if scorer not in self._labels:
      self._labels[scorer] = self.run.embedder.labels(self.params, self.extra_state_to_rank, scorer)
    return self._labels[scorer]

  def some_labels(self, scorer: str, ids: np.ndarray) -> np.ndarray:
    """Returns `[n, D]` vectors of labels `[n]`, by a scorer; '' is the sum of all. Keeps none."""
    return split_table.whole(self.run.embedder.labels(self.params, self.extra_state_to_rank, scorer, ids))

  @functools.cached_property
  def points(self) -> np.ndarray:
    """Returns `[N, D]` embeddings of all training rows, held-out ones too; stores them in the run's folder.

    Raises:
      UserError: the file is damaged.
    """
    run = self.run
    folder = run.workdir / run_folder.REFIT if run.is_refitted else run.ranking_folder
    path, tokens = folder / run_folder.MEMORY, run.dataset.train.tokens
    if run_folder.is_stored(path):
      return npy.read(path, len(tokens))
    vectors = run.embedder.queries(self.params, self.extra_state, tokens)
    with contextlib.suppress(UserError):  # they are not stored in a full or read-only folder
      run_folder.write_table(path, vectors)
    runtime.barrier(path.name)
    if isinstance(vectors, SplitTable) and run_folder.is_stored(path):
      return npy.read(path, len(tokens))
    return split_table.whole(vectors)

  def release(self) -> None:
    """Lets go of all vectors; they are computed anew if they are used again."""
    self._labels = {}
    for computed in ("points", "extra_state_to_rank"):
      self.__dict__.pop(computed, None)
    for member in self._combined.values():
      member.release()

  def ranker(self, scores: str = "") -> ranking.Rank:
    """Opens a ranker of all labels.

    Args:
      scores: 'hybrid', 'fused', one of the method's scorers, or a source; '' is `config.eval.scores`.

    Raises:
      UserError: the method has no such scores.
    """
    chosen = scores or self.run.config.eval.scores
    self.run.check_scores(chosen)
    if chosen == "hybrid":
      return ranking.hybrid(self).rank
    if chosen in configs.SOURCES:
      return functools.partial(ranking.sources(self).rank_by, chosen)
    return ranking.own_ranker(self, chosen)

  def snapshot(self, of_run: "Run | None" = None) -> Snapshot:
    """Returns the input of refreshes: training data, of another run if it is given, and their vectors."""
    run, embedder, trained = of_run or self.run, self.run.embedder, (self.params, self.extra_state)

    def embed_queries() -> Table:
      if run is self.run and run.method.batch.frozen:
        return split_table.split(run.batches.vectors)
      return embedder.queries(*trained, run.data.train.tokens)

    return Snapshot(
      embed_queries,
      self.labels,
      lambda: embedder.texts(*trained),
      truth=run.truth,
      filtered=run.data.train.filter,
      rows=run.batches.rows,
      step=self.step,
      steps_per_epoch=run.batches.steps_per_epoch,
      devices=run.mesh,
      params=self.params,
      extra_state=self.extra_state,
      sides=run.sides,
      embed_anchors=lambda side: split_table.whole(embedder.texts(*trained, side.anchors)),
      biased=bool(self.run.config.method.get("log_prior")),
    )

  def freeze_queries(self) -> None:
    """Embeds the training points once, if the method's encoder is frozen; stores them in the run's folder."""
    run, path = self.run, self.run.workdir / run_folder.VECTORS
    if run.method.batch.frozen and not run_folder.is_stored(path):
      tokens = run.data.train.tokens
      run_folder.save_array(path, run.embedder.queries(self.params, self.extra_state, tokens))


@contextlib.contextmanager
def to_test(run: "Run", checkpoint: str) -> Iterator[Trained]:
  """Opens the parameters to test; the ranking files of the run that they are of belong to them.

  The run's own ranking files, such as the fusion of scores, were fitted to its best parameters. For the last
  parameters they are fitted again, in a folder that is removed afterwards.

  Args:
    run: the run.
    checkpoint: 'best', or 'last'.

  Raises:
    UserError: nothing has been saved yet, what was saved is damaged, or another process has this folder.
  """
  if checkpoint == "best":
    yield run.trained()
    return
  last = run.trained(last=True)
  folder = run.workdir / run_folder.LAST
  with contextlib.ExitStack() as stack:
    if runtime.is_main_process():
      stack.enter_context(locks.in_use(run.workdir, _LOCK, _TESTS))
      shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
      folder.mkdir()
      stack.callback(shutil.rmtree, folder, ignore_errors=True)
    runtime.barrier("last")
    refitted = Trained(run.ranking_in(folder), last.params, last.extra_state, last.step)
    ranking.fit_own_scores(refitted)
    yield refitted
