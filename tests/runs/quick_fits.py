"""Hybrid rankings that are fitted on few rows, with few trees."""

import contextlib

import pytest

from xmc_jax.retrieval import hybrid_model


@contextlib.contextmanager
def few_rows():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(hybrid_model, "FEWEST_ROWS", 40)
    patch.setattr(hybrid_model, "_NUM_TREES", 10)
    yield patch


@pytest.fixture(autouse=True)
def quick_fits():
  with few_rows():
    yield
