"""The page in a real browser: typing, keyboard alone, hostile labels, light and dark, phone and desktop."""

import base64
import importlib.util
import io
import json
import shutil

import docx
import pytest
from made_servers import HOSTILE_QUERY, TOKEN, StandIn, in_thread, learning, running, train

import xmc_jax
from xmc_jax import serve

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    not (CHROMIUM and DRIVER and importlib.util.find_spec("selenium")),
    reason="needs Chromium and its driver (apt-get install chromium chromium-driver) and selenium from PyPI",
  ),
]
QUIET = (
  *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
  *("--disable-background-networking", "--disable-component-update"),
)
SIZES = {"phone": (360, 740), "desktop": (1280, 800)}
SECONDS = 30
# The contrast of every text on the page with what is behind it, by WCAG 2: [[text, ratio], ...].
CONTRASTS = """
const parts = (color) => color.match(/[\\d.]+/g).map(Number);
const light = (color) => {
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = parts(color).map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const color = getComputedStyle(node).backgroundColor;
    if ((parts(color)[3] ?? 1) === 1) return color;
  }
  return "rgb(255, 255, 255)";
};
return [...document.querySelectorAll("body *")]
  .filter((node) => node.checkVisibility())
  .filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .map((node) => {
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    return [node.textContent.trim().slice(0, 40), (a + 0.05) / (b + 0.05)];
  });
"""


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  return train(tmp_path_factory.mktemp("browsed"), report=True)


@pytest.fixture(scope="module")
def server(workdir):
  with running(workdir) as server:
    yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
  from selenium import webdriver
  from selenium.webdriver.chrome.service import Service

  options = webdriver.ChromeOptions()
  options.binary_location = CHROMIUM
  for argument in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
    options.add_argument(argument)
  driver = webdriver.Chrome(options=options, service=Service(DRIVER))
  yield driver
  driver.quit()


@pytest.fixture
def page(browser, server):
  return Page(browser, server.port)


class Page:
  """The page, as a person at a keyboard sees it."""

  def __init__(self, browser, port: int):
    self.browser, self.port = browser, port

  def open(self, size="desktop", scheme="light"):
    width, height = SIZES[size]
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    self.browser.get(f"http://127.0.0.1:{self.port}/")
    self.wait("return document.getElementById('count').options.length > 0 && document.title !== 'xmc_jax'")
    return self

  def run(self, script, *arguments):
    return self.browser.execute_script(script, *arguments)

  def wait(self, script, *arguments):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(self.browser, SECONDS, 0.05).until(lambda _: self.run(script, *arguments))

  def press(self, *keys):
    """Presses keys with the focus where it is."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(self.browser).send_keys(*keys).perform()

  def type(self, text, expected):
    """Types a text, and waits until its labels are there."""
    self.run("const t = document.getElementById('text'); t.value = ''; t.focus();")
    self.press(text)
    self.wait("return document.querySelector('.name')?.textContent === arguments[0]", shown(expected[0]))
    self.wait("return document.getElementById('labels').getAttribute('aria-busy') === 'false'")

  def texts(self, css):
    return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", css)

  def status(self):
    return self.run("return document.getElementById('status').textContent")


def shown(label: str) -> str:
  """A label without marks that change the direction of reading."""
  return label.replace("\u202e", "\ufffd").replace("\u202c", "\ufffd")


@pytest.fixture(scope="module")
def model(workdir):
  return xmc_jax.Model.load(workdir, warm=False)


def test_labels_appear_while_a_text_is_typed(page, model):
  page.open()
  assert page.status() == "Nothing is typed yet." and not page.texts("#labels > li")
  _, scores, names = model.predict(["barn kelt"], 10)
  page.type("barn kelt", names[0])
  assert page.texts(".name") == [shown(name) for name in names[0][:5]]
  assert page.status().startswith("5 labels, best first: ")
  percents = [text.removeprefix("< ").removesuffix("%") for text in page.texts(".score")]
  expected = [100 * score for score in scores[0][:5]]
  assert [float(text) for text in percents] == pytest.approx(expected, abs=0.51)
  bars = "[...document.querySelectorAll('.bar > span')]"
  widths = page.run(f"return {bars}.map((e) => parseFloat(e.style.width))")
  assert widths == pytest.approx(expected, abs=0.01)
  page.run("const c = document.getElementById('count'); c.value = '10'; c.dispatchEvent(new Event('change'))")
  page.wait("return document.querySelectorAll('#labels > li').length === 10")
  assert page.texts(".name") == [shown(name) for name in names[0]]
  page.run("const t = document.getElementById('text'); t.value = '  '; t.dispatchEvent(new Event('input'))")
  page.wait("return document.querySelectorAll('#labels > li').length === 0")
  assert page.status() == "Nothing is typed yet."


def test_a_typed_text_is_never_under_an_old_answer(page, model):
  """Says that it works, gives a silent server up after a while and asks again, and tells what it cut."""
  silent = """window.before = fetch; window.timeout = setTimeout;
    window.setTimeout = (work, ms) => timeout(work, ms === 30000 ? 400 : ms);
    window.fetch = (path, {signal}) =>
      new Promise((_, refuse) => signal.onabort = () => refuse(signal.reason));"""
  page.open()
  page.run(silent)
  page.press("barn kelt")
  assert page.status() == "Working…"
  page.wait("return document.getElementById('status').textContent.includes('has not answered')")
  assert "tries again in 2 s" in page.status()
  page.run("window.fetch = before; window.setTimeout = timeout")
  page.wait("return document.querySelectorAll('#labels > li').length === 5")
  page.run("document.getElementById('text').value += 'x'; later()")
  assert page.status() == "Working…"
  assert page.run("return document.getElementById('labels').ariaBusy") == "true"
  page.run("document.getElementById('text').value = 'barn kelt'; later()")  # back again, before it was asked
  page.wait("return document.getElementById('status').textContent.startsWith('5 labels')")
  assert page.run("return document.getElementById('labels').ariaBusy") == "false"
  long = "barn kelt " + "\U0001f600" * 9_989 + "z" * 1234
  page.run("document.getElementById('text').value = arguments[0]; later()", long)
  first = model.predict([long[:10_000]], 1)[2][0][0]
  page.wait("return document.querySelector('.name')?.textContent === arguments[0]", shown(first))
  page.wait("return document.getElementById('status').textContent !== 'Working…'")
  assert "Only the first 10,000 characters were read, 1,233 more were not." in page.status()


def test_reasons_show_what_the_texts_share(page):
  page.open()
  source = f"{'w ' * 400}Kelt barn <b>{'v ' * 400}"
  shown = """const part = excerpt(...arguments);
    return [part.innerText, [...part.children].map((e) => e.innerText)]"""
  part, marked = page.run(shown, source, "a kelt, and a BARN")
  assert part.startswith("… Kelt barn <b>v v") and part.endswith("v …") and len(part) < 210
  assert marked == ["Kelt", "barn"]
  assert page.run(shown, "kelt", "loma") == ["kelt", []]
  assert page.run(shown, "\u6f22\u5b57\u4eee\u540d", "\u6f22\u5b57\u4eee\u540d")[1]


def test_a_threshold_and_a_copy(page, model):
  page.open()
  ids, scores, names = model.predict(["barn kelt"], 5)
  page.type("barn kelt", names[0])
  keys = [model.keys[id_] for id_ in ids[0]]
  assert page.texts(".key") == keys and keys[0].startswith("l")
  percent = f"{50 * (scores[0][1] + scores[0][2]):.6f}"  # between the second and the third
  keep = "least.value = arguments[0]; least.dispatchEvent(new Event('input'))"
  page.run(keep, percent)
  assert page.texts(".name") == [shown(name) for name in names[0][:2]]
  clipboard = "{value: {writeText: async (t) => window.copied = t}}"
  page.run(f"Object.defineProperty(navigator, 'clipboard', {clipboard})")
  page.run("document.getElementById('copy').click()")
  page.wait("return document.getElementById('copy').textContent === 'Copied'")
  lines = [line.split("\t") for line in page.run("return copied").split("\n")]
  assert [line[:2] for line in lines] == [[key, shown(name)] for key, name in zip(keys[:2], names[0])]
  assert lines[0][2].endswith("%")
  page.run(keep, "100")
  assert page.status().startswith("No label reaches 100%; the best has ") and not page.texts(".name")
  assert page.run("return document.getElementById('copy').hidden")


def test_a_part_of_the_vocabulary_ticks_and_files(browser):
  """As `StandIn` has it: label i of 'abc' is 'label i' with the key li, and l1 is the top of a part."""
  choose = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))"
  drop = """const given = new DataTransfer();
    given.items.add(new File(arguments[0], arguments[1], {type: arguments[2]}));
    file.files = given.files; file.dispatchEvent(new Event('change'));"""
  first = "return document.querySelector('.name')?.textContent === arguments[0]"
  with in_thread(serve.app(StandIn(), name="tags")) as port:
    page = Page(browser, port).open()
    page.type("abc", ["label 0"])
    page.run(choose, *page.run("return [language, 'sv']"))
    page.wait(first, "label 0@sv")
    clipboard = "{value: {writeText: async (t) => window.copied = t}}"
    page.run(f"Object.defineProperty(navigator, 'clipboard', {clipboard})")
    page.run("for (const id of ['take-0', 'take-2']) document.getElementById(id).click()")
    assert page.texts("#copy") == ["Copy 2"]
    for columns, copied in (("key", "l0\nl2"), ("text", "label 0@sv\nlabel 2@sv")):
      page.run(choose, *page.run("return [columns, arguments[0]]", columns))
      page.run("copied = ''; document.getElementById('copy').click()")
      page.wait("return copied === arguments[0]", copied)
    page.run(choose, *page.run("return [part, 'below:l1']"))
    page.wait("return document.querySelectorAll('#labels > li').length === 1")
    assert page.texts(".name") == ["label 1@sv"] and page.texts("#part option") == ["all", "label 1"]
    assert '"include":["below:l1"],"language":"sv"' in page.texts("#request")[0]
    names = "return [...document.querySelectorAll('.name')].slice(0, 2).map((e) => e.textContent).join()"
    for without, second in (("below:l1", "label 2@sv"), ("", "label 1@sv")):
      for box, value in (("part", ""), ("without", without)):
        page.run(choose, *page.run(f"return [{box}, arguments[0]]", value))
      page.wait(f"{names} === arguments[0]", f"label 0@sv,{second}")
      assert ('"exclude":["below:l1"]' in page.texts("#request")[0]) == bool(without)
    page.run(drop, ["Art\n"], "a.txt", "text/plain")
    page.wait("return text.value === 'Art\\n'")
    word, content = docx.Document(), io.BytesIO()
    word.add_paragraph("Art and music")
    word.save(content)
    of_bytes = "Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0))"
    word = base64.b64encode(content.getvalue()).decode()
    page.run(drop.replace("arguments[0]", f"[{of_bytes}]"), word, "a.docx", serve.api._FILES[1])
    page.wait("return text.value === 'Art and music'")
    page.run(drop, ["%PDF-1.4"], "a.pdf", "application/pdf")
    page.wait("return document.getElementById('status').textContent.includes('expected a PDF or Word file')")


def test_a_correction_changes_the_answer(browser, workdir, tmp_path):
  """By the keyboard alone, after a wrong token and an unknown label; a text without labels is not saved."""
  from selenium.webdriver.common.keys import Keys

  copied, text = shutil.copytree(workdir, tmp_path / "run"), "zathura quux of the unseen"
  names = xmc_jax.Model.load(copied, warm=False).predict([text], 5)[2][0]
  with running(copied, *learning(tmp_path)) as server:
    page = Page(browser, server.port).open()
    assert page.run("return correction.hidden")
    page.type(text, names)
    can_save = lambda: not page.run("return document.getElementById('save').disabled")
    active = "return document.activeElement.id || document.activeElement.ariaLabel"
    page.run("document.getElementById('take-1').focus()")
    page.press(Keys.TAB)
    assert page.run(active) == f"{shown(names[1])} is wrong"
    page.press(Keys.SPACE)
    page.run("tokenField.focus()")
    page.press("wrong")
    assert not can_save()  # crosses alone
    page.run("document.getElementById('take-2').focus()")
    page.press(Keys.SPACE)
    assert can_save() and page.run("return document.querySelectorAll('.wrong').length") == 1
    page.press(Keys.TAB, Keys.SPACE)  # a cross takes the tick away
    assert not can_save() and page.run("return document.querySelectorAll('.wrong').length") == 2
    page.run("document.getElementById('take-2').focus()")
    page.press(Keys.SPACE)  # and the other way round
    assert page.run("return document.querySelectorAll('.wrong').length") == 1
    page.run("missing.focus()")
    page.press("l41", Keys.ENTER, "no such label", Keys.TAB)
    assert page.run(active) == "token"
    page.press(Keys.TAB)
    assert page.run(active) == "save"
    said = "return document.getElementById('saved').textContent.startsWith(arguments[0])"
    for told in ("The token is wrong.", "labels that the run lacks: 1, such as 'no such label'"):
      page.press(Keys.ENTER)
      page.wait(said, told)
      assert page.run("return saved.classList.contains('error')")
      if "token" in told:
        assert page.run(active) == "token" and not can_save()
        page.press(TOKEN)
    page.run("missing.focus()")
    page.press(*[Keys.BACKSPACE] * 14)
    page.run("save.focus()")
    page.press(Keys.ENTER)
    page.wait(said, "Saved; predictions use it from now on.")
    page.wait("return document.querySelector('.name').textContent !== arguments[0]", shown(names[0]))
    assert page.run("return tokenField.parentElement.hidden && !tokenField.value")
    assert page.run("return localStorage.length + sessionStorage.length + document.cookie.length") == 0
    (found,) = server.predict(text=text, k=2)
    third = next(label["key"] for label in found["labels"] if label["text"] == names[2])
    assert {label["key"] for label in found["labels"]} == {third, "l41"}
    assert page.texts(".name")[:2] == [shown(label["text"]) for label in found["labels"]]
    assert page.run("return list.querySelectorAll('[id^=take]:checked').length") == 1
    page.type("barn kelt", [server.predict(text="barn kelt")[0]["labels"][0]["text"]])
    assert page.run("return missing.value + saved.textContent") == "" and not can_save()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_corrections_are_readable_everywhere(browser, size, scheme):
  with in_thread(serve.app(StandIn(), name="tags", learn_token=TOKEN)) as port:
    page = Page(browser, port).open(size, scheme)
    page.type("abc", ["label 0"])
    page.run("for (const box of document.querySelectorAll('#take-0, .cross')) box.click()")
    page.run("document.getElementById('take-0').click(); tell('W'.repeat(300), true)")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    assert not [one for one in page.run(CONTRASTS) if one[1] < 4.5]
    heights = "return [...document.querySelectorAll('.marks input, #save')].map((e) => e.offsetHeight)"
    assert min(page.run(heights)) >= 24
    unnamed = """return [...document.querySelectorAll('main input, main textarea')]
      .filter((e) => !(e.labels?.length || e.ariaLabel)).map((e) => e.outerHTML)"""
    assert page.run(unnamed) == []


def test_words_of_ones_own_and_probabilities_that_are_far_off(browser, workdir, tmp_path):
  copied = shutil.copytree(workdir, tmp_path / "run")
  report = json.loads((copied / "report" / "metrics.json").read_text())
  report["calibration"] |= {"ece_first": 0.124, "note": "far off"}
  (copied / "report" / "metrics.json").write_text(json.dumps(report))
  words = ["--title=Which <b>shelf</b>?", "--description=Paste an abstract.", "--threshold=0.995"]
  with running(copied, *words, "--example=barn kelt", "--example=x") as server:
    page = Page(browser, server.port).open()
    assert page.run("return document.title") == "Which <b>shelf</b>?" == page.texts("h1")[0]
    far_off = "On test texts, probabilities of best labels were 12 points off."
    assert page.texts("#about") == [f"Paste an abstract. {far_off}"]
    assert page.run("return least.value") == "99.5"
    assert page.texts("#examples button") == ["barn kelt", "x"]
    page.run("document.querySelector('#examples button').click()")
    page.wait("return document.getElementById('status').textContent.startsWith('No label reaches 99.5%')")
    assert page.run("return document.getElementById('text').value") == "barn kelt"
    assert '"threshold":0.995' in page.run("return document.getElementById('request').textContent")
    page.run("least.value = 0; least.dispatchEvent(new Event('input'))")
    assert page.run("return document.querySelectorAll('#labels > li').length") == 5


def test_the_keyboard_alone_reaches_everything(page, model):
  from selenium.webdriver.common.keys import Keys

  page.open()
  active = "return document.activeElement.id || document.activeElement.textContent"
  assert page.run(active) == "text"
  *_, names, why = model.predict(["loma mive"], 5, explain=True)
  page.press("loma mive")
  page.wait("return document.querySelector('.name')?.textContent === arguments[0]", shown(names[0][0]))
  page.wait("return document.getElementById('labels').getAttribute('aria-busy') === 'false'")
  for stop in ("file", "columns", "copy", "take-0", "Why?"):
    page.press(Keys.TAB)
    assert page.run(active) == stop
  outline = page.run("return getComputedStyle(document.activeElement).outlineStyle + innerWidth")
  assert outline.startswith("solid")
  page.press(Keys.ENTER)
  page.wait("return document.querySelector('#why-0 .why')")
  state = "return document.activeElement.getAttribute('aria-expanded')"
  assert page.run(state) == "true"
  reasons = page.run("return document.getElementById('why-0').innerText")
  for voter in why[0][0]["voters"]:
    assert " ".join(voter["text"].split()) in reasons
  assert why[0][0]["words"].lower() in reasons.lower()  # as the console says it
  page.press(Keys.SPACE)
  assert page.run(state) == "false" and page.run("return document.getElementById('why-0').hidden")
  seen = [page.run(active)]
  for _ in range(9):
    page.press(Keys.TAB)
    seen.append(page.run(active))
  assert seen.count("Why?") == 5 and seen[-1] == "API for programs"
  page.press(Keys.ENTER)
  command = page.run("return document.getElementById('request').innerText")
  assert f"curl http://127.0.0.1:{page.port}/predict -H" in command
  assert '{"text":"loma mive","k":5}' in command


def test_a_label_with_a_script_stays_a_text(page, model):
  names = model.predict([HOSTILE_QUERY], 5)[2][0]
  hostile = next(name for name in names if "<script>" in name)
  page.open("phone")
  page.type(HOSTILE_QUERY, names)
  assert shown(hostile) in page.texts(".name")
  page.run("[...document.querySelectorAll('#labels button')].forEach((b) => b.click())")
  page.wait("return document.querySelectorAll('.why').length === 5")
  assert page.run("return document.title") == "run – labels for a text"
  assert page.run("return document.querySelectorAll('main script, main img').length") == 0
  assert page.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_is_readable_everywhere(page, model, size, scheme):
  """No horizontal scrolling, and enough contrast, also with reasons, long words and errors."""
  page.open(size, scheme)
  page.type("barn kelt " + "w" * 300, model.predict(["barn kelt " + "w" * 300], 5)[2][0])
  page.run("[...document.querySelectorAll('#labels button')].forEach((b) => b.click())")
  page.wait("return document.querySelectorAll('.why').length === 5")
  page.run("document.querySelector('.name').textContent = 'W'.repeat(400)")
  assert page.run("return document.documentElement.scrollWidth <= innerWidth")
  red, *_ = page.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
  assert red < 60 if scheme == "dark" else red > 200
  page.run("document.getElementById('status').classList.add('error')")
  found = page.run(CONTRASTS)
  assert len(found) > 20
  assert not [one for one in found if one[1] < 4.5]


def test_a_click_sorts_the_labels_of_the_report(page, workdir):
  page.browser.get((workdir / "report" / "index.html").as_uri())
  page.run("document.querySelector('.sortable').open = true")
  shown = """return [...document.querySelectorAll('.sortable tbody tr')]
    .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
    .map((row) => parseFloat(row.children[arguments[0]].innerText) || 0)"""
  for column in (1, 2):
    page.run("document.getElementById(`by-${arguments[0]}`).click()", column)
    numbers = page.run(shown, column)
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) > 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_readable_on_a_phone(page, workdir, scheme):
  page.open("phone", scheme)
  page.browser.get((workdir / "report" / "index.html").as_uri())
  page.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
  assert page.run("return document.documentElement.scrollWidth <= innerWidth")
  cut = "return [...document.querySelectorAll('.wide')].filter((e) => e.scrollWidth > e.clientWidth).length"
  assert page.run("return document.querySelectorAll('.wide').length") > 4 and page.run(cut) == 0
  found = page.run(CONTRASTS)
  assert len(found) > 50 and not [one for one in found if one[1] < 4.5]


def test_what_a_screen_reader_needs(page, model):
  page.open()
  page.type("barn kelt", model.predict(["barn kelt"], 5)[2][0])
  assert page.run("return document.documentElement.lang") == "en"
  assert page.texts("h1") == ["run"]
  usual = "Type a text to see which of 60 labels fit it, with their probabilities."
  assert page.texts("#about")[0].startswith(usual)
  unnamed = """return [...document.querySelectorAll('textarea, select, button, a, ol')].filter((e) =>
    !(e.labels?.length || e.getAttribute('aria-label') || (e.tagName !== 'OL' && e.textContent.trim())))
    .map((e) => e.outerHTML)"""
  assert page.run(unnamed) == []
  assert page.run("return document.getElementById('status').getAttribute('aria-live')") == "polite"
  broken = """return [...document.querySelectorAll('[aria-controls], [aria-describedby], label[for]')]
    .map((e) => e.getAttribute('aria-controls') || e.getAttribute('aria-describedby') || e.htmlFor)
    .filter((id) => !document.getElementById(id))"""
  assert page.run(broken) == []
  buttons = "[...document.querySelectorAll('#labels button')]"
  names = page.run(f"return {buttons}.map((button) => button.getAttribute('aria-label'))")
  assert len(set(names)) == 5


def test_nothing_comes_from_elsewhere_and_the_console_is_quiet(page, model):
  page.browser.get_log("browser")
  page.open()
  page.type("barn kelt", model.predict(["barn kelt"], 5)[2][0])
  loaded = page.run("return performance.getEntriesByType('resource').map((e) => e.name)")
  assert loaded and all(name.startswith(f"http://127.0.0.1:{page.port}/") for name in loaded)
  assert page.browser.get_log("browser") == []
  # The policy holds, should a label ever get into the markup.
  put = "const made = document.createElement('script'); made.textContent = 'document.title = 1';"
  page.run(f"{put} document.body.append(made)")
  assert page.run("return document.title") != "1"
  assert any("Content Security Policy" in line["message"] for line in page.browser.get_log("browser"))


def busy(seconds: int) -> str:
  """An answer to come again after so many seconds."""
  head = f"{{status: 503, headers: {{'Retry-After': '{seconds}'}}}}"
  return f"new Response(JSON.stringify({{error: 'it is <b>busy</b>'}}), {head})"


def test_a_server_that_is_busy_at_first_is_asked_again(browser, server, model):
  """Also where the text was typed before it answered."""
  script = "const real = fetch; let asked = 0;"
  script += f"window.fetch = (...a) => asked++ ? real(...a) : {busy(3)};"
  added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
  page = Page(browser, server.port)
  try:
    browser.get(f"http://127.0.0.1:{server.port}/")
    page.wait("return document.getElementById('status').textContent.includes('tries again in 3 s')")
    assert "server is busy" in page.status()
    page.run("document.getElementById('text').focus()")
    page.press("barn kelt")
    first = shown(model.predict(["barn kelt"], 1)[2][0][0])
    page.wait("return document.querySelector('.name')?.textContent === arguments[0]", first)
    assert page.texts("h1") == ["run"] and page.status().startswith("5 labels")
  finally:
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_errors_are_told_in_plain_words(browser, workdir):
  with running(workdir) as server:
    page = Page(browser, server.port).open()
    page.run(f"window.before = fetch; window.fetch = async () => {busy(1)}")
    page.press("barn")
    page.wait("return document.getElementById('status').textContent.includes('tries again in 1 s')")
    page.run("window.fetch = window.before")
    page.wait("return document.querySelectorAll('#labels > li').length === 5")  # by itself
    server.process.kill()
    server.process.wait()
    page.press(" kelt")
    page.wait("return document.getElementById('status').textContent.startsWith('The server does not answer')")
    assert not page.texts("#labels > li")
    page.run("window.fetch = async () => new Response('<html>', {status: 502})")
    page.press(" x")
    page.wait("return document.getElementById('status').textContent.includes('with the status 502')")
