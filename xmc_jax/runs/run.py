"""A run: a config joined to its data, its method and its folder."""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator

import jax
import ml_collections
import numpy as np

from xmc_jax import config as configs
from xmc_jax import data, methods, metrics, models
from xmc_jax.batching.builder import BatchBuilder
from xmc_jax.batching.graph_anchors import Side
from xmc_jax.distributed import sharding
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.refresh import Snapshot
from xmc_jax.retrieval import embed_table, texts_at_a_time
from xmc_jax.runs import graph_edges
from xmc_jax.storage import path_safety, run_folder
from xmc_jax.storage.checkpoints import StepFolder
from xmc_jax.types import Array, DatasetInfo, PyTree


class Run:
  """Everything that training, evaluation and prediction share.

  Attributes:
    config, workdir, dataset: as given.
    train, validation: the labelled rows to train on, and those held out.
    method: the paper's functions.
    mesh: the device mesh.
    batches: the BatchBuilder of the training rows.
    trained_on: how many devices it was begun on.
    ranking_folder: of what is made of the parameters, to rank by.
  """

  def __init__(self, config: ml_collections.ConfigDict, workdir: pathlib.Path, dataset: data.Dataset):
    self.config, self.workdir, self.dataset = config, workdir, dataset
    if not dataset.train.num_labelled:
      raise ConfigError(f"{dataset.name}: no training row has a label, so there is nothing to learn from")
    configs.check_against_data(config, dataset.train.num_labelled, dataset.num_labels)
    configs.check_against_devices(config, len(jax.devices()))
    self.train, self.validation = data.hold_out(dataset.train, config.data.num_validation, config.train.seed)
    if not (num_labelled := int(np.count_nonzero(np.diff(self.train.unfiltered_positives.indptr)))):
      raise ConfigError(
        f"{dataset.name}: every label pair of the training rows is filtered, so none is learnt"
      )
    self.mesh = sharding.make(config.mesh.data, config.mesh.label)
    tokenizer = dataset.tokenizer()
    info = DatasetInfo(
      num_points=len(self.train),
      num_labels=dataset.num_labels,
      max_length=config.data.max_length,
      vocab_size=tokenizer.get_vocab_size(),
      special_ids=data.special_ids(tokenizer),
      mesh=self.mesh,
      label_counts=np.bincount(self.train.unfiltered_positives.indices, minlength=dataset.num_labels),
      graphs=dataset.graph_kinds,
      num_labelled=num_labelled,
    )
    self.method = methods.make(config, info)
    methods.check_scores(config.eval.scores, config, self.method)
    self._embedders, self.trained_on, self.ranking_folder = {}, self.mesh.size, workdir
    self._between_batches: Callable[[], None] | None = None

  @functools.cached_property
  def inverse_propensity(self) -> np.ndarray:
    """`[L]`, 1 / p_l, counted on all training rows."""
    settings = self.config.eval
    return metrics.inverse_propensity(self.dataset.train.truth, settings.propensity_a, settings.propensity_b)

  def initial_parameters(self) -> tuple[PyTree, PyTree]:
    """Returns `(params, extra_state)` at step 0, the method's own or those of the run `config.init_from`."""
    own = self.method.init(jax.random.key(self.config.train.seed))
    if not self.config.init_from:
      return own
    try:
      other = reopen(pathlib.Path(self.config.init_from), self.config.mesh)
      snapshot = self._snapshot(other, *other.trained())
      found = self.method.init_from_run(snapshot) if self.method.init_from_run else (snapshot.params, own[1])
      labels = other.dataset.num_labels, self.dataset.num_labels
      if sharding.splits_rows(own, self.method.sharding_rules) and labels[0] != labels[1]:
        raise UserError(f"{labels[0]:,} labels there, and {labels[1]:,} here")
      found, own = ({"params": params, "extra_state": extra_state} for params, extra_state in (found, own))
      fitted = sharding.fit_rows(
        found, own, self.method.sharding_rules, most=max(other.trained_on, self.mesh.size)
      )
      return fitted["params"], fitted["extra_state"]
    except UserError as error:
      raise ConfigError(f"init_from = {self.config.init_from!r}: {error}") from None

  @functools.cached_property
  def sides(self) -> dict[str, Side]:
    """Of metadata graphs, those that the method learns from, by name."""
    names, points = self.method.batch.links, self.train.row_numbers
    return graph_edges.load(names, self.dataset, points, self.config, self.workdir) if names else {}

  @functools.cached_property
  def truth(self):
    """CSR `[N, L]`, what training points are trained on: the true labels, and what is added to them."""
    settings, train = self.config.method, self.train
    if not settings.get("augment_truth"):
      return train.truth
    return graph_edges.augmented(train.truth, self.dataset, train.row_numbers, settings)

  @functools.cached_property
  def batches(self) -> BatchBuilder:
    train, spec = self.train, self.method.batch
    return BatchBuilder(
      train.tokens,
      self.dataset.labels.tokens,
      self.truth,
      train.filter,
      spec,
      batch_size=self.config.train.batch_size,
      max_length=self.config.data.max_length,
      seed=self.config.train.seed,
      data_axis=self.config.mesh.data,
      label_axis=self.config.mesh.label,
      local_queries=lambda num_rows: sharding.local_rows(num_rows, self.mesh, "data"),
      local_labels=lambda num_rows: sharding.local_rows(num_rows, self.mesh, *sharding.LABEL_ROWS),
      label_weights=self.inverse_propensity if spec.positive_sampling == "inverse_propensity" else None,
      sides=self.sides,
    )

  @contextlib.contextmanager
  def embedding_under(self, watch: Callable[[], None]) -> Iterator[None]:
    """Meanwhile `watch` is called between the batches of whatever is embedded; it may raise to leave."""
    self._between_batches = watch
    try:
      yield
    finally:
      self._between_batches = None

  def freeze_queries(self, params: PyTree, extra_state: PyTree) -> None:
    """Embeds the training points once and for all, where the method's encoder stays as it is."""
    if self.method.batch.frozen:
      path = self.workdir / run_folder.VECTORS
      if not path.exists():
        run_folder.save_array(path, self.embed_queries(params, extra_state, self.train.tokens))
      self.batches.vectors = run_folder.open_array(path, len(self.train))

  def embed_queries(
    self, params: PyTree, extra_state: PyTree, tokens: data.TokenTable, progress=None
  ) -> np.ndarray:
    """`[n, D]` embeddings of points."""
    embed = self._embedder(self.method.embed_queries)
    return self._embed(lambda part, ids: embed(params, extra_state, part), tokens, progress)

  def embed_labels(self, params: PyTree, extra_state: PyTree, view: str = "", ids=None) -> np.ndarray:
    """`[n, D]` embeddings of labels `ids`, or of all; `view` is one of the method's views."""
    tokens = self.dataset.labels.tokens if ids is None else self.dataset.labels.tokens.rows(ids)
    function = self.method.scorers[view] if view else self.method.embed_labels
    return self._of_texts(function, params, extra_state, tokens, ids)

  def extra_state_to_rank(self, params: PyTree, extra_state: PyTree) -> PyTree:
    """Returns what labels are embedded by when they are ranked."""
    exact = self.method.extra_state_to_rank
    return exact(self.snapshot(params, extra_state, 0)) if exact else extra_state

  def _of_texts(
    self, function, params: PyTree, extra_state: PyTree, tokens: data.TokenTable, ids=None
  ) -> np.ndarray:
    embed = self._embedder(function)
    return self._embed(lambda part, which: embed(params, extra_state, part, which), tokens, ids=ids)

  def _embedder(self, function):
    """Texts are split over all devices; every process gets all vectors."""
    if function not in self._embedders:
      self._embedders[function] = jax.jit(function, out_shardings=sharding.replicated(self.mesh))
    return self._embedders[function]

  def _embed(self, embed, tokens, progress=None, ids: np.ndarray | None = None) -> np.ndarray:
    num_shards, axes = self.mesh.size, sharding.LABEL_ROWS

    def on_devices(part, which: np.ndarray):
      which = which if ids is None else np.where(which >= 0, ids[which], -1)
      return embed(*sharding.split_tree((part, which), self.mesh, *axes))

    def after_batch(done: int) -> None:
      if self._between_batches:
        self._between_batches()
      if progress:
        progress(done)

    size = sharding.rounded_up(texts_at_a_time(len(tokens), self.config.eval.batch_size), num_shards)
    return embed_table(
      on_devices,
      tokens,
      batch_size=size,
      max_length=self.config.data.max_length,
      local_rows=sharding.local_rows(size, self.mesh, *axes),
      packed=num_shards == 1 and models.packs_tokens(self.config.encoder),
      progress=after_batch,
    )

  def snapshot(self, params: PyTree, extra_state: PyTree, step: int) -> Snapshot:
    """Returns what refreshes may look at after `step` steps."""
    return self._snapshot(self, params, extra_state, step)

  def _snapshot(self, source: "Run", params: PyTree, extra_state: PyTree, step: int) -> Snapshot:
    """A snapshot of this run's data, embedded by a run that may be another."""

    def embed_queries() -> np.ndarray:
      frozen = source is self and self.method.batch.frozen
      return self.batches.vectors if frozen else source.embed_queries(params, extra_state, self.train.tokens)

    texts = source.method.embed_texts or source.method.embed_labels
    return Snapshot(
      embed_queries,
      lambda: source.embed_labels(params, source.extra_state_to_rank(params, extra_state)),
      lambda: source._of_texts(texts, params, extra_state, source.dataset.labels.tokens),
      truth=self.truth,
      filtered=self.train.filter,
      rows=self.batches.rows,
      step=step,
      steps_per_epoch=self.batches.steps_per_epoch,
      devices=self.mesh,
      params=params,
      extra_state=extra_state,
      sides=self.sides,
      embed_anchors=lambda side: source._of_texts(texts, params, extra_state, side.anchors),
    )

  def checkpoints(self, read_only: bool = False) -> StepFolder:
    return StepFolder(self.workdir / "checkpoints", keep=self.config.checkpoint.keep, read_only=read_only)

  def best(self, read_only: bool = False) -> StepFolder:
    return StepFolder(self.workdir / "best", keep=1, read_only=read_only)

  def refitted(self, read_only: bool = False) -> StepFolder:
    return StepFolder(self.workdir / run_folder.REFIT / "best", keep=1, read_only=read_only)

  def trained(self, last: bool = False) -> tuple[Array, PyTree, int]:
    """Reads `(params, extra_state, step)`: of the training on all rows, else the best, else the newest.

    With `last` it is the newest in any case.

    Raises:
      UserError: nothing has been saved yet.
    """
    better = () if last else (*[self.refitted] * self.config.train.refit, self.best)
    for opened in (*better, self.checkpoints):
      with contextlib.closing(opened(read_only=True)) as checkpoints:
        step = checkpoints.latest_valid()
        if step is not None:
          found = checkpoints.restore_trained(step, self.method.sharding_rules, self.mesh)
          self._check_fit(*found, checkpoints.path_of(step))
          return *found, step
    if run_folder.has_checkpoints(self.workdir):
      raise UserError(f"{self.workdir}: no checkpoint is left that is not damaged")
    raise UserError(f"{self.workdir}: no checkpoint yet; run --mode=train with this --workdir first")

  def _check_fit(self, params: PyTree, extra_state: PyTree, saved: pathlib.Path) -> None:
    """Refuses parameters that another config has trained."""
    none = np.full(self.mesh.size, -1)
    tokens = self.dataset.test.tokens.gather(none, self.config.data.max_length)
    try:
      jax.eval_shape(self.method.embed_queries, params, extra_state, tokens)
      jax.eval_shape(self.method.embed_labels, params, extra_state, tokens, none)
    except Exception as error:  # Flax's of shapes, a KeyError, ...
      why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
      raise UserError(f"{saved} does not fit config.json or encoder/, which were changed ({why})") from None


def reopen(workdir: pathlib.Path, devices: ml_collections.ConfigDict | None = None, backend: str = "") -> Run:
  """A run from its folder alone.

  Args:
    workdir: its folder.
    devices: a `config.mesh` to open it on; None is its own, or as much of it as is here.
    backend: what searches the labels, in place of its own `config.eval.backend`.
  """
  config = methods.read_config(workdir / "config.json")
  path_safety.check(workdir)
  config.eval.backend = backend or config.eval.backend
  methods.check_config(config)
  run = Run(_at_home(config, workdir, devices), workdir, data.load_prepared(workdir / "data"))
  run.trained_on = config.mesh.data * config.mesh.label
  return run


def _at_home(config, workdir: pathlib.Path, devices) -> ml_collections.ConfigDict:
  """The config with the encoder's description taken from the run's folder, so that it can move house."""
  config = ml_collections.ConfigDict(config.to_dict())
  if devices is not None:
    config.mesh = devices
  config.mesh.label = min(config.mesh.label, len(jax.devices()))  # trained on more devices than are here
  config.mesh.data = min(config.mesh.data, len(jax.devices()) // config.mesh.label)
  if (workdir / "encoder").is_dir():
    config.encoder[models.source_key(config.encoder)] = str(workdir / "encoder")
  return config
