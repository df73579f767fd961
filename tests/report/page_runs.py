"""Tested runs on texts that nobody would wish for: nothing is trained; what training leaves is written."""

import json
import pathlib
import re
from typing import NamedTuple

import numpy as np
import tiny_runs
from pages_test import check_page

from xmc_jax import report
from xmc_jax.runs import evaluate, ranking
from xmc_jax.runs import run as runs
from xmc_jax.runs.trained import Trained

HOSTILE = (
  "<script>alert(1)</script>",
  "\"double\" & 'single' </p><b>",
  "\x1b[2J\x00 bell\x07",
  "\u202eright to left override",
  "שלום עולם مرحبا",
  "漢字かな 한국어 🎉",
  "$x^2$ $\\frac{1}{0}$ 50$",
  "long " * 1500,
  "<img src=x onerror=alert(2)>",
)
NAME = "_a $x^2$ <b>bold</b> 漢字 שלום"


class Ranked(NamedTuple):
  """What a page is written from."""

  trained: Trained
  ranking: evaluate.Ranking
  queries: np.ndarray
  why: evaluate.Why | None = None

  @property
  def run(self) -> runs.Run:
    return self.trained.run


def hostile_data(folder: pathlib.Path) -> pathlib.Path:
  """`tiny_runs.write_data`, with the worst in front of labels' and test points' texts."""
  tiny_runs.write_data(folder)
  for name in ("lbl.json", "tst.json"):
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    for number, line in enumerate(lines):
      line["title"] = f"{HOSTILE[number % len(HOSTILE)]} {line['title']}"
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
  return folder


def made_run(data_folder: pathlib.Path, workdir: pathlib.Path, *, epochs: int = 3, **overrides) -> Ranked:
  """A run with the parameters that it begins with, its test, and the readings of some epochs of 6 steps."""
  run = tiny_runs.open_run(data_folder, workdir, **overrides)
  write_readings(run, epochs)
  trained, test = Trained(run, *run.initial_parameters()), run.dataset.test
  ranking.fit_own_scores(trained)
  queries = evaluate.embed_split(trained, test)
  scores = run.config.eval.scores
  rankings, why = evaluate.rank_test(trained, queries, scores)
  chosen = rankings.pop(scores)
  alone = {name: evaluate.score(run, test, found) for name, found in rankings.items()}
  evaluate.write_report(run, test, chosen, 6, alone, probabilities=ranking.gives_probabilities(scores))
  return Ranked(trained, chosen, queries, why)


def write_readings(run: runs.Run, epochs: int) -> None:
  """metrics.jsonl and seconds.json of a training."""
  with (run.workdir / "metrics.jsonl").open("w") as file:
    for epoch in range(1, epochs + 1):
      times = {f"time/refresh_{name}": 0.1 * epoch for name in run.method.refreshes}
      lines = [{"train/loss": 3 / epoch, "time/train": 2.5 * epoch, "memory/host_bytes": 1.5e9, **times}]
      if len(run.data.validation):
        lines.append({"eval/P@1": 0.1 * epoch, "eval/R@10": 0.2 * epoch})
      file.writelines(json.dumps({"step": 6 * epoch, "time": 1.0, **line}) + "\n" for line in lines)
  (run.workdir / "report").mkdir(exist_ok=True)
  seconds = '{"prepare": 1.5, "train": 7.5, "refresh_clusters": 200.0}'
  (run.workdir / "report" / "seconds.json").write_text(seconds)


class Page(NamedTuple):
  """A run's page: its file, the text of it, what a reader sees, and its tags."""

  path: pathlib.Path
  text: str
  words: str
  tags: list[str]


def written(made: Ranked, **kwargs) -> Page:
  """Writes the page of a run, and checks what holds for all of them."""
  path = report.write(made.trained, made.ranking, made.queries, why=made.why, **kwargs)
  text, checked = path.read_text(encoding="utf-8"), check_page(path.read_text(encoding="utf-8"))
  words = " ".join(" ".join(checked.texts).split())
  assert not list(path.parent.glob("*.tmp")) and not re.search(r"\bnan\b|\binf\b", words, re.IGNORECASE)
  return Page(path, text, words, checked.seen)
