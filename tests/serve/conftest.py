"""A trained run for all tests of servers."""

import shutil

import pytest
from made_servers import train


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
  """The folder of a run, for tests that only read it."""
  return train(tmp_path_factory.mktemp("served"))


@pytest.fixture
def workdir(trained, tmp_path):
  """The folder of a copy, which may learn."""
  return shutil.copytree(trained, tmp_path / "run")
