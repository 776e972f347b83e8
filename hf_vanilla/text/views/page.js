// The page: a sentence, its translation, and one of the views. Here are the state, the requests, and what a visitor does;
// the views draw `now`, which has the state, the answer and the vectors, whoever computed them.
import { readAddress, writeAddress } from "./address.js";
import { chosenHead, CROSS, heads, KINDS, lines, map, MEAN, words } from "./attention.js";
import { compare } from "./compare.js";
import { ask, isService, start } from "./connection.js";
import { download } from "./download.js";
import { clamp, FONT, made, percent, range, shape, SVG } from "./drawing.js";
import { layer } from "./layer.js";
import { overview } from "./overview.js";
import { bestPath, search, tokens } from "./tree.js";

const VIEWS = { overview, map, lines, heads, tokens, search, layer, compare, words };
const at = (selector) => document.querySelector(selector);
const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const state = {
  view: "map", kind: CROSS, layer: 0, head: MEAN, // index, or MEAN
  query: 0, key: null, // indices; null: none is selected
  hypothesis: 0, step: 0, candidate: 0, // of the search
  source: null, box: 0, // of the overview
  other: 1, otherText: "", otherModel: "", // what to compare with: a hypothesis, or "asked", a text or another model
  present: null, // 1: the picture fills the screen
};
let settings = null; // of the engine or the service
let model = ""; // that translates
let question = null; // text and settings of the last translation
let answer = null; // to it; null: none, or an error
let attentions = []; // of each hypothesis, as far as asked for
let second = null; // the answer that is compared
let vectors = new Map(); // of `inside`, by request
let running = null; // the translation on its way

// --- what the views draw --------------------------------------------------------------------------

/** The vectors at a place; null: they are asked for, and the view is drawn again when they are there. */
function inside(place) {
  const request = { model: answer.model, text: answer.sentence, ids: answer.hypotheses[state.hypothesis].ids, ...place };
  const key = JSON.stringify(request);
  if (!vectors.has(key)) {
    const own = vectors;
    vectors.set(key, null);
    ask("inside", request).then((found) => {
      if (own !== vectors) return; // of an older translation
      vectors.delete(key); // what failed is asked for again when the view is drawn again
      if (found.error) return showProblem(found.error);
      vectors.set(key, found);
      redraw();
    });
  }
  return vectors.get(key);
}

function otherSide() {
  if (state.other === "asked") return second && { hypothesis: second.hypotheses[0], attention: second.attention, model: second.model };
  const [hypothesis, attention] = [answer.hypotheses[state.other], attentions[state.other]];
  return hypothesis && attention ? { hypothesis, attention, model: answer.model } : null;
}

const now = () => ({ state, answer, attention: attentions[state.hypothesis], other: otherSide(), played: play.at, inside });

const LEAST_WIDTH = 1152; // of a picture in Present, which is scaled to the window: its text of 12 has 20 px at 1920

function redraw() {
  const panel = at(".panel");
  if (!answer || !attentions[state.hypothesis]) return;
  const view = VIEWS[state.view], context = now();
  const svg = shape("svg", { xmlns: SVG, "font-family": FONT, "aria-hidden": "true", focusable: "false" });
  const scale = state.present ? Math.max(1, innerWidth / LEAST_WIDTH) : 1;
  const room = { width: (panel.clientWidth - 16) / scale, height: (panel.clientHeight - 16) / scale };
  const [width, height] = view.draw(svg, room, context).map(Math.ceil);
  const sizes = { width: Math.floor(width * scale), height: Math.floor(height * scale), viewBox: `0 0 ${width} ${height}` };
  for (const [name, value] of Object.entries(sizes)) svg.setAttribute(name, value);
  const [left, top] = [panel.scrollLeft, panel.scrollTop];
  panel.replaceChildren(svg);
  panel.scrollTo({ left, top, behavior: "instant" });
  if (view.focus) keepInSight(panel, view.focus(context) * sizes.width);
  panel.ariaLabel = `${view.name}. ${view.hint} Arrow keys move.`;
  at(".said").textContent = view.say(context);
}

function keepInSight(panel, left) {
  const isOut = left < panel.scrollLeft || left + 100 > panel.scrollLeft + panel.clientWidth;
  if (isOut) panel.scrollTo({ left: left - panel.clientWidth / 2, behavior: isStill() ? "instant" : "smooth" });
}

// --- state ----------------------------------------------------------------------------------------

/** Change the state, and draw. A layer, head or token that the new kind or view does not have becomes the nearest one. */
async function set(changes) {
  Object.assign(state, changes);
  if (!Object.hasOwn(VIEWS, state.view)) state.view = "map";
  if (!answer) return showTabs();
  state.hypothesis = clamp(0, state.hypothesis, answer.hypotheses.length - 1);
  if (state.other !== "asked") state.other = clamp(0, state.other, answer.hypotheses.length - 1);
  const asked = answer, wanted = [state.hypothesis, state.view === "compare" && state.other].filter((one) => Number.isInteger(one));
  for (const hypothesis of wanted) if (!attentions[hypothesis]) await fetchAttention(hypothesis);
  if (answer !== asked || !attentions[state.hypothesis]) return;
  fit();
  showTabs();
  showChips();
  showChoices();
  redraw();
  writeAddress(model, question, state);
}

/** The nearest state that the answer has. */
function fit() {
  const { kinds, steps: written } = attentions[state.hypothesis], view = VIEWS[state.view];
  if (view.isShown && !view.isShown(now())) state.view = "map";
  const { shape: [layers, count], queries, keys } = kinds[state.kind];
  state.layer = Math.min(state.layer, layers - 1);
  if (state.head !== MEAN && state.head >= count) state.head = MEAN;
  const isWritten = ["tokens", "words", "overview"].includes(state.view); // its rows are the tokens of the translation
  state.query = Math.min(state.query, (isWritten ? written : queries).length - 1);
  if (state.key !== null && state.key >= keys.length) state.key = null;
  const step = answer.steps[(state.step = Math.min(state.step, Math.max(answer.steps.length - 1, 0)))];
  state.candidate = Math.min(state.candidate, (step?.length ?? 1) - 1);
  state.box = Math.min(state.box, VIEWS.overview.frames() - 1);
}

function showTabs() {
  for (const tab of at(".views").children) {
    const isChosen = tab.dataset.view === state.view, { isShown = () => true } = VIEWS[tab.dataset.view];
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    tab.hidden = Boolean(answer && attentions[state.hypothesis] && !isShown(now()));
    if (isChosen) at(".stage").setAttribute("aria-labelledby", tab.id);
  }
}

/** The chips for kind of attention, layer and head; those that a view does not use are invisible, so that nothing moves. */
function showChips() {
  const { kinds } = attentions[state.hypothesis], [layers, count] = kinds[state.kind].shape, { uses } = VIEWS[state.view];
  chips("kind", KINDS.map((kind) => [kind, kind.split(/[ -]/)[0]]), uses);
  chips("layer", range(layers).map((index) => [index, `${index}`]), uses);
  chips("head", [[MEAN, "mean"], ...range(count).map((index) => [index, `${index}`])], uses);
}

function chips(name, choices, uses) {
  const group = at(`fieldset.${name}`), wanted = JSON.stringify(choices);
  group.classList.toggle("unused", !uses.includes(name));
  if (group.dataset.choices !== wanted) {
    group.dataset.choices = wanted;
    group.querySelectorAll("label").forEach((label) => label.remove());
    for (const [value, text] of choices) {
      const label = made("label", "", group), input = made("input", "", label, { type: "radio", name });
      made("span", text, label);
      input.addEventListener("change", () => set({ [name]: value, ...(name === "kind" ? { key: null } : {}) }));
    }
  }
  const { isOfOneHead = false } = VIEWS[state.view], chosen = name === "head" && isOfOneHead ? chosenHead(state) : state[name];
  group.querySelectorAll("input").forEach((input, index) => {
    Object.assign(input, { checked: choices[index][0] === chosen, disabled: isOfOneHead && choices[index][0] === MEAN });
  });
}

const optionsOf = (selector, options, value) => {
  at(selector).replaceChildren(...options.map(([name, label]) => new Option(label, name)));
  at(selector).value = String(value);
};

function showChoices() {
  const hypotheses = answer.hypotheses.map(({ score, text }, index) => [index, `${index + 1}: ${score.toFixed(2)} ${text}`]);
  optionsOf(".hypothesis", hypotheses, state.hypothesis);
  optionsOf(".other", [...hypotheses, ["asked", "another sentence or model"]], state.other);
  document.body.dataset.view = state.view;
  document.body.classList.add("answered");
  document.body.classList.toggle("asks", state.other === "asked");
  showTranslation();
}

/** The translation; while it plays, as far as it is written. */
function showTranslation() {
  const { text } = answer.hypotheses[state.hypothesis], { steps } = attentions[state.hypothesis];
  const written = steps.slice(0, play.at + 1).map(({ token }) => (/^<.+>$/.test(token) ? "" : token.replaceAll("␣", " ")));
  const isByToken = play.at < Infinity && VIEWS[state.view].frames(now()) === steps.length;
  const length = isByToken && text.startsWith(written.join("").trimStart()) ? written.join("").trimStart().length : text.length;
  at(".written").textContent = text.slice(0, length) || (text ? "" : "(an empty translation)");
  at(".later").textContent = text.slice(length);
  at(".translation").dataset.length = text.length > 75 ? "long" : text.length > 28 ? "middle" : "short"; // smaller, on more lines
}

// --- requests -------------------------------------------------------------------------------------

const showProblem = (text) => (at(".problem").textContent = text);

async function fetchAttention(hypothesis) {
  const asked = answer, { ids } = answer.hypotheses[hypothesis];
  const found = await ask("attend", { model: answer.model, text: answer.sentence, ids });
  if (answer !== asked) return;
  if (found.error) showProblem(found.error);
  else attentions[hypothesis] = found;
}

/** The settings of the search as a visitor wrote them, by name. */
const settingsAsked = () => Object.fromEntries([...document.querySelectorAll(".search [name]")].map((field) => [field.name, field.value.trim()]));

function requestOf(text, { beams, search: kind, temperature, top_k, top_p, seed, ...lengths }, name = model) {
  const sampling = kind === "sampling" ? { sampling: { temperature, top_k, top_p, seed } } : {};
  return { model: name, text, beams: Number(beams), lengths, ...sampling };
}

/** Ask for a translation; null: a newer one was asked for meanwhile. */
async function asked(request) {
  running?.cancel();
  document.body.setAttribute("aria-busy", "true");
  at(".translate").textContent = "Stop";
  const own = (running = ask("translate", request, ({ length, limit }) => {
    Object.assign(at(".progress"), { max: limit, value: length });
    at(".status").textContent = `Searching: token ${length} of at most ${limit}.`;
  }));
  const found = await own;
  if (running !== own) return null;
  running = null;
  document.body.removeAttribute("aria-busy");
  at(".translate").textContent = "Translate";
  at(".progress").value = 0;
  return found;
}

async function translate(changes = {}) {
  if (!settings) return; // what is typed while the model loads is translated first
  stop();
  const text = at("#source").value, chosen = settingsAsked();
  const found = await asked(requestOf(text, chosen));
  if (!found) return;
  showProblem(found.error ?? "");
  [answer, attentions, second, vectors] = [null, [], null, new Map()];
  if (found.error) return clear();
  question = { text, settings: chosen };
  [answer, attentions] = [found, [found.attention]];
  const path = bestPath(found.steps), step = Math.max(path.length - 1, 0); // the cursor of the search is at the result
  Object.assign(state, { hypothesis: 0, query: 0, key: null, step, candidate: path[step] ?? 0, source: null });
  at(".sentence").textContent = found.sentence;
  await set(changes);
  showReport();
  if (state.other === "asked") await compareWith();
}

function clear() {
  for (const part of [".written", ".later", ".status", ".said"]) at(part).textContent = "";
  at(".panel").replaceChildren();
  showTabs();
}

/** What a model knows, with the names of the languages in place of their codes. */
function named(about) {
  const languages = new Intl.DisplayNames("en", { type: "language" });
  return about.replace(/Translates: ([a-z]{2,3}) to ([a-z]{2,3})\b/, (_, from, to) => `Translates: ${languages.of(from)} to ${languages.of(to)}`);
}

const UNSURE_BELOW = 0.6; // mean probability of a token

/** Score and probability of the chosen translation, and the signs that the model does not know such texts. */
function showReport() {
  if (!answer) return;
  const { hypotheses, doubt } = answer, { score, logProb, ids } = hypotheses[state.hypothesis];
  const probability = Math.exp(logProb / ids.length);
  const unsure = probability < UNSURE_BELOW ? "the translation has a low probability: the model may not know such texts" : "";
  const [noted, start] = [doubt ?? unsure, `Score ${score.toFixed(2)}, mean probability of a token ${percent(probability)}.`];
  at(".status").textContent = noted ? `Note: ${noted}. ${start}` : start;
}

/** Translate the sentence or by the model to compare with. */
async function compareWith() {
  const { settings: chosen, text } = question;
  const found = await asked(requestOf(state.otherText || text, chosen, state.otherModel || model));
  if (!found) return;
  showProblem(found.error ?? "");
  second = found.error ? null : found;
  showReport();
  set({});
}

async function load() {
  const name = at(".model").value.trim(), found = await ask("load", { model: name });
  showProblem(found.error ?? "");
  if (found.error) return;
  model = name;
  at(".about").textContent = named(found.about);
  if (at("#source").value) translate();
}

// --- play and present -----------------------------------------------------------------------------

const play = { at: Infinity, timer: 0 }; // the step that is shown; Infinity: all
const PAUSE_MS = 700, LONGEST_MS = 15_000;

function stop() {
  clearInterval(play.timer);
  Object.assign(play, { at: Infinity, timer: 0 });
  at(".play").textContent = "Play";
  at(".said").setAttribute("aria-live", "polite");
}

/** Show the view step by step; at the end, all of it. */
function startPlaying() {
  const view = VIEWS[state.view], count = view.frames(now());
  at(".play").textContent = "Stop playing";
  at(".said").setAttribute("aria-live", "off"); // a reader of screens hears the last sentence
  const show = (index) => {
    play.at = index;
    if (index >= count) stop();
    set(view.frame(Math.min(index, count - 1), now()));
  };
  show(0);
  play.timer = setInterval(() => show(play.at + 1), Math.min(PAUSE_MS, LONGEST_MS / count));
}

function present(isOn) {
  document.body.classList.toggle("presenting", isOn);
  at(".present").setAttribute("aria-pressed", String(isOn));
  at(".present").textContent = isOn ? "Leave" : "Present";
  if (isOn) document.documentElement.requestFullscreen?.().catch(() => {}); // without it, the window is filled
  else if (document.fullscreenElement) document.exitFullscreen();
  set({ present: isOn ? 1 : null });
}

// --- events ---------------------------------------------------------------------------------------

for (const [name, view] of Object.entries(VIEWS)) {
  const attributes = { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "stage", "data-view": name };
  made("button", view.name, at(".views"), attributes).addEventListener("click", () => choose(name));
}

function choose(view) {
  stop();
  set({ view });
}

at(".views").addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const tabs = [...at(".views").children].filter((tab) => !tab.hidden);
  const next = tabs[(tabs.findIndex((tab) => tab.dataset.view === state.view) + by + tabs.length) % tabs.length];
  choose(next.dataset.view);
  next.focus();
});
at(".ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) running.cancel();
  else translate();
});
at("#source").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  translate();
});
at(".example").addEventListener("click", () => {
  const { examples } = settings, place = examples.indexOf(at("#source").value);
  at("#source").value = examples[(place + 1) % examples.length];
  translate();
});
at(".search").addEventListener("change", () => {
  samples();
  if (at("#source").value.trim()) translate();
});
at(".models").addEventListener("submit", (event) => {
  event.preventDefault();
  load();
});
for (const name of ["hypothesis", "other"]) {
  at(`.${name}`).addEventListener("change", ({ target: { value } }) => set({ [name]: value === "asked" ? value : Number(value) }).then(showReport));
}
at(".comparison").addEventListener("submit", (event) => {
  event.preventDefault();
  Object.assign(state, { otherText: at(".otherText").value, otherModel: at(".otherModel").value });
  if (answer) compareWith();
});

const panel = at(".panel");
// A browser also reports a mouse that rests where something new was drawn: only a mouse that moves selects.
let mouse = "";
panel.addEventListener("pointerover", (event) => {
  const place = event.target.closest("[data-hover]"), spot = `${event.screenX} ${event.screenY}`;
  const hasMoved = spot !== mouse;
  mouse = spot;
  if (!place || !hasMoved || event.pointerType !== "mouse" || play.timer) return;
  const changes = JSON.parse(place.dataset.hover);
  if (Object.entries(changes).some(([name, value]) => state[name] !== value)) set(changes);
});
panel.addEventListener("click", (event) => {
  const place = event.target.closest("[data-click]");
  if (!place) return;
  stop();
  set(JSON.parse(place.dataset.click));
});
panel.addEventListener("keydown", (event) => {
  if (!answer || event.ctrlKey || event.altKey || event.metaKey) return;
  const changes = VIEWS[state.view].move(event.key, now());
  if (!changes) return;
  event.preventDefault();
  stop();
  set(changes);
});
for (const [name, by] of [["back", -1], ["next", 1]]) {
  at(`.${name}`).addEventListener("click", () => {
    stop();
    if (answer) set(VIEWS[state.view].step(by, now()));
  });
}
at(".play").addEventListener("click", () => {
  if (play.timer) {
    stop();
    set({});
  } else if (answer) startPlaying();
});
at(".present").addEventListener("click", () => present(!state.present));
document.addEventListener("keydown", (event) => event.key === "Escape" && state.present && present(false));
document.addEventListener("fullscreenchange", () => !document.fullscreenElement && state.present && present(false));
for (const button of document.querySelectorAll(".save")) {
  button.addEventListener("click", () => answer && download(button.dataset.kind, state.view, answer));
}
new ResizeObserver(redraw).observe(panel);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
window.addEventListener("hashchange", () => openAddress());

// --- start ----------------------------------------------------------------------------------------

const samples = () => document.body.classList.toggle("samples", settingsAsked().search === "sampling");

/** Translate what the address says; false: it says nothing. */
async function openAddress() {
  const found = readAddress(model, [...document.querySelectorAll(".search [name]")].map((field) => field.name));
  if (!found) return false;
  if (found.text) {
    at("#source").value = found.text;
    for (const [name, text] of Object.entries(found.settings)) at(`.search [name=${name}]`).value = text;
    samples();
    for (const name of ["otherText", "otherModel"]) if (found.changes[name]) at(`.${name}`).value = found.changes[name];
    await translate({ key: null, source: null, ...found.changes });
    if (found.changes.present) present(true);
  }
  if (found.problem) showProblem(found.problem);
  return Boolean(found.text);
}

// for the console: `await hfVanilla.translate("forty-two")`, by the engine
if (!isService) globalThis.hfVanilla = { translate: (text, options = {}) => ready.then(() => ask("plain", { model, text, options })) };

showTabs();
at(".status").textContent = "Loading the model.";
const ready = start().then((found) => {
  if (found.error) throw new Error(found.error);
  settings = found;
  model = found.model;
  const { about, beams, maxBeams, penalty, models = [model], examples, isFixed } = found;
  document.body.classList.toggle("serves", isService);
  at(".about").textContent = named(about);
  at(".models").hidden = isFixed;
  at(".example").disabled = !examples.length; // it keeps its room
  optionsOf(".otherModel", models.map((name) => [name, name]), model);
  optionsOf("[name=beams]", range(maxBeams).map((index) => [index + 1, index + 1]), beams);
  if (penalty !== undefined) at("[name=length_penalty]").placeholder = penalty;
  at(".status").textContent = "";
});
ready
  .then(openAddress)
  .then(async (isLinked) => {
    if (isLinked || !settings.sentence) return;
    const problem = at(".problem").textContent; // of a link
    at("#source").value ||= settings.sentence;
    await translate({ layer: Infinity });
    if (problem) showProblem(problem);
    if (answer && !isStill()) startPlaying();
  })
  .catch((error) => {
    at(".status").textContent = "";
    showProblem(error.message);
  });
