"""The accelerator suite, rehearsed with small sizes: every phase ends well; one that does not is named."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.accelerator import suite
from benchmarks.accelerator.phases import against_cpu, attention
from xmc_jax.models import fused_attention

# On an image for accelerators; `make test` has no PyTorch.
_WITHOUT_TORCH = {"failed": "PyTorch is not installed"}


@pytest.mark.slow
@pytest.mark.parametrize("command", suite.COMMANDS)
def test_every_phase_ends_well(command, tmp_path, capsys):
  found = suite.run(command, suite.TINY, tmp_path, seconds=1500)
  assert json.loads((tmp_path / f"{command}.json").read_text()) == found
  log = (tmp_path / f"{command}.log").read_text()
  lines = capsys.readouterr().out.splitlines()
  assert [line.split()[0] for line in lines] == [phase.name for phase in suite.COMMANDS[command]] == [*found]
  for name, result in found.items():
    assert "failed" not in result or (name == "peer" and _WITHOUT_TORCH.items() <= result.items()), log[
      -3000:
    ]


def test_a_phase_that_fails_or_hangs_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
  phases = (
    suite.Phase("machine", "device", 60),
    suite.Phase("no_such_phase", "device", 60),
    suite.Phase("dexml_131k", "dexml", 0.5),
    suite.Phase("ceilings", "device", 60),
  )
  monkeypatch.setitem(suite.COMMANDS, "a", phases)
  found = suite.run("a", suite.TINY, tmp_path, seconds=300)
  assert found["machine"]["platform"] == "cpu" and found["ceilings"]["terabytes_copied"] > 0
  assert "invalid choice: 'no_such_phase'" in found["no_such_phase"]["failed"]
  assert found["dexml_131k"]["failed"] == "took more than 0 s"
  assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_command_ends_in_time(tmp_path):
  start = time.monotonic()
  found = suite.run("c", suite.TINY, tmp_path, seconds=suite._SPARE + 1)
  assert time.monotonic() - start < 30
  assert all("failed" in result for result in found.values())
  assert found["fine_tuning"]["failed"] == "no time left"


@pytest.mark.slow
def test_an_operation_that_differs_is_named(monkeypatch):
  monkeypatch.setattr(against_cpu, "_MOST_OF_OPS", -1.0)
  found = against_cpu.ops_against_cpu("tiny")
  named = found.pop("failed")
  assert len(found) > 10 and all(
    name in named and share == 0 for name, share in found.items()
  )  # on one device


def test_attention_by_sums_is_attention():
  keys = jax.random.split(jax.random.key(0), 4)
  query, key, value = (jax.random.normal(each, (3, 5, 2, 4)) for each in keys[:3])
  mask = jnp.arange(5) < jnp.array([5, 3, 1])[:, None]
  mask = jnp.broadcast_to(mask[:, None, None, :], (3, 1, 5, 5))
  found = attention.by_sums(query, key, value, mask=mask, implementation=None)
  expected = jax.nn.dot_product_attention(query, key, value, mask=mask)
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_attention_is_timed_although_a_kernel_takes_no_width(monkeypatch):
  xla = jax.nn.dot_product_attention

  def attend(*inputs, implementation=None, **keys):
    if implementation == "cudnn" and "mask" in keys:
      raise NotImplementedError("no such width")
    return xla(*inputs, **keys)

  monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
  monkeypatch.setattr(fused_attention, "choose_attention", lambda dtype, head_dim: "cudnn_by_mask")
  monkeypatch.setattr(fused_attention, "_compare", fused_attention._compare.__wrapped__)
  found = attention.attention("tiny")
  for width in ("width_8", "width_12"):
    times = found[width]
    assert times["cudnn_by_mask_failed"] == "NotImplementedError: no such width"
    assert times["xla_ms"] > 0 and times["cudnn_by_lengths_ms"] > 0 and times["chosen"] == "xla"
