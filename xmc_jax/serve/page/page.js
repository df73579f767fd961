// Shows labels while a text is typed. Texts and labels are untrusted: they only become text nodes.
"use strict";

const DEBOUNCE_MS = 150;
const RETRY_SECONDS = 2; // where the server does not say when to come again
// Controls, and marks that change the direction of reading, which a label could use to look like another.
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

const text = document.getElementById("text");
const count = document.getElementById("count");
const status = document.getElementById("status");
const list = document.getElementById("labels");

let ready = false; // whether the server has told what it serves
let probabilities = true; // whether scores are probabilities
let timer = 0; // of the debounce, or of a new try
let running = null; // the AbortController of the request under way
let shown = null; // what is on the page: {text, k, reasons}

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

// Shows a sentence; a screen reader also reads what follows it.
function say(sentence, isError, more = "") {
  status.replaceChildren(sentence, element("span", "heard", more));
  status.classList.toggle("error", Boolean(isError));
}

// Asks for labels of a text, as `ask` does.
function predict(body, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask("predict", { method: "POST", headers, body: JSON.stringify(body), signal });
}

// Asks the server. Returns the answer; throws {sentence, seconds} if there is none.
async function ask(path, options) {
  let answer;
  let content = {};
  try {
    answer = await fetch(path, options);
    content = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!answer) throw { sentence: "The server does not answer. Is it still running?" };
  }
  if (answer.ok) return content;
  const sentence = safe(content.error || `The server answered with the status ${answer.status}.`);
  throw { sentence, seconds: answer.status === 503 ? Number(answer.headers.get("Retry-After")) || RETRY_SECONDS : 0 };
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

function ordinal(rank) {
  return rank + ({ 1: "st", 2: "nd", 3: "rd" }[rank] || "th");
}

function reasonsOf(why) {
  const box = element("div", "why");
  const sources = Object.entries(why.sources).map(([name, rank]) => `${ordinal(rank)} by ${name.replaceAll("_", " ")}`);
  box.append(element("p", "", sources.length ? `Ranked ${safe(sources.join(", "))}` : "No source alone has it among its best ten."));
  if (why.voters.length) {
    box.append(element("p", "", "Training texts that have it:"));
    const voters = element("ul");
    for (const voter of why.voters) {
      const line = element("li");
      line.append(isolated(voter.text));
      voters.append(line);
    }
    box.append(voters);
  }
  return box;
}

// Asks once for the reasons of all labels that are shown.
function reasons(of) {
  if (!of.reasons) {
    of.reasons = predict({ text: of.text, k: of.k, explain: true }).then((answer) => {
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
    box.replaceChildren(why ? reasonsOf(why) : element("p", "why", "The ranking has changed meanwhile."));
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
  line.append(isolated(label.text, "name"), element("span", "score", inWords(label.score)), button, bar);
  item.append(line, box);
  return item;
}

function show(labels, of) {
  const best = Math.max(...labels.map((label) => label.score || 0));
  list.replaceChildren(...labels.map((label, number) => row(label, number, best, of)));
  if (!labels.length) return say("No label was found for this text.");
  const number = labels.length === 1 ? "1 label" : `${labels.length} labels, best first`;
  say(number, false, `: ${safe(labels[0].text)}, ${inWords(labels[0].score)}`);
}

async function update() {
  clearTimeout(timer);
  if (!ready) return; // `start` calls this again
  if (running) running.abort();
  running = null;
  const of = { text: text.value.trim(), k: Number(count.value), reasons: null };
  if (shown && shown.text === of.text && shown.k === of.k) {
    list.setAttribute("aria-busy", "false");
    return;
  }
  if (!of.text) {
    shown = null;
    list.replaceChildren();
    list.setAttribute("aria-busy", "false");
    say("Nothing is typed yet.");
    return;
  }
  const mine = (running = new AbortController());
  list.setAttribute("aria-busy", "true");
  try {
    const answer = await predict({ text: of.text, k: of.k }, mine.signal);
    shown = of;
    show(answer.predictions[0].labels, of);
  } catch (error) {
    if (error.name === "AbortError") return;
    shown = null;
    list.replaceChildren();
    if (error.seconds) {
      say(`The server is busy. This page tries again in ${error.seconds} s.`, true);
      timer = setTimeout(update, 1000 * error.seconds);
    } else {
      say(error.sentence || String(error), true);
    }
  }
  if (running === mine) {
    running = null;
    list.setAttribute("aria-busy", "false");
  }
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(update, DEBOUNCE_MS);
}

// Asks what is served, until the server tells it.
async function start() {
  let about;
  try {
    about = await ask("health");
    if (!about.limits) throw { sentence: "This is not the answer of an xmc_jax server." };
  } catch (error) {
    const seconds = error.seconds || RETRY_SECONDS;
    const why = error.seconds ? "The server is busy or not ready." : error.sentence || String(error);
    say(`${why} (This page tries again in ${seconds} s.)`, true);
    setTimeout(start, 1000 * seconds);
    return;
  }
  probabilities = about.probabilities;
  const name = safe(about.run || "xmc_jax");
  document.title = `${name} – labels for a text`;
  document.getElementById("run").textContent = name;
  const what = probabilities ? "probabilities" : "scores";
  document.getElementById("about").textContent =
    `Type a text to see which of ${about.labels.toLocaleString("en")} labels fit it, with their ${what}.`;
  text.maxLength = about.limits.max_text_length;
  const choices = [...new Set([3, 5, 10, 20, about.k])].filter((k) => k <= about.limits.max_k || k === about.k);
  count.replaceChildren(...choices.sort((a, b) => a - b).map((k) => new Option(k, k, k === about.k, k === about.k)));
  ready = true;
  await update();
}

text.addEventListener("input", later);
count.addEventListener("change", update);
document.getElementById("form").addEventListener("submit", (event) => {
  event.preventDefault();
  update();
});
start();
