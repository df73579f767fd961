"""Renames keys and values that had another name in earlier versions. Old names work for one release."""

import re

# Old to new name, below `config.method`.
_OF_METHOD = {
  "leaf_size": "cluster_size",
  "leaf_doubling_epochs": "cluster_doubling_epochs",
  "leaves_first_epoch": "clusters_first_epoch",
  "leaves_every_epochs": "clusters_every_epochs",
  "leaves_every_steps": "clusters_every_steps",
}
_VALUES = {"triplet_positives": {"drawn": "sampled"}}  # of stored configs, below `config.method`
_OF_REFRESHES = {"leaves": "clusters"}  # names of batches' refreshes in checkpoints
RENAMED = {f"method.{old}": f"method.{new}" for old, new in _OF_METHOD.items()}


def in_sections(stored: dict) -> dict:
  """Returns a copy of nested settings under their new names, with renamed values."""
  method = stored.get("method")
  if not isinstance(method, dict):
    return dict(stored)
  renamed = {_OF_METHOD.get(key, key): value for key, value in method.items()}
  for key, values in _VALUES.items():
    if key in renamed:
      renamed[key] = values.get(renamed[key], renamed[key])
  return {**stored, "method": renamed}


def in_refreshes(stored: dict) -> dict:
  """Returns a copy of a checkpoint's refreshed arrays under their new names."""
  return {_OF_REFRESHES.get(name, name): arrays for name, arrays in stored.items()}


def in_argument(argument: str) -> tuple[str, str]:
  """Returns an argument of the command line under its new name, and a note; '' if the name is not old."""
  found = re.match(r"--?config\.([\w.]+)", argument)
  new = RENAMED.get(found[1]) if found else None
  if not found or not new:
    return argument, ""
  return f"--config.{new}{argument[found.end() :]}", f"note: config.{found[1]} is now config.{new}"
