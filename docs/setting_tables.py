"""Lists of settings, which docs/make_tables.py writes into docs/settings.md from their declarations."""

from xmc_jax import methods
from xmc_jax.config.defaults import keys_of
from xmc_jax.config.keys import LARGEST, Key

_EVERY_DAY = (
  *("data.path", "data.text", "data.label_column", "data.label_separator", "data.label_file"),
  *("data.max_length", "encoder.name", "train.num_epochs", "train.batch_size", "train.learning_rate"),
  *("train.seed", "eval.scores", "eval.every_epochs", "mesh.data"),
)


def settings_list(names: list[str]) -> str:
  """Returns a Markdown list of settings: key = default (legal values): meaning.

  Args:
    names: 'every_day'; none for the others of all methods; 'several' for keys of more than one method; or a
      method, for the keys that it alone has in this form.
  """
  if names == ["every_day"]:
    lines = [_line(name, keys_of()[name]) for name in _EVERY_DAY]
  elif not names:
    lines = [_line(name, key) for name, key in keys_of().items() if name not in _EVERY_DAY]
  elif names == ["several"]:
    users_of = {key: users for key, users in _users().items() if len(users) > 1}
    lines = [_line(f"method.{name}", key, _among(users)) for (name, key), users in users_of.items()]
  else:
    lines = [_line(f"method.{name}", key) for (name, key), users in _users().items() if users == names]
  return "\n".join(lines or ["It has no key of its own."]) + "\n"


def _line(name: str, key: Key, users: str = "") -> str:
  limits = "; ".join(part for part in (_legal(key), users) if part)
  return f"- `{name}` = `{key.default!r}`{f' ({limits})' * bool(limits)}: {key.about}"


def _among(users: list[str]) -> str:
  others = [method for method in methods.SETTINGS if method not in users]
  return ", ".join(users) if len(users) <= len(others) else f"all but {', '.join(others)}"


def _users() -> dict[tuple[str, Key], list[str]]:
  """Returns the methods that have each key with the same default, legal values and meaning."""
  users: dict[tuple[str, Key], list[str]] = {}
  for method, settings in methods.SETTINGS.items():
    for name, key in settings.keys.items():
      users.setdefault((name, key), []).append(method)
  return users


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
