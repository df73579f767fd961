"""Gives every test 8 simulated CPU devices; forbids downloads and files outside temporary folders."""

import collections
import os
import statistics

import tiny_devices  # XLA_FLAGS must be set before JAX starts its devices

os.environ["XLA_FLAGS"] = tiny_devices.flags(8)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import jax
import pytest

# XLA compiles during the first example of a shape, so wall-clock deadlines are meaningless.
hypothesis.settings.register_profile("xmc", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("xmc")


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory, monkeypatch):
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True, scope="session")
def _compiled_once(tmp_path_factory):
  """Caches compiled programs within the session; child processes do not share it, as tests may kill them."""
  jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("programs")))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_modifyitems(items):
  """Runs files with the largest share of slow tests first, so that no worker is left with one at the end."""
  files = collections.defaultdict(list)
  for item in items:
    files[item.path].append(bool(item.get_closest_marker("slow")))
  items.sort(key=lambda item: -statistics.mean(files[item.path]))
