"""Tested runs that all pages' tests share."""

import pytest
import tiny_runs
from page_runs import NAME, hostile_data, made_run

from xmc_jax.report import drawing


@pytest.fixture
def undrawn(monkeypatch):
  """Pages with empty figures, as drawing takes its time."""
  monkeypatch.setattr(drawing, "png", lambda *_, **__: b"")


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
  return hostile_data(tmp_path_factory.mktemp("page_data") / "raw")


@pytest.fixture(scope="session")
def plain_run(data_folder, tmp_path_factory):
  """Ranks by texts and label frequency, under a name with everything in it."""
  return made_run(data_folder, tmp_path_factory.mktemp("page_runs") / NAME, **{"method.log_prior": 1.0})


@pytest.fixture(scope="session")
def fused_run(data_folder, tmp_path_factory):
  """Another method, with two views that are fused, and refreshes."""
  settings = tiny_runs.UNIDEC | {"eval.fusion_rows": 100}
  return made_run(data_folder, tmp_path_factory.mktemp("page_runs") / "fused", **settings)


@pytest.fixture(scope="session")
def hybrid_run(data_folder, tmp_path_factory):
  """Ranks by all sources; its 20 validation rows are too few to fit on."""
  return made_run(data_folder, tmp_path_factory.mktemp("page_runs") / "hybrid", **{"eval.scores": "hybrid"})
