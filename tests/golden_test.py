"""Every preset of every experiment, as it is resolved: a changed default shows up in review.

`tests/golden.json` holds the defaults of each method, those that all methods share once, and what each preset
sets otherwise. `make golden`, or `python -m tests.golden_test`, writes it anew; the diff belongs into the
commit, which says why.
"""

import functools
import importlib
import json
import pathlib

import pytest

from xmc_jax import methods
from xmc_jax.config import checks
from xmc_jax.errors import ConfigError

GOLDEN = pathlib.Path(__file__).parent / "golden.json"
EXPERIMENTS = pathlib.Path(__file__).parent.parent / "experiments"


def _presets() -> dict[str, tuple]:
  """'dexml-debian' -> (its experiment's module, 'debian')."""
  found = {}
  for path in sorted(EXPERIMENTS.glob("*.py")):
    module = importlib.import_module(f"xmc_jax.experiments.{path.stem}")
    for preset in getattr(module, "PRESETS", ()):
      found[f"{path.stem}-{preset}"] = (module, preset)
  return found


PRESETS = _presets()


def _resolved(config) -> dict:
  found = checks.flatten(config)
  return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}


@functools.cache
def dump() -> dict:
  """What golden.json has to hold."""
  defaults = {name: _resolved(methods.default_config(name)) for name in sorted(methods.SETTINGS)}
  presets = {}
  for name, (module, preset) in PRESETS.items():
    found = _resolved(module.get_config(preset))
    usual = defaults[found["method.name"]]
    presets[name] = {key: found[key] for key in sorted(found) if found[key] != usual.get(key, object())}
    presets[name]["method.name"] = found["method.name"]
  shared = {key: value for key, value in defaults["dexml"].items() if not key.startswith("method.")}
  own = {
    name: {key: usual[key] for key in usual if key.startswith("method.")} for name, usual in defaults.items()
  }
  return {"defaults": {"every method": shared, **own}, "presets": presets}


def _text(found: dict) -> str:
  return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def test_presets_are_as_they_were():
  kept, found = json.loads(GOLDEN.read_text(encoding="utf-8")), dump()
  for part in ("defaults", "presets"):
    assert kept[part].keys() == found[part].keys(), f"{part} came or went; is that meant? `make golden`"
    for name, values in found[part].items():
      assert kept[part][name] == values, (
        f"{part} of {name} have changed. If that is meant, run `make golden` (python -m tests.golden_test), "
        "and explain the diff in the commit"
      )
  assert GOLDEN.read_text(encoding="utf-8") == _text(found)


def test_presets_pass_the_checks():
  for name, (module, preset) in PRESETS.items():
    config = module.get_config(preset)
    methods.check_config(config)
    methods.check_config(module.get_config(f"{preset}_v5e_8"))
    assert config.name == name


@pytest.mark.parametrize("module", {id(module): module for module, _ in PRESETS.values()}.values(), ids=str)
def test_the_first_preset_is_the_default_and_unknown_ones_are_refused(module):
  first = next(iter(module.PRESETS))
  assert module.get_config().to_dict() == module.get_config(first).to_dict()
  with pytest.raises(ConfigError, match=f"did you mean '{first}'"):
    module.get_config(first + "x")


if __name__ == "__main__":
  GOLDEN.write_text(_text(dump()), encoding="utf-8")
  print(f"wrote {len(PRESETS)} presets into {GOLDEN}; look at `git diff {GOLDEN}`")
