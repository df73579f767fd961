"""Every test sees 8 simulated CPU devices; nothing is fetched or written outside tmp folders."""

import collections
import os
import statistics

import tiny_devices  # before JAX is asked for a device

os.environ["XLA_FLAGS"] = tiny_devices.flags(8)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import jax
import pytest

# XLA compiles inside the first example of a shape, so wall-clock deadlines say nothing.
hypothesis.settings.register_profile("xmc", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("xmc")


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory, monkeypatch):
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True, scope="session")
def _compiled_once(tmp_path_factory):
  """No program twice in one process; child processes, which may be killed while they write, share nothing."""
  jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("programs")))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_modifyitems(items):
  """Files with the largest share of slow tests come first, so that no worker is alone with one in the end."""
  files = collections.defaultdict(list)
  for item in items:
    files[item.path].append(bool(item.get_closest_marker("slow")))
  items.sort(key=lambda item: -statistics.mean(files[item.path]))
