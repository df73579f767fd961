"""Trains DEXML's full-label step at the sizes of the public sets, on random texts."""

from typing import Any

from benchmarks.accelerator import compiled, real_step
from benchmarks.accelerator.abstract_step import Groups

_131K, _1_3M = "dexml:lf_amazontitles_131k", "dexml:lf_amazontitles_1.3m"
_BATCH = {_131K: 4096, _1_3M: 8192}
_NUM_LABELS = {_131K: 131_072, _1_3M: 1_305_280}
_TOKENS_OF_POINTS, _TOKENS_OF_LABELS = 16, 12
# Shares of the labels by width, where texts have 12 tokens on average.
_WIDTHS = {8: 0.3, 16: 0.55, 32: 0.15}
_TINY = {"encoder.name": "paraphrase-MiniLM-L3-v2", "encoder.num_layers": 1, "method.label_chunk": 64}
_NO_DROPOUT = {"encoder.dropout": 0.0, "encoder.attention_dropout": 0.0}


def dexml_131k(size: str) -> dict[str, Any]:
  """Measures a step of 4,096 points of 16 tokens against 131,072 labels of 12."""
  return _measure(size, _131K)


def dexml_131k_real_widths(size: str) -> dict[str, Any]:
  """Measures the same with labels of three widths, and with DistilBERT's dropout."""
  number = _NUM_LABELS[_131K] if size == "full" else 256
  labels = [(width, int(share * number) // 8 * 8) for width, share in _WIDTHS.items()]
  return _measure(size, _131K, labels=labels, dropout=True)


def dexml_1_3m(size: str) -> dict[str, Any]:
  """Measures a step of 8,192 points against 1.3 million labels."""
  return _measure(size, _1_3M, steps=2)


def soft_top_k_1_3m(size: str) -> dict[str, Any]:
  """Measures the same with the SoftTop-k loss, k = 5."""
  return _measure(size, _1_3M, steps=2, values={"method.loss": "soft_top_k"})


def largest_number_of_labels(size: str) -> dict[str, Any]:
  """Doubles the number of labels until a step of a one-layer encoder does not fit; returns seconds by L."""
  found: dict[str, Any] = {}
  number, most = (2**20, 2**24) if size == "full" else (128, 256)
  while number <= most:
    try:
      result = _measure(
        size, _1_3M, labels=[(_TOKENS_OF_LABELS, number)], steps=1, values={"encoder.num_layers": 1}
      )
    except Exception as error:  # XLA's, which is a RuntimeError or one of its own
      found[f"{number:,}"] = f"does not fit: {str(error).splitlines()[0][:120]}"
      break
    found[f"{number:,}"] = result.get("step_seconds", result)
    number *= 2
  return found


def _measure(
  size: str,
  preset: str,
  labels: Groups | None = None,
  steps: int = 5,
  dropout: bool = False,
  values: dict[str, Any] | None = None,
) -> dict[str, Any]:
  """Measures a preset's step; `size` 'tiny' replaces the encoder and the numbers."""
  config = compiled.config_of(preset, [])
  config.update_from_flattened_dict({**({} if dropout else _NO_DROPOUT), **(values or {})})
  batch, labels = _BATCH[preset], labels or [(_TOKENS_OF_LABELS, _NUM_LABELS[preset])]
  if size == "tiny":
    config.update_from_flattened_dict(_TINY)
    batch = 32
    labels = [(width, min(number, 256)) for width, number in labels]
  config.train.batch_size = batch
  number = sum(count for _, count in labels)
  config.plan.update(
    num_labels=number,
    tokens_per_point=float(_TOKENS_OF_POINTS),
    tokens_per_label=sum(width * count for width, count in labels) / number,
  )
  return real_step.measure(config, [(_TOKENS_OF_POINTS, batch)], labels, steps=steps)
