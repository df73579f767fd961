"""`runtime.deterministic`: XLA is asked before JAX starts, and programs that add in any order are found."""

import os
import subprocess
import sys

import jax
import pytest

from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError

_SCATTER = (
  "ROOT %scatter-add.5.1 = f32[1000,64]{1,0} scatter(%param_0, %bitcast.3, %bitcast.1.1), "
  "update_window_dims={1,2}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
)
# What XLA compiles for an H200, without and with its flag (jax 0.11.2).
ATOMIC = _SCATTER + "to_apply=%region_0.1"
SORTED = _SCATTER + "indices_are_sorted=true, unique_indices=true, to_apply=%region_0.1"


def test_programs_that_add_in_any_order_are_found():
  assert not runtime.adds_in_order(ATOMIC)
  assert runtime.adds_in_order(SORTED)
  assert not runtime.adds_in_order(f"{SORTED}\n{ATOMIC}")
  assert runtime.adds_in_order("ROOT %add.1 = f32[4]{0} add(%a, %b)")


def test_the_program_that_is_looked_at_adds_at_ids():
  assert "scatter-add" in runtime._scattered_sum()


def test_a_gpu_that_has_started_without_is_refused(monkeypatch, tmp_path):
  """In this process JAX has started, so that the flag comes too late."""
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path))
  monkeypatch.setenv("XLA_FLAGS", "")
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(runtime, "_scattered_sum", lambda: ATOMIC)
  with pytest.raises(
    UserError, match=r"runtime\.deterministic = True must be set before JAX starts"
  ) as error:
    runtime.start(deterministic=True)
  assert "\n" not in str(error.value)
  monkeypatch.setattr(runtime, "_scattered_sum", lambda: SORTED)
  runtime.start(deterministic=True)


def test_xla_gets_its_flag_before_it_starts():
  code = (
    "import os, jax\n"
    "from xmc_jax.distributed import runtime\n"
    "runtime.start(deterministic={})\n"
    "print(jax.device_count(), os.environ['XLA_FLAGS'])"
  )
  own = "--xla_force_host_platform_device_count=3"  # read when JAX starts, so it had not started before
  environment = {**os.environ, "XLA_FLAGS": own}
  for deterministic, flags in ((True, f"{own} {runtime._DETERMINISTIC}"), (False, own)):
    command = [sys.executable, "-c", code.format(deterministic)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[0] == f"3 {flags}"
