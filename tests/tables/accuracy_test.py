"""Peers beside our methods: the command line, rows that are run once and compared, and the table."""

import json
import pathlib
import sys
import types

import ml_collections
import numpy as np
import pytest
import tiny_runs

from benchmarks import accuracy, accuracy_results, accuracy_rows, children, exchange
from xmc_jax.errors import ConfigError
from xmc_jax.runs import evaluate

# --- command line ---


def test_the_command_line_names_sets_after_folders(tmp_path, capsys):
  given = ["--rows", "dexml", "xr_linear", f"--pecos_python={sys.executable}", "--seeds=2"]
  sets = [f"--data={tmp_path / name}" for name in ("one", "two")]
  extra = [f"--config.data.cache_dir={tmp_path / 'cache'}", f"--config.encoder.name={tmp_path / 'bert'}"]
  extra += ["--config.data.num_validation=7", "--config.eval.k=10"]
  rows, seeds, boards, options = accuracy.parse([*given, *sets, *extra])
  assert (rows, seeds) == (["xr_linear", "dexml"], 2)  # what the others are compared with goes first
  found = [(board.name, board.data) for board in boards]
  assert found == [(name, str(tmp_path / name)) for name in ("one", "two")]
  asked = accuracy.asked("dexml", boards[0], options)
  assert asked["experiment"] == "dexml:debian" and "train.num_epochs" not in asked["settings"]
  assert asked["extra"] == ["encoder.name=bert", "data.num_validation=7", "eval.k=10"]
  baseline = accuracy.asked("tfidf_both", boards[0], options)
  assert baseline["extra"] == ["data.num_validation=7", "eval.k=10"]  # an encoder changes nothing of it
  assert accuracy.asked("xr_linear", boards[0], options) == {"extra": ["eval.k=10"]}
  assert accuracy.asked("mnrl", boards[0]._replace(extra=()), options) == {"epochs": 3, "pairs": 0}
  assert str(tmp_path) not in json.dumps(asked)
  config = accuracy.config_of(boards[0])
  assert config.data.num_validation == 7 and config.data.cache_dir == str(tmp_path / "cache")
  with pytest.raises(ConfigError, match=r"data\.num_validation = 'x': expected int"):
    accuracy.config_of(boards[0]._replace(extra=("--config.data.num_validation=x",)))
  assert accuracy.parse(["--rows", "tfidf_vote"])[2][0].name == "LF-DebianTitles"
  for wrong, said in (
    (["--rows", "xr_linear"], "row xr_linear: --pecos_python= is no Python"),
    (["--rows", "mnrl", "--bench_python=nowhere"], "--bench_python=nowhere is no Python"),
    (["--rows", "dexml", "--epochs=3"], "'--epochs=3' is not understood"),
    (["--rows", "dexml", "--data=a/x", "--data=b/x"], "two data sets are called 'x'"),
    (["--rows", "tfidf_vote", "--preset=debian_minilm6"], "row tfidf_vote has no presets"),
  ):
    with pytest.raises(SystemExit):
      accuracy.parse(wrong)
    assert said in capsys.readouterr().err


# --- rows ---


# Ranks labels by how many training points have them, and says what it was called with.
_STUB = """
import json, pathlib, sys
import numpy as np, scipy.sparse as sp
flags = dict(part[2:].split("=", 1) for part in sys.argv[1:])
folder = pathlib.Path(flags["folder"])
with open({calls!r}, "a") as calls:
  calls.write(json.dumps({{**flags, "script": pathlib.Path(sys.argv[0]).name}}) + "\\n")
if {broken!r} and pathlib.Path({broken!r}).exists():
  raise SystemExit("no memory")
truth = sp.load_npz(folder / "truth.npz")
tests = len((folder / "test.txt").read_text().splitlines())
frequent = np.asarray(truth.sum(0)).ravel()
best = np.argsort(-frequent, kind="stable")[: int(flags["depth"])]
pairs = np.tile(frequent[best], tests), np.tile(best, tests), len(best) * np.arange(tests + 1)
sp.save_npz(folder / "scores.npz", sp.csr_matrix(pairs, (tests, len(frequent))))
about = {{"seconds": {{"train": 60.0, "test": 2.0}}, "settings": {{"version": "1"}}}}
(folder / "about.json").write_text(json.dumps(about))
"""


@pytest.fixture
def stage(tmp_path, monkeypatch, make_tables):
  """Stubbed workers and an empty docs folder: where calls, results and the page are, and the usual flags."""
  docs, workers = tmp_path / "docs", tmp_path / "workers"
  docs.mkdir()
  workers.mkdir()
  for name in ("pecos_worker.py", "mnrl_worker.py", "omikuji_worker.py"):
    stub = _STUB.format(calls=str(tmp_path / "calls"), broken=str(tmp_path / "broken"))
    (workers / name).write_text(stub)
  monkeypatch.setattr(make_tables, "_DOCS", docs)
  monkeypatch.setattr(accuracy, "_RESULTS", docs / "results" / "accuracy")
  monkeypatch.setattr(accuracy, "write_tables", lambda: make_tables.write(("accuracy",)))
  monkeypatch.setattr(accuracy_rows, "_HERE", workers)
  folder = tiny_runs.write_data(tmp_path / "tiny")
  (docs / "accuracy.md").write_text("<!-- accuracy: P@1 R@10 -->\n<!-- end -->\n")
  flags = [f"--data={folder}", f"--runs={tmp_path / 'runs'}", f"--config.data.cache_dir={tmp_path / 'cache'}"]
  flags += [f"--{peer}_python={sys.executable}" for peer in ("pecos", "bench", "omikuji")]
  flags += ["--config.data.num_validation=20", "--config.eval.k=10"]
  return types.SimpleNamespace(
    tables=make_tables,
    page=docs / "accuracy.md",
    results=docs / "results" / "accuracy",
    folder=tmp_path,
    flags=flags,
    calls=lambda: [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()],
  )


def test_workers_are_called_once_and_failed_ones_again(stage, dataset):
  (stage.folder / "broken").touch()
  given = ["--rows", "xr_linear", "mnrl", "--mnrl_epochs=2", "--mnrl_pairs=64", *stage.flags]
  with pytest.raises(SystemExit, match="not finished: tiny/xr_linear-0, tiny/mnrl-0"):
    accuracy.main(given)
  assert "no memory" in (stage.folder / "runs" / "tiny" / "xr_linear-0.log").read_text()
  assert not list(stage.results.rglob("*.json"))
  (stage.folder / "broken").unlink()
  for _ in range(2):
    accuracy.main(given)
  pecos, mnrl = stage.calls()[2:]
  assert pecos["script"] == "pecos_worker.py" and set(pecos) == {"script", "folder", "depth", "seed"}
  assert pecos["depth"] == str(exchange.depth_for(dataset.test, 100)) and pecos["seed"] == "0"
  assert (mnrl["epochs"], mnrl["pairs"], mnrl["max_length"]) == ("2", "64", "32")
  assert (pathlib.Path(mnrl["model"]) / "config.json").exists()
  kept = accuracy_results.read(stage.results / "tiny" / "mnrl.json")
  assert kept["asked"] == {"epochs": 2, "pairs": 64, "extra": ["eval.k=10"]}
  assert kept["settings"] == {"version": "1"}
  assert kept["test_points"] == 50 and kept["set"] == "tiny"
  seed = kept["seeds"][0]
  assert (seed["fit_seconds"], seed["test_seconds"]) == (60, 2) and seed["peak_GB"] > 0
  assert seed["to_xr_linear"]["P@1"] == [0, 0, 0]  # the same stub
  assert str(stage.folder) not in (stage.results / "tiny" / "mnrl.json").read_text()
  with pytest.raises(ConfigError, match=r'tiny/mnrl.json was made with .*: 64,.*asks for .*"pairs": 0,'):
    accuracy.main(["--rows", "mnrl", "--mnrl_epochs=2", *stage.flags])


def test_a_worker_of_two_rows_is_told_which(stage):
  accuracy.main(["--rows", "bonsai", "parabel", *stage.flags])
  assert [call["kind"] for call in stage.calls()] == ["parabel", "bonsai"]
  assert {file.stem for file in stage.results.rglob("*.json")} == {"parabel", "bonsai"}


def test_rows_that_were_first_are_compared_later(stage):
  accuracy.main(["--rows", "mnrl", *stage.flags])
  path = stage.results / "tiny" / "mnrl.json"
  assert "to_xr_linear" not in accuracy_results.read(path)["seeds"][0]
  accuracy.main(["--rows", "mnrl", "xr_linear", *stage.flags])
  assert len(stage.calls()) == 2
  assert "to_xr_linear" in accuracy_results.read(path)["seeds"][0]
  assert "to_xr_linear" not in accuracy_results.read(stage.results / "tiny" / "xr_linear.json")["seeds"][0]


def _run_folder(workdir, scores, ids, by_source):
  """What a run of ours leaves; predictions `ids` at test.npz, and of its encoder alone their mirror."""
  (workdir / "report").mkdir(parents=True, exist_ok=True)
  (workdir / "config.json").write_text(json.dumps({"eval": {"scores": scores}}))
  report = {"metrics": {}, **by_source}
  (workdir / "report" / "metrics.json").write_text(json.dumps(report))
  for suffix, found in (("", ids), ("_encoder", ids[:, ::-1])):
    ranking = exchange.Ranking(found, np.tile(-np.arange(10, dtype=np.float32), (len(ids), 1)))
    keys = list(map(str, range(tiny_runs.NUM_LABELS)))
    evaluate.save_predictions(ranking, keys, workdir / "predictions" / f"test{suffix}.npz")
  (workdir / "report" / "seconds.json").write_text('{"train": 5, "compile": 1, "test": 2, "page": 9}')


@pytest.fixture
def ours(stage, monkeypatch):
  """Runs of ours that train nothing; settable are their scores and what their report says. `.commands`."""
  made = types.SimpleNamespace(commands=[], scores="hybrid", by_source={"by_source": {}})
  own = children.run

  def run(command, log, cwd):
    if "xmc_jax.main" not in command:
      return own(command, log, cwd)
    made.commands.append(command)
    workdir = next(part for part in command if part.startswith("--workdir=")).partition("=")[2]
    ids = np.tile(np.arange(10, dtype=np.int32), (50, 1))
    _run_folder(pathlib.Path(workdir), made.scores, ids, made.by_source)
    if made.scores == "hybrid" and "--mode=evaluate" not in command:
      (pathlib.Path(workdir) / "predictions" / "test_encoder.npz").unlink()
    return 0, 10**9

  monkeypatch.setattr(accuracy_rows.children, "run", run)
  stored = lambda path: ml_collections.ConfigDict(json.loads(path.read_text()))
  monkeypatch.setattr(accuracy_rows.methods, "read_config", stored)
  return made


def test_a_method_gives_two_rows_of_one_run(stage, ours):
  ours.by_source = {"by_source": {"encoder": {}, "memory": {}}}
  for _ in range(2):
    accuracy.main(["--rows", "dexml", *stage.flags])
  train, test = ours.commands
  assert f"--config.data.path={stage.folder / 'tiny'}" in train and "--config.eval.k=10" in train
  assert "--mode=evaluate" in test and "--scores=encoder" in test
  files = [stage.results / "tiny" / f"dexml{end}.json" for end in ("", "_hybrid")]
  alone, hybrid = map(accuracy_results.read, files)
  assert alone["what"] == "DEXML, decoupled softmax, encoder alone"
  assert hybrid["what"] == "DEXML, decoupled softmax, hybrid"
  for row in (alone, hybrid):
    assert (row["seeds"][0]["fit_seconds"], row["seeds"][0]["test_seconds"]) == (6, 2)
  assert alone["seeds"][0]["metrics"]["P@1"] != hybrid["seeds"][0]["metrics"]["P@1"]
  assert alone["seeds"][0]["metrics"]["R@10"] == hybrid["seeds"][0]["metrics"]["R@10"]


def test_a_run_without_a_hybrid_gives_one_row_and_classifiers_need_their_encoder(stage, ours):
  ours.scores, ours.by_source = "fused", {"by_source": {"encoder": {}, "classifier": {}}}
  accuracy.main(["--rows", "dexa_classifier", *stage.flags])
  names = ("dexa", "dexa_classifier")
  trained = [command[3] for command in ours.commands]
  assert trained == [f"--config=experiments/{name}.py:debian" for name in names]
  assert [path.name for path in (stage.results / "tiny").iterdir()] == ["dexa_classifier.json"]
  kept = accuracy_results.read(stage.results / "tiny" / "dexa_classifier.json")
  assert kept["what"] == "DEXA with classifiers, as its paper ranks"
  assert kept["seeds"][0]["fit_seconds"] == 12  # its encoder's six, too


def test_other_presets_stand_beside_the_default_ones(stage, ours):
  """They have files and folders of their own, and are compared with the same XR-Linear."""
  accuracy.main(["--rows", "xr_linear", "rae_xmc", *stage.flags])
  accuracy.main(["--preset=debian_minilm6", "--rows", "rae_xmc", "dexa_classifier", *stage.flags])
  trained = [command[3] for command in ours.commands if "--mode=evaluate" not in command]
  # A classifier stands on any encoder.
  presets = "rae_xmc.py:debian rae_xmc.py:debian_minilm6 dexa.py:debian_minilm6 dexa_classifier.py:debian"
  assert trained == [f"--config=experiments/{preset}" for preset in presets.split()]
  kept = accuracy_results.read(stage.results / "tiny" / "rae_xmc_hybrid_debian_minilm6.json")
  assert kept["what"] == "RAE-XMC (debian_minilm6), hybrid" and "to_xr_linear" in kept["seeds"][0]
  assert accuracy_results.read(stage.results / "tiny" / "rae_xmc_hybrid.json")["what"] == "RAE-XMC, hybrid"
  with pytest.raises(ConfigError, match=r"experiments/unidec.py has no preset 'debian_minilm6'; it has "):
    accuracy.main(["--preset=debian_minilm6", "--rows", "unidec", *stage.flags])


@pytest.mark.slow
def test_words_rank_in_a_process_of_their_own(stage):
  """What the baseline's own report says is what is counted of its predictions."""
  accuracy.main(["--rows", "tfidf_both", *stage.flags])
  kept = accuracy_results.read(stage.results / "tiny" / "tfidf_both.json")
  report = stage.folder / "runs" / "tiny" / "tfidf_both-0" / "report" / "metrics.json"
  reported = json.loads(report.read_text())
  for name, value in kept["seeds"][0]["metrics"].items():
    assert value == round(reported["metrics"][name], 5)
  assert len(reported["weights"]) == 5 and kept["seeds"][0]["peak_GB"] > 0.05


# --- the table ---


def _seed(p, low=None, high=None, minutes=6):
  found = {
    "metrics": {"P@1": p, "R@10": 0.5},
    "intervals_95": {"P@1": [p - 0.02, p + 0.02], "R@10": [0.49, 0.51]},
    "fit_seconds": 60 * minutes,
    "test_seconds": 1.5,
    "peak_GB": 2.0,
  }
  return found if low is None else {**found, "to_xr_linear": {"P@1": [0, low, high], "R@10": [0, -0.1, 0.1]}}


def test_the_table_is_made_of_the_files(stage, monkeypatch):
  """An arrow where the whole interval is on one side of 0, and of several seeds each one's."""
  rows = {
    ("a", "xr_linear"): [_seed(0.3)],
    ("a", "ahead"): [_seed(0.4, 0.01, 0.2), _seed(0.5, 0.02, 0.2)],
    ("a", "unsure"): [_seed(0.4, 0.01, 0.2), _seed(0.2, -0.2, 0.1)],
    ("a", "behind"): [_seed(0.1, -0.3, -0.1)],
    ("b", "xr_linear"): [_seed(0.6)],
  }
  for (name, row), seeds in rows.items():
    path = stage.results / name / f"{row}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = {} if row == "xr_linear" else {"experiment": "dexml:debian"}
    path.write_text(json.dumps({"what": row, "asked": asked, "seeds": seeds}))
  accuracy.write_tables()
  head = ["|  | P@1 | R@10 | fit min |", "|---|---|---|---|"]
  best, other = "| **50.0** | 6.0 |", "| xr_linear | 30.0 ± 2.0 | **50.0** | 6.0 |"
  assert stage.page.read_text().splitlines() == [
    *("<!-- accuracy: P@1 R@10 -->", "### a", "", *head),
    f"| ahead | **45.0** ± 2.0 ↑ {best}",
    f"| unsure | 30.0 ± 2.0 {best}",
    other,
    f"| behind | 10.0 ± 2.0 ↓ {best}",
    *("", "### b", "", *head),
    f"| xr_linear | **60.0** ± 2.0 {best}",
    "<!-- end -->",
  ]
  assert (stage.results.parent / "accuracy.csv").read_text().splitlines() == [
    "set,row,seeds,P@1,R@10,fit min,GB",
    'a,"ahead",2,45.0,50.0,6.0,2.0',
    'a,"unsure",2,30.0,50.0,6.0,2.0',
    'a,"xr_linear",1,30.0,50.0,6.0,2.0',
    'a,"behind",1,10.0,50.0,6.0,2.0',
    'b,"xr_linear",1,60.0,50.0,6.0,2.0',
  ]
  monkeypatch.setattr(stage.tables, "_BEST", 1)
  assert stage.tables.accuracy_table(["P@1", "R@10"]).splitlines()[5:8] == [other, "", "### b"]
