"""Texts that a trained run learns: they vote from the next prediction on, through kills, until unlearnt."""

import errno
import json
import os
import re
import shutil
import threading

import numpy as np
import pytest
import tiny_runs

import xmc_jax
from xmc_jax.cli import commands
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.estimator import files
from xmc_jax.runs import predict
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.storage import locks
from xmc_jax.training import combine

pytestmark = pytest.mark.slow

TEXTS = ["barn kelt", "loma mive nuxo", "suss"]
REPEATED = "annual report"
NEW = "zathura quux of the unseen"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  place = tmp_path_factory.mktemp("learning")
  folder = tiny_runs.write_data(place / "data")
  with (folder / "trn.json").open("a") as file:
    for label in (2, 3):
      file.write(json.dumps({"uid": f"r{label}", "title": REPEATED, "target_ind": [label]}) + "\n")
  config = tiny_runs.config(folder, **{"train.num_epochs": 1, "eval.scores": "hybrid"})
  xmc_jax.train(config, place / "run")
  xmc_jax.Model.load(place / "run")  # which writes the files that ranking needs
  return place / "run"


@pytest.fixture
def workdir(trained, tmp_path):
  return shutil.copytree(trained, tmp_path / "run")


def answers(model, texts=(NEW, *TEXTS)):
  ids, scores, _ = model.predict(list(texts), 5)
  return ids.tolist(), scores.tolist()


def test_what_is_learnt_is_answered_at_once_and_after_a_restart(workdir):
  model = xmc_jax.Model.load(workdir)
  before = answers(model)
  numbers = model.learn([NEW, "other words"], [[model.keys[7], model.labels[9]], [model.keys[3]]])
  assert numbers.tolist() == [0, 1]
  ids, scores, _, why = model.predict([NEW], 5, explain=True)
  assert set(ids[0, :2]) == {7, 9} and scores[0, 1] > 3 * scores[0, 2]
  assert why[0][0]["voters"][0]["text"] == NEW
  assert answers(xmc_jax.Model.load(workdir)) == answers(model)
  assert set(answers(xmc_jax.Model.load(workdir, scores="memory"), [NEW])[0][0][:2]) == {7, 9}
  assert model.learn(["more"], [[model.keys[1]]]).tolist() == [2]
  assert model.undo() == 1
  model.unlearn([1])
  model.unlearn(np.array([0]))
  assert answers(model) == before == answers(xmc_jax.Model.load(workdir))
  assert json.loads((workdir / "learnt.jsonl").read_text()) == {"next_id": 3}
  assert model.learn([NEW], [[model.keys[1]]]).tolist() == [3]  # no number is given twice


def test_a_correction_takes_the_place_of_a_known_text(workdir):
  """Of a training text, and of one that was learnt; the last counts."""
  model = xmc_jax.Model.load(workdir)
  train = model._run.dataset.train
  row = int(np.flatnonzero(np.diff(train.truth.indptr))[3])
  text, own = train.texts[row], train.truth[row].indices.tolist()
  given = [label for label in range(60) if label not in own][:3]
  for labels in ([given[0]], [given[1]], [given[2]]):
    model.learn([text, text], [[model.keys[own[0]]], [model.keys[label] for label in labels]])
    for one in (model, xmc_jax.Model.load(workdir)):
      assert voted(one, text) == labels
  model.learn([text], [[]])
  assert voted(model, text) == voted(xmc_jax.Model.load(workdir), text) == []
  assert model.undo() == 1 and voted(model, text) == [given[2]]


def test_a_text_that_the_run_has_several_times_is_one_more_of_these(workdir):
  model = xmc_jax.Model.load(workdir)
  model.learn([REPEATED, REPEATED], [[model.keys[5]], [model.keys[6]]])
  model.learn([REPEATED], [[model.keys[7]]])
  for one in (model, xmc_jax.Model.load(workdir)):
    assert sorted(voted(one, REPEATED)) == [2, 3, 5, 6, 7]
  model.learn([REPEATED], [[]])
  assert voted(model, REPEATED) == [] == voted(xmc_jax.Model.load(workdir), REPEATED)
  model.unlearn([0])
  assert sorted(voted(model, REPEATED)) == [2, 3]


def voted(model, text):
  """Returns the labels that a text has in the memory, by what it votes for when it is asked for."""
  (ids,), _, _, (why,) = model.predict([text], 60, explain=True)
  voters = ([voter["text"] for voter in reason["voters"]] for reason in why)
  return [label for label, texts in zip(ids.tolist(), voters) if text in texts]


def test_new_labels_are_found_by_their_texts_and_by_their_first_example(workdir):
  model = xmc_jax.Model.load(workdir)
  before = answers(model)
  numbers = model.learn([NEW, "suss"], [["zorn blick"], [model.keys[7], " zorn  blick"]], True)
  assert numbers.tolist() == [0, 1]
  assert [*model.keys[60:], *model.labels[60:]] == ["zorn blick"] * 2
  again = xmc_jax.Model.load(workdir)
  for one in (model, again):
    ids, _, names = one.predict([NEW, "zorn blick"], 3)
    assert ids[:, 0].tolist() == [60, 60] and names[0][0] == "zorn blick"
    (ids,), *_ = one.predict([NEW], 61, include=["zorn blick", one.keys[7]])
    assert ids[ids >= 0].tolist() == [60, 7]
  assert answers(again) == answers(model)
  model.learn(["other"], [["zorn blick"]])  # which is known from now on
  with pytest.raises(UserError, match="labels that the run lacks: 2, such as ' ', 'b'; nothing was learnt"):
    model.learn(["a"], [["zorn", " ", "b"]], {"zorn": "zorn"})
  with pytest.raises(UserError, match="such as ''; nothing"):
    model.learn(["a"], [["zorn", ""]], True)
  model.learn(["third"], [["k9", model.keys[3]]], {"k9": "gnu wabe", "k8": "unused"})
  assert list(model.keys[60:]) == ["zorn blick", "k9"] and list(model.labels[60:]) == [
    "zorn blick",
    "gnu wabe",
  ]
  for name in ("k9", "gnu wabe"):
    model.learn(["third"], [[name]])
    assert voted(model, "third") == voted(xmc_jax.Model.load(workdir), "third") == [61]
  assert again.predict(["gnu wabe"], 1)[0][0, 0] == 61  # another process has learnt it
  model.unlearn([2])
  for number in (5, 1):
    model.unlearn([number])
    assert list(model.keys[60:]) == ["zorn blick"] == list(xmc_jax.Model.load(workdir).keys[60:])
  model.unlearn([0])
  assert len(model.keys) == 60 and "zorn" not in (workdir / "learnt.jsonl").read_text()
  assert answers(model) == before == answers(xmc_jax.Model.load(workdir)) == answers(again)


@pytest.mark.parametrize("key", ["zorn  blick\u00a0x", "\ud800x"])
def test_new_labels_of_odd_characters_are_learnt_each_time(key, workdir):
  """Without repeated spaces, and with a replacement in place of what is no text."""
  model = xmc_jax.Model.load(workdir)
  for given in (True, {key: "a  b"}, False):
    model.learn([f"{NEW} {given}"], [[key]], given)
  stored = "zorn blick x" if "z" in key else "\ufffdx"
  for one in (model, xmc_jax.Model.load(workdir)):
    assert list(one.keys[60:]) == [stored]
    assert all(voted(one, f"{NEW} {given}") == [60] for given in (True, {key: "a  b"}, False))
  with pytest.raises(UserError, match="new_labels: expected keys and texts, found 5"):
    model.learn(["a"], [["k"]], {"k": 5})


@pytest.mark.parametrize("method", ["ova", "unidec", "dexa"])
def test_methods_that_rank_by_more_than_texts_take_new_labels(method, tmp_path):
  """Where no text embeds a label, words and votes find it."""
  config = tiny_runs.config(
    tiny_runs.write_data(tmp_path / "data"),
    **{"method.name": method, "train.num_epochs": 1, "eval.scores": "hybrid"},
  )
  xmc_jax.train(config, tmp_path / "run")
  model = xmc_jax.Model.load(tmp_path / "run")
  model.learn([NEW], [["zorn blick"]], new_labels=True)
  ids, scores, _ = model.predict([NEW, "zorn blick", "barn kelt"], 61)
  assert ids[0, 0] == 60 and 60 in ids[1, :3] and np.isfinite(scores[ids >= 0]).all()
  np.testing.assert_array_equal(
    ids, xmc_jax.Model.load(tmp_path / "run").predict([NEW, "zorn blick", "barn kelt"], 61)[0]
  )


def test_threads_see_labels_and_answers_of_one_moment(workdir):
  """While a thread learns new labels and forgets them, others rank, explain and limit what may be answers."""
  model = xmc_jax.Model.load(workdir)
  learnt, faults = threading.Event(), []
  request = LabelRequest(5, explain=True, exclude=(model.keys[1],))

  def ask():
    while not learnt.is_set():
      try:
        dataset, (ids, _, names, _) = model.ranked([NEW, "suss"], request)
        assert [[dataset.label_names[label] for label in row if label >= 0] for row in ids] == names
      except BaseException as fault:
        return faults.append(fault)

  threads = [threading.Thread(target=ask) for _ in range(2)]
  for thread in threads:
    thread.start()
  for number in range(6):
    model.learn([f"{NEW} {number}"], [[f"zorn {number}"]], new_labels=True)
    if number % 2:
      model.undo()
  learnt.set()
  for thread in threads:
    thread.join()
  assert not faults and len(model.keys) == 63


def test_what_cannot_be_learnt_changes_nothing(trained, monkeypatch):
  model = xmc_jax.Model.load(trained)
  before = answers(model)
  for texts, labels, words in (
    (["a"], [["nix", "l0"]], "labels that the run lacks: "),
    (["a", "b"], [["l0"]], "labels: expected a list of labels for each of the 2 texts"),
    (["a"], ["l0"], "labels: expected a list of labels for each of the 1 texts"),
    (["a"], [None], "labels: expected a list of labels for each of the 1 texts"),
    (["a"], [[5]], "labels: expected keys or names, found 5"),
    ("a", [["l0"]], "texts must be a list of str"),
  ):
    with pytest.raises(UserError, match=re.escape(words)):
      model.learn(texts, labels)
  assert answers(model) == before and not (trained / "learnt.jsonl").exists()
  assert model.learn([], []).tolist() == []
  with pytest.raises(UserError, match="no text was learnt with the number 5"):
    model.unlearn([5])
  with pytest.raises(UserError, match="nothing was learnt"):
    model.undo()
  with pytest.raises(UserError, match="remember nothing; give --scores=hybrid"):
    xmc_jax.Model.load(trained, scores="fused").learn(["a"], [[]])
  monkeypatch.setattr(runtime, "is_alone", lambda: False)
  with pytest.raises(UserError, match="several processes cannot learn together"):
    model.learn(["a"], [[]])


def test_one_process_learns_at_a_time_and_knows_what_others_have_learnt(workdir):
  first, second = xmc_jax.Model.load(workdir), xmc_jax.Model.load(workdir)
  with (
    locks.in_use(workdir, ".learn.lock"),
    pytest.raises(UserError, match="is learning for this run; try again"),
  ):
    first.learn(["b"], [[first.keys[1]]])
  first.learn([NEW], [[first.keys[7]]])
  assert second.learn(["b"], [[first.keys[1]]]).tolist() == [1]
  assert second.predict([NEW], 1)[0][0, 0] == 7
  first.unlearn([1])
  assert answers(first, [NEW, "b"]) == answers(xmc_jax.Model.load(workdir), [NEW, "b"])
  assert answers(second, [NEW, "b"]) == answers(first, [NEW, "b"])  # at its next prediction


def test_a_full_disk_is_refused_before_anything_changes(workdir, monkeypatch):
  """The first bytes still go there."""
  model = xmc_jax.Model.load(workdir)
  model.learn(["a"], [[model.keys[1]]])
  before, content, write = answers(model), (workdir / "learnt.jsonl").read_bytes(), os.write

  def full(file, data):
    if b"texts" in data:
      return write(file, data[:9])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
    patch.setattr(os, "write", full)
    model.learn([NEW], [[model.keys[7]]])
  assert answers(model) == before and (workdir / "learnt.jsonl").read_bytes() == content


def test_all_that_was_learnt_of_a_text_is_forgotten(workdir):
  model = xmc_jax.Model.load(workdir)
  before = answers(model)
  model.learn([NEW, "other", NEW], [[model.keys[7]], [model.keys[8]], [model.keys[9]]])
  model.learn([NEW, "other"], [[model.keys[10]], [model.keys[11]]])
  assert voted(model, NEW) == [10] == voted(xmc_jax.Model.load(workdir), NEW)
  assert answers(model, [NEW, "other"]) == answers(xmc_jax.Model.load(workdir), [NEW, "other"])
  model.unlearn([3])
  assert NEW not in (workdir / "learnt.jsonl").read_text() and voted(model, NEW) == []
  model.unlearn([1])
  assert answers(model) == before


def test_labels_that_were_added_are_the_runs_from_their_first_example_on(workdir):
  model = xmc_jax.Model.load(workdir, scores="hybrid", add_labels={"k8": "blick", "k9": "zorn"})
  model.learn([NEW], [["k9"]])
  (ids,), *_ = model.predict([NEW], 62, include=["k9", model.keys[7]])
  assert sorted(ids[ids >= 0].tolist()) == [7, 61] and ids[0] == 61
  for added, row in (("", 60), ({"k9": "zorn"}, 60), ({"k8": "blick", "k9": "zorn"}, 61)):
    again = xmc_jax.Model.load(workdir, add_labels=added)
    assert again.keys[row] == "k9" and again.labels[row] == "zorn" and len(again.keys) == row + 1
    assert again.predict([NEW], 1)[0][0, 0] == row and voted(again, NEW) == [row]


def test_files_that_depend_on_it(workdir, tmp_path):
  """A prediction that is continued begins anew if more was learnt; combined runs leave it behind."""
  (tmp_path / "texts.txt").write_text("a\n")
  model = xmc_jax.Model.load(workdir)
  before = predict._identity(workdir, model.step, str(tmp_path / "texts.txt"), [])
  model.learn([NEW], [[model.keys[7]]])
  assert predict._identity(workdir, model.step, str(tmp_path / "texts.txt"), []) != before
  assert "learnt.jsonl" in combine._LEFT_OUT and "learnt.jsonl" in files._NEEDED


def test_labels_that_are_mixed_up_are_doubted(workdir, capsys):
  """They are learnt all the same, and can be taken back. Right ones, few ones and new ones raise no doubt."""
  model = xmc_jax.Model.load(workdir)
  test, doubted = model.dataset.test, "fit their texts no better than others"
  rows = [row for row in range(40) if test.truth[row].nnz]
  texts = [test.texts[row] for row in rows]
  labels = [[model.keys[label] for label in test.truth[row].indices] for row in rows]
  before = answers(model)
  for given in (labels, [["zorn blick"]] * len(rows), [[model.keys[7]]] * len(rows)):
    model.learn(texts, given, new_labels=True)
    assert doubted not in capsys.readouterr().err
    model.undo()
  model.learn(texts[:19], labels[1:20])
  assert doubted not in capsys.readouterr().err
  model.undo()
  assert len(model.learn(texts, labels[1:] + labels[:1])) == len(rows)
  assert doubted in capsys.readouterr().err and answers(model) != before
  assert model.undo() == len(rows) and answers(model) == before


def test_from_the_command_line(workdir, tmp_path, capsys):
  model = xmc_jax.Model.load(workdir)
  key = model.keys[7]
  (tmp_path / "new.csv").write_text(f'text,labels\n{NEW},"{key}"\nb c,"{key}"\n')
  commands.learn(workdir, str(tmp_path / "new.csv"))
  assert "learnt: 2 texts, numbers 0 to 1; predictions of this run use them" in capsys.readouterr().out
  (tmp_path / "none.csv").write_text(f'text,labels\n{NEW},\nsuss,"{key}"\n')
  commands.learn(workdir, str(tmp_path / "none.csv"))
  printed = capsys.readouterr()
  assert "learnt: 1 text, numbers 2 to 2" in printed.out and "1 text without a label left out" in printed.err
  commands.learn(workdir, "", unlearn=[2])
  assert "forgotten: 1 text\n" in capsys.readouterr().out
  assert xmc_jax.Model.load(workdir).predict([NEW], 1)[0][0, 0] == 7
  (tmp_path / "bad.csv").write_text(f'text,labels\nb,"{key}"\nc,nix\n')
  with pytest.raises(UserError, match=r"bad\.csv: labels that the run lacks: 1 \('nix'\), in 1 of 2"):
    commands.learn(workdir, str(tmp_path / "bad.csv"))
  commands.learn(workdir, "", unlearn=[1])
  assert "forgotten: 1 text\n" in capsys.readouterr().out
  commands.learn(workdir, "")
  assert "forgotten: 1 text, learnt last" in capsys.readouterr().out
  commands.learn(workdir, str(tmp_path / "bad.csv"), new_labels=True)
  assert "learnt: 2 texts with 1 new label, numbers 3 to 4" in capsys.readouterr().out
  commands.learn(workdir, str(tmp_path / "bad.csv"))  # it is known from now on
  assert "learnt: 2 texts, numbers 5 to 6" in capsys.readouterr().out
  assert xmc_jax.Model.load(workdir).predict(["c"], 1)[2] == [["nix"]]
  with pytest.raises(UserError, match=r"nowhere\.csv: no such file"):
    commands.learn(workdir, "nowhere.csv")
