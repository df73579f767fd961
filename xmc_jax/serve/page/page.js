// Shows labels while a text is typed. Texts and labels are untrusted: they only become text nodes.
"use strict";

const DEBOUNCE_MS = 150;
const RETRY_SECONDS = 2; // where the server does not say when to come again
const ANSWER_SECONDS = 30; // the longest wait for an answer
const WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
const EXCERPT = 200; // characters of a training text
// Controls, and marks that change the direction of reading, which a label could use to look like another.
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

const text = document.getElementById("text");
const count = document.getElementById("count");
const least = document.getElementById("least");
const part = document.getElementById("part");
const without = document.getElementById("without");
const language = document.getElementById("language");
const file = document.getElementById("file");
const columns = document.getElementById("columns");
const copy = document.getElementById("copy");
const status = document.getElementById("status");
const list = document.getElementById("labels");

let ready = false; // whether the server has told what it serves
let probabilities = true; // whether scores are probabilities
let own = ""; // the language of names where a request does not say
let largest = Infinity; // bytes of a file
let longest = Infinity; // characters of a text that the server reads
let learns = false; // whether the server takes corrections
let timer = 0; // of the debounce, or of a new try
let running = new AbortController(); // of the last request
let shown = null; // what is on the page: {text, more, k, part, without, language, labels, taken, wrong, reaching, reasons}

function element(name, css, content) {
  const made = document.createElement(name);
  if (css) made.className = css;
  if (content !== undefined) made.textContent = content;
  return made;
}

function safe(untrusted) {
  return untrusted.replace(UNSAFE, "\ufffd");
}

function isolated(untrusted, css) {
  const made = element("bdi", css, safe(untrusted));
  made.dir = "auto";
  return made;
}

// Shows a sentence; a screen reader also reads what follows it, and nothing twice.
function say(sentence, isError, more = "") {
  if (status.textContent !== sentence + more) status.replaceChildren(sentence, element("span", "heard", more));
  status.classList.toggle("error", Boolean(isError));
}

// Returns the request for the labels of a text; the page itself leaves out those below its threshold.
function bodyOf(of) {
  return { ...wanted(of), ...(probabilities && { threshold: 0 }) };
}

function wanted({ text, k, part, without, language }) {
  const parts = { ...(part && { include: [part] }), ...(without && { exclude: [without] }) };
  return { text, k, ...parts, ...(language && { language }) };
}

// Asks for labels of a text, as `ask` does.
function predict(body, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask("predict", { method: "POST", headers, body: JSON.stringify(body), signal });
}

// Asks the server. Returns the answer; throws {sentence, seconds, status} if there is none.
async function ask(path, options) {
  let answer;
  let content = {};
  try {
    answer = await fetch(path, options);
    content = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error.name === "TimeoutError") {
      throw { sentence: `The server has not answered for ${ANSWER_SECONDS} s.`, seconds: RETRY_SECONDS };
    }
    if (!answer) throw { sentence: "The server does not answer. Is it still running?" };
  }
  if (answer.ok) return content;
  if (answer.status === 503) {
    throw { sentence: "The server is busy.", seconds: Number(answer.headers.get("Retry-After")) || RETRY_SECONDS };
  }
  const sentence = safe(content.error || `The server answered with the status ${answer.status}.`);
  throw { sentence, status: answer.status };
}

function inWords(score) {
  if (score === null) return "–";
  if (!probabilities) return score.toFixed(3);
  const percent = 100 * score;
  return percent > 0 && percent < 0.1 ? "< 0.1%" : `${percent.toFixed(percent < 9.95 ? 1 : 0)}%`;
}

function width(score, best) {
  if (score === null) return 0;
  const share = probabilities ? score : best > 0 ? score / best : 0;
  return 100 * Math.min(1, Math.max(0, share));
}

// Returns the part of a training text that shares most with the typed text, with the shared words marked.
function excerpt(untrusted, typed) {
  const source = safe(untrusted);
  const words = new Set(typed.toLowerCase().match(/[\p{L}\p{N}]{3,}/gu));
  const common = [...source.matchAll(/[\p{L}\p{N}]+/gu)].filter((match) => words.has(match[0].toLowerCase()));
  let start = 0;
  let most = 0;
  for (let first = 0, last = 0, letters = 0; first < common.length; letters -= common[first++][0].length) {
    while (last < common.length && common[last].index + common[last][0].length <= common[first].index + EXCERPT) {
      letters += common[last++][0].length;
    }
    if (letters > most) [start, most] = [common[first].index, letters];
  }
  if (source.length <= EXCERPT) start = 0;
  const end = start + EXCERPT;
  const part = element("bdi", "", start ? "… " : "");
  part.dir = "auto";
  for (const match of common.filter(({ index }) => start <= index && index < end)) {
    part.append(source.slice(start, match.index), element("mark", "", match[0]));
    start = match.index + match[0].length;
  }
  part.append(source.slice(start, end), end < source.length ? " …" : "");
  return part;
}

function reasonsOf(why, typed) {
  const box = element("div", "why");
  const sentence = safe(why.words);
  box.append(element("p", "", `${sentence[0].toUpperCase()}${sentence.slice(1)}${why.voters.length ? ":" : "."}`));
  if (why.voters.length) {
    const voters = element("ul");
    for (const voter of why.voters) {
      const line = element("li");
      line.append(excerpt(voter.text, typed));
      voters.append(line);
    }
    box.append(voters);
  }
  return box;
}

// Asks once for the reasons of all labels that are shown.
function reasons(of) {
  if (!of.reasons) {
    of.reasons = predict({ ...bodyOf(of), explain: true }).then((answer) => {
      return new Map(answer.predictions[0].labels.map((label) => [label.id, label.why]));
    });
    of.reasons.catch(() => { of.reasons = null; });
  }
  return of.reasons;
}

async function toggle(button, box, label, of) {
  const opens = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", String(opens));
  box.hidden = !opens;
  if (!opens || box.firstChild) return;
  try {
    const why = (await reasons(of)).get(label.id);
    box.replaceChildren(why ? reasonsOf(why, of.text) : element("p", "why", "The ranking has changed meanwhile."));
  } catch (error) {
    button.setAttribute("aria-expanded", "false");
    box.hidden = true;
    say(error.sentence || String(error), true);
  }
}

function row(label, number, best, of) {
  const item = element("li");
  const line = element("div", "label");
  const button = element("button", "", "Why?");
  const box = element("div");
  const bar = element("span", "bar");
  const filled = element("span");
  box.id = `why-${number}`;
  box.hidden = true;
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.setAttribute("aria-controls", box.id);
  button.setAttribute("aria-label", `Why ${safe(label.text)}?`);
  button.addEventListener("click", () => toggle(button, box, label, of));
  bar.setAttribute("aria-hidden", "true");
  filled.style.width = `${width(label.score, best)}%`;
  bar.append(filled);
  const tick = element("input");
  tick.type = "checkbox";
  tick.id = `take-${number}`;
  tick.checked = of.taken.has(label.id);
  tick.addEventListener("change", () => {
    of.taken[tick.checked ? "add" : "delete"](label.id);
    nameCopy();
  });
  const cell = element("label", "cell");
  cell.htmlFor = tick.id;
  cell.append(isolated(label.text, "name"));
  if (label.notation) cell.append(" ", isolated(label.notation, "notation"));
  if (label.key !== label.text) cell.append(" ", isolated(label.key, "key"));
  const marks = element("span", "marks");
  marks.append(tick, ...(learns ? [crossOf(label, tick, item, of)] : []));
  line.append(marks, cell, element("span", "score", inWords(label.score)), button, bar);
  item.append(line, box);
  return item;
}

function tellCommand(of) {
  const threshold = probabilities && Number(least.value) ? { threshold: Number(least.value) / 100 } : {};
  const body = JSON.stringify({ ...wanted(of), text: of.text.slice(0, EXCERPT), ...threshold }).replaceAll("'", "'\\''");
  document.getElementById("request").textContent =
    `curl ${new URL("predict", location.href)} -H 'Content-Type: application/json' -d '${safe(body)}'`;
}

// Shows the labels of an answer that reach the threshold.
function show(of) {
  const reaching = of.labels.filter((label) => !(label.score < Number(least.value) / 100) || !probabilities);
  const best = Math.max(...of.labels.map((label) => label.score || 0));
  shown = Object.assign(of, { reaching });
  list.replaceChildren(...reaching.map((label, number) => row(label, number, best, of)));
  list.setAttribute("aria-busy", "false");
  copy.hidden = !reaching.length;
  columns.hidden = copy.hidden || reaching.every((label) => label.key === label.text);
  nameCopy();
  enableSave();
  tellCommand(of);
  const read = longest.toLocaleString("en");
  const cut = of.more ? ` Only the first ${read} characters were read, ${of.more} more were not.` : "";
  if (!of.labels.length) return say(`No label was found for this text.${cut}`);
  if (!reaching.length) return say(`No label reaches ${least.value}%; the best has ${inWords(best)}.${cut}`);
  const number = reaching.length === 1 ? "1 label" : `${reaching.length} labels, best first`;
  say(`${number}${cut && `.${cut}`}`, false, `: ${safe(reaching[0].text)}, ${inWords(reaching[0].score)}`);
}

function clear(sentence, isError) {
  shown = null;
  list.replaceChildren();
  list.setAttribute("aria-busy", "false");
  copy.hidden = columns.hidden = true;
  enableSave();
  say(sentence, isError);
}

async function update() {
  clearTimeout(timer);
  if (!ready) return; // `start` calls this again
  running.abort();
  const letters = [...text.value.trim()];
  const more = letters.length > longest ? (letters.length - longest).toLocaleString("en") : "";
  const of = { text: letters.slice(0, longest).join(""), more, k: Number(count.value), reasons: null };
  of.part = part.value;
  of.without = without.value;
  of.language = language.value === own ? "" : language.value;
  if (!of.text) return clear("Nothing is typed yet.");
  if (shown && !shown.old && ["text", "k", "part", "without", "language"].every((key) => shown[key] === of[key])) return show({ ...shown, more: of.more });
  const isSame = shown?.text === of.text;
  const taken = isSame ? shown.taken : new Set(); // the ids of ticked labels
  const wrong = isSame ? shown.wrong : new Set(); // and of those that are crossed out
  if (!isSame) forgetCorrection();
  const mine = (running = new AbortController());
  const late = setTimeout(() => mine.abort(new DOMException("", "TimeoutError")), 1000 * ANSWER_SECONDS);
  working();
  try {
    const answer = await predict(bodyOf(of), mine.signal);
    show({ ...of, labels: answer.predictions[0].labels, taken, wrong });
  } catch (error) {
    if (error.name === "AbortError") return;
    const again = error.seconds ? ` This page tries again in ${error.seconds} s.` : "";
    clear(`${error.sentence || error}${again}`, true);
    if (again) timer = setTimeout(update, 1000 * error.seconds);
  } finally {
    clearTimeout(late);
  }
}

function working() {
  list.setAttribute("aria-busy", "true");
  enableSave();
  say("Working…");
}

function later() {
  clearTimeout(timer);
  if (ready && text.value.trim()) working();
  timer = setTimeout(update, DEBOUNCE_MS);
}

// Returns the labels to copy: those that are ticked, or all that are shown if none is.
function toCopy() {
  const ticked = shown.reaching.filter((label) => shown.taken.has(label.id));
  return ticked.length ? ticked : shown.reaching;
}

function nameCopy() {
  const labels = shown ? toCopy() : [];
  copy.textContent = shown && labels !== shown.reaching ? `Copy ${labels.length}` : "Copy";
}

// Copies labels, one a line: its key, if it has one, its name and its score, with tabs between; or one of these.
async function copyLabels() {
  const cells = toCopy().map((label) => {
    if (columns.value !== "all" && !columns.hidden) return [label[columns.value]];
    return [...(label.key === label.text ? [] : [label.key]), label.text, inWords(label.score)];
  });
  const lines = cells.map((line) => line.map((cell) => safe(cell).replace(/\s+/g, " ")).join("\t"));
  try {
    await navigator.clipboard.writeText(lines.join("\n"));
    copy.textContent = "Copied";
  } catch {
    copy.textContent = "This browser refuses"; // as it does where a page comes neither by HTTPS nor from this machine
  }
  setTimeout(nameCopy, 2000);
}

// Puts the text of a file in place of what is typed; the server extracts that of PDF and Word files.
async function readFile(given) {
  if (!given) return;
  clearTimeout(timer);
  running.abort();
  const mine = (running = new AbortController());
  working();
  try {
    const start = await given.slice(0, 4).text();
    const type = { "%PDF": "application/pdf", "PK\x03\x04": WORD }[start];
    if (given.size > largest) throw { sentence: `A file may have ${largest.toLocaleString("en")} bytes.` };
    const asked = { method: "POST", headers: { "Content-Type": type }, body: given, signal: mine.signal };
    const content = type ? (await ask("text", asked)).text : await given.text();
    if (mine.signal.aborted) return;
    if (content.includes("\0")) throw { sentence: "This is no text file." };
    text.value = content;
    update();
  } catch (error) {
    if (error.name !== "AbortError") clear(error.sentence || String(error), true);
  }
}

function offer(examples) {
  const box = document.getElementById("examples");
  box.hidden = !examples.length;
  for (const example of examples) {
    const button = element("button");
    button.type = "button";
    button.append(isolated(example));
    button.addEventListener("click", () => {
      text.value = example;
      update();
    });
    box.append(button);
  }
}

function languageName(tag) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(tag);
  } catch {
    return safe(tag) || "any"; // what is no language tag
  }
}

// Asks what is served, until the server tells it.
async function start() {
  let about;
  try {
    about = await ask("health");
    if (!about.limits) throw { sentence: "This is not the answer of an xmc_jax server." };
  } catch (error) {
    const seconds = error.seconds || RETRY_SECONDS;
    say(`${error.sentence || error} (This page tries again in ${seconds} s.)`, true);
    setTimeout(start, 1000 * seconds);
    return;
  }
  probabilities = about.probabilities;
  const name = safe(about.title || about.run || "xmc_jax");
  document.title = about.title ? name : `${name} – labels for a text`;
  document.getElementById("run").textContent = name;
  const what = probabilities ? "probabilities" : "scores";
  document.getElementById("about").textContent =
    safe(about.description) || `Type a text to see which of ${about.labels.toLocaleString("en")} labels fit it, with their ${what}.`;
  if (probabilities && about.calibrated === false) {
    const points = Math.round(100 * about.calibration_error);
    document.getElementById("about").append(` On test texts, probabilities of best labels were ${points} points off.`);
  }
  longest = about.limits.max_text_length;
  learns = about.learns;
  list.classList.toggle("learns", learns);
  largest = about.limits.max_file_bytes;
  least.parentElement.hidden = !probabilities;
  least.value = probabilities ? Math.round(1e6 * about.threshold) / 1e4 : 0;
  own = about.language;
  const tags = own ? about.languages : ["", ...about.languages];
  language.replaceChildren(...tags.map((tag) => new Option(languageName(tag), tag, tag === own, tag === own)));
  language.parentElement.hidden = about.languages.length < 2;
  for (const choice of [part, without]) {
    choice.append(...about.parts.map(({ name, include }) => new Option(safe(name), include)));
    choice.parentElement.hidden = !about.parts.length;
  }
  offer(about.examples);
  const choices = [...new Set([3, 5, 10, 20, about.k])].filter((k) => k <= about.limits.max_k || k === about.k);
  count.replaceChildren(...choices.sort((a, b) => a - b).map((k) => new Option(k, k, k === about.k, k === about.k)));
  tellCommand({ text: about.examples[0] || "a text", k: about.k });
  ready = true;
  await update();
}

text.addEventListener("input", later);
for (const choice of [count, part, without, language]) choice.addEventListener("change", update);
file.addEventListener("change", () => {
  readFile(file.files[0]);
  file.value = ""; // so that the same file can be chosen again
});
document.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
document.addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return; // a piece of text
  event.preventDefault();
  readFile(event.dataTransfer.files[0]);
});
least.addEventListener("input", () => shown && show(shown));
copy.addEventListener("click", copyLabels);
document.getElementById("form").addEventListener("submit", (event) => {
  event.preventDefault();
  update();
});
start();
