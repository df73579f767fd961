"""Formats a plan as text."""

from collections.abc import Iterable, Iterator

import ml_collections

from xmc_jax.plan import Plan, device_memory, host, shapes
from xmc_jax.plan.chips import OF_BANDWIDTH, OF_PEAK, PREALLOCATED, USABLE
from xmc_jax.plan.sizes import Sizes
from xmc_jax.plan.texts import label_texts
from xmc_jax.plan.work import rate_of_scores

_FEW_TOKENS, _ENOUGH_TOKENS = 2048, 32_768  # tokens encoded together on one device
_MUCH_ON_HOST = 16e9  # bytes

_CHUNKS = ("query_chunk", "label_chunk", "score_chunk")


def table(made: Plan) -> str:
  """Formats a plan: its sizes, the memory by part and moment, the work of a step, and notes."""
  lines = [*_about(made), "", _row("GB on each device", made.moments)]
  for part in device_memory.PARTS:
    sizes = [parts[part] for parts in made.moments.values()]
    if any(sizes):
      lines.append(_row(part, (f"{size / 1e9:,.2f}" for size in sizes)))
  totals = (sum(parts.values()) for parts in made.moments.values())
  lines += [
    _row("total", (f"{total / 1e9:,.2f}" for total in totals)),
    f"the most is {made.total / 1e9:,.1f} GB, in {made.moment}; {made.limit / 1e9:,.1f} GB are usable",
    "",
    _row("a step on each device", ("TFLOP", "GB moved", "seconds")),
  ]
  lines += [_work(name, *stage) for name, stage in made.stages.items()]
  lines.append(_work("total", *(sum(column) for column in zip(*made.stages.values()))))
  if made.steps_per_epoch:
    minutes = made.steps_per_epoch * made.seconds / 60
    time = f"{minutes / 60:,.1f} hours" if minutes >= 60 else f"{minutes:,.1f} minutes"
    lines.append(f"an epoch of {made.steps_per_epoch:,} steps: about {time}, without evaluation")
  return "\n".join([*lines, "", *_notes(made)])


def _about(made: Plan) -> Iterator[str]:
  config, sizes = made.config, made.sizes
  data, label = config.mesh.data, config.mesh.label
  points = f"{sizes.num_points:,} points, " if sizes.num_points else ""
  point, label_text = round(sizes.tokens_per_point, 1), round(sizes.tokens_per_label, 1)
  lengths = f"{point:g} and {label_text:g} tokens, cut at {config.data.max_length}"
  origin = f"counted in {config.data.path}" if sizes.are_counted else "assumed (--config.plan.*)"
  yield f"{origin}: {points}{sizes.num_labels:,} labels, {lengths}"
  yield (
    f"{sizes.source}: {shapes.parameters(config, sizes) / 1e6:,.1f} million parameters, "
    f"embeddings of {shapes.ranked_width(config, sizes)}"
  )
  yield f"{data * label:,} x {config.plan.chip} (mesh.data {data} x mesh.label {label})"
  rows, columns = shapes.batch_rows(config, sizes), shapes.pool_size(config, sizes)
  shown = [key for key in _CHUNKS if key in config.method]
  shown += [key for key in ("uncached_tokens", "keep_scores") if config.method.get(key, 0) > 0]
  yield (
    f"batches of {rows:,} points against {columns:,} labels; "
    + ", ".join(f"{key} {config.method[key]:,}" for key in shown)
  )


def _notes(made: Plan) -> Iterator[str]:
  """Yields what a user should know before the first step."""
  config, sizes, chip = made.config, made.sizes, made.chip
  if chip.memory_of_jax < made.total <= made.limit:
    variable = f"XLA_PYTHON_CLIENT_MEM_FRACTION={USABLE}"
    yield f"JAX takes {PREALLOCATED:.0%} of a GPU: set {variable} in the environment"
  labels = label_texts(config, sizes)
  if labels.cached and labels.at_once * labels.longest < _FEW_TOKENS:
    enough = int(_ENOUGH_TOKENS // labels.longest)
    yield (
      f"method.label_chunk = {config.method.label_chunk} is little work at a time for a device; "
      f"--config.method.label_chunk={enough} would keep it busier"
    )
  if config.data.path and not sizes.are_counted:
    yield (
      f"data.path = {config.data.path!r} was not read: the sizes are config.plan's; "
      "--config.plan.num_points and num_labels change them"
    )
  yield from _on_host(config, sizes)
  yield (
    f"times are assumed, not measured: products reach {OF_PEAK:.0%} of {chip.bfloat16 / 1e12:,.0f} TFLOP/s "
    f"({rate_of_scores(config, chip) / 1e12:,.0f} for scores),\nmemory {OF_BANDWIDTH:.0%} of "
    f"{chip.bandwidth / 1e12:,.2f} TB/s; collectives, host and input take none"
  )


def _on_host(config: ml_collections.ConfigDict, sizes: Sizes) -> Iterator[str]:
  """Yields what takes much memory of the host."""
  split, whole = host.split_over_processes(config, sizes), host.in_every_process(config, sizes)
  if split > _MUCH_ON_HOST:
    yield f"embeddings take {split / 1e9:,.1f} GB of host memory, split over the processes"
  if whole > _MUCH_ON_HOST:
    yield (
      f"evaluation by {config.eval.scores!r} scores holds label embeddings, training points"
      f"{' and words' * shapes.opens_sources(config)} in every process: {whole / 1e9:,.1f} GB of host memory"
    )


def _row(name: str, cells: Iterable[str]) -> str:
  return f"{name:<24}" + "".join(f"{cell:>12}" for cell in cells)


def _work(name: str, flops: float, moved: float, seconds: float) -> str:
  return _row(name, (f"{flops / 1e12:,.2f}", f"{moved / 1e9:,.1f}", f"{seconds:,.3f}"))
