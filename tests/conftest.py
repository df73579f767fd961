"""Gives every test 8 simulated CPU devices; forbids downloads and files outside temporary folders.

With $XMC_JAX_TEST_PLATFORM set to 'gpu' or 'tpu' tests run on that machine's own devices, with 'cpu' on one;
tests that need more are skipped.
"""

import collections
import math
import os
import pathlib
import signal
import statistics

import tiny_devices  # XLA_FLAGS must be set before JAX starts its devices

# Child processes read these, too.
os.environ["XLA_FLAGS"] = tiny_devices.flags_of_tests()
os.environ["JAX_PLATFORMS"] = tiny_devices.JAX_PLATFORMS
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import jax
import pytest

from xmc_jax import config as configs
from xmc_jax.distributed import sharding

_PROGRAMS = pathlib.Path(__file__).parents[1] / ".test_programs"  # `make clean` deletes it

# XLA compiles during the first example of a shape, so wall-clock deadlines are meaningless.
hypothesis.settings.register_profile("xmc", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("xmc")


def _skipping(function, devices_of):
  """Returns a function that skips the test if it asks for more devices than there are."""

  def checked(*args, **kwargs):
    if (wanted := devices_of(*args, **kwargs)) > jax.device_count():
      pytest.skip(f"needs {wanted} devices")
    return function(*args, **kwargs)

  return checked


if tiny_devices.PLATFORM:
  jax.make_mesh = _skipping(jax.make_mesh, lambda shape, *_, **__: math.prod(shape))
  sharding.make = _skipping(sharding.make, lambda data=1, label=1: data * label)
  configs.check_against_devices = _skipping(
    configs.check_against_devices, lambda config, _: config.mesh.data * config.mesh.label
  )


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("XMC_JAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    yield


@pytest.fixture(scope="session")
def data(tmp_path_factory):
  """Returns the folder of a tiny data set, which tests copy before they change it."""
  import tiny_runs

  return tiny_runs.write_data(tmp_path_factory.mktemp("plain") / "data")


@pytest.fixture(scope="session")
def graph_data(tmp_path_factory):
  """Returns the same with two graphs."""
  import tiny_runs

  return tiny_runs.write_graphs(tiny_runs.write_data(tmp_path_factory.mktemp("graphs") / "data"))


@pytest.fixture
def traces():
  """Returns a list that grows with each trace of a jitted function."""
  found: list[str] = []
  listener = lambda name, seconds, **_: found.append(name) if "jaxpr_trace" in name else None
  jax.monitoring.register_event_duration_secs_listener(listener)
  yield found
  jax.monitoring.unregister_event_duration_listener(listener)


@pytest.fixture(autouse=True, scope="session")
def _compiled_once():
  """Keeps compiled programs for both workers and for later runs; compiling takes more than half of the time.

  Child processes of a worker share a folder of their own, as tests may kill them in the middle of a file.
  """
  jax.config.update("jax_compilation_cache_dir", str(_PROGRAMS))
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_configure():
  """Lets SIGTERM end the tests, as Ctrl-C does.

  Without it a training that a test calls would save, and leave by SystemExit: a failed test, and pytest would
  go on with the next. `timeout` sends the signal when its time is over, as on a busy machine, and to xdist's
  workers, too. Sent to one worker alone, it ends in an internal error of xdist.
  """
  signal.signal(signal.SIGTERM, lambda *_: pytest.exit("SIGTERM", returncode=143))


def pytest_collection_modifyitems(items):
  """Runs files with the largest share of slow tests first, so that no worker is left with one at the end."""
  files = collections.defaultdict(list)
  for item in items:
    files[item.path].append(bool(item.get_closest_marker("slow")))
  items.sort(key=lambda item: -statistics.mean(files[item.path]))
