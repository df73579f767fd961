"""Trains Annif's backends and ours on one corpus, and has Annif evaluate all of them.

  python3 -m venv .venv-annif
  .venv-annif/bin/pip install "annif[omikuji,fasttext]==1.4.3"
  python -m benchmarks.annif --data=Makupalat-YKL-fi --annif=.venv-annif/bin
  python -m benchmarks.annif --data=Finna-YSO-sv --annif=.venv-annif/bin --language=sv

--data has `*train.tsv`, `*test.tsv`, perhaps `*validate.tsv`, or these as `.gz`, and `vocabulary.*`. Rows:

  bonsai, parabel, fasttext  on all training rows
  mllm          on the first 2,000 training rows
  ensemble      of bonsai, fasttext and mllm; `annif hyperopt` chooses weights on the validation rows, if any
  xmc_jax       experiments/auto.py in --minutes; Annif asks it as a backend of kind http
  with_xmc_jax  an ensemble of bonsai and that run, with equal weights: a run remembers its validation rows

Settings are those of Annif's wiki, but fastText's, the best of three on Makupalat's validation rows. There,
Bonsai with pairs of words (ngram=2, min_df=2) was 3.4 points of nDCG@10 worse. Annif splits sentences by
NLTK's punkt_tab; without $NLTK_DATA, an empty one, which knows no abbreviations, is made in --runs. Minutes
are of training, an ensemble's with its sources'. Writes docs/results/annif_NAME.json, where rows that are
not asked for stay. A finished run is not trained again.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks import children, flags, serving

_ROOT = pathlib.Path(__file__).parents[1]
_PROJECTS = {
  "bonsai": {"backend": "omikuji", "cluster_balanced": False, "cluster_k": 100, "max_depth": 3},
  "parabel": {"backend": "omikuji"},
  "fasttext": {"backend": "fasttext", "dim": 100, "lr": 0.5, "epoch": 75, "loss": "hs", "chunksize": 24},
  "mllm": {"backend": "mllm"},
  "ensemble": {"backend": "ensemble", "sources": "bonsai,fasttext,mllm"},
  "xmc_jax": {"backend": "http"},
  "with_xmc_jax": {"backend": "ensemble", "sources": "bonsai,xmc_jax"},
}
_ROWS_OF = {"mllm": 2000}  # training rows, where not all
_ANALYZERS = {"en": "snowball(english)", "fi": "snowball(finnish)", "sv": "snowball(swedish)"}
_METRICS = ("F1@5", "NDCG@10", "Precision@1")
_PUNKT = ("collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab")


class Desk(NamedTuple):
  """Holds the command line, and a folder with projects.cfg, Annif's data, our run and a log."""

  given: argparse.Namespace
  folder: pathlib.Path

  def files(self, split: str) -> list[str]:
    """Returns the paths of the files of 'train', 'validate' or 'test'."""
    return sorted(str(path) for path in self.given.data.glob(f"*{split}.tsv*"))

  def annif(self, *arguments: str) -> tuple[float, int]:
    """Runs a command of Annif; returns minutes and peak bytes."""
    return self.run(str(self.given.annif.absolute() / "annif"), *arguments, cwd=self.folder)

  def run(self, *command: str, cwd: pathlib.Path = _ROOT) -> tuple[float, int]:
    print(*(pathlib.Path(word).name for word in command), file=sys.stderr, flush=True)
    start, log = time.perf_counter(), self.folder / "log.txt"
    code, peak = children.run(command, log, cwd)
    if code:
      raise SystemExit(f"ended with {code}; see {log}")
    return (time.perf_counter() - start) / 60, peak

  def write_projects(self, port: int = 0) -> None:
    """Writes projects.cfg, with the port of our server."""
    language = self.given.language
    shared = {"language": language, "analyzer": _ANALYZERS[language], "vocab": "concepts", "limit": 100}
    shared["endpoint"] = f"http://127.0.0.1:{port}/v1/projects/xmc_jax/suggest"
    lines = []
    for name, project in _PROJECTS.items():
      settings = {"name": name, **shared, **project}
      lines += [f"[{name}]", *(f"{key}={value}" for key, value in settings.items()), ""]
    (self.folder / "projects.cfg").write_text("\n".join(lines))


def prepare(desk: Desk) -> None:
  """Writes projects.cfg and the empty punkt_tab, and loads the vocabulary."""
  if "NLTK_DATA" not in os.environ:
    os.environ["NLTK_DATA"] = str(desk.folder / "nltk_data")
    empty = desk.folder / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    empty.mkdir(parents=True, exist_ok=True)
    for name in _PUNKT:
      (empty / name).touch()
  desk.write_projects()
  (vocabulary,) = desk.given.data.glob("vocabulary.*")
  desk.annif("load-vocab", "concepts", str(vocabulary), f"--language={desk.given.language}")


def weighted(desk: Desk, name: str, rows: dict[str, dict]) -> dict:
  """Chooses an ensemble's weights, if it may; returns them, and what it and its sources cost."""
  sources, minutes, peak = _PROJECTS[name]["sources"], 0.0, 0
  parts = [rows[source] for source in sources.split(",")]
  validation = desk.files("validate")
  if validation and name == "ensemble":
    minutes, peak = desk.annif("hyperopt", "-j1", "-T100", "-mNDCG@10", name, *validation)
    sources = re.findall(r"^sources=(\S+)$", (desk.folder / "log.txt").read_text(), re.M)[-1]
  minutes += sum(part["minutes"] for part in parts)
  return {"sources": sources, "minutes": minutes, "GB": max(peak / 1e9, *(part["GB"] for part in parts))}


def ours(desk: Desk) -> dict:
  """Trains our run, if it is not finished; returns what it cost, and its own metrics."""
  workdir, peak_file = desk.folder / "xmc_jax", desk.folder / "xmc_jax.peak_bytes"
  report = workdir / "report"
  if not (report / "seconds.json").exists():
    settings = [f"--config.data.path={desk.given.data}", f"--config.auto.minutes={desk.given.minutes}"]
    command = [sys.executable, "-m", "xmc_jax.main", "--config=experiments/auto.py", *settings]
    peak_file.write_text(str(desk.run(*command, f"--workdir={workdir}")[1]))
  seconds = json.loads((report / "seconds.json").read_text())
  spent = json.loads((workdir / "auto.json").read_text())["spent"]
  spent += sum(seconds[stage] for stage in seconds if stage not in ("test", "page"))
  metrics = json.loads((report / "metrics.json").read_text())["metrics"]
  own = {name: metrics[name] for name in ("F1@5", "nDCG@10", "P@1")}
  return {"minutes": spent / 60, "GB": int(peak_file.read_text()) / 1e9, "by_xmc_jax": own}


@contextlib.contextmanager
def served(desk: Desk) -> Iterator[None]:
  """Serves our run, which is trained if need be, and tells Annif where."""
  ours(desk)
  server, port, _ = serving.started(desk.folder / "xmc_jax", "--max_text_length=1000000")
  desk.write_projects(port)
  try:
    yield
  finally:
    server.send_signal(signal.SIGTERM)
    server.wait(timeout=60)


def row_of(desk: Desk, name: str, rows: dict[str, dict]) -> dict:
  """Fits a project; returns what Annif's evaluation says, what the project cost, and its settings."""
  settings, weights = dict(_PROJECTS[name]), []
  if settings["backend"] == "ensemble":
    cost = weighted(desk, name, rows)
    settings["sources"] = cost.pop("sources")
    weights = [f"-bensemble.sources={settings['sources']}"]
  elif settings["backend"] == "http":
    cost = ours(desk)
  else:
    limit = [f"-d{_ROWS_OF[name]}"] if name in _ROWS_OF else []
    minutes, peak = desk.annif("train", "-j1", name, *limit, *desk.files("train"))
    cost = {"minutes": minutes, "GB": peak / 1e9}
  metrics = desk.folder / f"{name}.json"
  asked = [f"-m{metric}" for metric in _METRICS]
  desk.annif("eval", "-j1", name, *desk.files("test"), *asked, f"-M{metrics}", *weights)
  return {**json.loads(metrics.read_text()), **cost, "settings": settings}


def main() -> None:
  paths = {"data": pathlib.Path, "annif": pathlib.Path, "runs": _ROOT / "runs" / "annif"}
  given = flags.parse(__doc__, **paths, minutes=10.0, language="fi", rows=tuple(_PROJECTS))
  given.data = given.data.resolve()
  desk = Desk(given, given.runs.resolve() / given.data.name)
  desk.folder.mkdir(parents=True, exist_ok=True)
  prepare(desk)
  version = subprocess.run([given.annif / "annif", "--version"], capture_output=True, text=True, check=True)
  about = {"set": given.data.name, "annif": version.stdout.strip(), "machine": children.machine()}
  file = _ROOT / "docs" / "results" / f"annif_{given.data.name.partition('-')[0].lower()}.json"
  rows = json.loads(file.read_text())["rows"] if file.exists() else {}
  for name in (name for name in _PROJECTS if name in given.rows):
    with served(desk) if "xmc_jax" in name else contextlib.nullcontext():
      rows[name] = row_of(desk, name, rows)
    ordered = {row: rows[row] for row in _PROJECTS if row in rows}
    file.write_text(json.dumps({**about, "minutes": given.minutes, "rows": ordered}, indent=1) + "\n")


if __name__ == "__main__":
  main()
