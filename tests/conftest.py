"""Every test sees 8 simulated CPU devices; nothing is fetched or written outside tmp folders."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import pytest

# XLA compiles inside the first example of a shape, so wall-clock deadlines say nothing.
hypothesis.settings.register_profile("xmc", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("xmc")


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory, monkeypatch):
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
