"""Every preset of every experiment, as it is resolved: a changed default shows up in review.

`make golden`, or `python -m tests.golden_test`, writes the dumps anew; the diff belongs into the commit,
which says why.
"""

import difflib
import importlib
import pathlib

import pytest

from xmc_jax import config as configs
from xmc_jax.errors import ConfigError

FOLDER = pathlib.Path(__file__).parent / "golden"
EXPERIMENTS = pathlib.Path(__file__).parent.parent / "experiments"


def _presets() -> dict[str, tuple]:
  """'dexml-debian' -> (its experiment's module, 'debian')."""
  found = {}
  for path in sorted(EXPERIMENTS.glob("*.py")):
    module = importlib.import_module(f"experiments.{path.stem}")
    for preset in getattr(module, "PRESETS", ()):
      found[f"{path.stem}-{preset}"] = (module, preset)
  return found


PRESETS = _presets()
NAMES = pytest.mark.parametrize("name", PRESETS)


def dump(name: str) -> str:
  module, preset = PRESETS[name]
  return configs.to_json(module.get_config(preset))


@NAMES
def test_presets_are_as_they_were(name):
  path = FOLDER / f"{name}.json"
  kept, found = path.read_text(encoding="utf-8") if path.exists() else "", dump(name)
  diff = difflib.unified_diff(kept.splitlines(), found.splitlines(), str(path.name), "now", n=0, lineterm="")
  assert kept == found, (
    f"preset {name} has changed. If that is meant, run `make golden` (python -m tests.golden_test), "
    "and explain the diff in the commit:\n" + "\n".join(diff)
  )


def test_no_dump_without_a_preset():
  assert {path.stem for path in FOLDER.glob("*.json")} == set(PRESETS)


@NAMES
def test_presets_pass_the_checks(name):
  module, preset = PRESETS[name]
  config = module.get_config(preset)
  configs.check(config)
  assert config.name == name
  assert set(config.to_dict()) == set(configs.default().to_dict())


@pytest.mark.parametrize("module", {id(module): module for module, _ in PRESETS.values()}.values(), ids=str)
def test_the_first_preset_is_the_default(module):
  first = next(iter(module.PRESETS))
  assert module.get_config().to_dict() == module.get_config(first).to_dict()


@pytest.mark.parametrize("module", {id(module): module for module, _ in PRESETS.values()}.values(), ids=str)
def test_unknown_presets(module):
  first = next(iter(module.PRESETS))
  with pytest.raises(ConfigError, match=f"did you mean '{first}'"):
    module.get_config(first + "x")


if __name__ == "__main__":
  FOLDER.mkdir(exist_ok=True)
  for path in FOLDER.glob("*.json"):
    path.unlink()
  for name in PRESETS:
    (FOLDER / f"{name}.json").write_text(dump(name), encoding="utf-8")
  print(f"wrote {len(PRESETS)} dumps into {FOLDER}; look at `git diff {FOLDER}`")
