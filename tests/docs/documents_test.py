"""What README.md and docs/ tell a reader to type is understood, and what is quick is done."""

import contextlib
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

import xmc_jax
from tests import command_lines, tiny_runs
from xmc_jax import main, methods
from xmc_jax.cli import commands as workflow
from xmc_jax.cli import flags as options
from xmc_jax.distributed import runtime
from xmc_jax.errors import UserError
from xmc_jax.training.combine import combine_and_test

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("docs/claims/*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
_SCRIPT = re.compile(
  r"python\S*\s+(?:-m\s+(?P<module>xmc_jax\.main|(?:benchmarks|experiments)\.[\w.]+)"
  r"|(?P<file>(?:benchmarks|docs)/\w+\.py))(?P<rest>.*)"
)
_MAIN = "xmc_jax.main"
# Parses the arguments of many scripts, [[file, [argument, ...]], ...], by one process; runs none of them.
_PARSER = """
import argparse, json, runpy, sys
from unittest import mock
import sklearn.cluster, transformers  # before there is a torch that is none
for peer in ("torch", "faiss", "sentence_transformers"):
  sys.modules.setdefault(peer, mock.MagicMock())
class Parsed(BaseException):
  pass
usual = argparse.ArgumentParser.parse_known_args
def stopping(parser, args=None, namespace=None):
  found, more = usual(parser, args, namespace)
  if " " not in parser.prog:  # a subcommand's parser is called by the script's
    raise Parsed([one for one in more if not one.startswith("--config.")])
  return found, more
argparse.ArgumentParser.parse_known_args = stopping
said = []
for place, arguments in json.load(sys.stdin):
  sys.argv = [place, *arguments]
  try:
    runpy.run_path(place, run_name="__main__")
    said.append("it reads no arguments")
  except Parsed as parsed:
    said.append(f"not understood: {parsed.args[0]}" if parsed.args[0] else "")
  except SystemExit as error:
    said.append(f"it exits with {error.code}")
  except Exception as error:
    said.append(repr(error))
print(json.dumps(said))
"""


def blocks(page: pathlib.Path, language: str) -> list[str]:
  """The fenced blocks of a page in a language."""
  fenced = FENCED.findall(page.read_text(encoding="utf-8"))
  return [text for of_text, text in fenced if of_text == language]


def lines_to_type(page: pathlib.Path) -> list[str]:
  """Lines of blocks and spans of inline code, continued lines joined."""
  text = page.read_text(encoding="utf-8")
  lines = [line for block in blocks(page, "") for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
  return lines + [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCED.sub("", text))]


def commands(page: pathlib.Path) -> list[tuple[str, list[str]]]:
  """(module or file, arguments) of every Python command on a page."""
  found = []
  for line in lines_to_type(page):
    line = re.sub(r"^xmc-jax\b", f"python -m {_MAIN}", line)
    if (typed := _SCRIPT.search(line)) and "..." not in typed["rest"]:
      arguments = shlex.split(typed["rest"].rstrip("'"), comments=True)  # a command may be quoted
      found.append((typed["module"] or typed["file"], arguments))
  return found


ALL = [(page, name, arguments) for page in PAGES for name, arguments in commands(page)]
# The bare name of the program in a sentence is no command.
OF_MAIN = {" ".join(arguments): arguments for _, name, arguments in ALL if name == _MAIN and arguments}


@pytest.fixture
def parsed(monkeypatch):
  """Reads a command line as the program does."""

  @contextlib.contextmanager
  def reading(arguments):
    with command_lines.given(*arguments) as argv:
      yield options.parse(argv)

  monkeypatch.chdir(ROOT)
  return reading


def test_the_pages_have_commands():
  """That the patterns above find something."""
  assert len(OF_MAIN) > 40 and len(ALL) > len(OF_MAIN) + 20
  assert {page.name for page, *_ in ALL} >= {"README.md", "export.md", "planning.md", "scaling.md"}


@pytest.mark.slow
@pytest.mark.parametrize("line", OF_MAIN)
def test_a_command_of_the_program(parsed, line, capsys):
  with parsed(OF_MAIN[line]) as rest:
    options.check(rest)
    if options.MODE.value in ("train", "prepare", "plan"):
      config = options.checked_config()
      methods.check_config(config)
      if options.MODE.value == "plan":
        try:
          workflow.plan(config)
        except UserError as error:
          assert "does not fit" in str(error)
        assert "GB" in "".join(capsys.readouterr())
    elif options.MODE.value == "compare":
      assert len(rest) > 2
    else:
      assert options.WORKDIR.value


@pytest.mark.slow
def test_scripts_take_these_arguments():
  known = [(name, arguments) for _, name, arguments in ALL if name not in (_MAIN, "benchmarks.tfidf")]
  known = [(name, arguments) for name, arguments in known if not name.startswith("docs/")]
  places = [name if name.endswith(".py") else f"{name.replace('.', '/')}.py" for name, _ in known]
  given = json.dumps(list(zip(places, [arguments for _, arguments in known])))
  paths = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'data'}:{ROOT / 'benchmarks'}"}
  command = [sys.executable, "-W", "ignore", "-c", _PARSER]
  ended = subprocess.run(command, input=given, env=paths, cwd=ROOT, text=True, capture_output=True)
  assert not ended.returncode, ended.stderr
  said = json.loads(ended.stdout.splitlines()[-1])
  assert not [(place, arguments, why) for place, (_, arguments), why in zip(places, known, said) if why]


def test_scripts_with_arguments_of_their_own_kind(parsed):
  from benchmarks import tfidf

  for _, name, arguments in ALL:
    if name == "benchmarks.tfidf":
      kind = next(one for one in arguments if one.startswith("--kind="))
      assert kind.partition("=")[2] in tfidf.KINDS
      with parsed([one for one in arguments if one != kind]):
        options.checked_config()
    elif name == "docs/make_tables.py":
      assert arguments[0] == "write"


def test_make_has_these_targets():
  targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
  named = {
    (page.name, target)
    for page in PAGES
    for line in lines_to_type(page)
    for target in re.findall(r"^make ([\w-]+)", line)
  }
  assert ("README.md", "demo") in named
  assert not {(page, target) for page, target in named if target not in targets}


# --- commands on a run, for real ---


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder like the repository's, with tiny runs where the pages have trained ones."""
  folder = tmp_path_factory.mktemp("reader")
  (folder / "experiments").symlink_to(ROOT / "experiments")
  source = tiny_runs.write_data(folder / "DIR")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(runtime, "start", lambda *_: None)  # it would set up the whole process
    hybrid = {"eval.scores": "hybrid", "data.num_validation": 60}  # as those have that are combined
    settings = tiny_runs.config(source, **{"train.num_epochs": 1, **hybrid})
    runs = folder / "runs"
    workflow.train_and_test(settings, runs / "dexml-debian")
    for copy in ("prime-debian", "other"):
      shutil.copytree(runs / "dexml-debian", runs / copy)
    combine_and_test([runs / "dexml-debian", runs / "other"], runs / "auto-debian")
  for name in ("texts.txt", "new.txt"):
    (folder / name).write_text("a window manager for X11\nplays music\n")
  (folder / "letters").mkdir()
  for name in ("letters/first.txt", "letter.txt"):
    (folder / name).write_text("a window manager\n\nfor X11\n")
  (folder / "new.csv").write_text("id,title\nfirst,a window manager for X11\n")
  (folder / "2026.csv").write_text("title,labels\na window manager for X11,0\n")
  (folder / "corrected.csv").write_text("title,labels\na window manager for X11,0\na new text,1\n")
  (folder / "new_labels.csv").write_text("key,name\nn1,desktop things\n")
  rows = "a window manager for X11,desktop;x11\nplays music,audio\n" * 5
  (folder / "train.csv").write_text(f"title,labels\n{rows}")
  shutil.copy(ROOT / "docs" / "examples" / "tickets.csv", folder)
  return folder


QUICK = {
  line: arguments
  for line, arguments in OF_MAIN.items()
  if (line.startswith(("--mode=compare", "--mode=prepare")) or re.search("runs/(dexml|auto)-debian", line))
  and "--mode=serve" not in line  # tests/serve/documented_requests_test.py starts it as a process
}


@pytest.mark.slow
def test_commands_on_a_run(place, parsed, monkeypatch, capsys):
  """One after the other, as some read what others write."""
  assert len(QUICK) >= 10
  monkeypatch.setattr(runtime, "start", lambda *_: None)
  with monkeypatch.context() as patch:
    for line, arguments in QUICK.items():
      patch.chdir(place)
      patch.setattr(sys, "stdin", io.StringIO("a window manager for X11\n"))
      given = [one.replace("/tmp/", f"{place}/") for one in arguments]
      with parsed(given) as rest:
        patch.chdir(place)  # `parsed` is about the repository
        main.main(rest)
      said = capsys.readouterr()
      assert "Traceback" not in said.err
      if options_of := re.search(r"--output=(\S+)", " ".join(given)):
        assert (place / options_of[1]).exists(), line
      else:
        assert said.out or "export" in line, line


def test_the_citation_is_of_this_version_and_of_the_papers():
  found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
  assert found["version"] == xmc_jax.__version__ and found["license"] == "Apache-2.0"
  cited = " ".join(paper["notes"] for paper in found["references"])
  assert all(name in cited for name in ("DEXML", "UniDEC", "DEXA", "PRIME", "RAMEN", "RAE-XMC"))
  for paper in found["references"]:
    assert paper["authors"] and paper["url"].startswith("https://") and paper["year"] >= 2023
