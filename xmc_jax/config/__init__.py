"""Makes configs of declared keys, checks, writes and reads them; counts durations in steps. Loads no jax.

A method's settings are in its own file; `xmc_jax.methods` joins them with the keys declared here.
"""

import difflib
import json
import os
import pathlib
import re
from collections.abc import Mapping

import ml_collections

from xmc_jax import sanitize
from xmc_jax.config import checks
from xmc_jax.config.defaults import METRICS, SOURCES, keys_of
from xmc_jax.config.keys import Key, Settings, declare
from xmc_jax.errors import ConfigError

__all__ = [
  "METRICS",
  "SOURCES",
  "Key",
  "Settings",
  "cache_root",
  "changed",
  "check",
  "check_against_data",
  "check_against_devices",
  "declare",
  "default",
  "differences",
  "idle_devices",
  "name_after_data",
  "read",
  "steps",
  "to_json",
  "with_all_devices",
]

_BUNDLED = "debian"  # the end of the names of presets for the bundled data


def default(method: str, methods: Mapping[str, Settings]) -> ml_collections.ConfigDict:
  """Returns every key with its default: those of all methods (defaults.py), and the method's own.

  `methods` holds what each method declares, by its name. Experiments change values, never the set of keys.

  Raises:
    ConfigError: there is no such method.
  """
  for message in checks.name_faults(method, methods):
    raise ConfigError(message)
  nested: dict = {"method": {}}
  for key, declared in keys_of(methods[method]).items():
    section, _, name = key.rpartition(".")
    (nested.setdefault(section, {}) if section else nested)[name] = declared.default
  nested["method"]["name"] = method
  return ml_collections.ConfigDict(nested)


def cache_root() -> pathlib.Path:
  """Returns the folder of prepared data and compiled programs: `$XMC_JAX_CACHE`, or `~/.cache/xmc_jax`."""
  return pathlib.Path(os.environ.get("XMC_JAX_CACHE") or "~/.cache/xmc_jax").expanduser()


def name_after_data(config: ml_collections.ConfigDict) -> str:
  """Returns `config.name`; if a preset for the bundled data gets other data, it is named after these."""
  if not config.data.path or not config.name.endswith(f"-{_BUNDLED}"):
    return config.name
  stem = pathlib.Path(config.data.path).name.partition(".")[0]
  return config.name.removesuffix(_BUNDLED) + (re.sub(r"[^\w-]+", "_", stem) or "data")


def steps(epochs: float, steps_per_epoch: int) -> int:
  """Returns a duration in steps: at least one; 0 epochs is 0, which means never."""
  return max(1, round(epochs * steps_per_epoch)) if epochs > 0 else 0


def check(config: ml_collections.ConfigDict, methods: Mapping[str, Settings]) -> None:
  """Raises ConfigError at the first value that cannot work, or if it is no config that `default` made."""
  for message in checks.faults(config, methods):
    raise ConfigError(message)


def check_against_data(config: ml_collections.ConfigDict, num_points: int, num_labels: int) -> None:
  """Checks k against L, and validation rows against N; names all faults in one ConfigError."""
  faults = []
  depth = checks.depth_of(config.eval.metric)
  if depth > num_labels:
    faults.append(
      f"eval.metric = {config.eval.metric!r} looks at {depth} labels per point, more than the data's "
      f"{num_labels}; set --config.eval.metric=P@1"
    )
  if config.eval.k > num_labels:
    faults.append(
      f"eval.k = {config.eval.k} is more than the data's {num_labels} labels; "
      f"set --config.eval.k={num_labels} or less"
    )
  if config.data.num_validation >= num_points:
    faults.append(
      f"data.num_validation = {config.data.num_validation} leaves nothing of {num_points} labelled training "
      f"rows; set --config.data.num_validation={num_points // 10}, or at most {num_points - 1}"
    )
  if faults:
    raise ConfigError("; and ".join(faults))


def changed(config: ml_collections.ConfigDict, values: Mapping[str, object]) -> ml_collections.ConfigDict:
  """Returns a copy of a config with new values for dotted keys."""
  copy = ml_collections.ConfigDict(config.to_dict())
  copy.update_from_flattened_dict(values)
  return copy


def with_all_devices(config: ml_collections.ConfigDict, num_devices: int) -> ml_collections.ConfigDict:
  """Returns the config with `mesh.data = 0` replaced by the most devices that divide the batch."""
  if config.mesh.data:
    return config
  return changed(config, {"mesh.data": _most_for_rows(config, num_devices)})


def _most_for_rows(config: ml_collections.ConfigDict, num_devices: int) -> int:
  beside = max(1, num_devices // config.mesh.label)
  return max(number for number in range(1, beside + 1) if config.train.batch_size % number == 0)


def idle_devices(config: ml_collections.ConfigDict, num_devices: int) -> str:
  """Returns a line that names the devices outside the mesh, and a mesh with fewer of them; '' if none are."""
  data, label = config.mesh.data, config.mesh.label
  idle, most = num_devices - data * label, _most_for_rows(config, num_devices)
  if not idle:
    return ""
  stay = f"note: {idle} of {num_devices} devices {'stays' if idle == 1 else 'stay'} idle"
  if most > data:
    return f"{stay}; --config.mesh.data=0 trains on a mesh of {most} x {label}"
  return f"{stay}: no more of them divide train.batch_size = {config.train.batch_size}"


def check_against_devices(config: ml_collections.ConfigDict, num_devices: int) -> None:
  """Checks that the machine has the devices of the mesh."""
  data, label = config.mesh.data, config.mesh.label
  here = f"{num_devices} {'is' if num_devices == 1 else 'are'} here"
  if label > num_devices:
    raise ConfigError(
      f"mesh.label = {label} needs as many devices, and {here}; set --config.mesh.label={num_devices}"
    )
  if data * label > num_devices:
    fits = num_devices // label
    beside = f" beside mesh.label = {label}" if label > 1 else ""
    raise ConfigError(
      f"mesh.data = {data}{beside} needs {data * label} devices, and {here}; set --config.mesh.data={fits}"
    )


def to_json(config: ml_collections.ConfigDict) -> str:
  """Writes the resolved config as JSON, sorted, with one key a line, so that a diff reads well."""
  text = json.dumps(config.to_dict(), indent=2, sort_keys=True)
  return re.sub(r"\[\n[\s\d,]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def read(path: pathlib.Path, methods: Mapping[str, Settings]) -> ml_collections.ConfigDict:
  """Reads the config of a run folder; keys that an older version did not know get their default.

  Raises:
    ConfigError: there is no config, or this version cannot use it.
  """
  try:
    stored = json.loads(path.read_text(encoding="utf-8"))
  except (FileNotFoundError, NotADirectoryError):
    runs = {other.parent.name: other.parent for other in path.parent.parent.glob("*/config.json")}
    near = difflib.get_close_matches(path.parent.name, runs, 1)
    meant = f"; did you mean {runs[near[0]]}?" if near else f"; {runs[min(runs)]} is one" if runs else ""
    told = f"{path}: no such file; {path.parent} is not the folder of a run{meant}"
    raise ConfigError(sanitize.line(told)) from None
  except (OSError, ValueError, RecursionError) as error:
    raise ConfigError(f"{path}: not readable as a run's config ({error})") from None
  try:
    config = default(stored.get("method", {}).get("name", ""), methods)
    with config.ignore_type():  # JSON has no tuples; `check` names a wrong type
      config.update(stored)
    check(config, methods)
  except (ConfigError, TypeError, ValueError, AttributeError) as error:
    reason = " ".join(str(error).split())[:200]
    raise ConfigError(f"{path}: not a config of this version of xmc_jax ({reason})") from None
  return config


def differences(old: Mapping, new: Mapping) -> list[str]:
  """Lists the keys whose values differ, as 'key: old -> new'."""
  before, after = checks.flatten(old), checks.flatten(new)
  keys = sorted(before.keys() | after.keys())
  pairs = [(key, before.get(key), after.get(key)) for key in keys]
  return [f"{key}: {one!r} -> {other!r}" for key, one, other in pairs if one != other]
