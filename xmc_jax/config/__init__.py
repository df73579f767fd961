"""Declares config keys, defaults and legal values; checks them; counts durations in steps. Loads no jax.

A method's settings are in its own file; `xmc_jax.methods` joins them with the keys declared here.
"""

from xmc_jax.config.defaults import METRICS, SOURCES
from xmc_jax.config.keys import Key, Settings, declare
from xmc_jax.config.settings import (
  cache_root,
  check,
  check_against_data,
  check_against_devices,
  check_against_encoder,
  default,
  differences,
  idle_devices,
  name_after_data,
  read,
  steps,
  to_json,
  with_all_devices,
)

__all__ = [
  "METRICS",
  "SOURCES",
  "Key",
  "Settings",
  "cache_root",
  "check",
  "check_against_data",
  "check_against_devices",
  "check_against_encoder",
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
