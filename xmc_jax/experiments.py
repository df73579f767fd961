"""Makes the files of experiments/, beside this package, importable as `xmc_jax.experiments.NAME`."""

import pathlib

FOLDER = pathlib.Path(__file__).parents[1] / "experiments"
__path__ = [str(FOLDER)]
