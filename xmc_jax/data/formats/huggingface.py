"""Folders that `datasets` saves with `save_to_disk`: a data set, or several splits of one."""

from pathlib import Path

from xmc_jax.data.formats import label_tables, tables
from xmc_jax.data.formats.class_names import read_json
from xmc_jax.data.formats.source import Options, excerpt
from xmc_jax.data.formats.table_files import VALIDATION, SplitFiles, left_out
from xmc_jax.errors import DataError

LOOKS_FOR = "dataset_dict.json, or state.json and dataset_info.json"

_SPLITS, _STATE, _INFO = "dataset_dict.json", "state.json", "dataset_info.json"


def recognise(folder: Path, options: Options, notices: list[str]) -> dict | None:
  """Returns the `Source` fields of this layout, or None if the folder does not have its files."""
  described: tuple[Path, ...] = ()
  if (folder / _SPLITS).is_file():
    described = (folder / _SPLITS,)
    names = _names(folder / _SPLITS, read_json(folder / _SPLITS).get("splits"), "splits")
    if "train" not in names:
      alone = f"name the folder of one with --config.data.path={folder}/SPLIT"
      raise DataError(f"{folder / _SPLITS}: expected a split 'train', found {excerpt(names)}; {alone}")
    train = _split(folder / "train")
    test = _split(folder / "test") if "test" in names else None
    validation = next((name for name in VALIDATION if name in names), "")
    train = train.followed_by(_split(folder / validation) if validation else None)
    notices += left_out([name for name in names if name not in ("train", "test", validation)])
  elif all((folder / name).is_file() for name in (_STATE, _INFO)):
    train, test = _split(folder), None
  else:
    return None
  labels = label_tables.find_label_file(folder, options)
  fields = tables.source_fields(train, test, labels, options, notices)
  places = [split.files[0].parent for split in (train, test) if split]
  described += tuple(place / name for place in places for name in (_STATE, _INFO))
  return {**fields, "files": (*fields["files"], *described)}


def _split(folder: Path) -> SplitFiles:
  """Returns the Arrow files of one split, in the order of its `state.json`."""
  state_file = folder / _STATE
  state = read_json(state_file)
  if state.get("_indices_data_files"):
    raise DataError(f"{state_file}: rows are chosen by an index; save again after flatten_indices()")
  entries = state.get("_data_files")
  listed = [entry.get("filename") if isinstance(entry, dict) else entry for entry in _listed(entries)]
  files = tuple(folder / name for name in _names(state_file, listed, "_data_files"))
  if not files:
    raise DataError(f"{state_file}: expected at least one file in '_data_files', found none")
  for file in files:
    if file.suffix != ".arrow":
      raise DataError(f"{state_file}: expected files that end in .arrow, found {excerpt(file.name)}")
    if not file.is_file():
      raise DataError(f"{file}: is missing beside {_STATE}")
  return SplitFiles(files, folder / _INFO)


def _listed(value: object) -> list:
  return value if isinstance(value, list) else [value]


def _names(file: Path, names: object, key: str) -> list[str]:
  """Returns names of files or folders, after a check that each is a single name, not a path."""
  for name in _listed(names):
    is_name = isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)
    if not is_name:
      raise DataError(f"{file}: expected names without folders in {key!r}, found {excerpt(name)}")
  return _listed(names)
