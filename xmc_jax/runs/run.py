"""Joins a config to its data, its method on a mesh, and its folder: a `Run`."""

import copy
import functools
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jax
import ml_collections
import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax import data, methods, models
from xmc_jax.batching.builder import BatchBuilder
from xmc_jax.batching.graph_anchors import GraphEdges
from xmc_jax.config.defaults import READS_INPUT
from xmc_jax.console import say
from xmc_jax.data import documents
from xmc_jax.data.added import Unknown
from xmc_jax.distributed import sharding
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.retrieval import TableEmbedder
from xmc_jax.retrieval.table_embedder import with_added_labels
from xmc_jax.runs.trained import SavedSteps, Trained
from xmc_jax.runs.training_data import TrainingData
from xmc_jax.storage import npy, path_safety, run_folder
from xmc_jax.types import DatasetInfo, PyTree


class Run:
  """Holds the config, data, method and folder of a run, from which training, evaluation and prediction work.

  Args:
    config, workdir, dataset: the settings, the run's folder, the prepared data.
    ranking_folder: folder of the files that are fitted to the parameters for ranking; None is `workdir`.

  Attributes:
    config, workdir, dataset, ranking_folder: as given.
    data: TrainingData, the rows to train on and those held out.
    mesh: the devices.
    method: the paper's functions.
    embedder: TableEmbedder, embeds tables of texts by the method.
    saved: SavedSteps, opens the parameters in the folder.
    members: by name, the runs that a combination joins; the rest is then that of the first.
  """

  members: Mapping[str, "Run"] = MappingProxyType({})

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    dataset: data.Dataset,
    *,
    ranking_folder: pathlib.Path | None = None,
  ):
    self.config, self.workdir, self.dataset = config, workdir, dataset
    self.ranking_folder = ranking_folder or workdir
    self.data = TrainingData(config, dataset, workdir)
    self.saved = SavedSteps(workdir, config)
    configs.check_against_devices(config, len(jax.devices()))
    self.mesh = sharding.make(config.mesh.data, config.mesh.label)
    self.method = methods.make(config, self._info())
    self.check_scores(config.eval.scores)
    self.embedder = self._embedder_of(dataset)

  def check_scores(self, scores: str) -> None:
    """Raises ConfigError for scores that the run cannot rank by."""
    if self.members and scores != "hybrid":
      parts = ", ".join(f"--workdir={self.workdir / run_folder.MEMBERS / name}" for name in self.members)
      raise ConfigError(f"scores = {scores!r}: combined runs rank by 'hybrid'; for each alone: {parts}")
    methods.check_scores(scores, self.config, self.method)

  def _embedder_of(self, dataset: data.Dataset) -> TableEmbedder:
    return TableEmbedder(
      self.method,
      self.mesh,
      dataset.labels.tokens,
      batch_size=self.config.eval.batch_size,
      max_length=self.config.data.max_length,
      packs_tokens=models.packs_tokens(self.config.encoder),
    )

  def _info(self) -> DatasetInfo:
    tokenizer = self.dataset.tokenizer()
    return DatasetInfo(
      num_points=len(self.data.train),
      num_labels=self.dataset.num_labels,
      max_length=self.config.data.max_length,
      vocab_size=tokenizer.get_vocab_size(),
      special_ids=data.special_ids(tokenizer),
      mesh=self.mesh,
      label_counts=self.label_counts,
      graphs=self.dataset.graph_kinds,
      num_labelled=self.data.num_labelled,
    )

  @functools.cached_property
  def is_refitted(self) -> bool:
    """Returns whether the parameters were trained on all rows (`train.refit`); not so for a last step.

    Reads every byte of them once, as it looks for a whole step.
    """
    return self.ranking_folder == self.workdir and self.saved.is_refitted()

  @property
  def label_counts(self) -> np.ndarray:
    """Returns `[L]`, the points of each label that the parameters are, or will be, trained on."""
    train = self.dataset.train if self.is_refitted else self.data.train
    return np.bincount(train.unfiltered_positives.indices, minlength=self.dataset.num_labels)

  @functools.cached_property
  def sides(self) -> Mapping[str, GraphEdges]:
    """Returns the sides of metadata graphs that the method learns from, by name."""
    load = self.method.load_sides
    return load(self.dataset, self.data.train.row_numbers, self.workdir) if load else {}

  @functools.cached_property
  def truth(self) -> sp.csr_matrix:
    """Returns CSR `[N, L]`, the labels to train on: true labels, and those that the method adds."""
    train, add = self.data.train, self.method.training_truth
    return add(train.truth, self.dataset, train.row_numbers) if add else train.truth

  @functools.cached_property
  def batches(self) -> BatchBuilder:
    """Returns the builder of the training batches."""
    config, spec, train = self.config, self.method.batch, self.data.train
    by_propensity = spec.positive_sampling == "inverse_propensity"
    return BatchBuilder(
      train.tokens,
      self.dataset.labels.tokens,
      self.truth,
      train.filter,
      spec,
      batch_size=config.train.batch_size,
      max_length=config.data.max_length,
      seed=config.train.seed,
      data_axis=config.mesh.data,
      label_axis=config.mesh.label,
      local_queries=lambda num_rows: sharding.local_rows(num_rows, self.mesh, "data"),
      local_labels=lambda num_rows: sharding.local_rows(num_rows, self.mesh, *sharding.LABEL_ROWS),
      label_weights=self.data.inverse_propensity if by_propensity else None,
      by_relevance=config.train.relevance_weights,
      sides=self.sides,
      vectors=(lambda: npy.read(self.workdir / run_folder.VECTORS, len(train))) if spec.frozen else None,
    )

  def initial_parameters(self, from_other_run: bool = True) -> tuple[PyTree, PyTree]:
    """Returns `(params, extra_state)` at step 0: the method's own or those of the run `config.init_from`.

    Args:
      from_other_run: read `config.init_from`; False where a checkpoint replaces the values anyway.

    Raises:
      ConfigError: that run has no parameters, or they do not fit here.
    """
    own = self.method.init(jax.random.key(self.config.train.seed))
    if not (from_other_run and self.config.init_from):
      return own
    try:
      return self._from_run(reopen(pathlib.Path(self.config.init_from), self.config.mesh), own)
    except UserError as error:
      raise ConfigError(f"init_from = {self.config.init_from!r}: {error}") from None

  def _from_run(self, other: "Run", own: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
    """Returns the parameters of another run in place of `own`, fitted to this mesh."""
    rules, init_from_run, trained = self.method.sharding_rules, self.method.init_from_run, other.trained()
    start = init_from_run(trained.snapshot(self)) if init_from_run else (trained.params, own[1])
    begun = methods.read_config(other.workdir / "config.json").mesh
    most = max(begun.data * begun.label, self.mesh.size)  # rows are padded to a multiple of devices
    named, like = ({"params": params, "extra_state": extra} for params, extra in (start, own))
    theirs, ours = (list(run.dataset.label_keys) for run in (other, self))
    if sharding.splits_rows(own, rules) and theirs != ours:
      named = sharding.rows_of_labels(named, like, rules, (theirs, ours), most)
    fitted = sharding.fit_rows(named, like, rules, most=most)
    return fitted["params"], fitted["extra_state"]

  def ranking_in(self, folder: pathlib.Path) -> "Run":
    """Returns a copy of the run that keeps its ranking files in another folder."""
    return Run(self.config, self.workdir, self.dataset, ranking_folder=folder)

  def with_labels(self, texts: Sequence[str], keys: Sequence[str] | None = None) -> "Run":
    """Returns a copy of a trained run that ranks more labels, by vectors of their texts alone."""
    copied = copy.copy(self)
    for opened in ("sides", "truth", "batches"):
      copied.__dict__.pop(opened, None)
    copied.dataset = data.with_labels(self.dataset, texts, self.config.data.max_length, keys)
    copied.data = TrainingData(self.config, copied.dataset, self.workdir)
    copied.method = with_added_labels(self.method, self.dataset.num_labels)
    if self.method.extra_state_to_rank:  # of the labels that were trained
      of_own = lambda snapshot: Trained(self, snapshot.params, snapshot.extra_state).extra_state_to_rank
      copied.method = copied.method._replace(extra_state_to_rank=of_own)
    copied.embedder = copied._embedder_of(copied.dataset)
    return copied

  def with_test_rows(
    self,
    path: pathlib.Path,
    folder: pathlib.Path,
    given: Mapping[str, str] | None = None,
    unknown: Unknown = "leave out",
  ) -> "Run":
    """Returns a copy of the run that is tested on other labelled data; see `data.with_test_rows`."""
    other, max_length = copy.copy(self), self.config.data.max_length
    other.dataset, notes = data.with_test_rows(self.dataset, path, max_length, folder, given, unknown=unknown)
    for note in notes:
      say(f"note: {documents.without_settings(note, READS_INPUT['evaluate'])}")
    return other

  def trained(self, last: bool = False) -> Trained:
    """Reads the parameters of the step to use; see `SavedSteps.to_use`.

    Raises:
      UserError: nothing was saved yet, or it does not fit the config; or the last of a combination is asked.
    """
    if self.members:
      return Trained.combining(self, last)
    folder, step = self.saved.to_use(last)
    params, extra_state = folder.restore_trained(step, self.method.sharding_rules, self.mesh)
    trained = Trained(self, params, extra_state, step)
    trained.check_fit(folder.path_of(step))
    return trained


def reopen(
  workdir: pathlib.Path,
  devices: ml_collections.ConfigDict | None = None,
  backend: str = "",
  dataset: data.Dataset | None = None,
  may_refit: bool = True,
) -> Run:
  """Opens a run, or combined runs, from its folder alone.

  Args:
    workdir: its folder.
    devices: a `config.mesh` to open it on; None is its own, reduced to the devices of this machine.
    backend: what searches the labels; '' is its own `config.eval.backend`.
    dataset: an opened dataset, which is used if the run has the same files.
    may_refit: as in `reopen_members`.
  """
  config = methods.read_config(workdir / "config.json")
  path_safety.check(workdir)
  config.eval.backend = backend or config.eval.backend
  config.train.refit &= may_refit
  methods.check_config(config)
  if run_folder.combined(workdir):
    return reopen_members(workdir, config, devices)
  config = _on_this_machine(config, workdir, devices)
  if not dataset or dataset.manifest["files"] != data.read_manifest(workdir / "data")["files"]:
    dataset = data.load_prepared(workdir / "data")
  return Run(config, workdir, dataset)


def reopen_members(
  workdir: pathlib.Path,
  config: ml_collections.ConfigDict,
  devices: ml_collections.ConfigDict | None = None,
  may_refit: bool = True,
) -> Run:
  """Opens combined runs; returns a copy of the first, in the combination's folder.

  Args:
    workdir, devices: as in `reopen`.
    config: that of the combination.
    may_refit: use the parameters that were trained on all rows, if there are any.
  """
  opened: dict[str, Run] = {}
  for name in run_folder.combined(workdir):
    dataset = next(iter(opened.values())).dataset if opened else None
    folder = workdir / run_folder.MEMBERS / name
    opened[name] = reopen(folder, devices, config.eval.backend, dataset, may_refit)
  combination = copy.copy(next(iter(opened.values())))
  combination.config, combination.members = config, opened
  combination.workdir = combination.ranking_folder = workdir
  return combination


def _on_this_machine(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, devices: ml_collections.ConfigDict | None
) -> ml_collections.ConfigDict:
  """Returns the config for this machine: its devices, and the encoder described in the run's folder.

  The folder may have been moved, so the encoder's original path is not used.
  """
  config = ml_collections.ConfigDict(config.to_dict())
  if devices is not None:
    config.mesh = devices
  config.mesh.label = min(config.mesh.label, len(jax.devices()))  # trained on more devices than are here
  config.mesh.data = min(config.mesh.data, len(jax.devices()) // config.mesh.label)
  if (workdir / "encoder").is_dir():
    config.encoder[models.source_key(config.encoder)] = str(workdir / "encoder")
  return config
