"""docs/extending.md: its example goes through the checks of every method, and is what the page quotes."""

import importlib
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs
from kills import killed
from same_runs import assert_same_runs

from docs.examples import siglip, siglip_experiment, whole_pool
from xmc_jax import methods, plan
from xmc_jax.cli import commands
from xmc_jax.errors import ConfigError
from xmc_jax.methods.components import pool_losses
from xmc_jax.training import step

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "methods"))
checks = importlib.import_module("methods_test")
encoder_run, make_run = checks.encoder_run, checks.make_run  # its fixtures

SETTINGS = {
  "method.name": "siglip",
  "method.num_positives": 2,
  "method.num_hard_negatives": 2,
  "method.shortlist_size": 8,
  "method.shortlist_first_epoch": 0.0,
  "method.shortlist_every_epochs": 1.0,
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
  """The line of `_FILES` that the page tells to write."""
  monkeypatch.setitem(methods._FILES, "siglip", siglip.__name__)


@pytest.mark.slow
@pytest.mark.parametrize(
  "check",
  [
    checks.test_the_loss_falls_in_one_program_with_donated_state,
    checks.test_padding_changes_nothing,
    checks.test_meshes_agree,
  ],
  ids=lambda check: check.__name__.removeprefix("test_"),
)
def test_the_example_goes_through_the_checks_of_every_method(check, make_run):
  check(SETTINGS, make_run)


@pytest.mark.slow
def test_the_example_resumes_bit_identically(data, tmp_path):
  """Killed inside two epochs; shortlists, by which the last steps draw, are those of the checkpoint."""
  config = tiny_runs.config(data, **SETTINGS, **{"checkpoint.every_epochs": 0.4})
  expected = commands.train_and_test(config, tmp_path / "undisturbed")
  for at in (3, 6):
    with killed(step.TrainStep, "__call__", at):
      commands.train_and_test(config, tmp_path / "killed")
  assert commands.train_and_test(config, tmp_path / "killed") == expected
  assert_same_runs(tmp_path / "undisturbed", tmp_path / "killed")


def _reference(scores, true, real):
  """Zhai et al., Algorithm 1, of one row: the sum of log(1 + exp(-z s)), z = 1 for a match and else -1."""
  signs = np.where(true, 1.0, -1.0)
  return np.sum(np.logaddexp(0, -signs * scores), where=real)


def test_the_example_is_its_formula(make_run):
  """In float64; all true labels in the pool are matches, drawn or not, and filtered pairs do not count."""
  run = make_run(**SETTINGS, **{"encoder.embedding_dropout": 0.0})
  params, extra_state = run.initial_parameters()
  params["pairs"] = {"log_gain": np.float32(0.3), "bias": np.float32(-4.0)}
  queries = run.embedder.queries(params, extra_state, run.data.train.tokens).astype(np.float64)
  vectors = run.embedder.labels(params, extra_state).astype(np.float64)
  truth, filtered = run.data.train.truth.toarray() > 0, run.data.train.filter.toarray()
  num_undrawn = 0
  for number in (0, run.batches.steps_per_epoch - 1):
    batch, expected = run.batches.build(number), []
    at = np.maximum(batch.columns, 0)
    for row, positives, weights in zip(batch.rows, batch.positives, batch.weights):
      if row < 0:
        continue
      scores = np.exp(0.3) * vectors[at] @ queries[row] / run.config.method.temperature - 4.0
      out = filtered[row, at]
      expected.append(_reference(scores, truth[row, at] & ~out, (batch.columns >= 0) & ~out))
      num_undrawn += int(np.sum((positives >= 0) & (weights == 0)))
    found, metrics, _ = jax.jit(run.method.loss)(params, extra_state, batch, jax.random.key(0))
    assert float(found) == pytest.approx(np.mean(expected), rel=1e-4)
    assert float(metrics["gain"]) == pytest.approx(np.exp(0.3)) and float(metrics["bias"]) == -4
  assert num_undrawn > 0


def test_a_pool_that_is_scored_whole_gives_the_loss_of_a_streamed_one(make_run):
  run = make_run(**SETTINGS)
  batch, rng = run.batches.build(run.batches.steps_per_epoch - 1), np.random.default_rng(0)
  queries, labels = (jnp.asarray(rng.normal(size=(len(of), 8))) for of in (batch.rows, batch.columns))
  streamed = pool_losses.pool_loss(run.config, run._info(), "binary", queries, labels, batch)

  def of_row(scores, true, weights, counts):
    return jnp.sum(jnp.where(counts, jnp.logaddexp(0, jnp.where(true, -scores, scores)), 0))

  mean = lambda loss: float(whole_pool.mean_loss(loss, queries, labels, batch, run.config.method.temperature))
  assert mean(of_row) == pytest.approx(float(pool_losses.mean_over_rows(streamed, batch)), rel=1e-5)
  sampled = [np.sum(batch.weights[row] > 0) for row in np.flatnonzero(batch.rows >= 0)]
  assert max(sampled) == 2 < np.sum(batch.positives >= 0, axis=1).max()
  assert mean(lambda scores, true, weights, counts: weights.sum()) == pytest.approx(1)
  of_weights = lambda scores, true, weights, counts: ((weights > 0) & true & counts).sum()
  assert mean(of_weights) == pytest.approx(np.mean(sampled))


def test_the_example_can_be_planned_and_refuses_what_it_does_not_do():
  config = siglip_experiment.get_config()
  methods.check_config(config)
  made = plan.plan(config, plan.sizes_of(config))
  assert 0 < made.total < made.limit
  config.method.labels = "all"
  with pytest.raises(ConfigError, match=r"'all' is not one of 'in_batch', of method.name = 'siglip'"):
    methods.check_config(config)


def test_a_method_that_scores_its_pool_whole_can_be_planned(monkeypatch):
  config = siglip_experiment.get_config()
  config.method.score_chunk, config.train.batch_size = 64, 8192
  chunked = plan.plan(config, plan.sizes_of(config)).total
  of_row = lambda scores, true, weights, counts: jnp.sum(jnp.where(counts & ~true, scores, 0))
  whole = lambda config, info, loss, queries, labels, batch: whole_pool.mean_loss(
    of_row, queries, labels, batch, config.method.temperature
  )
  monkeypatch.setattr(siglip, "pool_loss", whole)
  assert chunked < plan.plan(config, plan.sizes_of(config)).total < 10 * chunked


def test_the_page_quotes_the_example():
  """Every block of Python on the page stands, line by line, in one of the example's files."""
  page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
  files = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "examples").glob("*.py")]
  blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
  assert len(blocks) >= 5
  for block in blocks:
    assert any(block in text for text in files), f"not in docs/examples:\n{block}"


def test_the_example_is_as_short_as_a_method_has_to_be():
  for path in (ROOT / "docs" / "examples").glob("*.py"):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 150
