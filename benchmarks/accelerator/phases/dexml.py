"""Trains DEXML's full-label step at the sizes of the public sets, on random texts."""

from typing import Any

from benchmarks.accelerator import compiled, real_step
from benchmarks.accelerator.abstract_step import Groups

_PRESET = {131: "dexml:lf_amazontitles_131k", 1300: "dexml:lf_amazontitles_1.3m"}
_POINTS, _LABELS, _BATCH = (
  {131: 16, 1300: 16},
  {131: (12, 131_072), 1300: (12, 1_305_280)},
  {131: 4096, 1300: 8192},
)
# Shares of the labels of LF-AmazonTitles-131K by width, as texts of 12 tokens on average are grouped.
_WIDTHS = {8: 0.3, 12: 0.35, 16: 0.15, 24: 0.12, 32: 0.08}
_TINY = {"encoder.name": "paraphrase-MiniLM-L3-v2", "encoder.num_layers": 1, "method.label_chunk": 64}
_NO_DROPOUT = {"encoder.dropout": 0.0, "encoder.attention_dropout": 0.0}


def dexml_131k(size: str) -> dict[str, Any]:
  """Measures a step of 4,096 points of 16 tokens against 131,072 labels of 12."""
  return _measure(size, 131)


def dexml_131k_real_widths(size: str) -> dict[str, Any]:
  """Measures the same with labels of five widths, and with DistilBERT's dropout."""
  number = _LABELS[131][1] if size == "full" else 256
  labels = [(width, int(share * number) // 8 * 8) for width, share in _WIDTHS.items()]
  return _measure(size, 131, labels=labels, dropout=True)


def dexml_1_3m(size: str) -> dict[str, Any]:
  """Measures a step of 8,192 points against 1.3 million labels."""
  return _measure(size, 1300, steps=2)


def soft_top_k_1_3m(size: str) -> dict[str, Any]:
  """Measures the same with the SoftTop-k loss, k = 5."""
  return _measure(size, 1300, steps=2, values={"method.loss": "soft_top_k"})


def largest_number_of_labels(size: str) -> dict[str, Any]:
  """Doubles the number of labels until a step of a one-layer encoder does not fit; returns seconds by L."""
  found: dict[str, Any] = {}
  number, most = (2**20, 2**24) if size == "full" else (128, 256)
  while number <= most:
    try:
      result = _measure(size, 1300, labels=[(12, number)], steps=1, values={"encoder.num_layers": 1})
    except Exception as error:  # XLA's, which is a RuntimeError or one of its own
      found[f"{number:,}"] = f"does not fit: {str(error).splitlines()[0][:120]}"
      break
    found[f"{number:,}"] = result.get("step_seconds", result)
    number *= 2
  return found


def _measure(
  size: str,
  thousands: int,
  labels: Groups | None = None,
  steps: int = 5,
  dropout: bool = False,
  values: dict[str, Any] | None = None,
) -> dict[str, Any]:
  """Measures a preset's step; `size` 'tiny' replaces the encoder and the numbers."""
  config = compiled.config_of(_PRESET[thousands], [])
  config.update_from_flattened_dict({**({} if dropout else _NO_DROPOUT), **(values or {})})
  batch, labels = _BATCH[thousands], labels or [_LABELS[thousands]]
  if size == "tiny":
    config.update_from_flattened_dict(_TINY)
    batch = 32
    labels = [(width, min(number, 256)) for width, number in labels]
  config.train.batch_size = batch
  number = sum(count for _, count in labels)
  config.plan.update(
    num_labels=number,
    tokens_per_point=float(_POINTS[thousands]),
    tokens_per_label=sum(width * count for width, count in labels) / number,
  )
  return real_step.measure(config, [(_POINTS[thousands], batch)], labels, steps=steps)
