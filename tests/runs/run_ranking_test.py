"""What a run ranks by: what is in the memory when, what is kept in its folder, and the same in any view."""

import shutil
import sys
from unittest import mock

import ml_collections
import numpy as np
import pytest
import tiny_runs
from quick_fits import few_rows, quick_fits  # noqa: F401 (a fixture)

from xmc_jax.cli import commands
from xmc_jax.errors import UserError
from xmc_jax.retrieval import TableEmbedder, hybrid_model
from xmc_jax.retrieval.explanations import as_dict
from xmc_jax.retrieval.explanations import line as as_words
from xmc_jax.retrieval.sources import Queries
from xmc_jax.runs import corpora, evaluate, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.model import Model
from xmc_jax.training import loop

pytestmark = pytest.mark.slow

HYBRID = {"eval.scores": "hybrid", "train.num_epochs": 1, "data.num_validation": 60, "eval.k": 7}
TEXTS = ["barn kelt", "", "loma mive nuxo", "suss nothing known"]
SOURCES = ["encoder", "classifier", "memory", "memory_regression", "lexical_memory", "lexical_labels"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """A run that was fitted on 60 validation rows, with two views."""
  place = tmp_path_factory.mktemp("ranking")
  config = tiny_runs.config(tiny_runs.write_data(place / "data"), **tiny_runs.UNIDEC | HYBRID)
  with few_rows():
    commands.train_and_test(config, place / "run")
  return place / "run"


@pytest.fixture
def run(workdir):
  return runs.reopen(workdir)


def labelled(truth, rows: np.ndarray) -> list[int]:
  return [row for row in rows.tolist() if truth.indptr[row] < truth.indptr[row + 1]]


def assert_memory(corpus, run, vectors: np.ndarray, rows: list[int]):
  """It holds just these training rows, with their own vectors, labels and texts."""
  train = run.dataset.train
  assert list(corpus.point_texts) == [train.texts[row] for row in rows]
  np.testing.assert_allclose(corpus.point_vectors, vectors[rows], atol=1e-5)
  expected = (train.unfiltered_positives[rows].toarray() > 0).astype(np.float32)
  np.testing.assert_array_equal(corpus.truth.toarray(), expected)
  assert list(corpus.label_texts) == list(run.dataset.labels.texts)


def test_validation_rows_are_in_the_memory_once_it_is_fitted(run, monkeypatch):
  """Not before; and no row without labels is ever."""
  trained = run.trained()
  opened, fitted = mock.Mock(wraps=corpora.Retriever), mock.Mock(wraps=ranking.fit_model)
  monkeypatch.setattr(corpora, "Retriever", opened)
  monkeypatch.setattr(ranking, "fit_model", fitted)
  (run.workdir / "hybrid.json").rename(run.workdir / "kept")
  try:
    ranking.hybrid(trained)
    assert (run.workdir / "hybrid.json").read_bytes() == (run.workdir / "kept").read_bytes()
  finally:
    (run.workdir / "kept").replace(run.workdir / "hybrid.json")
  while_fitting, afterwards = (call.args[0] for call in opened.call_args_list)
  truth, held_out = run.dataset.train.unfiltered_positives, run.data.validation
  vectors = trained.queries(run.dataset.train.tokens)
  assert len(held_out) == 60 and not set(held_out.row_numbers) & set(run.data.train.row_numbers)
  assert_memory(while_fitting, run, vectors, labelled(truth, run.data.train.row_numbers))
  every = labelled(truth, np.arange(len(run.dataset.train)))
  assert len(every) < len(run.dataset.train) and set(held_out.row_numbers) & set(every)
  assert_memory(afterwards, run, vectors, every)
  assert afterwards.temperature == run.config.method.temperature
  (((retriever, queries, answers, exclude), _),) = fitted.call_args_list
  assert retriever.corpus.point_texts is while_fitting.point_texts
  assert list(queries.texts) == list(held_out.texts)
  np.testing.assert_allclose(queries.vectors, vectors[held_out.row_numbers], atol=1e-5)
  assert (answers != held_out.unfiltered_positives).nnz == 0 and (exclude != held_out.filter).nnz == 0


@pytest.mark.parametrize(
  "settings, scores, expected",
  [
    ({**tiny_runs.UNIDEC, "eval.fusion_rows": 100}, "hybrid", ["classifier", "encoder", "points"]),
    ({**tiny_runs.UNIDEC, "eval.fusion_rows": 100}, "fused", ["classifier", "encoder"]),
    (tiny_runs.RAE_XMC, "hybrid", ["", "encoder", "points"]),
    (tiny_runs.RAE_XMC, "fused", ["", "encoder", "points"]),
    ({"encoder.normalize": True, "eval.log_frequency": -1.0}, "hybrid", ["", "points"]),
  ],
)
def test_a_training_ends_with_one_table_for_each_scorer(settings, scores, expected, tmp_path, monkeypatch):
  """After its last step each embeds labels once, whatever is fitted, tested and shown; so with points."""
  embedded, train, embed_labels = [], loop.train, TableEmbedder.labels
  embed_points = TableEmbedder.queries

  def labels(self, params, extra_state, scorer="", ids=None):
    embedded.extend([scorer] * (ids is None))
    return embed_labels(self, params, extra_state, scorer, ids)

  def queries(self, params, extra_state, tokens, *more):
    embedded.extend(["points"] * (len(tokens) == 200))
    return embed_points(self, params, extra_state, tokens, *more)

  monkeypatch.setattr(TableEmbedder, "labels", labels)
  monkeypatch.setattr(TableEmbedder, "queries", queries)
  monkeypatch.setattr(loop, "train", lambda *parts: (train(*parts), embedded.clear()))
  settings = {**settings, **HYBRID, "eval.scores": scores}
  config = tiny_runs.config(tiny_runs.write_data(tmp_path / "data"), **settings)
  commands.train_and_test(config, tmp_path / "run")
  assert sorted(embedded) == expected


def test_what_was_made_is_kept_and_used_again(workdir, monkeypatch):
  written = lambda: [(workdir / name).stat().st_mtime_ns for name in ("hybrid.json", "memory.npy")]
  before = written()
  expected = Model.load(workdir).predict(TEXTS, 5)
  refuse = mock.Mock(side_effect=AssertionError("made again"))
  monkeypatch.setattr(ranking, "fit_model", refuse)
  embedded, original = [], TableEmbedder.queries

  def queries(self, params, extra_state, tokens, *more, **options):
    embedded.append(len(tokens))
    return original(self, params, extra_state, tokens, *more, **options)

  monkeypatch.setattr(TableEmbedder, "queries", queries)
  found = Model.load(workdir).predict(TEXTS, 5)
  np.testing.assert_array_equal(found[0], expected[0])
  np.testing.assert_array_equal(found[1], expected[1])
  assert embedded == [1, len(TEXTS)]  # it is asked a text when it is loaded
  assert written() == before


def test_two_meshes_rank_alike(workdir):
  found = []
  for data, label in ((1, 1), (2, 4)):
    run = runs.reopen(workdir, devices=ml_collections.ConfigDict({"data": data, "label": label}))
    assert run.mesh.size == data * label
    trained = run.trained()
    (workdir / "memory.npy").rename(workdir / "kept.npy")  # so that each embeds it
    try:
      test = run.dataset.test
      queries = Queries(trained.queries(test.tokens), test.texts)
      found.append(ranking.hybrid(trained).rank_with_sources(queries, 10, test.filter))
    finally:
      (workdir / "kept.npy").replace(workdir / "memory.npy")
  (one, alone), (other, apart) = found
  np.testing.assert_array_equal(one.ids, other.ids)
  np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4)
  for name in alone:
    # Labels with one score, such as those of an empty query, stand in the order of their last bits.
    left, right = (_by_score(each) for each in (alone[name], apart[name]))
    np.testing.assert_array_equal(left, right, err_msg=name)


def _by_score(found) -> np.ndarray:
  """The ids of a ranking, those whose scores are equal but for rounding by rising id."""
  scores = np.where(found.ids >= 0, found.scores, -1)
  falls = scores[:, 1:] < scores[:, :-1] - 1e-5 * np.abs(scores[:, 1:])
  places = np.pad(np.cumsum(falls, axis=1), ((0, 0), (1, 0)))
  return np.take_along_axis(found.ids, np.lexsort((found.ids, places), axis=-1), axis=1)


def test_a_source_can_be_all_that_ranks(run):
  trained = run.trained()
  test = run.dataset.test
  queries = Queries(trained.queries(test.tokens), test.texts)
  joined, alone = ranking.hybrid(trained).rank_with_sources(queries, 9, test.filter)
  np.testing.assert_array_equal(trained.ranker()(queries, 9, test.filter).ids, joined.ids)
  assert set(alone) == set(SOURCES)
  for name, expected in alone.items():
    found = trained.ranker(name)(queries, 9, test.filter)
    np.testing.assert_array_equal(found.ids, expected.ids, err_msg=name)


def test_the_test_rows_are_ranked_in_every_way_with_reasons(run):
  trained = run.trained()
  test = run.dataset.test
  vectors = trained.queries(test.tokens)
  ranked, why = evaluate.rank_test(trained, vectors, "hybrid")
  assert list(ranked) == ["hybrid", "fused", *SOURCES]
  assert all(one.ids.shape == (len(test), 7) for one in ranked.values())
  filtered = np.flatnonzero(np.diff(test.filter.indptr))
  rows = np.array([4, 0, *filtered])
  ids = ranked["hybrid"].ids[rows, :1]
  words = why(rows, ids)
  opened = ranking.hybrid(trained)
  for row, label, line in zip(rows, ids[:, 0], words, strict=True):
    query = Queries(vectors[[row]], [test.texts[row]])
    ((reason,),) = opened.explain(query, np.array([[label]]), test.filter[[row]])
    assert line == {label: as_words(as_dict(reason, opened.point_texts))}
  assert why(rows[:3], np.full((3, 1), -1)) == [{}, {}, {}]
  plain, no_reasons = evaluate.rank_test(trained, vectors, "fused")
  assert list(plain) == ["fused", "encoder", "classifier"] and no_reasons is None
  np.testing.assert_array_equal(plain["fused"].ids, ranked["fused"].ids)


def test_other_rankings_are_explained_without_a_model(workdir, tmp_path):
  folder = shutil.copytree(workdir, tmp_path / "run")
  (folder / "hybrid.json").unlink()
  model, by_hybrid = Model.load(folder, scores="encoder"), Model.load(workdir)
  ids, _, _, reasons = model.predict(TEXTS, 60, explain=True)
  assert not (folder / "hybrid.json").exists()
  np.testing.assert_array_equal(ids, Model.load(workdir, scores="encoder").predict(TEXTS, 60)[0])
  others = by_hybrid.predict(TEXTS, 60, explain=True)
  assert by_hybrid.predict([], 3, explain=True)[3] == []
  for row in range(len(TEXTS)):
    found, wanted = (dict(zip(labels[row], of[row])) for labels, of in ((ids, reasons), others[::3]))
    assert all(found[label] == wanted[label] for label in wanted if label >= 0)


def test_what_fits_at_the_end_is_there_before_the_first_step(tmp_path, monkeypatch):
  config = tiny_runs.config(tiny_runs.write_data(tmp_path / "data"), **HYBRID)
  for module in (ranking, hybrid_model):
    monkeypatch.setattr(module, "FEWEST_ROWS", 61)  # then nothing is fitted, and nothing needed
  monkeypatch.setitem(sys.modules, "lightgbm", None)
  commands.train_and_test(config, tmp_path / "few")
  monkeypatch.setattr(ranking, "FEWEST_ROWS", 60)
  with pytest.raises(UserError, match=r"pip install lightgbm, .* in training --config\.eval\.scores=fused"):
    commands.train_and_test(config, tmp_path / "run")
  assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_a_source_alone_needs_no_fit(tmp_path, monkeypatch):
  """Not of a run that is trained again on all rows either, which leave none to fit on."""
  changes = {"eval.scores": "memory_regression", "train.refit": True}
  config = tiny_runs.config(tiny_runs.write_data(tmp_path / "data"), **HYBRID | changes)
  monkeypatch.setitem(sys.modules, "lightgbm", None)
  means = commands.train_and_test(config, tmp_path / "run")
  assert 0 < means["P@1"] <= 1 and not (tmp_path / "run" / "hybrid.json").exists()
  opened = mock.Mock(wraps=corpora.Retriever)
  monkeypatch.setattr(corpora, "Retriever", opened)
  reasons = Model.load(tmp_path / "run").predict(TEXTS, 3, explain=True)[3]
  assert any(reason["sources"] for of_text in reasons for reason in of_text)
  opened.assert_called_once()


def test_a_model_of_other_sources_is_refused(run, monkeypatch):
  trained = run.trained()
  path = run.workdir / "hybrid.json"
  kept = path.read_bytes()
  try:
    hybrid_model.fixed(["a", "b"]).save(path)
    with pytest.raises(UserError, match=r"hybrid\.json: was fitted on other features; delete it"):
      ranking.hybrid(trained)
    monkeypatch.setattr(run, "is_refitted", True)  # so it cannot be fitted anew
    path.write_text("{}")
    with pytest.raises(
      UserError, match=r"hybrid\.json: not readable \(.*\); give --scores=encoder, or train anew"
    ):
      ranking.hybrid(trained)
  finally:
    path.write_bytes(kept)


@pytest.mark.parametrize(
  "held_out, fewest, why",
  [
    (0, 50, "only 0 held-out texts have labels that other texts have, too (under 50)"),
    (20, 50, "only 20 held-out texts have labels that other texts have, too (under 50)"),
    (20, 5, "held-out texts are too much alike"),
  ],
)
def test_few_validation_rows_adapt_weights_of_other_data(
  tmp_path, capsys, monkeypatch, held_out, fewest, why
):
  monkeypatch.setattr(ranking, "FEWEST_ROWS", fewest)
  data, changes = tiny_runs.write_data(tmp_path / "data"), {"data.num_validation": held_out}
  commands.train_and_test(tiny_runs.config(data, **HYBRID | changes), tmp_path / "run")
  adjusted = ", slightly adjusted" if held_out else ""
  note = f"hybrid: {why}, so the combination learned on other data is used{adjusted}\n"
  assert note in capsys.readouterr().err
  assert hybrid_model.HybridModel.load(tmp_path / "run" / "hybrid.json").num_rows == held_out
  assert Model.load(tmp_path / "run").predict(TEXTS, 60)[0].min() >= 0
