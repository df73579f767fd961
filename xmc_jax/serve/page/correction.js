// Saves which labels are right for the text that is shown. Where the server does not learn, nothing of it is seen.
"use strict";

const correction = document.getElementById("correction");
const missing = document.getElementById("missing");
const tokenField = document.getElementById("token");
const save = document.getElementById("save");
const saved = document.getElementById("saved");

let token = ""; // once the server has taken it; in memory alone
let saving = false;

// Returns a box that crosses a label out; a tick and a cross exclude each other.
function crossOf(label, tick, item, of) {
  const cross = element("input", "cross");
  cross.type = "checkbox";
  cross.setAttribute("aria-label", `${safe(label.text)} is wrong`);
  const mark = () => {
    of.wrong[cross.checked ? "add" : "delete"](label.id);
    item.classList.toggle("wrong", cross.checked);
    changed();
  };
  cross.checked = of.wrong.has(label.id);
  item.classList.toggle("wrong", cross.checked);
  cross.addEventListener("change", () => {
    if (cross.checked && tick.checked) tick.click();
    mark();
  });
  tick.addEventListener("change", () => {
    if (tick.checked && cross.checked) cross.checked = false;
    mark();
  });
  return cross;
}

// Returns what is saved: the keys of the ticked labels that are seen, and what is named.
function rightLabels() {
  const named = missing.value.split("\n").map((line) => line.trim()).filter(Boolean);
  const ticked = shown.reaching.filter((label) => shown.taken.has(label.id)).map((label) => label.key);
  return [...new Set([...ticked, ...named])];
}

function changed() {
  saved.textContent = "";
  saved.classList.remove("error");
  enableSave();
}

// Forgets what was named for the text before.
function forgetCorrection() {
  missing.value = "";
  changed();
}

function enableSave() {
  const busy = saving || list.getAttribute("aria-busy") === "true";
  save.disabled = busy || !shown || !rightLabels().length || !(token || tokenField.value.trim());
  correction.hidden = !learns || !shown;
}

function tell(sentence, isError) {
  saved.textContent = sentence;
  saved.classList.toggle("error", Boolean(isError));
}

// Asks for the token; again if the server has refused it.
function askToken(again) {
  tokenField.parentElement.hidden = !again;
  tokenField.value = "";
  if (!again) return;
  token = "";
  tokenField.focus();
}

async function saveCorrection() {
  const given = token || tokenField.value.trim();
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${given}` };
  const body = JSON.stringify({ text: shown.text, labels: rightLabels() });
  const of = shown;
  saving = true;
  enableSave();
  tell("Saving…");
  try {
    await ask("learn", { method: "POST", headers, body });
    token = given;
    askToken(false);
    tell("Saved; predictions use it from now on.");
    if (shown?.text === of.text) {
      shown.old = true; // so that it is predicted again
      await update();
    }
  } catch (error) {
    if (error.status === 401) askToken(true);
    tell(error.status === 401 ? "The token is wrong." : error.sentence || String(error), true);
  } finally {
    saving = false;
    enableSave();
    if (document.activeElement === document.body) save.focus(); // what had the focus is hidden, or was disabled
  }
}

missing.addEventListener("input", changed);
tokenField.addEventListener("input", changed);
correction.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!save.disabled) saveCorrection();
});
