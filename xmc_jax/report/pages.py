"""Renders pages by Jinja2. Texts are untrusted: each is made one line, cut, and escaped."""

import base64
import pathlib

import jinja2

from xmc_jax import sanitize
from xmc_jax.report import descriptions

_LONGEST = 300  # characters of a text that are shown
_CUT = " …"


def render(template: str, **values: object) -> str:
  """Returns the page that a template of this folder makes of values; it needs no other files."""
  return _ENVIRONMENT.get_template(template).render(values)


def cut(text: object, longest: int = _LONGEST) -> object:
  """Returns a text as one safe line of at most `longest` characters; leaves rendered parts as they are."""
  if hasattr(text, "__html__"):
    return text
  line = sanitize.line(str(text)[: 8 * longest])
  return line if len(line) <= longest else line[: longest - len(_CUT)].rstrip() + _CUT


def percent(value: float, digits: int = 1, sign: str = "") -> str:
  """Formats a fraction in percent: 0.5 is '50.0'; `sign='+'` adds a sign to positive numbers, too."""
  return f"{100 * value:{sign}.{digits}f}".replace("-", "−")


def p_value(value: float) -> str:
  return f"p={value:.3f}" if value >= 0.0005 else "p<.001"


def duration(seconds: float) -> str:
  """Formats a duration: '0.8 s', '12 min 5 s', '3 h 20 min'."""
  if seconds < 99.95:
    return f"{seconds:.1f} s"
  minutes, left = divmod(round(seconds), 60)
  return f"{minutes} min {left} s" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60} min"


_ENVIRONMENT = jinja2.Environment(
  loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
  autoescape=True,
  finalize=cut,  # what a template shows passes here, without spaces at its ends, and is escaped then
  undefined=jinja2.StrictUndefined,
  trim_blocks=True,
  lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(
  count="{:,}".format,
  cut=cut,
  duration=duration,
  encoded=lambda content: base64.b64encode(content).decode("ascii"),
  p_value=p_value,
  percent=percent,
  stage=descriptions.stage,
)
