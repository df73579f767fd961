"""The tables of deviations: whatever setting they name exists, is legal there, and changes something."""

import ast
import re

import pytest

from tests.config.config_test import USUAL
from tests.docs.documents_test import ROOT
from tests.golden_test import PRESETS
from xmc_jax import methods
from xmc_jax.config import checks
from xmc_jax.errors import ConfigError

HEADER = ["what", "paper", "released", "ours", "setting that restores either"]
# What the settings of a page are tried on; one that takes them is enough.
BASES = {
  "dexml": ("dexml-lf_amazontitles_131k", "dexml-lf_wikipedia_500k", "ova-lf_amazontitles_131k"),
  "unidec": ("unidec-lf_amazon_131k", "depsl-lf_amazon_131k", "depsl-lf_wikiseealso_320k"),
  "dexa": ("dexa-lf_amazontitles_131k", "ngame-lf_amazontitles_131k", "ngame_classifier-paper"),
  "prime": ("prime-lf_amazontitles_131k", "prime_classifier-paper"),
  "ramen": (
    "ramen-lf_wikiseealsotitles_320k",
    "ramen-lf_wikiseealsotitles_320k_ance",
    "ramen_classifier-paper",
  ),
  "rae_xmc": ("rae_xmc-lf_amazontitles_131k",),
}
BASES["dexa"] += ("ngame_classifier-debian", "dexa_classifier-paper")


def rows(page: str) -> list[list[str]]:
  """Returns the rows of a page's tables of deviations."""
  found, inside = [], False
  for line in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").splitlines():
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    inside = cells == HEADER or (inside and bool(cells))
    if inside and cells != HEADER and set("".join(cells)) - set("-"):
      found.append(cells)
  return found


ALL = {f"{page}: {cells[0]}": (page, cells) for page in BASES for cells in rows(page)}


def spans(cell: str) -> list[list[str]]:
  """Returns the code of each alternative in a cell."""
  return [found for part in cell.split(";") if (found := re.findall(r"`([^`]+)`", part))]


def parsed(span: str) -> tuple[str, object]:
  """Returns a setting's key and value; a key alone has the value None."""
  key, equals, value = span.removeprefix("--").partition("=")
  key = "eval.scores" if key == "scores" else key
  assert key in USUAL, f"{key} is no key"
  if not equals:
    return key, None
  value = value.strip('"')
  return key, value if isinstance(USUAL[key], str) else ast.literal_eval(value)


def refusal(base: str, settings: dict) -> str:
  """Returns why a preset does not take settings, or that they change nothing; '' where they do."""
  config = PRESETS[base][0].get_config(PRESETS[base][1])
  before = checks.flatten(config.to_dict())
  if missing := settings.keys() - before.keys():
    return f"{base} has no {missing}"
  if all(before[key] == value for key, value in settings.items()):
    return f"{base} has that already"
  try:
    config.update_from_flattened_dict(settings)
    methods.check_config(config)
  except (ConfigError, TypeError) as error:
    return str(error)
  return ""


@pytest.mark.parametrize("page", BASES)
def test_every_system_has_a_table(page):
  assert len(rows(page)) > 8
  for cells in rows(page):
    assert len(cells) == len(HEADER), cells
    assert cells[0] and cells[3], cells


@pytest.mark.parametrize("name", ALL)
def test_settings_are_there_and_legal(name):
  page, cells = ALL[name]
  for alternative in spans(cells[-1]):
    if alternative[0].startswith(":"):
      assert alternative[0][1:] in {PRESETS[base][1] for base in PRESETS if base.startswith(f"{page}-")}
      continue
    settings = dict(parsed(span) for span in alternative)
    if None in settings.values():
      assert set(settings.values()) == {None}, "a key alone is for what nobody says the value of"
      continue
    refused = [refusal(base, settings) for base in BASES[page]]
    assert "" in refused, refused
