"""The account of a compiled program's HLO: bytes and FLOPs worked by hand, and of a program compiled here."""

import pathlib

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerator import abstract_step, compiled, hlo
from tests import tiny_runs
from xmc_jax.distributed import sharding

# A loop of four trips; each slices a table, multiplies the slice, and writes the result into its place.
PROGRAM = pathlib.Path(__file__).with_name("step.hlo").read_text(encoding="utf-8")


def test_kernels_bytes_and_flops_are_those_worked_by_hand():
  found = {kernel.name: kernel for kernel in hlo.kernels(PROGRAM)}
  assert {name: kernel.times for name, kernel in found.items()} == {
    "slice": 4, "rounded": 4, "product": 4, "updated": 4, "scores": 1,
  }  # fmt: skip
  # A slice is read and written, and with it the number of the trip; a table that it is of is not read whole.
  assert found["slice"].num_bytes == 4 * 8 * 16 * 2 + 4
  assert found["rounded"].num_bytes == 8 * 16 * (4 + 2)
  assert found["product"].num_bytes == 2 * 8 * 16 + 2 * 16 * 32 + 4 * 8 * 32
  assert found["updated"].num_bytes == 4 * 8 * 32 * 2 + 4
  assert found["scores"].num_bytes == 4 * (4 * 16 + 9 * 16 + 4 * 9)
  assert found["product"].flops == {"bf16": 2 * 8 * 16 * 32}
  assert found["scores"].flops == {"bf16": 3 * 2 * 4 * 9 * 16}  # in three products of bfloat16 parts
  assert found["product"].where == "jit(step)/layer/dot_general"
  assert [name for name, kernel in found.items() if kernel.is_product] == ["product", "scores"]


def test_an_account_sums_kernels_over_their_runs():
  found = compiled.account(PROGRAM, "h200")
  assert found["kernels"] == 17
  assert found["teraflops"] == {"bf16": 0.0} and found["library_products"] == 0
  (slow,) = [kernel for kernel in hlo.kernels(PROGRAM) if kernel.name == "slice"]
  assert compiled.seconds(slow, "h200") == pytest.approx(4 * slow.num_bytes / (0.85 * 4.3e12))


def test_a_program_compiled_here_is_read():
  """A scan of a product: its FLOPs are counted once for each trip, whoever computes it."""
  step = lambda carry, kernel: (jnp.tanh(carry @ kernel), None)
  made = jax.jit(lambda x, kernels: jax.lax.scan(step, x, kernels)[0])
  text = made.lower(jnp.ones((128, 128)), jnp.ones((5, 128, 128))).compile().as_text()
  products = [kernel for kernel in hlo.kernels(text) if kernel.is_product]
  assert products and sum(kernel.times for kernel in products) == 5


@pytest.mark.slow
def test_a_step_of_shapes_is_that_of_a_run(tmp_path):
  """The same widths, and as many floating-point operations by XLA's own account."""
  data = tiny_runs.write_data(tmp_path / "data")
  run = tiny_runs.open_run(data, tmp_path / "run", **{"method.labels": "in_batch", "method.num_positives": 1})
  step, batch = tiny_runs.train_step(run), sharding.put_batch(run.batches.build(0), run.mesh)
  state = step.first_state(*run.initial_parameters())
  real = step.lower(state, batch).compile().cost_analysis()["flops"]
  config = run.config.copy_and_resolve_references()
  config.plan.num_labels, config.plan.num_points = tiny_runs.NUM_LABELS, len(run.data.train)
  groups = lambda texts: [group.ids.shape[::-1] for group in texts]
  made = abstract_step.make(
    config,
    run.mesh,
    vocab_size=run.dataset.tokenizer().get_vocab_size(),
    num_positives=batch.positives.shape[1],
    points=groups(batch.queries),
    labels=groups(batch.labels),
  )
  assert made.lower().compile().cost_analysis()["flops"] == pytest.approx(real, rel=0.02)
