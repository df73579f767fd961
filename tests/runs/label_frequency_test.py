"""Label frequency in an encoder's scores: cos/τ + α log(1 + n_l), by hand, chosen, kept, and refused."""

import itertools
import json
import types

import numpy as np
import pytest
import tiny_runs

from xmc_jax import methods
from xmc_jax.cli import commands
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.export.exported import Exported
from xmc_jax.export.make import export
from xmc_jax.methods.components import label_priors
from xmc_jax.retrieval.key_memory import ChosenWeight
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs import label_frequency
from xmc_jax.runs import run as runs
from xmc_jax.runs.trained import Trained
from xmc_jax.storage import run_folder
from xmc_jax.training import loop
from xmc_jax.types import BatchSpec

_QUICK = {"train.num_epochs": 1, "eval.scores": "fused", "eval.report_page": False, "eval.num_examples": 0}
_UNIT = {"encoder.normalize": True, "method.temperature": 0.05}
_NGAME = {"method.name": "ngame", "method.loss": "margin", "method.labels": "in_batch"}
_DEXA = {**_NGAME, "method.name": "dexa", "method.loss": "softmax", "method.num_label_clusters": 8}


@pytest.fixture(scope="module")
def chosen(graph_data, tmp_path_factory):
  """A finished run whose α was chosen on validation rows."""
  workdir = tmp_path_factory.mktemp("frequency") / "run"
  settings = {**_QUICK, **_UNIT, "eval.log_frequency": -1.0}
  commands.train_and_test(tiny_runs.config(graph_data, **settings), workdir)
  return workdir


def _scores(run, params, extra_state, weight):
  """`[n, L]` of the test rows in float64, by the definition."""
  queries = run.embedder.queries(params, extra_state, run.dataset.test.tokens)
  labels = run.embedder.labels(params, extra_state)[:, : queries.shape[1]]
  frequency = np.log(1 + (run.data.train.unfiltered_positives > 0).sum(axis=0).A1)
  frequency[tiny_runs.NUM_LABELS :] = frequency[: tiny_runs.NUM_LABELS].mean()  # labels that were added
  return queries.astype(float) @ labels.T.astype(float) / 0.05 + weight * frequency


@pytest.mark.parametrize(
  "prior, weight, method",
  [(0.0, 0.0, {}), (0.0, 0.5, {}), (0.0, 2.0, {}), (1.0, 0.0, {}), (1.0, -0.5, {}), (1.0, -0.5, _DEXA)],
)
def test_an_encoder_ranks_by_cosines_and_frequency(prior, weight, method, graph_data, tmp_path):
  weights = {"method.log_prior": prior, "eval.log_frequency": weight}
  run = tiny_runs.open_run(graph_data, tmp_path / "run", **_UNIT, **weights, **method)
  params, extra_state = run.initial_parameters()
  queries = run.embedder.queries(params, extra_state, run.dataset.test.tokens)
  of_both = itertools.product((run, run.with_labels(["barn kelt", "new"])), ("fused", "encoder"))
  for ranked, scores in of_both:
    expected = _scores(ranked, params, extra_state, prior + weight)
    rank = Trained(ranked, params, extra_state).ranker(scores)
    found = rank(Queries(queries, run.dataset.test.texts), ranked.dataset.num_labels)
    np.testing.assert_allclose(found.scores / 0.05, np.take_along_axis(expected, found.ids, 1), atol=1e-3)
    assert np.all(np.diff(found.scores, axis=1) <= 1e-6)


def test_a_weight_is_chosen_on_validation_rows_and_kept(chosen):
  kept = ChosenWeight.load(chosen / run_folder.FREQUENCY, label_frequency.GRID[-1])
  run = runs.reopen(chosen)
  trained = run.trained()
  validation, right = run.data.validation, []
  cosines = trained.queries(validation.tokens) @ trained.labels().T
  counts = (run.data.train.unfiltered_positives > 0).sum(axis=0).A1
  truth = validation.unfiltered_positives.toarray() > 0
  for weight in label_frequency.GRID:
    scores = cosines / 0.05 + weight * np.log1p(counts)
    scores[validation.filter.toarray()] = -np.inf
    right.append(truth[np.arange(len(truth)), scores.argmax(axis=1)].astype(float))
  np.testing.assert_allclose(kept.values, np.mean(right, axis=1), atol=1e-6)
  assert kept.weight == label_frequency.GRID[label_frequency.first_as_good(np.array(right))]
  assert kept.metric == "P@1"
  assert label_frequency.weight_of(run) == kept.weight
  before = json.loads((chosen / "report" / "metrics.json").read_text())["metrics"]
  assert commands.test(chosen) == before
  (chosen / run_folder.FREQUENCY).write_text('{"weight": 3}')
  with pytest.raises(UserError, match=r"frequency\.json: not readable .*delete it"):
    label_frequency.weight_of(run)
  ChosenWeight(1.0).save(chosen / run_folder.FREQUENCY)
  assert label_frequency.weight_of(run) == 1
  kept.save(chosen / run_folder.FREQUENCY)


def test_a_smaller_weight_is_as_good_within_one_standard_error():
  """Of 100 rows: 3 less, by 8 lost and 5 gained, are inside ±3.6; 5 less, by 5 lost, are outside ±2.2."""
  rows = np.arange(100)
  best, three_less, five_less = rows < 50, (rows >= 8) & (rows < 55), rows < 45
  assert label_frequency.first_as_good(np.array([five_less, three_less, best], float)) == 1
  assert label_frequency.first_as_good(np.array([five_less, best, best], float)) == 1
  assert label_frequency.first_as_good(np.array([best, three_less, five_less], float)) == 0


def test_the_last_step_has_a_weight_of_its_own(chosen):
  """It neither reads nor writes the best step's weight."""
  kept = (chosen / run_folder.FREQUENCY).read_bytes()
  (chosen / run_folder.FREQUENCY).write_bytes(b"damaged")
  assert commands.test(chosen, checkpoint="last")["P@1"] > 0
  assert (chosen / run_folder.FREQUENCY).read_bytes() == b"damaged"
  (chosen / run_folder.FREQUENCY).write_bytes(kept)


@pytest.mark.parametrize("scores", ["encoder", "hybrid"])
def test_an_export_ranks_by_it_and_adds_labels(scores, chosen):
  ChosenWeight(1.0).save(chosen / run_folder.FREQUENCY)
  (chosen / run_folder.HYBRID).unlink(missing_ok=True)
  run = runs.reopen(chosen)
  trained, test = run.trained(), run.dataset.test
  expected = trained.ranker(scores)(Queries(trained.queries(test.tokens), test.texts), 5)
  export(chosen, chosen.with_name("exported"), scores=scores)
  exported = Exported.load(chosen.with_name("exported"))
  found, by_export, _ = exported.predict(run.dataset.test.texts, k=5)
  np.testing.assert_array_equal(found, expected.ids)
  np.testing.assert_allclose(by_export, expected.scores, atol=1e-5)
  new = exported.add_labels(["a label of its own"])
  assert new[0] in exported.predict(["a label of its own"], k=20)[0]


_SCORES = ("hybrid", "fused", "encoder", "lexical_labels")
_KINDS = {"dexml": _UNIT, "unidec": tiny_runs.UNIDEC, "rae_xmc": tiny_runs.RAE_XMC}
_ENCODERS = {
  "ngame": _NGAME,
  "dexa": {**_DEXA, "method.loss": "margin"},
  "prime": tiny_runs.PRIME,
  "ramen": tiny_runs.RAMEN,
}


@pytest.mark.parametrize(
  "kind, scores",
  [*itertools.product(_KINDS, _SCORES), *itertools.product(_ENCODERS, ("encoder",))],
)
def test_where_it_has_no_effect_a_line_says_so(kind, scores, graph_data, tmp_path, monkeypatch):
  """α = 2 changes a ranking, or the line is there; never both. So it is in every method, by all scores."""
  found, said = [], []
  monkeypatch.setattr(label_frequency, "say", said.append)
  for weight in (0.0, 2.0):
    settings = {**(_KINDS | _ENCODERS)[kind], "encoder.normalize": True, "eval.log_frequency": weight}
    run = tiny_runs.open_run(graph_data, tmp_path / f"{weight}", **settings)
    params, extra_state = run.initial_parameters()
    trained, test = Trained(run, params, extra_state), run.dataset.test
    found.append(trained.ranker(scores)(Queries(trained.queries(test.tokens), test.texts), 20).ids)
    label_frequency.log_scope(run, scores)
  assert len(said) == np.array_equal(*found)
  assert all(line.startswith(f"eval.log_frequency: {scores!r} scores do not use it; ") for line in said)
  if kind in _ENCODERS:
    assert not said  # each of them has it in its scores


def test_a_training_and_an_evaluation_say_it(chosen, graph_data, tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(label_frequency, "say", said.append)
  commands.test(chosen, scores="lexical_labels")
  assert len(said) == 1 and "'lexical_labels' scores do not use it" in said[0]
  monkeypatch.setattr(loop, "train", lambda *_: 1 / 0)  # said before it begins
  with pytest.raises(ZeroDivisionError):
    config = tiny_runs.config(graph_data, **tiny_runs.RAE_XMC, **_QUICK, **{"eval.log_frequency": 1.0})
    commands.train_and_test(config, tmp_path / "run")
  assert len(said) == 2 and "'fused' scores do not use it" in said[1]


def test_without_validation_rows_none_is_chosen_and_a_line_says_so(graph_data, tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(label_frequency, "say", said.append)
  settings = {**_UNIT, "eval.log_frequency": -1.0, "data.num_validation": 0}
  run = tiny_runs.open_run(graph_data, tmp_path / "run", **settings)
  label_frequency.fit(Trained(run, *run.initial_parameters()))
  assert len(said) == 1 and "has weight 0, as there are no validation rows" in said[0]
  assert label_frequency.weight_of(run) == 0


def test_illegal_weights_are_refused(graph_data):
  for values, message in (
    ({**_UNIT, "eval.log_frequency": -1.5}, r"eval\.log_frequency = -1\.5"),
    ({**_UNIT, "method.log_q": True}, r"method\.log_q = True has no effect when method\.labels = 'all'"),
    (
      {**_UNIT, "method.labels": "in_batch", "method.num_fresh_negatives": 3, "method.log_q": True},
      r"log_q = True takes negatives for uniform, and method\.num_fresh_negatives = 3",
    ),
    ({"method.name": "ngame", "method.log_prior": 1.0}, r"log_prior = 1\.0 has no effect when method\.loss"),
  ):
    with pytest.raises(ConfigError, match=message):
      config = tiny_runs.config(graph_data, **values)
      methods.check_config(config)


def test_odds_of_a_pool_by_simulation():
  """Positives of 16 rows, one each, by their labels' frequencies, and 5 labels sampled uniformly."""
  counts, rng = np.array([50, 20, 5, 1, 1, 0, 3, 8]), np.random.default_rng(0)
  sampled = rng.choice(8, (20_000, 16), p=counts / counts.sum())
  there = np.stack([(sampled == label).any(axis=1) for label in range(8)], axis=1)
  info = types.SimpleNamespace(label_counts=counts, num_labelled=88)
  odds = lambda **batch: np.exp(label_priors.log_inclusion(info, BatchSpec(**batch), 16))
  found = odds()
  np.testing.assert_allclose(found, there.mean(axis=0), atol=0.01)
  more = odds(num_random_negatives=2)
  np.testing.assert_allclose(more, np.minimum(1, np.where(counts, found, 0) + 2 / 8), atol=1e-6)
  assert np.all(odds(num_random_negatives=100, pool_size=4) <= 1)
  room = 6 - found.sum()  # of the 100 labels only these fit
  filled = odds(num_random_negatives=100, pool_size=6)
  np.testing.assert_allclose(filled, np.minimum(1, np.where(counts, found, 0) + room / 8), atol=1e-6)
