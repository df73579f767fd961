"""What docs/security.md claims: files from anybody run no code and lead nowhere else, nor do their texts."""

import ast
import json
import pathlib
import pickle
import re
import shutil
import zipfile

import numpy as np
import pytest

from tests import tiny_runs, torch_pickles
from tests.data.sample_folders import Trap
from tests.source_rules_test import imports
from xmc_jax import console, data, methods, models, sanitize
from xmc_jax.cli import commands, error_lines
from xmc_jax.data.documents import Document
from xmc_jax.errors import ConfigError, DataError, UserError
from xmc_jax.models import locate
from xmc_jax.models.pretrained import load_pretrained
from xmc_jax.models.torch_files import read_torch_file
from xmc_jax.retrieval.fusion import Tree
from xmc_jax.runs import evaluate, predict, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.model import Model
from xmc_jax.storage import npy, path_safety, run_folder

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("xmc_jax", "experiments") for path in (ROOT / folder).rglob("*.py"))
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\x7f\u202e\u2066"


@pytest.fixture
def witness(tmp_path):
  """A file that is there once a payload has run; no test may leave one."""
  path = tmp_path / "witness"
  yield path
  assert not path.exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run that has all kinds of files: two views and their fusion, a memory, graphs beside its data."""
  folder = tiny_runs.write_graphs(tiny_runs.write_data(tmp_path_factory.mktemp("raw") / "tiny"))
  workdir = tmp_path_factory.mktemp("runs") / "trained"
  overrides = {**tiny_runs.UNIDEC, "eval.fusion_rows": 100, "eval.fusion_depth": 3, "train.num_epochs": 1}
  overrides["eval.scores"] = "hybrid"
  commands.train_and_test(tiny_runs.config(folder, **overrides), workdir)
  return workdir


@pytest.fixture
def copied(trained, tmp_path):
  """A copy of it, to spoil."""
  return shutil.copytree(trained, tmp_path / "run")


def use(workdir: pathlib.Path) -> None:
  """What opens most of a run's folder."""
  model = Model.load(workdir)
  model.predict(["barn lt"], k=3)
  ranking.own_ranker(model._trained)


# The source itself.


def calls(path: pathlib.Path):
  """(dotted name, keywords) of every call of a file."""
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Call):
      yield ast.unparse(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_can_run_what_a_file_says(path):
  risky = {"yaml", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch", "tensorflow", "code"}
  imported = {name.partition(".")[0] for _, name in imports(ast.parse(path.read_text(encoding="utf-8")))}
  assert not imported & risky
  assert "pickle" not in imported or path.name == "torch_files.py"
  # These run our own command, no file's words.
  tools = path.is_relative_to(ROOT / "experiments" / "claims") or path.name == "extracted.py"
  for name, keywords in calls(path):
    assert name not in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"), name
    assert not name.startswith(("pickle.load", "subprocess.")) or tools, name
    assert keywords.get("allow_pickle", "False") == "False", name
    assert keywords.get("trust_remote_code", "False") == "False", name
    if name.endswith("from_pretrained") and "Auto" in name:
      assert keywords.get("trust_remote_code") == "False" and keywords["local_files_only"] == "True", name
    if name == "importlib.import_module":
      of_presets = path == ROOT / "xmc_jax" / "experiments.py"  # it loads files of experiments/ alone
      assert path.name == "__init__.py" or of_presets, name  # of fixed tables
    if name.endswith("snapshot_download"):
      assert "allow_patterns" in keywords


def test_the_hub_gives_no_code():
  patterns = [*locate._SMALL_FILES, "model*.safetensors", "pytorch_model.bin"]
  data_alone = {".json", ".txt", ".model", ".safetensors", ".bin"}  # .model is SentencePiece's, never opened
  assert {pathlib.PurePath(name).suffix for name in patterns} == data_alone


# Pickles.


def pickled_array(path: pathlib.Path, witness: pathlib.Path) -> None:
  """An .npy file that numpy would unpickle."""
  with path.open("wb") as file:
    np.save(file, np.array([Trap(witness)], object), allow_pickle=True)


def test_the_payload_is_one(tmp_path):
  pickled_array(tmp_path / "a.npy", tmp_path / "made")
  np.load(tmp_path / "a.npy", allow_pickle=True)[0].close()
  assert (tmp_path / "made").exists()


@pytest.mark.slow
def test_no_file_of_a_run_is_unpickled(trained, tmp_path, witness):
  """Each in turn is a pickle: refused in a line, or not looked at."""
  payload, seen = pickle.dumps(Trap(witness)), 0
  names = [path.relative_to(trained) for path in sorted(trained.rglob("*")) if path.is_file()]
  for number, name in enumerate(names):
    run = shutil.copytree(trained, tmp_path / f"run{number}")
    (run / name).unlink()
    (run / name).write_bytes(payload)
    try:
      use(run)
    except UserError as error:
      seen += 1
      assert "\n" not in str(error)
    assert not witness.exists(), name
    shutil.rmtree(run)
  assert seen > 10


def test_no_array_beside_a_run_is_unpickled(tmp_path, witness):
  for name in (run_folder.VECTORS, run_folder.MEMORY):
    pickled_array(tmp_path / name, witness)
    with pytest.raises(UserError, match="not readable"):
      npy.read(tmp_path / name, 1)
  np.savez(tmp_path / "fusion.npz", **dict.fromkeys(Tree._fields, np.array([Trap(witness)], object)))
  with pytest.raises(UserError, match="not readable"):
    Tree.load(tmp_path / "fusion.npz")


def test_no_raw_file_is_unpickled(tmp_path, witness):
  for name in ("train.parquet", "train.csv", "train.jsonl"):
    (tmp_path / name).write_bytes(pickle.dumps(Trap(witness)))
    with pytest.raises(DataError):
      data.load(tmp_path / name, cache_dir=tmp_path / "cache")
  raw = tiny_runs.write_graphs(tiny_runs.write_data(tmp_path / "raw"))
  (raw / "words_trn_X_Y.txt").unlink()
  whole = {
    "format": np.array(b"csr"),
    "shape": np.array([200, 80]),
    "data": np.array([Trap(witness)], object),
  }
  whole |= {"indices": np.zeros(1, np.int32), "indptr": np.ones(201, np.int32)}
  np.savez(raw / "words_trn_X_Y.npz", **whole)
  with pytest.raises(DataError, match="words_trn_X_Y"):
    data.load(raw, cache_dir=tmp_path / "cache")


def test_no_file_of_an_encoder_is_unpickled(tmp_path, witness):
  whole = tiny_runs.tiny_bert(tmp_path / "bert")
  for name in ("config.json", "model.safetensors", "pytorch_model.bin", "modules.json", "tokenizer.json"):
    folder = shutil.copytree(whole, tmp_path / "spoilt")
    if name == "pytorch_model.bin":
      (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Trap(witness)))
    with pytest.raises(UserError):
      load_pretrained(str(folder))
      data.load_tokenizer(folder)
    shutil.rmtree(folder)


def test_checkpoints_are_read_without_pickle(trained, monkeypatch):
  def refuse(*arguments, **named):
    raise AssertionError("unpickled")

  for name in ("load", "loads", "Unpickler"):
    monkeypatch.setattr(pickle, name, refuse)
  use(trained)


# Pickles that are read: PyTorch's weights.


def test_weights_with_metadata_are_read(tmp_path):
  """`torch.save` of a module's state: an OrderedDict with an attribute, as every model on the hub has it."""
  body = b"ccollections\nOrderedDict\n)RX\x01\x00\x00\x00w"
  body += torch_pickles.tensor((2, 2), (2, 1)) + b"s"
  body += b"}X\x09\x00\x00\x00_metadataccollections\nOrderedDict\n)Rsb"
  raw = np.arange(4, dtype=np.float32).tobytes()
  found = read_torch_file(torch_pickles.write(tmp_path / "a.bin", body, raw))
  np.testing.assert_array_equal(found["w"], [[0, 1], [2, 3]])


@pytest.mark.parametrize(
  "value",
  [
    pytest.param(b"cos\nsystem\n(X\x04\x00\x00\x00truetR", id="a function"),
    pytest.param(b"cbuiltins\ngetattr\n", id="a builtin"),
    pytest.param(b"ccollections\nOrderedDict.__init__\n", id="a way through a class"),
    pytest.param(b"cnumpy\nload\n", id="numpy's own loader"),
    pytest.param(
      b"ctorch\nFloatStorage\n(K\x03X\x01\x00\x00\x00>NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb", id="a type"
    ),
    pytest.param(
      torch_pickles.storage() + b"(K\x01K\x04\x85ctorch\nFloatStorage\n\x89C\x10" + b"x" * 16 + b"tb",
      id="a storage",
    ),
    pytest.param(torch_pickles.tensor((4,), (1,)) + b"}X\x01\x00\x00\x00aK\x01sb", id="a tensor"),
    pytest.param(
      b"ctorch._utils\n_rebuild_tensor_v2\nN}X\x01\x00\x00\x00aK\x01s\x86b", id="a function's state"
    ),
    pytest.param(torch_pickles.tensor((0x7F000000, 4), (0, 1)), id="one number many times"),
  ],
)
def test_weights_can_name_and_change_nothing(tmp_path, witness, value):
  """No other function, and no state of what the reader itself is made of."""
  file = torch_pickles.write(tmp_path / "evil.bin", torch_pickles.in_dict(w=value), bytes(16))
  with pytest.raises(DataError, match=r"evil\.bin: (refused|damaged)"):
    read_torch_file(file)
  assert np.dtype(np.float32).str == np.zeros(1, np.float32).dtype.str and np.float32(1) + 1 == 2


def test_weights_are_no_larger_than_their_file(tmp_path):
  body = torch_pickles.in_dict(w=torch_pickles.tensor((4,), (1,)))
  file = torch_pickles.write(tmp_path / "bomb.bin", body, bytes(16), compression=zipfile.ZIP_DEFLATED)
  with pytest.raises(DataError, match="not compressed"):
    read_torch_file(file)


def test_a_tokenizer_brings_no_code(tmp_path, witness):
  folder = tiny_runs.tiny_bert(tmp_path / "bert")
  tokenizer = data.train_tokenizer(["barn lt"], 100)
  tokenizer.save(str(folder / "tokenizer.json"))
  (folder / "evil.py").write_text(f"open({str(witness)!r}, 'w')\nclass Evil: pass\n")
  code = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
  (folder / "tokenizer_config.json").write_text(json.dumps(code))
  with pytest.raises(DataError, match="unusable tokenizer files"):
    models.load_encoder(folder)


# Names that lead elsewhere.


@pytest.mark.parametrize("name", ["../x", "/etc/hostname", "a/../../x", "graph.x/../../y.npy"])
def test_prepared_data_names_no_file_elsewhere(trained, tmp_path, name):
  folder = shutil.copytree(trained / "data", tmp_path / "inner" / "data")
  (tmp_path / "inner" / "x").write_text("payload")
  known = json.loads((folder / "manifest.json").read_text())
  of_file = {"files": {**known["files"], name: {"size": 7, "sha256": ""}}}
  of_graph = {"counts": {**known["counts"], "graphs": {name: known["counts"]["graphs"]["words"]}}}
  for change in (of_file, of_graph):
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text(json.dumps({**known, **change}))
    with pytest.raises(DataError, match="is damaged"):
      data.link_into(folder, tmp_path / "run" / "deep" / "data")
    with pytest.raises(DataError, match="is damaged"):
      data.load_prepared(folder)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["..", "../../x", "/tmp/x", "a/../../x", "."])
def test_a_runs_name_stays_below_runs(name):
  config = methods.default_config()
  config.name = name
  with pytest.raises(ConfigError, match="is no folder below runs/"):
    methods.check_config(config)


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", "\0"])
def test_an_encoders_modules_are_in_its_folder(tmp_path, path):
  folder = tiny_runs.tiny_bert(tmp_path / "bert")
  modules = [{"idx": 0, "name": "0", "path": path, "type": "sentence_transformers.models.Transformer"}]
  (folder / "modules.json").write_text(json.dumps(modules))
  with pytest.raises(DataError, match="leads out of the encoder's folder"):
    load_pretrained(str(folder))


def test_an_encoders_parts_are_in_its_folder(tmp_path):
  """An index that names a file elsewhere: the one of that name here is meant."""
  folder = tiny_runs.tiny_bert(tmp_path / "bert")
  (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
  parts = {"weight_map": {"a": "../elsewhere.safetensors"}}
  (folder / "model.safetensors.index.json").write_text(json.dumps(parts))
  with pytest.raises(DataError, match=r"bert/elsewhere\.safetensors: unreadable"):
    load_pretrained(str(folder))


@pytest.mark.parametrize("name", ["report", "report/metrics.json", "memory.npy.tmp"])
def test_a_run_writes_nothing_through_a_link(copied, tmp_path, name):
  target = tmp_path / "precious"
  path = copied / name
  if path.is_dir():
    path.rename(target)
  else:
    target.write_text("precious")
    path.unlink(missing_ok=True)
  path.symlink_to(target)
  before = target.read_text() if target.is_file() else sorted(target.rglob("*"))
  for command in (lambda: commands.test(copied), lambda: use(copied)):
    with pytest.raises(UserError, match="is a link that leads out of the run's folder"):
      command()
  assert before == (target.read_text() if target.is_file() else sorted(target.rglob("*")))


def test_links_that_stay_are_no_matter(copied, tmp_path):
  (copied / "report").rename(copied / "kept")
  (copied / "report").symlink_to("kept")
  (tmp_path / "link").symlink_to(copied)
  path_safety.check(tmp_path / "link")
  path_safety.check(tmp_path / "nowhere")
  (copied / "loop").symlink_to("loop")
  path_safety.check(copied)


# Values of a run's config.json.


@pytest.mark.parametrize(
  "key, value",
  [
    ("method.name", "../../evil"),
    ("method.loss", "__import__('os').abort()"),
    ("eval.metric", "P@__import__('os').abort()"),
    ("train.seed", "__import__('os').abort()"),
    ("train.seed", ["!!python/object/apply:os.abort"]),
  ],
)
def test_values_of_a_config_are_no_code(copied, key, value):
  stored = json.loads((copied / "config.json").read_text())
  section, name = key.split(".")
  stored[section][name] = value
  (copied / "config.json").write_text(json.dumps(stored))
  with pytest.raises(ConfigError):
    use(copied)


def test_a_run_takes_its_encoder_from_its_own_folder(copied, tmp_path, monkeypatch):
  """Whatever its config.json names: neither another folder, nor a package, nor the hub."""
  stored = json.loads((copied / "config.json").read_text())
  stored["encoder"].update(name="someone/else", tokenizer="someone/else")
  stored["data"]["path"] = stored["init_from"] = "/nowhere/at/all"
  (copied / "config.json").write_text(json.dumps(stored))
  tiny_runs.tiny_bert(copied / "encoder")
  asked = []
  monkeypatch.setattr(locate, "_fetch", lambda name, *_, **__: asked.append(name))
  assert runs.reopen(copied).config.encoder.name == str(copied / "encoder")
  assert not asked


# Texts that a terminal would obey.


def test_what_is_shown_holds_no_control_characters(capsys):
  console.show(f"label {ESCAPES}\tend\nnext")
  console.say(f"label {ESCAPES}")
  said = capsys.readouterr()
  for stream in (said.out, said.err):
    assert "label" in stream and sanitize.text(stream) == stream
  assert "\tend\nnext" in said.out


def test_an_error_holds_no_control_characters(capsys):
  with pytest.raises(SystemExit) as caught, error_lines.in_one_line():
    raise DataError(f"tiny{ESCAPES}\n.json: bad")
  assert sanitize.line(caught.value.code) == caught.value.code and caught.value.code.endswith(".json: bad")


def test_examples_hold_no_control_characters(trained, monkeypatch):
  run = Model.load(trained)._run
  monkeypatch.setattr(data.Texts, "_decoded", lambda *_: f"a\n{ESCAPES}b")
  ranking = evaluate.Ranking(np.zeros((len(run.dataset.test), 3), np.int32), np.zeros(1))
  shown = evaluate.examples(run, run.dataset.test, ranking, 2)
  assert sanitize.text(shown) == shown
  marks = [re.fullmatch(r"  (?:  ([✓·○]) )?a .*b", line)[1] for line in shown.splitlines()]
  assert marks.count(None) == 2 and marks.count("✓") + marks.count("·") == 6 and "○" in marks


def test_predictions_hold_no_control_characters_and_lose_none():
  found = predict.json_line(
    Document(ESCAPES), [(1, 0.5, f"label{ESCAPES}\ud800")], ["", ESCAPES], lambda _: ""
  )
  assert sanitize.line(found) == found.rstrip("\n") and found.isascii()
  assert json.loads(found) == {
    "text": ESCAPES,
    "labels": [{"id": 1, "key": ESCAPES, "score": 0.5, "text": f"label{ESCAPES}\ud800"}],
  }
