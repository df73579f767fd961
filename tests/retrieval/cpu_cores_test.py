"""A block of work for each core: in order, and with products that take one thread."""

import os
import subprocess
import sys
import threading
import time

import pytest
import threadpoolctl

from xmc_jax.retrieval import cpu_cores


def test_side_by_side_each_product_takes_one_thread():
  def threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

  before, one_thread = threads(), cpu_cores.one_thread_per_product
  one_thread.__enter__()
  one_thread.__enter__()
  one_thread.__exit__(None, None, None)  # another search goes on
  assert threads() == {1}
  one_thread.__exit__(None, None, None)
  assert threads() == before


def test_the_limit_holds_for_libraries_that_are_used_later():
  """SciPy brings a second library of products, which its first import loads."""
  code = """
from xmc_jax.retrieval import cpu_cores
with cpu_cores.one_thread_per_product:
  import scipy.optimize, sklearn.linear_model, threadpoolctl
  found = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
assert found and set(found) == {1}, found
"""
  env = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
  subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


def test_work_is_done_in_order_and_one_piece_needs_no_thread():
  here = threading.get_ident()
  assert cpu_cores.in_order(lambda part: threading.get_ident(), [0]) == [here]
  assert cpu_cores.in_order(lambda part: part, []) == []
  found = cpu_cores.in_order(lambda a, b: (time.sleep(0.01 * (3 - a)), a * b)[1], range(4), [5, 6, 7, 8])
  assert found == [0, 6, 14, 24]
  with pytest.raises(ValueError, match="shorter"):
    cpu_cores.in_order(lambda a, b: a, range(4), range(3))
  with pytest.raises(ZeroDivisionError):
    cpu_cores.in_order(lambda part: 1 / part, [1, 0])
