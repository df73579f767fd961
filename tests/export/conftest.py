"""What all tests of exports begin with."""

import shutil

import pytest

from tests.export import made_runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return made_runs.write_data(tmp_path_factory.mktemp("exports"))


@pytest.fixture
def copied(exported, tmp_path):
  """A copy of the export that a module's tests share."""
  return shutil.copytree(exported, tmp_path / "copied")
