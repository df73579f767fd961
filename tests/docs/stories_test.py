"""docs/tutorial.md and docs/coming_from.md are gone through as a reader would, block by block."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

import xmc_jax
from tests.docs.documents_test import FENCED, ROOT, blocks
from xmc_jax import methods
from xmc_jax.training import members

TUTORIAL, COMING_FROM = ROOT / "docs" / "tutorial.md", ROOT / "docs" / "coming_from.md"
# Blocks that are typed; the others show a file, or what is printed.
_TYPED = re.compile(r"^(python|cp|echo|curl) ", re.M)
_OTHERS = r"^(import|from) (pecos|fasttext|sentence_transformers)\b"  # tools that tests do without


@pytest.fixture
def desk(tmp_path, monkeypatch):
  """A folder in which commands of the pages work, as in the repository's root."""
  for name in ("docs", "experiments"):
    (tmp_path / name).symlink_to(ROOT / name)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  monkeypatch.setenv("XMC_JAX_CACHE", str(tmp_path / "cache"))
  monkeypatch.delenv("XLA_FLAGS")  # MiniLM trains longer than it compiles
  return tmp_path


def typed(block: str) -> str:
  """Runs a block of commands; returns their notes, and what they print after these."""
  ended = subprocess.run(["bash", "-ec", block], capture_output=True, text=True, timeout=900)
  assert not ended.returncode, f"{block}\n{ended.stderr}"
  return ended.stderr + ended.stdout


@contextlib.contextmanager
def served(command: str):
  """Runs a command that serves, on a free port; yields the address that it prints."""
  line = ["bash", "-c", f"exec {command.strip()} --port=0"]
  with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
    try:
      said = []
      while not (found := re.search(r"http://\S+:\d+", said[-1] if said else "")):
        said.append(process.stdout.readline())
        assert said[-1], "".join(said)
      yield found[0]
    finally:
      process.send_signal(signal.SIGINT)
      process.communicate(timeout=60)


def asked(command: str, address: str) -> dict:
  """Returns the JSON that a server answers to a curl command of the page."""
  _, place, *options = shlex.split(command)
  given = dict(zip(options[::2], options[1::2]))
  url = place.replace("http://127.0.0.1:8000", address)
  request = urllib.request.Request(url, given["-d"].encode(), dict([given["-H"].split(": ")]))
  with urllib.request.urlopen(request, timeout=60) as answer:
    return json.load(answer)


def printed(lines: str) -> set[str]:
  """The lines, without the spaces that align them."""
  return {" ".join(line.split()) for line in lines.splitlines() if line.strip()}


def test_the_pages_share_a_table():
  """docs/examples/tickets.csv is the notebook's table, and the tutorial shows lines of it."""
  table = (ROOT / "docs" / "examples" / "tickets.csv").read_text(encoding="utf-8")
  cells = json.loads((ROOT / "notebooks" / "your_own_data.ipynb").read_text(encoding="utf-8"))["cells"]
  (cell,) = [cell for cell in cells if "data" in cell["metadata"].get("tags", ())]
  assert "".join(cell["source"]).strip() == f"%%writefile tickets.csv\n{table}".strip()
  (shown,) = [block for block in blocks(TUTORIAL, "") if block.startswith("ticket,topics")]
  assert printed(shown) <= printed(table)


@pytest.mark.slow
def test_the_tutorial(desk, capsys):
  """Every command and piece of Python, with the page's own settings."""
  known: dict = {}
  outputs = []
  for language, block in FENCED.findall(TUTORIAL.read_text(encoding="utf-8")):
    if language == "python":
      exec(block, known)
      outputs.append(capsys.readouterr().out)
    elif _TYPED.search(block) and "--mode=serve" not in block and not block.startswith("curl"):
      outputs.append(typed(block))
  _, prepared, trained, first, explained, from_python, _, added = outputs
  (shown,) = [block for block in blocks(TUTORIAL, "") if block.startswith("tickets (table layout")]
  assert printed(shown) <= printed(prepared)
  (shown,) = [block for block in blocks(TUTORIAL, "") if block.startswith("test metrics")]
  assert "hybrid encoder memory memory regression lexical memory lexical labels" in printed(trained)
  assert shown.partition(",")[0] in trained and "why the first: " in trained
  assert (desk / "runs" / "tickets" / "report" / "index.html").exists()
  assert json.loads(first.splitlines()[-1])["labels"][0]["text"] == "billing"
  why = json.loads(explained.splitlines()[-1])["labels"][0]["why"]
  assert why["sources"] and why["voters"][0]["text"] in (desk / "tickets.csv").read_text()
  assert from_python.startswith("they took the money from my card two times: billing (")
  assert "\ni can't sign in: login (" in from_python
  assert added.startswith("gift wrapping 0.")
  of_server = re.compile(r"--mode=serve|^curl")
  serve, ask = (block for block in blocks(TUTORIAL, "") if of_server.search(block))
  with served(serve) as address:
    found = asked(ask, address)["predictions"][0]["labels"]
  assert len(found) == 3 and all(label["text"] in (desk / "tickets.csv").read_text() for label in found)


@pytest.mark.slow
def test_the_same_task_in_both(desk, capsys, monkeypatch):
  """What needs only scikit-learn and xmc_jax is run, in one go; README's estimator, too."""
  chosen = members.MEMBERS
  monkeypatch.setattr(members, "MEMBERS", ("dexml",))  # one is enough, but for README's
  shutil.copy(ROOT / "docs" / "examples" / "tickets.csv", desk)
  known: dict = {}
  ran = []
  for language, block in FENCED.findall(COMING_FROM.read_text(encoding="utf-8")):
    if language == "python" and not re.search(_OTHERS, block, re.M):
      exec(block, known)
      ran.append(block)
    elif _TYPED.search(block) and "tickets.txt" in block:
      assert len(json.loads(typed(block).splitlines()[-1])["labels"]) == 3
  assert len(ran) == 5 and sum("XMCClassifier" in block for block in ran) == 2
  assert known["scores"].shape == (1, 25) and known["scores"].nnz == 3
  (row,) = known["topics"]
  np.testing.assert_allclose(known["scores"].toarray()[0, known["columns"][0]], known["probabilities"][0])
  assert [known["binarizer"].classes_[column] for column in known["columns"][0]] == row
  (block,) = [block for block in blocks(ROOT / "README.md", "python") if "XMCClassifier" in block]
  capsys.readouterr()
  monkeypatch.setattr(members, "MEMBERS", chosen)
  exec(block, known)
  assert capsys.readouterr().out.startswith(f"{known['topics'][0]} [0.")
  assert {"returns", "refund"} & set(known["topics"][0])


def test_a_run_of_one_page_is_that_of_the_other():
  """So that coming_from.md's training with MiniLM-L6 is run, too."""
  of_run = [block for block in blocks(TUTORIAL, "") if "--workdir=runs/tickets" in block]
  (command,) = [block for block in of_run if "--mode" not in block]
  lines = " ".join(" ".join(blocks(COMING_FROM, "")).replace("\\\n", " ").split())
  assert " ".join(command.replace("\\\n", " ").split()) in lines


def test_settings_of_dexmls_scripts_have_these_names():
  text = COMING_FROM.read_text(encoding="utf-8")
  rows = re.findall(r"^\| .* \| (.*) \|$", text[text.index("| in their YAML file") :], re.M)
  spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
  config = xmc_jax.default_config("dexml")
  named = {span.partition("=")[0] for span in spans if re.match(r"\w+\.\w+", span)}
  assert len(named) > 20
  assert not [name for name in named if name.partition(".")[2] not in config[name.partition(".")[0]]]
  losses = {span.removeprefix("method.loss=") for span in spans}
  assert losses >= set(methods.SETTINGS["dexml"].keys["loss"].choices)
