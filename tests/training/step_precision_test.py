"""float32 means float32: every product of a step, as a program for an accelerator asks for it."""

import re

import pytest

from benchmarks.accelerator import abstract_step, targets
from tests.plan import plan_test
from xmc_jax.distributed import sharding
from xmc_jax.models import hardware

encoder_folder = plan_test.encoder_folder  # its fixture
_PRODUCT = re.compile(r"stablehlo\.dot_general[^\n]*")


def _loose(config) -> tuple[int, list[str]]:
  """Lowers a step as on a GPU; returns how many products it has, and those of float32 that may be rounded."""
  with targets.as_default("h200"):
    devices = sharding.make(1, 1)
    made = abstract_step.make(
      config, devices, vocab_size=plan_test.VOCABULARY, num_positives=plan_test.NUM_POSITIVES
    )
    found = _PRODUCT.findall(made.lower().as_text())
  of_float32 = [line for line in found if "xf32>, tensor" in line]
  return len(found), [line for line in of_float32 if "HIGHEST" not in line and "algorithm" not in line]


@pytest.mark.parametrize(
  "name",
  [
    "mean_dropping",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("cls", "prime_mean", "unidec_mean")),
  ],
)
def test_float32_products_are_float32(name, encoder_folder):
  measured = plan_test.MEASURED[name] | {"encoder.name": encoder_folder}
  number, loose = _loose(plan_test.make_config(**measured))
  assert number > 20 and not loose, loose[:3]
  # In bfloat16 attention's may be rounded, head by head; pooling and scores stay float32.
  number, loose = _loose(plan_test.make_config(**measured | {"encoder.dtype": "bfloat16"}))
  assert number > 20 and all("batching_dims = [0, 1]" in line for line in loose), loose[:3]


def test_a_product_that_may_be_rounded_is_found(encoder_folder, monkeypatch):
  monkeypatch.setattr(hardware, "precision_of", lambda dtype: None)
  settings = plan_test.MEASURED["mean_dropping"] | {"encoder.name": encoder_folder}
  assert _loose(plan_test.make_config(**settings))[1]
