"""Makes the files of experiments/, beside this package, importable as `xmc_jax.experiments.NAME`."""

import importlib
import pathlib

import ml_collections

from xmc_jax import methods

FOLDER = pathlib.Path(__file__).parents[1] / "experiments"
__path__ = [str(FOLDER)]
_OF_PRETRAINED = ("minilm", "debian_minilm6", "debian_minilm3")  # presets; the first that an experiment has


def for_encoder(experiment: str, encoder: str) -> ml_collections.ConfigDict:
  """Returns the config of an experiment for an encoder.

  Args:
    experiment: the name of its file.
    encoder: a value of `config.encoder.name`. A bag has the first preset; other encoders have the one for a
      pretrained encoder, or else the method's defaults.
  """
  module = importlib.import_module(f"{__name__}.{experiment}")
  config = usual = module.get_config()
  if encoder != "bag":
    preset = next((name for name in _OF_PRETRAINED if name in module.PRESETS), "")
    config = module.get_config(preset) if preset else methods.default_config(usual.method.name)
    config.encoder.num_layers = 0  # all of them
  if encoder == "gru":
    config.encoder.init_table = usual.encoder.init_table
  config.encoder.name = encoder
  return config
