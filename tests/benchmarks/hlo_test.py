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


# As a TPU's compiler writes: a loop without its number of trips, and every product as a convolution.
OF_TPU = """
%until (a.1: (s32[], bf16[5,12,16])) -> pred[] {
  %a.1 = (s32[]{:T(128)}, bf16[5,12,16]{2,0,1:T(8,128)(2,1)}) parameter(0)
  %seven = s32[]{:T(128)} constant(7)
  %number = s32[]{:T(128)} get-tuple-element(%a.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%number, %seven), direction=LT
}

%body (b: (s32[], bf16[5,12,16])) -> (s32[], bf16[5,12,16]) {
  %b = (s32[]{:T(128)}, bf16[5,12,16]{2,0,1:T(8,128)(2,1)}) parameter(0)
  %x = bf16[5,12,16]{2,0,1:T(8,128)(2,1)} get-tuple-element(%b), index=1
  %kernel = bf16[16,32,1]{1,0,2} constant({...})
  %dense = bf16[5,12,32]{2,0,1:T(8,128)(2,1)} convolution(%x, %kernel), window={size=1}, dim_labels=b0f_io0->b0f
  %keys = bf16[5,3,4,12]{3,2,1,0} constant({...})
  %queries = bf16[5,3,4,12]{3,2,1,0} constant({...})
  %scores = f32[5,3,12,12]{3,2,1,0} convolution(%queries, %keys), window={size=5x3 stride=4x2 lhs_dilate=5x3}, dim_labels=01fb_01io->01bf
  %one = bf16[5,4,1]{2,1,0} constant({...})
  %few = bf16[12,6,4]{2,1,0} constant({...})
  %mixed = bf16[5,12,6]{2,1,0} convolution(%one, %few), window={size=12 pad=11_11 rhs_reversal=1}, dim_labels=bf0_0oi->b0f
  %room = bf16[99,99]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  %near = bf16[5,12,16]{2,0,1:T(8,128)(2,1)S(1)} copy(%x)
  %next = s32[]{:T(128)} get-tuple-element(%b), index=0
  ROOT %both = (s32[]{:T(128)}, bf16[5,12,16]{2,0,1:T(8,128)(2,1)}) tuple(%next, %x)
}

ENTRY %main (p: (s32[], bf16[5,12,16])) -> (s32[], bf16[5,12,16]) {
  %p = (s32[]{:T(128)}, bf16[5,12,16]{2,0,1:T(8,128)(2,1)}) parameter(0)
  ROOT %loop = (s32[]{:T(128)}, bf16[5,12,16]{2,0,1:T(8,128)(2,1)}) while(%p), condition=%until, body=%body
}
"""  # noqa: E501


def test_products_and_loops_of_a_tpu():
  found = {kernel.name: kernel for kernel in hlo.kernels(OF_TPU)}
  assert {name: kernel.times for name, kernel in found.items()} == {
    "dense": 7,
    "scores": 7,
    "mixed": 7,
    "near": 7,
  }
  # Read from the device's memory, written to the vector memory.
  assert found["near"].num_bytes == 2 * 5 * 12 * 16
  assert found["dense"].flops == {"bf16": 2 * 5 * 12 * 32 * 16}
  assert found["scores"].flops == {"bf16": 2 * 5 * 3 * 12 * 12 * 4}  # a batch of 5 x 3 products
  assert found["mixed"].flops == {"bf16": 2 * 5 * 12 * 6 * 4}  # each result sees one token, not 12


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
