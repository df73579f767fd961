"""The papers' claims as configs; `run.py` trains them and writes docs/results/.

python -m xmc_jax.main --config=experiments/claims/presets.py:losses-softmax
python -m xmc_jax.main --config=experiments/claims/presets.py:losses_cpp-softmax
"""

from xmc_jax.experiments.claims import (
  dexa_rows,
  dexml_rows,
  prime_rows,
  rae_xmc_rows,
  ramen_rows,
  unidec_rows,
)
from xmc_jax.experiments.common import config_getter

# LF-CppDocs-SeeAlso has half as many points, so batches and pools are half as large, and rows held out fewer.
_CPP = {"data.path": "data/LF-CppDocs-SeeAlso", "data.num_validation": 400}
_CPP_LABELS = 1722
_HALVED = ("train.batch_size", "method.pool_size", "method.num_fresh_negatives")
_REAL = {
  name: rows
  for of in (dexml_rows, unidec_rows, dexa_rows, prime_rows, ramen_rows, rae_xmc_rows)
  for name, rows in of.REAL.items()
}


def _cpp_rows(claim: str, rows: dict) -> dict:
  """Returns a claim's rows on LF-CppDocs-SeeAlso, without those of more clusters than it has labels."""
  return {
    row: {**values, **{key: values[key] // 2 for key in _HALVED if key in values}, **_CPP}
    for row, values in (rows | ramen_rows.CPP.get(claim, {})).items()
    if values.get("method.num_label_clusters", 0) <= _CPP_LABELS
  }


# Claim by claim, the rows of its table: what stands there, and the settings.
CLAIMS = {
  **dexml_rows.SYNTHETIC,
  **_REAL,
  **dexml_rows.OTHER_SETS,
  **dexml_rows.MORE_COMPUTE,
  **prime_rows.TATE,
  **ramen_rows.TATE,
  **unidec_rows.TATE,
  **rae_xmc_rows.OTHER_SETS,
  **{f"{claim}_cpp": _cpp_rows(claim, rows) for claim, rows in _REAL.items()},
}
PRESETS = {f"{claim}-{row}": values for claim, rows in CLAIMS.items() for row, values in rows.items()}
get_config = config_getter("claims", PRESETS)
