"""Any key, any value: a config is accepted, or refused in one line from which one can go on."""

import contextlib
import functools
import io
import math
import random
import string

import pytest

from tests import command_lines, tiny_runs
from tests.cli.main_test import DEXML
from tests.config.config_test import DECLARED, DEFAULT, USUAL, made, remedies
from tests.golden_test import PRESETS
from tests.methods.methods_test import CASES
from xmc_jax import methods
from xmc_jax.cli import commands
from xmc_jax.cli import flags as options
from xmc_jax.config import checks
from xmc_jax.config.defaults import keys_of
from xmc_jax.config.keys import LARGEST, Key
from xmc_jax.errors import ConfigError, UserError

pytestmark = pytest.mark.slow

LONGEST = 900  # of a line: there are messages that list all keys of a section
HUGE = (10**30, -(10**30), 2**31, 2**63, 1e300, -1e300, math.nan, math.inf, -math.inf, 5e-324)
TEXTS = (
  *("", " ", "x", "é", "ж\n", "\udc80", "\x1b[2J", "x" * 5000),
  *("../x", "/", "~", "a: b"),
)
ODD = (None, True, False, 0, -1, 1, 2.5, -0.0, (), (1,), ("a",), [1], {}, {"a": 1}, b"x", 1j, object(), len)
ANY = (*HUGE, *TEXTS, *ODD)
# A preset of each method that does not stand on another run.
METHODS = {
  PRESETS[name][0].get_config(PRESETS[name][1]).method.name: name
  for name in PRESETS
  if name.endswith("-debian") and not name.endswith("_classifier-debian")
}


@functools.cache
def preset(name: str) -> dict:
  """A preset's settings by their dotted keys."""
  module, short = PRESETS[name]
  return checks.flatten(module.get_config(short))


def refused(config) -> str:
  """What `methods.check_config` says; '' if it accepts."""
  try:
    methods.check_config(config)
  except ConfigError as error:
    message = str(error)
    assert "\n" not in message and message.isprintable() and len(message) < LONGEST, message
    return message
  return ""


def legal(declared: Key, rng: random.Random, most: int = LARGEST):
  """A value that is legal by itself, often one at the end of its range."""
  usual = declared.default
  if declared.choices:
    return rng.choice(declared.choices)
  if isinstance(usual, bool):
    return rng.random() < 0.5
  if declared.above is not None:
    return rng.choice([5e-324, 1e-9, 0.01, 0.5, 1.0, min(declared.most, most)])
  if declared.below is not None:
    return rng.choice([0, 0.5, 0.999, 1 - 1e-16])
  if declared.is_number:
    low, high = declared.least, max(declared.least, min(declared.most, most))
    near, far = rng.randint(math.ceil(low), int(min(high, low + 20))), min(high, int(2 ** rng.uniform(0, 31)))
    values = [low, high, near, max(low, far)]
    return rng.choice(values if isinstance(usual, int) else [*values, rng.uniform(low, high), low + 1e-12])
  if isinstance(usual, tuple):
    return rng.choice([(), (0,), (1, 2), (0.5,), ("a",), ("../x",), (0,) * 50])
  return rng.choice(["x", "title", "../x", "a" * 200, "é\n", "~nobody/x", "train", "bag", "gru", "dexml"])


def keys_beside(values: dict) -> dict[str, Key]:
  """The keys of a config with these values, but for the method's name, which goes with all the others."""
  found = keys_of(methods.SETTINGS[values.get("method.name", "dexml")])
  return {key: declared for key, declared in found.items() if key != "method.name"}


def mended(values: dict, steps: int = 30) -> dict:
  """The settings after every remedy that is offered was followed, the first of each line."""
  for _ in range(steps):
    message = refused(made(**values))
    if not message:
      return values
    offered = remedies(message)
    if offered:
      key, value = offered[0]
    else:  # a text with nothing to propose
      starts = lambda key: (f"{key} ", f"config.{key} ", f"config has no {key};")
      key = next(key for key in USUAL if message.startswith(starts(key)))
      value = USUAL[key]
    assert values.get(key) is not value, f"{message} says to set what is set"
    values = {**values, key: value}
  raise AssertionError(f"no end: {message}")


# Keys.


def edits(word: str, count: int, rng: random.Random) -> set[str]:
  """Words that one slip of a finger makes of this one."""
  found = set()
  while len(found) < count:
    at, letter = rng.randrange(len(word)), rng.choice(string.ascii_lowercase + "_")
    more = [word[:at] + word[at + 1 :], word[:at] + letter + word[at + 1 :], word[:at] + letter + word[at:]]
    more.append(word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :] if at else word)
    found.add(rng.choice(more))
  return found - {word}


def test_a_mistyped_key_is_recognised():
  for method, key, _ in DECLARED:
    rng, known = random.Random(key), keys_of(methods.SETTINGS[method])
    *sections, name = key.split(".")
    for slip in edits(name, 12, rng):
      wrong = ".".join([*sections, slip])
      if wrong not in USUAL and slip:
        assert repr(key) in checks.unknown_key(wrong, known, methods.SETTINGS), wrong
    if sections:
      for slip in edits(sections[0], 4, rng):
        assert repr(key) in checks.unknown_key(f"{slip}.{name}", known, methods.SETTINGS), slip


def test_a_key_below_a_value_and_a_section_without_one():
  for method, key, _ in DECLARED:
    known = keys_of(methods.SETTINGS[method])
    assert f"config.{key} is a value" in checks.unknown_key(f"{key}.x", known, methods.SETTINGS)
    if key != "method.name":
      assert key in refused(made(**{"method.name": method, key: {"a": 1}}))
      assert f"{key} = {{}}" in refused(made(**{"method.name": method, key: {}}))


# Values.


def test_any_value():
  """Refused by key, value and what to set instead, or of the right type and in its range."""
  for method, key, declared in DECLARED:
    usual, of_method = declared.default, {} if key == "method.name" else {"method.name": method}
    for value in random.Random(f"{method} {key}").sample(ANY, 15):
      if message := refused(made(**(of_method | {key: value}))):
        assert key in message
        mended(of_method | {key: value})
        continue
      kinds = (int, float) if isinstance(usual, float) else type(usual)
      assert isinstance(value, kinds) and isinstance(value, bool) == isinstance(usual, bool)
      assert not isinstance(value, (int, float)) or math.isfinite(value)


def test_pairs_of_values():
  """Legal values that clash, and illegal ones, of any preset: whoever does what is said comes to an end."""
  rng, accepted = random.Random(1), 0
  for _ in range(800):
    values = dict(preset(rng.choice(list(PRESETS))))
    keys = keys_beside(values)
    for key in rng.sample(list(keys), rng.choice([2, 2, 3, 5])):
      values[key] = rng.choice(ANY) if rng.random() < 0.2 else legal(keys[key], rng)
    if message := refused(made(**values)):
      assert any(key in message for key in USUAL)
      mended(values)
    accepted += not message
  assert accepted > 150


# The command line.


SPELLED = (
  *("", "x", "-1", "1.5", "1e999", "nan", "-inf", "9" * 30, "9" * 5000, "True", "None", "()", "(1,2)", "(1"),
  *("('a',)", "[1]", "{}", "\n", "a\nb: c", "a: b", "é", "\udc80", "0x10", "1_000", "'x'", "=", "%s", "{0}"),
  *("lambda: 1", "__import__('os').abort()", "(__import__('os').abort(),)", "f'{1}'", "1j"),
)


def told(*arguments: str) -> str:
  """What a command line is refused with, in this process; '' if its config is accepted."""
  with command_lines.given(DEXML, *arguments) as argv:
    try:
      options.parse(argv)
      options.checked_config()
    except UserError as error:
      return " ".join(str(error).split())
  return ""


@pytest.mark.parametrize("section", ("", "data", "encoder", "method", "train", "eval"))
def test_any_text_on_the_command_line(section):
  for key in (key for key in DEFAULT if key.rpartition(".")[0] == section):
    rng = random.Random(key)
    for value in rng.sample(SPELLED, 4):
      message = told(f"--config.{key}={value}")
      assert len(message) < LONGEST and "Traceback" not in message
      assert not message or key in message or "method.temperature" in message, message


@pytest.mark.parametrize(
  "argument, words",
  [
    ("--config.method.labels[0]=x", "config has no key 'method.labels[0]'; did you mean 'method.labels'?"),
    ("--config.__class__=x", "config has no key '__class__'"),
    ("--config.train.update=x", "config has no key 'train.update'"),
    ("--config.train.seed", "Missing value for flag --config.train.seed"),
  ],
)
def test_odd_overrides(argument, words):
  assert words in told(argument)


# What passes the checks: a plan, or a line.


def planned(values: dict) -> str:
  """'' for a plan, or what it is refused with."""
  try:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
      commands.plan(made(**values))
  except UserError as error:
    message = str(error)
    assert "\n" not in message and len(message) < LONGEST
    return message
  return ""


@pytest.mark.parametrize(
  "method", ["dexml", *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name != "dexml")]
)
def test_any_legal_value_gives_a_plan_or_a_line(method):
  plans = 0
  keys = keys_beside({"method.name": method})
  if method != "dexml":  # of which all others share the keys that are no method's
    keys = {key: declared for key, declared in keys.items() if key.startswith("method.")}
  for key, declared in keys.items():
    rng = random.Random(f"{method} {key}")  # so that a new key leaves the values of others as they are
    values = {**preset(METHODS[method]), key: legal(declared, rng)}
    if not refused(made(**values)):
      plans += not planned(values)
  assert plans > len(keys) / 3


def test_more_frozen_layers_than_there_are_give_no_plan():
  values = {**preset("dexml-minilm"), "encoder.num_frozen_layers": 7}
  assert "set --config.encoder.num_frozen_layers=6, or less" in planned(values)


# Trainings: what no plan can know.

BASES = [CASES[name] for name in ("dexml-all", "ova", "ance-margin", "dexa", "prime", "ramen", "unidec")]
BASES.append(CASES["rae_xmc-points"])
# Not the training's business, or other tests'; and what would only take long.
_OF_DATA = ("data.path", "data.cache_dir", "data.text", "data.layout")
_APART = ("name", "init_from", "method.name", "plan.", *_OF_DATA)
_MESH = {"mesh.data": 9, "mesh.label": 9}
_SMALL = {"train.num_epochs": 3, "method.walk_hops": 100, "train.batch_size": 99, **_MESH}


@pytest.mark.parametrize(
  "base, count", [(CASES["ova"], 1), *(pytest.param(base, 3, marks=pytest.mark.slow) for base in BASES)]
)
def test_trainings_of_legal_settings_end_well_or_in_a_line(base, count, tmp_path):
  rng = random.Random(base["method.name"])
  folder = tiny_runs.write_graphs(tiny_runs.write_data(tmp_path / "raw"))
  keys = {
    key: declared
    for key, declared in keys_beside(base).items()
    if not key.startswith(("encoder.name", "encoder.init", "encoder.tok", *_APART))
  }
  done = 0
  while done < count:
    chosen = {key: legal(keys[key], rng, _SMALL.get(key, 2000)) for key in rng.sample(list(keys), 3)}
    print(f"settings: {chosen}")  # shown with a failure
    try:
      config = tiny_runs.config(folder, **{"train.num_epochs": 2, **base, **chosen})
      commands.train_and_test(config, tmp_path / f"run{rng.random()}")
      done += 1
    except UserError as error:
      assert "\n" not in str(error)
