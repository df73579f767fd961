"""Pages escape whatever strangers write, and need nothing from elsewhere."""

import html.parser
import re

import jinja2
import pytest

from xmc_jax.report import pages

_VOID = {"meta", "img", "br", "input"}


class Checked(html.parser.HTMLParser):
  """Refuses what is not closed, scripts, and anything that would be fetched."""

  def __init__(self):
    super().__init__()
    self.open, self.seen, self.texts = [], [], []

  def handle_starttag(self, tag, attrs):
    assert tag not in ("script", "iframe", "object", "link"), tag
    for name, value in attrs:
      assert not name.startswith("on"), (tag, name)
      assert name not in ("src", "href") or value.startswith("data:image/png;base64,"), value[:60]
    self.seen.append(tag)
    if tag not in _VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open and self.open.pop() == tag, tag

  def handle_data(self, data):
    self.texts.append(data)


def check_page(text: str) -> Checked:
  """A whole page, closed and on its own; returns what is in it."""
  checked = Checked()
  checked.feed(text)
  checked.close()
  assert not checked.open
  assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
  assert "url(" not in text and "@import" not in text and "http" not in re.sub(r"http-equiv", "", text)
  return checked


def _shown(template: str, **values) -> str:
  return pages._ENVIRONMENT.from_string(template).render(**values)


@pytest.mark.parametrize(
  "text, expected",
  [
    ("<script>", "&lt;script&gt;"),
    ("\"a\" & 'b'", "&#34;a&#34; &amp; &#39;b&#39;"),
    ("a\x1b[2J\x00b", "a\ufffd[2J\ufffdb"),
    ("\u202eabc", "\ufffdabc"),
    ("a\n\n  b\tc", "a b c"),
    (5, "5"),
  ],
)
def test_texts_are_lines_and_escaped_once(text, expected):
  assert _shown("{{ text }}", text=text) == expected
  inside = "{% from 'macros.html' import isolated, table %}"
  assert _shown(inside + "{{ isolated(text) }}", text=text) == f"<bdi>{expected}</bdi>"
  assert f"<td>{expected}</td>" in _shown(inside + "{{ table(['a', 'b'], [['c', text]]) }}", text=text)


def test_long_texts_are_cut_before_they_are_escaped():
  assert _shown("{{ text | cut(10) }}", text="<" * 50) == "&lt;" * 8 + " …"
  assert len(_shown("{{ text }}", text="x" * 10**7)) == 300
  assert _shown("{{ text }}", text=" " * 10**6 + "x") == ""


def test_a_name_that_nobody_gave_is_an_error():
  with pytest.raises(jinja2.UndefinedError):
    _shown("{{ text }}")


@pytest.mark.parametrize("seconds, shown", [(0.84, "0.8 s"), (725, "12 min 5 s"), (12_000, "3 h 20 min")])
def test_durations(seconds, shown):
  assert pages.duration(seconds) == shown
