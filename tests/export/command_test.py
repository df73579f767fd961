"""--mode=export and --mode=compare from the command line."""

import json
import shutil

import pytest

from tests.cli.main_test import command, folder, trained  # noqa: F401
from xmc_jax.cli import commands
from xmc_jax.export import Exported


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):  # noqa: F811
  """A run's folder with its export in it."""
  workdir = tmp_path_factory.mktemp("exported") / "run"
  shutil.copytree(trained, workdir)
  commands.export(workdir)
  return workdir


def test_an_export_takes_labels_from_a_file(command, exported, tmp_path):  # noqa: F811
  (tmp_path / "new.txt").write_text("barn kelt mito\n\n  suss \n")
  before = len(Exported.load(exported / "export").labels)
  ended = command("--mode=export", f"--workdir={exported}", f"--add_labels={tmp_path / 'new.txt'}")
  assert (ended.code, ended.out) == (0, "") and "2 labels added, 0 were there already" in ended.err
  assert list(Exported.load(exported / "export").labels[before:]) == ["barn kelt mito", "suss"]


def test_refusals_of_an_export(command, exported, trained, tmp_path):  # noqa: F811
  use = ("--mode=export", f"--workdir={exported}")
  assert "--mode=export needs --workdir" in command("--mode=export").line()
  assert "leave --k out" in command(*use, "--k=3").line()
  assert "nowhere.txt: no such file" in command(*use, "--add_labels=nowhere.txt").line()
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine" / "precious").touch()
  assert str(tmp_path / "mine") in command(*use, f"--output={tmp_path / 'mine'}").line()
  assert (tmp_path / "mine" / "precious").exists()
  (tmp_path / "new.txt").write_text("barn\n")
  line = command("--mode=export", f"--workdir={trained}", f"--add_labels={tmp_path / 'new.txt'}").line()
  assert f"{trained / 'export'}" in line


def test_runs_are_compared(command, trained, tmp_path):  # noqa: F811
  other = tmp_path / "other"
  shutil.copytree(trained, other)
  ended = command("--mode=compare", trained, other, f"--output={tmp_path / 'page.html'}")
  assert ended.code == 0, ended.err
  assert "P@1" in ended.out and "</html>" in (tmp_path / "page.html").read_text()
  found = json.loads((trained / "report" / "metrics.json").read_text())["metrics"]["P@1"]
  assert f"{100 * found:.2f}" in ended.out


def test_refusals_of_a_comparison(command, trained):  # noqa: F811
  assert "two" in command("--mode=compare").line()
  assert "leave --workdir out" in command("--mode=compare", f"--workdir={trained}", trained).line()
  assert "leave --k out" in command("--mode=compare", "--k=3", trained, trained).line()
