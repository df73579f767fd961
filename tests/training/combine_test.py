"""Runs combined: one folder that tests, predicts, serves and exports like any other; what is refused."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tiny_runs
from fastapi.testclient import TestClient
from kills import killed

import xmc_jax
from tests.runs.quick_fits import few_rows
from xmc_jax import export
from xmc_jax.cli import commands
from xmc_jax.errors import UserError
from xmc_jax.estimator import files
from xmc_jax.retrieval.hybrid_model import HybridModel
from xmc_jax.runs import evaluate, ranking
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.runs.model import Model
from xmc_jax.storage import atomic, run_folder
from xmc_jax.training import combine

pytestmark = pytest.mark.slow

_HYBRID = {"data.num_validation": 60, "eval.scores": "hybrid", "train.num_epochs": 1, "eval.num_examples": 1}
_OTHER = {**tiny_runs.RAE_XMC, **_HYBRID, "data.max_length": 7, "encoder.width": 8}
TEXTS = ["bamarn nuve", "keltbarn " * 30, "lolt", "mixo kelt rage"]


def trained(folder: pathlib.Path, name: str, **settings) -> pathlib.Path:
  xmc_jax.train(tiny_runs.config(folder / "data", **{**_HYBRID, **settings}), folder / name)
  return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
  """Has the data, the runs `a` and `b`, which cuts texts sooner, and their combination `both`."""
  folder = tmp_path_factory.mktemp("combine")
  tiny_runs.write_data(folder / "data")
  with few_rows():
    trained(folder, "a")
    trained(folder, "b", **_OTHER)
    combine.combine([folder / "b", folder / "a"], folder / "both")
  return folder


@pytest.fixture
def both(folder) -> Model:
  return Model.load(folder / "both", warm=False)


def test_probabilities_are_those_of_the_weighted_mean(folder, both):
  """Every label is a candidate here, so each member alone, with its part of the model, says its log-odds."""
  joint = HybridModel.load(folder / "both" / "hybrid.json")
  assert joint.has_trees and joint.others[0].has_trees
  num_labels, log_odds = len(both.labels), []
  for name, part in zip("ab", (joint, joint.others[0])):
    alone = HybridModel(part.features, part.linear, part._trees, part._joint)
    member = Model.load(folder / name, warm=False)
    member._learner.now(opened=True).ranker._model = alone
    ids, scores, _ = member.predict(TEXTS, num_labels)
    scores = scores.astype(np.float64)
    table = np.full((len(TEXTS), num_labels), np.nan)
    rows, columns = np.nonzero(ids >= 0)
    table[rows, ids[rows, columns]] = (np.log(scores) - np.log1p(-scores))[rows, columns]
    log_odds.append(table)
  assert joint.weight + joint.others[0].weight == pytest.approx(1)
  mean = np.average(log_odds, axis=0, weights=[joint.weight, joint.others[0].weight])
  a, b, c = joint._calibration
  expected = 1 / (1 + np.exp(-(b * np.logaddexp(0, mean) - a * np.logaddexp(0, -mean) + c)))
  ids, scores, _ = both.predict(TEXTS, num_labels)
  for row, (of_text, probabilities) in enumerate(zip(ids, scores)):
    real = of_text >= 0
    wanted = expected[row, of_text[real]]
    assert real.any() and np.isfinite(wanted).mean() > 0.9  # one member may find a label that the other lacks
    both_know = np.isfinite(wanted)
    np.testing.assert_allclose(probabilities[real][both_know], wanted[both_know], rtol=1e-3)


def test_what_a_pickle_keeps_of_it(folder, both, tmp_path):
  kept = files.packed(folder / "both")
  shared = [kept[f"{place}data/train.texts.npy"] for place in ("", "members/a/", "members/b/")]
  assert shared[0] is shared[1]  # so it is in the pickle once
  files.unpack(kept, tmp_path / "run")
  again = Model.load(tmp_path / "run", warm=False)
  for found, expected in zip(again.predict(TEXTS, 5)[:2], both.predict(TEXTS, 5)[:2]):
    np.testing.assert_array_equal(found, expected)


def test_it_is_tested_beside_its_members(folder, capsys):
  config = json.loads((path := folder / "both" / "config.json").read_text())
  config["eval"]["report_page"] = True
  atomic.write_json(path, config)
  means = commands.test(folder / "both")
  page = (folder / "both" / "report" / "index.html").read_text()
  assert "dexml with encoder bag and rae_xmc with encoder bag" in page and "a alone" in page
  report = json.loads((folder / "both" / "report" / "metrics.json").read_text())
  assert report["metrics"] == means and list(report["by_source"]) == ["a alone", "b alone"]
  for name in "ab":
    own = json.loads((folder / name / "report" / "metrics.json").read_text())["metrics"]
    assert report["by_source"][f"{name} alone"] == pytest.approx(own)
  commands.compare([folder / "a", folder / "both"], str(folder / "compare.html"))
  told = capsys.readouterr()
  assert "(a and b combined, encoder bag, ranked by hybrid)" in told.out
  assert "texts ranked a second, embedding left out: hybrid " in told.err


def test_every_way_to_predict_says_the_same(folder, both, tmp_path):
  ids, _, names, why = both.predict(TEXTS, 3, explain=True)
  sources = {name for of_text in why for one in of_text for name in one["sources"]}
  assert {"encoder of a", "memory of b"} <= sources
  (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
  commands.predict(folder / "both", str(tmp_path / "texts.txt"), str(tmp_path / "out.jsonl"), LabelRequest(3))
  lines = [json.loads(line)["labels"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
  assert [[label["text"] for label in line] for line in lines] == names
  with TestClient(xmc_jax.serve.app(both, k=3)) as client:
    answer = client.post("/predict", json={"texts": TEXTS}).json()["predictions"]
    assert client.post("/embed", json={"text": "lolt"}).json()["embeddings"] == both.embed(["lolt"]).tolist()
  assert [[label["id"] for label in one["labels"]] for one in answer] == ids.tolist()
  assert both.embed(["lolt"]).shape == (1, 16 + 8)
  assert "cut at 7 tokens" in both.cut


def test_an_export_predicts_as_it_does_and_takes_new_labels(folder, both, tmp_path):
  commands.export(folder / "both", str(tmp_path / "export"))
  opened = export.Exported.load(tmp_path / "export")
  found, wanted = opened.predict(TEXTS, 5, explain=True), both.predict(TEXTS, 5, explain=True)
  np.testing.assert_allclose(found[1], wanted[1], atol=1e-5)
  assert (found[0] == wanted[0]).mean() > 0.9  # the rest is as good as equal
  assert "weighted mean of the log-odds" in (tmp_path / "export" / "README.md").read_text()
  (new,) = opened.add_labels(["zathura viewer"])
  more = Model.load(folder / "both", warm=False, add_labels={"new": "zathura viewer"})
  assert new == len(both.labels) == len(more.labels) - 1
  for model in (export.Exported.load(tmp_path / "export"), more):
    assert model.predict(["a zathura viewer"], 3)[0][0, 0] == new


def test_only_all_of_it_ranks(folder, tmp_path):
  for scores in ("encoder", "memory", "fused"):
    with pytest.raises(
      UserError, match=r"combined runs rank by 'hybrid'; for each alone: --workdir=\S+members/a"
    ):
      commands.test(folder / "both", scores=scores)
  with pytest.raises(UserError, match="no last step"):
    commands.test(folder / "both", checkpoint="last")
  with pytest.raises(UserError, match="holds a run with other settings"):
    commands.train_and_test(tiny_runs.config(folder / "data", **_HYBRID), folder / "both")
  with pytest.raises(UserError, match=r"init_from = \S+: combined runs; add /members/a"):
    tiny_runs.open_run(folder / "data", tmp_path / "new", **_HYBRID, init_from=str(folder / "both"))


def changed(folder: pathlib.Path, name: str, **settings) -> pathlib.Path:
  """A copy of run `a` with other settings."""
  shutil.copytree(folder / "a", folder / name, copy_function=atomic.link_or_copy, dirs_exist_ok=True)
  config = json.loads((path := folder / name / "config.json").read_text())
  for key, value in settings.items():
    section, _, key = key.partition(".")
    config[section][key] = value
  atomic.write_json(path, config)
  return folder / name


def test_runs_that_do_not_fit_together(folder, tmp_path):
  def refuse(why: str, *others: pathlib.Path):
    with pytest.raises(UserError, match=why) as refused:
      combine.combine([folder / "a", *others], tmp_path / "new")
    assert "\n" not in str(refused.value) and not (tmp_path / "new").exists()

  refuse("two or more runs")
  refuse("given twice", folder / "b" / ".." / "a")
  refuse("no such file", tmp_path / "nothing")
  refuse("holds combined runs itself", folder / "both")
  refuse("ranks by 'fused'", changed(folder, "fused", **{"eval.scores": "fused"}))
  refuse("held out other rows", changed(folder, "seed", **{"train.seed": 5}))
  unfinished = changed(folder, "unfinished")
  (unfinished / "hybrid.json").unlink()
  refuse("not finished", unfinished)
  other = changed(folder, "other")
  manifest = json.loads((path := other / "data" / "manifest.json").read_text())
  manifest["files"]["train.texts.npy"]["sha256"] = "0" * 64
  atomic.write_json(path, manifest)
  refuse(r"are of other data \(train.texts.npy differs\)", other)


def test_equal_names_get_numbers(tmp_path):
  folders = [tmp_path / name for name in ("x/a", "y/a", "z/a-2", "w/a")]
  named = combine._named(folders)
  assert list(named) == ["a", "a-2", "a-2-2", "a-3"] and set(named.values()) == set(folders)


def test_a_kill_leaves_no_run_and_the_same_command_goes_on(folder, tmp_path):
  new, pair = tmp_path / "new", [folder / "a", folder / "b"]
  for owner, name, when in ((combine, "_link", 2), (ranking, "fit_model", 1), (evaluate, "embed_split", 1)):
    with killed(owner, name, when), few_rows():
      combine.combine(pair, new)
    assert (new / "config.json").exists() == (name == "embed_split")  # then it is finished but for the test
  with few_rows():
    model = combine.combine(pair, new)
  assert model.predict(TEXTS, 3)[2] == Model.load(folder / "both", warm=False).predict(TEXTS, 3)[2]
  assert not list(new.rglob("*.building-*")) and (new / "report" / "seconds.json").exists()
  with pytest.raises(UserError, match="holds another run"):
    combine.combine([folder / "a", changed(folder, "third")], new)


def test_runs_may_lie_in_the_folder_already(folder, tmp_path):
  """Others that lie there are no members; and the runs need not stay where they were."""
  new = tmp_path / "new"
  for name in ("a", "b", "third"):
    shutil.copytree(folder / ("a" if name == "third" else name), new / "members" / name)
  kept = {path: path.stat().st_ino for path in new.rglob("*.npy")}
  with few_rows():
    model = combine.combine([new / "members" / "b", new / "members" / "a"], new)
  assert run_folder.combined(new) == ["a", "b"] and {path: path.stat().st_ino for path in kept} == kept
  assert model.predict(TEXTS, 3)[2] == Model.load(folder / "both", warm=False).predict(TEXTS, 3)[2]


def test_a_run_that_adds_too_little_is_left_out(folder, tmp_path, capsys):
  joint = HybridModel.load(folder / "both" / "hybrid.json")
  weights = {"a": joint.weight, "b": joint.others[0].weight}
  with few_rows():
    combine.combine_and_test([folder / "a", folder / "b"], tmp_path, least_weight=0.501)
  told = capsys.readouterr().err
  assert f"weights a {weights['a']:.2f}, b {weights['b']:.2f}" in told
  assert run_folder.combined(tmp_path) == [max(weights, key=weights.get)]
  assert Model.load(tmp_path, warm=False).predict(TEXTS, 3)


def test_runs_that_were_trained_on_all_rows(folder, tmp_path):
  """How they are joined is fitted with the parameters that have not seen the held-out rows."""
  with few_rows():
    trained(folder, "refit", **{"train.refit": True})
    model = combine.combine([folder / "refit", folder / "b"], tmp_path / "new")
  assert model._trained.members["refit"].run.is_refitted
  (tmp_path / "new" / "hybrid.json").unlink()
  with pytest.raises(UserError, match=r"cannot be fitted after train\.refit"):
    Model.load(tmp_path / "new")
