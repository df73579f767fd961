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
  own = {
    "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    "PYTHONPATH": str(processes.ROOT),
  }
  for _, error, code in processes.run_together(commands, 2, [own] * count):
    assert code == 0, error
