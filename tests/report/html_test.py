"""Pages escape whatever strangers write, and need nothing from elsewhere."""

import html.parser
import re

from cases import each_case

from xmc_jax.report import html as pages
from xmc_jax.report.html import Markup, element, words

_VOID = {"meta", "img", "br"}


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


@each_case(
  "text, expected",
  [
    ("<script>", "&lt;script&gt;"),
    ("\"a\" & 'b'", "&quot;a&quot; &amp; &#x27;b&#x27;"),
    ("a\x1b[2J\x00b", "a\ufffd[2J\ufffdb"),
    ("\u202eabc", "\ufffdabc"),
    ("a\n\n  b\tc", "a b c"),
    (5, "5"),
    (Markup("<b>"), "<b>"),
  ],
)
def test_words(text, expected):
  assert words(text) == expected
  assert isinstance(words(text), Markup)


def test_long_words_are_cut_before_they_are_escaped():
  assert words("<" * 50, 10) == "&lt;" * 8 + " …"
  assert len(words("x" * 10**7)) <= pages.LONGEST
  assert words(" " * 10**6 + "x") == ""


def test_a_page_of_strangers_words_is_whole_and_on_its_own():
  text = "<script>alert(1)</script>\"'&\x1b\u202e$x$"
  parts = [
    element("p", text),
    pages.isolated(text),
    pages.note(text, Markup("&ensp;"), text),
    pages.table([text, text], [[text, element("b", text)]], caption=text, text_columns=(1,)),
    pages.image(b"\x89PNG", text, text),
    pages.bar(2.0),
    text,
  ]
  checked = check_page(pages.document(text, *parts))
  assert "script" not in checked.seen and checked.seen.count("table") == 1
  assert any("<script>alert(1)</script>" in found for found in checked.texts)


def test_elements_join_without_escaping_twice():
  assert element("p", "<", element("b", "&"), css="note") == '<p class="note">&lt;<b>&amp;</b></p>'
