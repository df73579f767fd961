"""Creates a run: turns a config into a folder that holds all that training needs."""

import contextlib
import pathlib
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import ml_collections

from xmc_jax import config as configs
from xmc_jax import console, data, methods, models
from xmc_jax.config import checks, fit_to_size
from xmc_jax.console import Progress, say
from xmc_jax.distributed import runtime
from xmc_jax.errors import ConfigError
from xmc_jax.models.locate import locate_here
from xmc_jax.plan import chunks
from xmc_jax.runs.metric_writer import MetricWriter
from xmc_jax.runs.run import Run
from xmc_jax.runs.training_data import write_known
from xmc_jax.storage import atomic, path_safety, run_folder

if TYPE_CHECKING:
  from tokenizers import Tokenizer

_TRAINED_VOCABULARY = 30_000  # tokens, where encoder.tokenizer = 'train'
# The keys of config.data that decide which training rows there are.
_WHICH_ROWS = (
  *("path", "layout", "text", "label_column", "label_separator", "label_file", "vocabulary"),
  *("unknown_labels", "test_fraction", "split_seed", "merge_texts", "encoding", "quoting"),
)


def create(config: ml_collections.ConfigDict, workdir: pathlib.Path, writer: MetricWriter) -> Run:
  """Makes the run folder, or opens the one that the same command made before.

  Raises:
    ConfigError: the folder holds a run with other settings.
    UserError, DataError: the folder, the encoder or the data cannot be used.
  """
  path_safety.check(workdir)
  begun = run_folder.has_checkpoints(workdir)
  config = configs.with_all_devices(with_encoder_of(config, workdir if begun else None), len(jax.devices()))
  _check_before_data(config, begun)
  # Resolves 'auto' for this machine: the run keeps its precision on any machine that continues it.
  config.encoder.dtype = models.resolve_dtype(config.encoder.dtype)
  with runtime.main_process_first("run folder"), writer.stage("prepare"):
    earlier = methods.read_config(path) if (path := workdir / "config.json").exists() else None
    with run_folder.claimed(config, earlier, workdir):
      prepared = load_data(config, _tokenizer(config, workdir), _tokenizer_name(config))
      if changed := changed_data(prepared, workdir):
        raise other_data(workdir, changed)
      config = fit_to_data(config, prepared, earlier if begun else None)
      run_folder.claim(config, methods.read_config(path), workdir)
    data.link_into(prepared.folder, workdir / "data")
    if config.init_from and not begun and runtime.is_main_process():
      write_known(config, prepared, workdir)
    described = config.encoder[models.source_key(config.encoder)]
    if models.starts_from_table(config.encoder):
      models.write_table(described, prepared.tokenizer(), workdir / "encoder")
    elif described:
      models.copy_description(described, workdir / "encoder")
  if models.starts_from_table(config.encoder):
    config.encoder.init_table = str(workdir / "encoder")
  dataset = data.load_prepared(workdir / "data")
  with runtime.main_process_first("chunks"):
    chosen = run_folder.chunks(workdir, lambda: chunks.choose_here(config, dataset))
    config.method.update({key: size for key, size in chosen.items() if key in config.method})
  run = Run(config, workdir, dataset)
  if idle := configs.idle_devices(config, len(jax.devices())):
    say(idle)
  if run.method.batch.graph_sides:
    with writer.stage("walk"):
      _ = run.sides
  elif "graphs" in config.method and not config.method.augment_truth:
    say(f"note: no graph has both links and a weight above 0, so this trains {config.method.base} alone")
  return run


def changed_data(prepared: data.Dataset, workdir: pathlib.Path, may_differ: tuple[str, ...] = ()) -> str:
  """Returns a file in which the data of the folder's run differ, as `differing`; '' if there is no run."""
  if not run_folder.has_checkpoints(workdir) or not (workdir / "data").is_dir():
    return ""
  files, known = (data.read_manifest(folder)["files"] for folder in (prepared.folder, workdir / "data"))
  return differing(files, known, may_differ)


def differing(files: Mapping[str, Any], others: Mapping[str, Any], may_differ: tuple[str, ...] = ()) -> str:
  """Returns the first name under which the files of two data sets are not the same; '' if all are.

  Names with a part in `may_differ` do not count.
  """
  names = (name for name in files.keys() | others.keys() if not any(part in name for part in may_differ))
  return min((name for name in names if files.get(name) != others.get(name)), default="")


def other_data(workdir: pathlib.Path, name: str) -> ConfigError:
  """Returns the error for a folder whose run was trained on other data; `name` is a file that differs."""
  return ConfigError(
    f"{workdir} holds a run on other data ({name} has changed since); give --workdir=ANOTHER_FOLDER, "
    "and --config.init_from=THIS_FOLDER to start from its parameters"
  )


def prepare(config: ml_collections.ConfigDict) -> tuple[data.Dataset, ml_collections.ConfigDict]:
  """Prepares the data of a config in the cache; makes no run's folder.

  Returns:
    The prepared data, and the config with the settings that it takes over from `config.init_from`.
  """
  config = configs.with_all_devices(with_encoder_of(config), len(jax.devices()))
  _check_before_data(config, begun=False)
  return _prepared(config), config


def data_here(config: ml_collections.ConfigDict) -> data.Dataset | None:
  """Prepares the data of a config if they and the tokenizer are on this machine, else returns None.

  Prints nothing; uses no hub and no device.
  """
  name = _tokenizer_name(config)
  if not config.data.path or not pathlib.Path(config.data.path).expanduser().exists():
    return None
  if name != "train" and not ((pathlib.Path(name) / "tokenizer.json").is_file() or locate_here(name)):
    return None
  with console.quiet():
    return _prepared(config)


def _prepared(config: ml_collections.ConfigDict) -> data.Dataset:
  with tempfile.TemporaryDirectory() as scratch:  # a run trains the same tokenizer again
    return load_data(config, _tokenizer(config, pathlib.Path(scratch)), _tokenizer_name(config))


def fit_to_data(
  config: ml_collections.ConfigDict, dataset: data.Dataset, begun: ml_collections.ConfigDict | None = None
) -> ml_collections.ConfigDict:
  """Fits a config to a data set, as `fitted` does; prints what was chosen.

  Raises:
    ConfigError: a setting cannot work with these data.
  """
  counts = dataset.train.num_labelled, dataset.num_labels
  if dataset.num_validation and config.data.num_validation == fit_to_size.AUTOMATIC:
    config = configs.changed(config, {"data.num_validation": dataset.num_validation})
  config, chosen = fitted(config, *counts, begun)
  if chosen:
    say(chosen)
  configs.check_against_data(config, *counts)
  methods.check_config(config)
  return config


def fitted(
  config: ml_collections.ConfigDict,
  num_labelled: int,
  num_labels: int,
  begun: ml_collections.ConfigDict | None = None,
) -> tuple[ml_collections.ConfigDict, str]:
  """Returns the config fitted to the size of the data, and a line that names what was chosen.

  If the number of validation rows is automatic, and the run continues `begun`, or starts from a run on the
  same data, the number is that run's, so that both hold out the same rows.
  """
  other, given = begun, config
  if not begun and config.init_from:
    other = methods.read_config(pathlib.Path(config.init_from) / "config.json")
  automatic = config.data.num_validation == fit_to_size.AUTOMATIC
  if other and automatic and all(other.data[key] == config.data[key] for key in _WHICH_ROWS):
    given = configs.changed(config, {"data.num_validation": other.data.num_validation})
  result = fit_to_size.fitted(given, num_labelled, num_labels, begun)
  return result, fit_to_size.note(config, result, num_labelled, num_labels)


def with_encoder_of(
  config: ml_collections.ConfigDict, begun: pathlib.Path | None = None
) -> ml_collections.ConfigDict:
  """Returns the config with another run's encoder, data, propensities and depth, if its method needs a run.

  That is the run in the folder `begun`, if one is continued, or else `config.init_from`.

  Raises:
    ConfigError: `config.init_from` is missing, or sets a run with other data or another encoder.
  """
  config = ml_collections.ConfigDict(config.to_dict())
  source = begun or pathlib.Path(config.init_from)
  if not methods.builds_on_a_run(config):
    return config
  name = config.method.name
  if not config.init_from:
    raise ConfigError(
      f"method.name = {name!r} needs a trained encoder; set --config.init_from=FOLDER of a run that has "
      "one, such as --config=experiments/ngame.py, dexa.py, prime.py or ramen.py makes"
    )
  other = methods.read_config(source / "config.json")
  theirs, usual = checks.flatten(other), checks.flatten(methods.default_config(config.method.name))
  for key, value in checks.flatten(config).items():
    taken = key.startswith(("data.", "encoder.", "eval.propensity")) and key != "data.cache_dir"
    if taken and value not in (usual[key], theirs[key]):
      raise ConfigError(
        f"{key} = {value!r}, and {theirs[key]!r} in {source}: classifiers are trained on the data of their "
        f"encoder, with the same settings; leave --config.{key} out"
      )
  if other.train.refit:
    say(f"note: {source} was trained on all rows (train.refit), so validation metrics here are too high")
  if config.train.seed != other.train.seed:
    say(
      f"note: train.seed = {config.train.seed}, and {other.train.seed} in {source}: rows held out here were "
      "trained on there, so validation metrics are too high"
    )
  cache_dir, config.encoder, config.data = config.data.cache_dir, other.encoder, other.data
  config.data.cache_dir = cache_dir
  config.eval.propensity_a, config.eval.propensity_b = other.eval.propensity_a, other.eval.propensity_b
  if config.eval.k == usual["eval.k"]:
    config.eval.k = other.eval.k
  methods.check_config(config)
  return config


def _check_before_data(config: ml_collections.ConfigDict, begun: bool) -> None:
  """Checks all that can be checked without the data, whose preparation may take an hour; resolves 'auto'."""
  configs.check_against_devices(config, len(jax.devices()))
  if config.init_from and not begun:
    methods.read_config(pathlib.Path(config.init_from) / "config.json")
    if names := run_folder.combined(pathlib.Path(config.init_from)):
      raise ConfigError(
        f"init_from = {config.init_from!r}: combined runs; add /{run_folder.MEMBERS}/{names[0]}"
      )
  models.build(config.encoder, vocab_size=1)  # reads no weights
  config.encoder.update(models.head_settings(config.encoder, models.modules_of(config.encoder)))


def _tokenizer(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> "Tokenizer":
  """Loads the encoder's tokenizer, or trains one on the data's texts; adds the prompt before each text."""
  name = _tokenizer_name(config)
  if not name:
    raise ConfigError(
      f"encoder.tokenizer = '': a {config.encoder.name} from scratch has none; set "
      "--config.encoder.tokenizer=train, or a package, folder or hub id that has one"
    )
  if name == "train":
    tokenizer = _trained_tokenizer(config, workdir / "tokenizer.json")
  else:
    tokenizer = data.load_tokenizer(models.tokenizer_file(name))
  prompt = config.encoder.prompt
  if not prompt and not config.encoder.tokenizer and (prompt := models.modules_of(config.encoder).prompt):
    say(f"note: every text begins with {prompt!r}; without it: --config.encoder.tokenizer={name}")
  if prompt:
    data.add_prompt(tokenizer, prompt)
  return tokenizer


def _tokenizer_name(config: ml_collections.ConfigDict) -> str:
  return config.encoder.tokenizer or config.encoder[models.source_key(config.encoder)]


def _trained_tokenizer(config: ml_collections.ConfigDict, path: pathlib.Path) -> "Tokenizer":
  theirs = pathlib.Path(config.init_from) / path.name
  if not path.exists() and config.init_from and theirs.exists():  # its parameters are for its tokens
    atomic.write_text(path, theirs.read_text(encoding="utf-8"))
  elif not path.exists():
    say("prepare: training a tokenizer on the data's texts")
    raw = load_data(config, None, "")
    trained = data.train_tokenizer([*raw.train.texts, *raw.labels.texts], _TRAINED_VOCABULARY)
    atomic.write_text(path, trained.to_str(pretty=True))
  return data.load_tokenizer(path)


def load_data(
  config: ml_collections.ConfigDict, tokenizer: "Tokenizer | None", tokenizer_name: str
) -> data.Dataset:
  """Loads the data of a config; prepares them in the cache if they are not there yet."""
  section = config.data
  bars: dict[str, Progress] = {}
  shown = contextlib.ExitStack()

  def progress(stage: str, done: int, total: int | None) -> None:
    if stage not in bars:
      shown.close()  # several bars at once break each other's lines
      bars[stage] = Progress(f"prepare: {stage}", total, unit="row")
      shown.callback(bars[stage].close)
    bars[stage].update(done)

  with shown:
    return data.load(
      section.path,
      layout=section.layout,
      tokenizer=tokenizer,
      tokenizer_name=tokenizer_name,
      max_length=section.max_length,
      cache_dir=section.cache_dir or None,
      progress=progress,
      **{key: section[key] for key in data.Options._fields},
    )
