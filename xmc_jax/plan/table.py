"""Formats a plan as text."""

from collections.abc import Iterator

import jax

from xmc_jax.plan import Plan, memory
from xmc_jax.plan.chips import OF_BANDWIDTH, OF_PEAK, PREALLOCATED, USABLE

_FEW_TOKENS, _ENOUGH_TOKENS = 2048, 32_768  # tokens encoded together on one device
_MUCH_ON_HOST = 16e9  # bytes
_LARGEST = 3  # arrays to name
_COPIES_OF_POINTS = 2  # while the index is built: the vectors as given, and scaled to length 1
_OF_A_TOKEN = 32  # bytes, for words and word pairs: about two per token, in two tables of 8 bytes each
_CHUNKS = ("query_chunk", "label_chunk", "score_chunk")


def table(made: Plan) -> str:
  """Formats a plan: its sizes, the memory by moment and part, the work of a step, and notes."""
  account = made.account
  lines = [*_about(made), ""]
  for moment, parts in made.moments.items():
    lines.append(f"{'GB on each device in ' + moment:<36}{sum(parts.values()) / 1e9:>12,.2f}")
    lines += [f"  {part:<34}{size / 1e9:>12,.2f}" for part, size in parts.items() if size]
  largest = sorted(account.arrays, key=account.arrays.__getitem__, reverse=True)[:_LARGEST]
  lines += [
    f"the most is {made.total / 1e9:,.1f} GB, in {made.moment}; {made.limit / 1e9:,.1f} GB are usable",
    "the largest arrays of a step are "
    + ", ".join(f"{name} ({account.arrays[name] / 1e9:,.2f} GB)" for name in largest),
    f"a step on each device: {account.flops / 1e12:,.2f} TFLOP, {account.moved / 1e9:,.1f} GB moved, "
    f"{made.seconds:,.3f} seconds",
  ]
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
  parameters = sum(leaf.size for leaf in jax.tree.leaves(made.step.params))
  yield f"{sizes.source}: {parameters / 1e6:,.1f} million parameters, embeddings of {made.step.width}"
  yield f"{data * label:,} x {config.plan.chip} (mesh.data {data} x mesh.label {label})"
  shown = [key for key in _CHUNKS if key in config.method]
  shown += [key for key in ("uncached_tokens", "keep_scores") if config.method.get(key, 0) > 0]
  yield (
    f"batches of {made.step.rows:,} points against {made.step.columns:,} labels; "
    + ", ".join(f"{key} {config.method[key]:,}" for key in shown)
  )


def _notes(made: Plan) -> Iterator[str]:
  """Yields what a user should know before the first step."""
  config, chip = made.config, made.chip
  if chip.memory_of_jax < made.total <= made.limit:
    variable = f"XLA_PYTHON_CLIENT_MEM_FRACTION={USABLE}"
    yield f"JAX takes {PREALLOCATED:.0%} of a GPU: set {variable} in the environment"
  chunk, longest = config.method.get("label_chunk", 0), config.data.max_length
  if 0 < chunk * longest < _FEW_TOKENS and chunk * config.mesh.data * config.mesh.label < made.step.columns:
    yield (
      f"method.label_chunk = {chunk} is little work at a time for a device; "
      f"--config.method.label_chunk={_ENOUGH_TOKENS // longest} would keep it busier"
    )
  if config.data.path and not made.sizes.are_counted:
    yield (
      f"data.path = {config.data.path!r} was not read: the sizes are config.plan's; "
      "--config.plan.num_points and num_labels change them"
    )
  yield from _on_host(made)
  yield (
    f"times are assumed, not measured: products reach {OF_PEAK:.0%} of {chip.bfloat16 / 1e12:,.0f} TFLOP/s, "
    f"memory {OF_BANDWIDTH:.0%} of\n{chip.bandwidth / 1e12:,.2f} TB/s; collectives, host and input take none"
  )


def _on_host(made: Plan) -> Iterator[str]:
  """Yields what takes much memory of the host."""
  config, sizes = made.config, made.sizes
  labels, points = memory.vectors(config, sizes, made.step)
  split = 4 * made.step.width * (sizes.num_labels + bool(made.step.method.refreshes) * sizes.num_points)
  if split > _MUCH_ON_HOST:
    yield f"embeddings take {split / 1e9:,.1f} GB of host memory, split over the processes"
  words = memory.opens_sources(config)
  tokens = sizes.num_points * sizes.tokens_per_point + sizes.num_labels * sizes.tokens_per_label
  whole = labels + _COPIES_OF_POINTS * points + words * _OF_A_TOKEN * tokens
  if points and whole > _MUCH_ON_HOST:
    yield (
      f"evaluation by {config.eval.scores!r} scores holds label embeddings, training points"
      f"{' and words' * words} in every process: {whole / 1e9:,.1f} GB of host memory"
    )
