"""Tables of settings, which docs/make_tables.py writes into docs/settings.md from their declarations."""

from xmc_jax import methods
from xmc_jax.config.defaults import keys_of
from xmc_jax.config.keys import LARGEST, Key

_EVERY_DAY = (
  *("data.path", "data.text", "data.label_column", "data.label_separator", "data.label_file"),
  *("data.max_length", "encoder.name", "train.num_epochs", "train.batch_size", "train.learning_rate"),
  *("train.seed", "eval.scores", "eval.every_epochs", "mesh.data"),
)


def settings_table(names: list[str]) -> str:
  """Returns a Markdown table of a method's settings, of 'every_day', or without a name of the others."""
  if names == ["every_day"]:
    rows = {name: keys_of()[name] for name in _EVERY_DAY}
  elif not names:
    rows = {name: key for name, key in keys_of().items() if name not in _EVERY_DAY}
  else:
    rows = {f"method.{name}": key for name, key in methods.SETTINGS[names[0]].keys.items()}
  lines = ["| key | default | legal | what |", "|---|---|---|---|"]
  for name, key in rows.items():
    about = key.about.replace("|", "\\|")
    lines.append(f"| `{name}` | `{key.default!r}` | {_legal(key)} | {about} |")
  return "\n".join(lines) + "\n"


def _legal(key: Key) -> str:
  if key.choices:
    return ", ".join(f"`{choice}`" for choice in key.choices)
  if not key.is_number:
    return ""
  if key.above is not None:
    return f"> {key.above:,}" + (f", ≤ {key.most:,}" if key.most < LARGEST else "")
  if key.below is not None:
    return f"≥ {key.least:,}, < {key.below:,}"
  return f"≥ {key.least:,}" + (f", ≤ {key.most:,}" if key.most < LARGEST else "")
