"""Configs: defaults, legal values and checks between keys, durations in steps. Loads no jax."""

from xmc_jax.config.limits import LOSSES, METRICS, SOURCES
from xmc_jax.config.settings import (
  cache_root,
  check,
  check_against_data,
  check_against_devices,
  check_against_encoder,
  default,
  differences,
  name_after_data,
  read,
  steps,
  to_json,
)

__all__ = [
  "LOSSES",
  "METRICS",
  "SOURCES",
  "cache_root",
  "check",
  "check_against_data",
  "check_against_devices",
  "check_against_encoder",
  "default",
  "differences",
  "name_after_data",
  "read",
  "steps",
  "to_json",
]
