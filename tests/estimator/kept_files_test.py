"""Pickles of XMCClassifier, its folder, and labels that are added after training."""

import copy
import gc
import io
import os
import pickle
import shutil
import signal
import sys
import tempfile

import joblib
import made_texts
import numpy as np
import pytest

import xmc_jax
from tests import command_lines
from xmc_jax.cli import commands
from xmc_jax.data.label_sets import LabelSpace
from xmc_jax.data.label_values import Labels
from xmc_jax.errors import ConfigError, DataError, UserError
from xmc_jax.estimator import files
from xmc_jax.training import readings

pytestmark = pytest.mark.slow

TEXTS, LABELS = made_texts.make()
SHORT = {"num_epochs": 2}


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory):
  """A pickle, and the probabilities of the estimator that it was made of, whose files are gone."""
  made = made_texts.estimator(**SHORT).fit(TEXTS, LABELS)
  return pickle.dumps(made), made.predict_proba(TEXTS)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("kept") / "run"
  return folder, made_texts.estimator(**SHORT, workdir=folder).fit(TEXTS, LABELS)


def same(found, expected):
  parts = ("data", "indices", "indptr")
  return all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in parts)


def by_joblib(content):
  file = io.BytesIO()
  joblib.dump(pickle.loads(content), file, compress=3)
  file.seek(0)
  return joblib.load(file)


def test_a_pickle_predicts_the_same_bits(in_memory):
  made, expected = by_joblib(in_memory[0]), in_memory[1]
  assert same(made.predict_proba(TEXTS), expected) and list(made.classes_) == made_texts.NAMES
  again = copy.deepcopy(made)
  assert again._fitted._run != made._fitted._run  # a copy has its own files
  del made
  gc.collect()
  assert same(again.predict_proba(TEXTS), expected)


def test_another_process_reads_a_pickle_and_leaves_nothing(in_memory, tmp_path):
  """Not even if it ends while the estimator lives, by an exception."""
  (tmp_path / "model.pickle").write_bytes(in_memory[0])
  (tmp_path / "tmp").mkdir()
  code = (
    "import pickle, tempfile; tempfile.tempdir = 'tmp'\n"
    "made = pickle.load(open('model.pickle', 'rb'))\n"
    f"print(len(made.predict({TEXTS[:5]!r}))); import os; assert os.listdir('tmp'); raise KeyboardInterrupt"
  )
  ended = command_lines.run(sys.executable, "-c", code, folder=tmp_path)
  assert ended.stdout.strip() == "5" and ended.returncode, ended.stderr
  assert not list((tmp_path / "tmp").iterdir())


def test_a_forked_process_leaves_the_files(in_memory):
  made = pickle.loads(in_memory[0])
  folder = made._fitted._temporary.path
  files._delete(folder, owner=os.getpid() + 1)
  assert folder.exists()


def test_a_workdir_is_a_run(workdir, in_memory):
  """The model of its folder predicts the same, and so does an estimator whose files were temporary."""
  folder, made = workdir
  assert same(made.predict_proba(TEXTS), in_memory[1])
  expected = xmc_jax.Model.load(folder).predict(TEXTS[:9], k=3)
  for found, wanted in zip(made.top_k(TEXTS[:9], k=3), expected):
    np.testing.assert_array_equal(found, wanted)
  with pytest.raises(UserError, match="no test rows, so there is no test table"):
    commands.test(folder)


def test_a_pickle_with_a_workdir_has_only_its_path(workdir, tmp_path):
  _, made = workdir
  content = pickle.dumps(made)
  assert len(content) < 20_000
  assert same(pickle.loads(content).predict_proba(TEXTS[:9]), made.predict_proba(TEXTS[:9]))
  read = pickle.loads(content)
  read._fitted._run = tmp_path / "not-there"  # as if it had been moved
  with pytest.raises(ConfigError, match="not-there is not the folder of a run"):
    read.predict(TEXTS)


def test_a_folder_that_has_another_run_now_is_refused(workdir, tmp_path):
  """As many labels, but not the same ones: their columns would get the old names."""
  folder, made = workdir
  read = pickle.loads(pickle.dumps(made))
  shutil.copytree(folder, tmp_path / "run")
  read._fitted._run = tmp_path / "run"
  assert same(read.predict_proba(TEXTS[:9]), made.predict_proba(TEXTS[:9]))  # it may be moved
  read = pickle.loads(pickle.dumps(read))
  shutil.rmtree(tmp_path / "run")
  others = [[name[::-1] for name in names] for names in LABELS]
  made_texts.estimator(num_epochs=1, workdir=tmp_path / "run").fit(TEXTS, others)
  for method in ("predict", "add_labels"):
    with pytest.raises(UserError, match=r"by a run on other data .*; fit it again, in another workdir"):
      getattr(read, method)(["new"])


def test_what_is_learnt_stays_in_a_workdir(workdir):
  """Through another `fit` of the same texts, and for whoever opens the folder."""
  folder, made = workdir
  before = made.predict_proba(["mive nuxo pond"])
  made.learn(["mive nuxo pond"], [[made_texts.NAMES[4]]])
  learnt = made.predict_proba(["mive nuxo pond"])
  again = made_texts.estimator(**SHORT, workdir=folder).fit(TEXTS, LABELS)
  for other in (again, pickle.loads(pickle.dumps(made))):
    assert same(other.predict_proba(["mive nuxo pond"]), learnt)
  assert xmc_jax.Model.load(folder).predict(["mive nuxo pond"], k=1)[0] == [[4]]
  assert made.undo() == 1 and same(made.predict_proba(["mive nuxo pond"]), before)


def test_a_killed_fit_goes_on(workdir, tmp_path, monkeypatch, capsys):
  """After SIGTERM it ends as if it had not been stopped."""
  _, undisturbed = workdir
  validate, handler = readings.validate, signal.signal(signal.SIGTERM, signal.SIG_DFL)

  def stopping(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    return validate(*args)

  made = made_texts.estimator(**SHORT, workdir=tmp_path / "run", verbose=1)
  try:
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="143"):
      patch.setattr(readings, "validate", stopping)
      made.fit(TEXTS, LABELS)
  finally:
    signal.signal(signal.SIGTERM, handler)
  assert not hasattr(made, "classes_")
  capsys.readouterr()
  made.fit(TEXTS, LABELS)
  assert "going on from step" in capsys.readouterr().err
  assert same(made.predict_proba(TEXTS), undisturbed.predict_proba(TEXTS))
  before = (tmp_path / "run" / "metrics.jsonl").read_text()
  made.fit(TEXTS, LABELS)  # all is done
  assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_a_folder_of_another_fit_is_refused(workdir):
  folder, made = workdir
  before = {path.name: path.read_bytes() for path in (folder / "texts").iterdir()}
  with pytest.raises(ConfigError, match=r"num_epochs: 2 -> 3.*give workdir='ANOTHER_FOLDER'") as refused:
    made_texts.estimator(num_epochs=3, workdir=folder).fit(TEXTS, LABELS)
  assert "\n" not in str(refused.value)
  with pytest.raises(ConfigError, match="holds a run on other data"):
    made_texts.estimator(**SHORT, workdir=folder).fit(TEXTS[1:], LABELS[1:])
  others = [[name.upper() for name in names] for names in LABELS]
  with pytest.raises(ConfigError, match=r"\(lbl.json has changed since\); give workdir='ANOTHER_FOLDER'"):
    made_texts.estimator(**SHORT, workdir=folder).fit(TEXTS, others)
  assert before == {path.name: path.read_bytes() for path in (folder / "texts").iterdir()}
  assert made.score(TEXTS, LABELS) > 0.1  # it still predicts


def test_labels_are_added_without_training(in_memory):
  """They rank at once, first for their own words; a pickle has them; the old ones keep their columns."""
  made, before = pickle.loads(in_memory[0]), in_memory[1]
  known = made_texts.NAMES[3]
  columns = made.add_labels(["a zebra crossing", known, "a zebra crossing", "two\nlines"])
  assert columns.tolist() == [15, 3, 15, 16] and columns.dtype == np.int32
  assert list(made.classes_) == [*made_texts.NAMES, "a zebra crossing", "two\nlines"]
  assert made.predict(["a zebra crossing"])[0][0] == "a zebra crossing"
  ids, _, names = made.top_k(["a zebra crossing"], k=2)
  assert ids[0, 0] == 15 and names[0][0] == "a zebra crossing"
  found = made.predict_proba(TEXTS, k=17)
  assert found.shape == (len(TEXTS), 17)
  agreement = found.toarray()[:, :15].argmax(axis=1) == before.toarray().argmax(axis=1)
  assert agreement.mean() > 0.95
  assert made.score(["a zebra crossing"], [["a zebra crossing"]]) == 1
  read = pickle.loads(pickle.dumps(made))
  assert same(read.predict_proba(TEXTS, k=17), found)
  assert read.add_labels(["more"]).tolist() == [17]
  assert made.add_labels([known]).tolist() == [3] and len(made.classes_) == 17


def test_added_labels_are_columns_of_a_matrix(in_memory):
  made = pickle.loads(in_memory[0])
  dense = made_texts.indicator(LABELS)
  made._fitted.space = LabelSpace.of(Labels(dense, len(TEXTS)), made_texts.NAMES)
  made.add_labels(["a zebra crossing"])
  found = made.predict(["a zebra crossing"])
  assert found.shape == (1, 16) and found[0, 15] == 1
  assert made.score(TEXTS, dense) == made.score(TEXTS, np.pad(dense, ((0, 0), (0, 1))))


def test_labels_that_cannot_be_added(in_memory):
  made = pickle.loads(in_memory[0])
  with pytest.raises(DataError, match=r"texts\[1\]: expected the text of a label, found ' '"):
    made.add_labels(["x", " "])
  with pytest.raises(DataError, match=r"texts\[0\]: expected a text"):
    made.add_labels([3])


def test_which_methods_add_labels():
  """Those whose labels can be texts alone; others say so, and still predict."""
  for method in ("rae_xmc", "ngame", "dexa"):
    made = made_texts.estimator(method=method, num_epochs=1).fit(TEXTS, LABELS)
    made.add_labels(["a zebra crossing"])
    assert made.top_k(["a zebra crossing"], k=1)[2] == [["a zebra crossing"]]
  for method in ("ova", "unidec"):
    made = made_texts.estimator(method=method, num_epochs=1).fit(TEXTS, LABELS)
    with pytest.raises(UserError, match=f"method '{method}' ranks labels by more .* fit with a method other"):
      made.add_labels(["x"])
    assert len(made.classes_) == 15 and made.predict(TEXTS[:1])


def test_temporary_folders_are_where_others_are(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  folder = files.TemporaryFolder()
  assert folder.path.parent == tmp_path and folder.path.stat().st_mode & 0o077 == 0
  folder.delete()
  assert not list(tmp_path.iterdir())
