"""A tiny data set, and the script of the docs' tables, for all tests of tables."""

import importlib
import pathlib

import pytest
import tiny_runs

from xmc_jax import data


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
  folder = tiny_runs.write_data(tmp_path_factory.mktemp("set") / "tiny")
  return data.load(folder, tokenizer=None, tokenizer_name="", cache_dir=folder.with_name("cache"))


@pytest.fixture
def make_tables(monkeypatch):
  monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[2] / "docs")
  return importlib.import_module("make_tables")
