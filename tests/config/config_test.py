"""Defaults, checks, run configs: one line for every fault, and what a line names as legal is accepted."""

import ast
import copy
import functools
import json
import math
import re

import pytest
from ml_collections import ConfigDict, config_dict

from xmc_jax import config as configs
from xmc_jax import data, methods, models
from xmc_jax import plan as plans
from xmc_jax.config import checks
from xmc_jax.config.defaults import KEYS, keys_of
from xmc_jax.data.formats.source import Options
from xmc_jax.errors import ConfigError

DEFAULT = checks.flatten(methods.default_config())
# Every way in which a key is declared: `(method, key, its declaration)`, those outside `config.method` once.
DECLARED = [
  (method, key, declared)
  for method in methods.SETTINGS
  for key, declared in keys_of(methods.SETTINGS[method]).items()
  if key.startswith("method.") or method == "dexml"
]
USUAL = {key: declared.default for _, key, declared in reversed(DECLARED)}
NUMBERS = [found for found in DECLARED if found[2].is_number]
BAG = {"encoder.name": "bag", "encoder.tokenizer": "train"}


@functools.cache
def _nested_defaults(method: str) -> dict:
  return methods.default_config(method).to_dict()


def made(**overrides) -> ConfigDict:
  """The defaults with other values of any type, as they are; assigning them one by one would convert some."""
  named = overrides.get("method.name", "dexml")
  known = isinstance(named, str) and named in methods.SETTINGS
  nested = copy.deepcopy(_nested_defaults(named if known else "dexml"))
  for key, value in overrides.items():
    *sections, name = key.split(".")
    target = nested
    for section in sections:
      target = target[section]
    target[name] = value
  return ConfigDict(nested)


def refusal(check, *arguments) -> str:
  with pytest.raises(ConfigError) as caught:
    check(*arguments)
  message = str(caught.value)
  assert "\n" not in message and len(message) < 400
  return message


def remedies(message: str) -> list[tuple[str, object]]:
  """The (key, value) pairs that a message offers."""
  found = []
  for key, quoted, bare in re.findall(r'--config\.([\w.]+)=(?:"([^"]*)"|([^\s,;?"]+))', message):
    usual = USUAL[key]
    if quoted:  # a shell would take parentheses for its own
      found.append((key, ast.literal_eval(quoted)))
    else:
      found.append((key, bare == "True" if isinstance(usual, bool) else type(usual)(bare)))
  return found


def assert_refused(overrides: dict, *words: str) -> None:
  """The config is refused with these words, and each remedy that is offered mends it."""
  message = refusal(methods.check_config, made(**overrides))
  for word in words:
    assert word in message
  offered = remedies(message)
  assert offered, message
  for key, value in offered:
    methods.check_config(made(**(overrides | {key: value})))


# Single values.


def test_every_default_is_checked_and_accepted():
  for method in methods.SETTINGS:
    methods.check_config(methods.default_config(method))
  # A default that is shared between two configs would leak from one run into another.
  methods.default_config().train.seed = 5
  assert methods.default_config().train.seed == 0


def test_what_every_key_is_told_at_its_ends():
  """A value past the end is refused with the end, and the end itself never for its range."""
  for method, key, declared in NUMBERS:
    low, most = declared.least, declared.most
    for value in (low, most):
      if declared.above is None and declared.below is None:
        config = made(**{"method.name": method, key: value})
        by_range = (f"{key} = {value} is less than {low};", f"{key} = {value} is more than {most};")
        found = list(map(str, checks.faults(config, methods.SETTINGS)))
        assert not any(fault.startswith(by_range) for fault in found), found
    if declared.above is not None:
      assert f"{key} = 0 must be more than 0" in _told(method, key, 0)
    elif declared.below is not None:
      assert f"{key} = 1 must be at least 0 and less than 1" in _told(method, key, 1)
    else:
      too_low = _told(method, key, low - 1)
      assert f"{key} = {low - 1} is less than {low}; set --config.{key}={low} or more" in too_low
      assert f"is more than {most}; set --config.{key}={most} or less" in _told(method, key, most + 1)


def _told(method: str, key: str, value: float) -> str:
  return refusal(methods.check_config, made(**{"method.name": method, key: value}))


def test_choices():
  for method, key, declared in DECLARED:
    legal, of_method = declared.choices, {"method.name": method}
    for value in legal:
      faults = checks.faults(made(**(of_method | {key: value})), methods.SETTINGS)
      assert not any(fault.startswith(f"{key} = {value!r} is not one of") for fault in faults)
    if legal:
      assert f"did you mean --config.{key}={legal[0]}?" in _told(method, key, legal[0] + "x")
      assert_refused(of_method | {key: "?"}, f"set --config.{key}={legal[0]}", *legal)
      assert_refused(of_method | {key: ""}, f"{key} = ''")


def test_choices_are_those_of_the_rooms():
  assert KEYS["data"]["layout"].choices == data.LAYOUTS
  for dtype in KEYS["encoder"]["dtype"].choices:
    models.choose_dtype(dtype)
  assert set(Options._fields) <= set(methods.default_config().data)


@pytest.mark.parametrize("key", ["name", "encoder.name", "method.name", "data.text"])
def test_texts_that_must_not_be_empty(key):
  assert f"{key} is empty" in refusal(methods.check_config, made(**{key: "  "}))


# Values that must agree.


@pytest.mark.parametrize(
  "temperature, unit, limit",
  [
    *((temperature, True, "at most 0.5") for temperature in (0.51, 1.0, 20.0)),
    *((temperature, False, "at least 0.5") for temperature in (1e-3, 0.05, 0.49)),
    *((0.05, True, ""), (0.5, True, ""), (0.5, False, ""), (1.0, False, "")),
  ],
)
def test_temperatures_of_unit_vectors_and_of_raw_products(temperature, unit, limit):
  settings = {"method.temperature": temperature, "encoder.normalize": unit}
  if not limit:
    methods.check_config(made(**settings))
    return
  assert_refused(settings, f"method.temperature = {temperature}", f"encoder.normalize = {unit}", limit)
  assert len(remedies(refusal(methods.check_config, made(**settings)))) == 3


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_no_override_for_a_temperature_that_is_none(unit, temperature):
  wrong = {"method.temperature": temperature, "encoder.normalize": unit, "method.allow_any_temperature": True}
  assert_refused(wrong, "must be more than 0")
  assert_refused(wrong | {"method.allow_any_temperature": False}, "must be more than 0")


@pytest.mark.parametrize(
  "batch, devices, nearest",
  [(1098, 4, 1100), (3, 8, 8), (1, 2, 2), (1023, 8, 1024), (2**31 - 1, 2, 2**31 - 2), (9, 6, 12)],
)
def test_mesh(batch, devices, nearest):
  wrong = {"train.batch_size": batch, "mesh.data": devices}
  assert_refused(wrong, f"train.batch_size = {batch}", f"mesh.data = {devices}")
  assert remedies(refusal(methods.check_config, made(**wrong))) == [("train.batch_size", nearest)]
  methods.check_config(made(**{"train.batch_size": devices * 3, "mesh.data": devices}))


GRU = BAG | {"encoder.name": "gru"}


@pytest.mark.parametrize(
  "wrong, words",
  [
    ({"method.labels": "in_batch", "method.num_hard_negatives": 101}, "than method.shortlist_size = 100"),
    ({"method.num_random_negatives": 5}, "method.labels = 'all'"),
    ({"data.num_validation": 0, "train.early_stop_evals": 3}, "needs validation rows"),
    ({**BAG, "encoder.pooling": "cls"}, "'bag' is a mean over all tokens"),
    ({**BAG, "encoder.num_layers": 2}, "'bag' has no layers to count"),
    ({**BAG, "encoder.num_frozen_layers": 1}, "'bag' has no layers to count"),
    ({**BAG, "encoder.attention_dropout": 0.1}, "'bag' has no attention"),
    ({**GRU, "encoder.width": 7}, "encoder.width=8"),
  ],
)
def test_settings_that_clash(wrong, words):
  *_, key = wrong
  assert_refused(wrong, f"{key} = {wrong[key]!r}", words)


@pytest.mark.parametrize("metric, depth", [("R@100", 100), ("R@10", 10), ("nDCG@5", 5), ("P@3", 3)])
def test_metric_deeper_than_what_is_kept(metric, depth):
  methods.check_config(made(**{"eval.metric": metric, "eval.k": depth}))
  wrong = {"eval.metric": metric, "eval.k": depth - 1}
  assert_refused(wrong, f"eval.metric = {metric!r}", f"eval.k = {depth - 1}")


# Keys.


@pytest.mark.parametrize(
  "key, words",
  [
    ("trian.batch_size", "did you mean 'train.batch_size'?"),
    ("train.batchsize", "did you mean 'train.batch_size'?"),
    ("train.epochs", "did you mean 'train.num_epochs'?"),
    ("lerning_rate", "did you mean 'train.learning_rate'?"),
    ("learning_rate", "did you mean 'train.learning_rate'?"),
    ("batch_size", "did you mean 'eval.batch_size' or 'train.batch_size'?"),
    ("train.lr", "there are train.batch_size, "),
    ("train", "config.train is a section, not a value; set one of train.batch_size, "),
    ("xyz", "there are auto, checkpoint, data, encoder, eval, init_from, "),
    ("", "there are "),
  ],
)
def test_unknown_keys(key, words):
  assert words in checks.unknown_key(key, DEFAULT, methods.SETTINGS)


def test_keys_that_a_config_file_adds_or_lacks():
  message = refusal(methods.check_config, made(**{"train.batchsize": 3}))
  assert "config has no key 'train.batchsize'; did you mean 'train.batch_size'?" in message
  config = methods.default_config()
  del config.train.seed
  assert "config has no train.seed; start from" in refusal(methods.check_config, config)
  config = methods.default_config()
  with config.ignore_type():
    config.train = 3
  assert "config.train is a section" in refusal(methods.check_config, config)


def test_a_value_that_ml_collections_requires():
  config = methods.default_config()
  with config.ignore_type():
    config.train.seed = config_dict.required_placeholder(int)
  assert "gave values that cannot be read (RequiredValueError" in refusal(methods.check_config, config)


@pytest.mark.parametrize("config", [None, 3, methods.default_config().to_dict()])
def test_what_is_no_config(config):
  assert "get_config() gave" in refusal(methods.check_config, config)


# Sizes of data, encoder, machine.


def test_against_data():
  config = made(**{"eval.k": 60, "data.num_validation": 10})
  configs.check_against_data(config, 11, 60)
  message = refusal(configs.check_against_data, config, 11, 59)
  assert "eval.k = 60 is more than the data's 59 labels" in message
  assert remedies(message) == [("eval.k", 59)]
  message = refusal(configs.check_against_data, config, 10, 60)
  assert "data.num_validation = 10 leaves nothing of 10 labelled training rows" in message
  assert remedies(message) == [("data.num_validation", 1)] and "or at most 9" in message
  both = refusal(configs.check_against_data, config, 10, 59)
  assert [key for key, _ in remedies(both)] == ["eval.k", "data.num_validation"]
  configs.check_against_data(made(**{"eval.k": 59, "data.num_validation": 9}), 10, 59)


def test_against_devices():
  config = made(**{"mesh.data": 8, "train.batch_size": 8})
  configs.check_against_devices(config, 8)
  message = refusal(configs.check_against_devices, config, 1)
  assert "mesh.data = 8 needs 8 devices, and 1 is here" in message
  assert remedies(message) == [("mesh.data", 1)]
  both = made(**{"mesh.data": 4, "mesh.label": 2})
  configs.check_against_devices(both, 8)
  message = refusal(configs.check_against_devices, both, 7)
  assert "mesh.data = 4 beside mesh.label = 2 needs 8 devices, and 7 are here" in message
  assert remedies(message) == [("mesh.data", 3)]
  message = refusal(configs.check_against_devices, both, 1)
  assert "mesh.label = 2 needs as many devices, and 1 is here" in message


def test_all_devices():
  """`mesh.data = 0` is the most devices that divide the batch; those outside the mesh are named."""
  for batch, label, devices, expected in (
    (16, 1, 8, 8),
    (16, 2, 8, 4),
    (16, 1, 6, 4),
    (15, 4, 8, 1),
    (7, 9, 8, 1),
  ):
    config = made(**{"train.batch_size": batch, "mesh.data": 0, "mesh.label": label})
    methods.check_config(config)
    used = configs.with_all_devices(config, devices)
    assert (used.mesh.data, used.mesh.label) == (expected, label)
  given = made(**{"mesh.data": 2, "train.batch_size": 16})
  assert configs.with_all_devices(given, 8).mesh.data == 2
  assert configs.idle_devices(given, 2) == ""
  for devices, idle in (
    (8, "6 of 8 devices stay idle; --config.mesh.data=0 trains on a mesh of 8 x 1"),
    (3, "1 of 3 devices stays idle: no more of them divide train.batch_size = 16"),
  ):
    assert idle in configs.idle_devices(given, devices)
  beside = made(**{"mesh.label": 2, "train.batch_size": 16})
  assert "a mesh of 4 x 2" in configs.idle_devices(beside, 8)


def test_a_plan_needs_the_number_of_devices():
  config = made(**{"mesh.data": 0, "plan.num_labels": 100})
  assert "mesh.data = 0 stands for the devices" in refusal(plans.sizes_of, config)


def test_the_shortest_length_holds_a_token():
  """The limit that a message names is one that the tokenizers accept."""
  tokenizer = data.train_tokenizer(["barn lt"], 100)
  low = KEYS["data"]["max_length"].least
  tokens = data.encode_texts(tokenizer, ["barn lt"], low)
  assert len(tokens) == 1
  with pytest.raises(ConfigError):
    data.encode_texts(tokenizer, ["barn lt"], low - 1)


# Durations, dumps, run folders.


@pytest.mark.parametrize(
  "epochs, per_epoch, expected", [(0.0, 10, 0), (0.5, 10, 5), (0.001, 10, 1), (2.5, 3, 8), (100, 1, 100)]
)
def test_steps(epochs, per_epoch, expected):
  found = configs.steps(epochs, per_epoch)
  assert found == expected and isinstance(found, int)


def test_differences():
  old = {"a": 1, "b": {"c": 2, "d": {"e": "x"}}, "f": 3}
  assert configs.differences(old, json.loads(json.dumps(old))) == []
  new = {"a": 1, "b": {"c": 5, "d": {"e": "y"}}, "g": 4}
  assert configs.differences(old, new) == ["b.c: 2 -> 5", "b.d.e: 'x' -> 'y'", "f: 3 -> None", "g: None -> 4"]


def test_read_gives_back_what_was_written(tmp_path):
  config = made(**{"data.path": "ü/'\"\n", "train.learning_rate": 1e-7, "train.seed": 5})
  path = tmp_path / "config.json"
  path.write_text(configs.to_json(config), encoding="utf-8")
  found = methods.read_config(path)
  assert found.to_dict() == config.to_dict()
  assert configs.to_json(found) == path.read_text(encoding="utf-8")
  lines = configs.to_json(config).splitlines()
  assert len(lines) == 2 + len(DEFAULT) + 2 * sum(isinstance(value, ConfigDict) for value in config.values())


def test_read_fills_in_what_an_older_version_did_not_know(tmp_path):
  stored = made(**{"train.seed": 5}).to_dict()
  del stored["method"]["dropout_on_labels"], stored["checkpoint"]
  path = tmp_path / "config.json"
  path.write_text(json.dumps(stored))
  assert methods.read_config(path).to_dict() == made(**{"train.seed": 5}).to_dict()


def test_a_setting_of_another_method_is_told_whose_it_is():
  message = refusal(methods.check_config, made(**{"method.name": "dpr", "method.prototype_width": 8}))
  assert message == "config has no key 'method.prototype_width': it is a setting of method.name = 'prime'"


@pytest.mark.parametrize(
  "content, words",
  [
    ('{"train": {"seed": 5', "not readable as a run's config"),
    ("\xff\xfe\x00", "not readable as a run's config"),
    ("[]", "not a config of this version"),
    ('{"model_type": "bert"}', "method.name = '' is not one of dexml, "),
    ('{%s, "train": 3}', "not a config of this version"),
    ('{%s, "train": {"seed": NaN}}', "train.seed = nan is not a whole number"),
    ('{%s, "train": {"batch_size": "8"}}', "train.batch_size = '8' is not a whole number"),
    ('{%s, "train": {"batchsize": 1}}', "did you mean 'train.batch_size'?"),
  ],
)
def test_read_of_damaged_files(tmp_path, content, words):
  path = tmp_path / "config.json"
  path.write_text(content.replace("%s", '"method": {"name": "dexml"}'), encoding="latin-1")
  message = refusal(methods.read_config, path)
  assert words in message and str(path) in message


@pytest.mark.parametrize(
  ("name", "path", "expected"),
  [
    ("dexml-debian", "", "dexml-debian"),
    ("dexml-debian", "data/my recipes.jsonl.gz", "dexml-my_recipes"),
    ("prime-debian", "sets/LF-CppDocs-SeeAlso/", "prime-LF-CppDocs-SeeAlso"),
    ("prime-debian", "..", "prime-data"),
    ("mine", "recipes.csv", "mine"),
  ],
)
def test_presets_of_the_bundled_data_are_named_after_others_that_they_are_given(name, path, expected):
  config = methods.default_config()
  config.name, config.data.path = name, path
  assert configs.name_after_data(config) == expected


def test_read_of_a_folder_whose_name_is_mistyped(tmp_path):
  (tmp_path / "dexml-debian").mkdir()
  (tmp_path / "dexml-debian" / "config.json").write_text("{}")
  message = refusal(methods.read_config, tmp_path / "dexml_debian" / "config.json")
  assert f"did you mean {tmp_path / 'dexml-debian'}?" in message


def test_read_of_missing_files(tmp_path):
  assert "is not the folder of a run" in refusal(methods.read_config, tmp_path / "none" / "config.json")
  (tmp_path / "file").write_text("")
  assert "is not the folder of a run" in refusal(methods.read_config, tmp_path / "file" / "config.json")
  (tmp_path / "config.json").mkdir()
  assert "not readable" in refusal(methods.read_config, tmp_path / "config.json")
