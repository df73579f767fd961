"""Tables whose rows are split over real processes on loopback."""

import pathlib
import sys

import jax
import processes
import pytest

CHECKS = pathlib.Path(__file__).with_name("split_table_checks.py")


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])  # 3 is no power of two
def test_split_tables_give_what_whole_ones_do(count, tmp_path):
  port = processes.free_port()
  commands = [
    [sys.executable, str(CHECKS), str(number), str(count), port, str(tmp_path)] for number in range(count)
  ]
  # Nearly all of the time goes into compiling.
  cache = {
    "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    "PYTHONPATH": str(processes.ROOT),
  }
  cache |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
  for _, error, code in processes.run_together(commands, 2, [cache] * count):
    assert code == 0, error
