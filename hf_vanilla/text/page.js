// The page of `text_page.py`: input, requests, the address with the state, and events. In front of
// it stand `component.js`, `page_drawing.js` and the scripts of the views.

let settings = null;
let model = ""; // that visitors use now
let question = null; // text and settings of the last translation

const optionsOf = (select, options, value) => {
  part(select).replaceChildren(...options.map(([name, label]) => new Option(label, name)));
  part(select).value = String(value);
};

function showProblem(text) {
  part("problem").textContent = text;
}

// --- state --------------------------------------------------------------------------------------

const CHOICES = ["hypothesis", "other", "kind", "layer", "head"]; // of an answer
const VIEWS = ["map", "lines", "words", "heads", "tokens", "search", "compare", "layer"];
// name in the address: name in the state, and whether a text is one of its values
const isCount = (text) => /^\d{1,4}$/.test(text);
const FIELDS = {
  v: ["view", (text) => VIEWS.includes(text)],
  k: ["kind", (text) => KINDS.includes(text)],
  l: ["layer", isCount],
  d: ["head", (text) => text === MEAN || isCount(text)],
  q: ["query", isCount],
  y: ["key", isCount],
  h: ["hypothesis", isCount],
  t: ["step", isCount],
  c: ["candidate", isCount],
};

// a link serves on other machines too, where the folder lies elsewhere
const shortName = (name) => (name === settings.model ? settings.shortName : name);

function writeAddress() {
  const fields = new URLSearchParams({ m: shortName(model), s: question.text, ...settingsInAddress(question) });
  for (const [short, [name]] of Object.entries(FIELDS)) {
    if (state[name] !== null) fields.set(short, state[name]);
  }
  history.replaceState(null, "", `#${fields}`);
}

// The state in the address; null: there is none. A text: why it is ignored.
function readAddress() {
  if (location.hash.length < 2) return null;
  const fields = new URLSearchParams(location.hash.slice(1));
  if (!fields.get("s") || !fields.has("m")) return "The state in the address is damaged: it is ignored.";
  if (fields.get("m") !== shortName(model)) return "The state in the address is of another model: it is ignored.";
  const found = { sentence: fields.get("s"), settings: settingsOf(fields), changes: {} };
  let isWhole = found.settings !== null;
  for (const [short, [name, isValue]] of Object.entries(FIELDS)) {
    const text = fields.get(short);
    if (text === null) continue;
    isWhole &&= isValue(text);
    found.changes[name] = isCount(text) ? Number(text) : text;
  }
  return isWhole ? found : "The state in the address is damaged: it is ignored.";
}

// Whether a state names what exists in this answer.
function fits(wanted) {
  const { kind, layer, head, query, key, hypothesis, step, candidate } = wanted;
  const { shape: size, queries, keys } = answer.attention.kinds[kind];
  const [layers, heads] = size;
  return (
    layer < layers && (head === MEAN || head < heads) && hypothesis < answer.hypotheses.length &&
    (hypothesis > 0 || (query < queries.length && (key === null || key < keys.length))) &&
    step < Math.max(answer.steps.length, 1) && candidate < (answer.steps[step]?.length ?? 1)
  );
}

// Set the state and draw. A layer, head or token that the new kind or view has not, gives way.
async function set(changes) {
  if (!answer) {
    Object.assign(state, { view: changes.view ?? state.view });
    showTabs();
    return;
  }
  const before = { ...state };
  Object.assign(state, changes);
  if (!attentions[state.hypothesis] && !(await fetchAttention(state.hypothesis))) return;
  if (state.view === "compare" && typeof state.other === "number" && !attentions[state.other]) {
    await fetchAttention(state.other);
  }
  if (!answer) return;
  const { shape: size, queries, keys } = current().kinds[state.kind];
  const rows = ["tokens", "words"].includes(state.view) ? current().steps.length : queries.length;
  if (state.layer >= size[0]) state.layer = size[0] - 1;
  if (state.head !== MEAN && state.head >= size[1]) state.head = MEAN;
  state.query = Math.min(state.query, rows - 1);
  if (state.key !== null && state.key >= keys.length) state.key = null;
  showTabs();
  showControls(before);
  redraw();
  writeAddress();
}

function showTabs() {
  for (const tab of part("views").children) {
    const isChosen = tab.dataset.view === state.view;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    if (isChosen) part("stage").setAttribute("aria-labelledby", tab.id);
  }
}

function showControls(before) {
  const [layers, heads] = current().kinds[state.kind].shape;
  const label = ({ score, text }, index) => `${index + 1}: ${score.toFixed(2)} ${text}`;
  const hypotheses = answer.hypotheses.map((hypothesis, index) => [index, label(hypothesis, index)]);
  const others = second ? [...hypotheses, ["model", `${second.model}: ${second.hypotheses[0].text}`]] : hypotheses;
  optionsOf("hypothesis", hypotheses, state.hypothesis);
  optionsOf("other", others, state.other);
  optionsOf("kind", KINDS.map((kind) => [kind, kind]), state.kind);
  optionsOf("layer", range(layers).map((index) => [index, index]), state.layer);
  optionsOf("head", [[MEAN, "mean of all"], ...range(heads).map((index) => [index, index])], state.head);
  disableChoices();
  if (before.hypothesis !== state.hypothesis) showTranslation();
}

// The chosen hypothesis.
function showTranslation() {
  part("translation").textContent = answer.hypotheses[state.hypothesis].text || "(an empty translation)";
}

// Show the attention of the best translation.
function showAnswer(found) {
  [answer, second] = [found, null];
  attentions = [withBytes(answer.attention)];
  const other = Math.min(1, answer.hypotheses.length - 1);
  Object.assign(state, { hypothesis: 0, other, query: 0, key: null, step: 0, candidate: 0 });
}

// without an answer there is nothing to choose
function disableChoices() {
  for (const name of CHOICES) part(name).disabled = !answer;
}

// --- requests -----------------------------------------------------------------------------------

async function fetchAttention(hypothesis) {
  const request = { model: answer.model, text: answer.sentence, ids: answer.hypotheses[hypothesis].ids };
  const asked = answer;
  const found = await call("attend", request);
  if (!found || answer !== asked) return false;
  showProblem(found.error ?? "");
  if (found.error) return false;
  attentions[hypothesis] = withBytes(found);
  return true;
}

function clear(problem = "") {
  [answer, second, attentions] = [null, null, []];
  part("translation").textContent = "";
  for (const name of CHOICES) part(name).replaceChildren();
  disableChoices();
  showProblem(problem);
  redraw();
}

async function translate(wanted = null) {
  const asked = { text: part("sentence").value, ...settingsAsked() };
  showProblem("");
  part("translation").textContent = "Translating…";
  const found = await call("translate", { model, ...asked });
  if (!found) return;
  if (found.error) {
    clear(found.error);
    return;
  }
  question = asked;
  showAnswer({ ...asked, ...found });
  Object.assign(state, { layer: answer.attention.kinds[state.kind].shape[0] - 1, head: MEAN });
  const all = { ...state, ...wanted };
  const isFit = !wanted || fits(all);
  if (answer.doubt) showProblem(`Note: ${answer.doubt}.`);
  if (!isFit) showProblem("The state in the address does not fit this translation: it is ignored.");
  showTranslation();
  await set(isFit && wanted ? wanted : {});
}

function openAddress() {
  const found = readAddress();
  if (typeof found === "string") {
    showProblem(found);
    return;
  }
  if (!found) return;
  part("sentence").value = found.sentence;
  showSettings(found.settings);
  translate({ ...state, key: null, ...found.changes });
}

async function load() {
  const name = part("model").value;
  const found = await call("load", { model: name });
  if (!found) return;
  if (found.error) {
    clear(found.error);
    return;
  }
  model = name.trim();
  part("about").textContent = found.about;
  clear();
}

async function addModel() {
  if (!answer) return;
  const { text, beams, sampling, lengths } = answer;
  const request = { model: part("second").value, text, beams, sampling, lengths };
  const [asked, found] = [answer, await call("translate", request)];
  if (!found || answer !== asked) return;
  showProblem(found.error ?? "");
  if (found.error) return;
  second = found;
  withBytes(second.attention);
  set({ other: "model", view: "compare" });
}

// --- events -------------------------------------------------------------------------------------

part("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
part("models").addEventListener("submit", (event) => {
  event.preventDefault();
  load();
});
part("add").addEventListener("click", addModel);

const asNumber = (text) => (isCount(text) ? Number(text) : text);
for (const name of CHOICES) {
  part(name).addEventListener("change", (event) => {
    set({ [name]: asNumber(event.target.value), ...(name === "kind" ? { key: null } : {}) });
  });
}
part("beams").addEventListener("change", () => {
  if (answer) translate();
});
part("search").addEventListener("change", () => {
  showFields();
  if (answer) translate();
});
for (const name of [...SAMPLING, ...LENGTHS]) {
  part(name).addEventListener("change", () => {
    if (part("sentence").value.trim()) translate();
  });
}

const panel = part("panel");
// A browser also reports a mouse that rests where something new was drawn or scrolled to: only a mouse
// that moves selects, or else the arrow keys could not.
let mouse = "";
panel.addEventListener("pointerover", (event) => {
  const at = `${event.screenX} ${event.screenY}`;
  const hasMoved = at !== mouse;
  mouse = at;
  const place = event.target.closest("[data-hover]");
  if (!place || !hasMoved || event.pointerType !== "mouse" || matchMedia("(hover: none)").matches) return;
  const changes = JSON.parse(place.dataset.hover);
  if (Object.entries(changes).some(([name, value]) => state[name] !== value)) set(changes);
});
panel.addEventListener("click", (event) => {
  const place = event.target.closest("[data-click]");
  if (place) set(JSON.parse(place.dataset.click));
});
panel.addEventListener("keydown", (event) => {
  if (!answer || event.ctrlKey || event.altKey || event.metaKey) return;
  const changes = views[state.view].move(event.key);
  if (!changes) return;
  event.preventDefault();
  set(changes);
});
for (const [name, by] of [["back", -1], ["next", 1]]) {
  part(name).addEventListener("click", () => {
    if (answer) set(views[state.view].step(by));
  });
}
for (const button of element.querySelectorAll(".save")) {
  button.addEventListener("click", () => download(button.dataset.kind));
}

VIEWS.forEach((view) => {
  const attributes = { type: "button", role: "tab", id: `tab-${view}`, "aria-controls": "stage", "data-view": view };
  const tab = made("button", views[view].name, part("views"), attributes);
  tab.addEventListener("click", () => set({ view }));
});
part("views").addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const next = VIEWS[(VIEWS.indexOf(state.view) + by + VIEWS.length) % VIEWS.length];
  set({ view: next });
  element.querySelector(`#tab-${next}`).focus();
});
window.addEventListener("hashchange", openAddress);
new ResizeObserver(() => redraw()).observe(panel);
darkness.addEventListener("change", () => redraw());

showTabs();
disableChoices();
call("start", {}).then((found) => {
  settings = found;
  model = found.model;
  part("about").textContent = found.about;
  part("sentence").value = found.sentence;
  part("models").hidden = found.isFixed;
  part("model").value = found.model;
  optionsOf("beams", range(found.maxBeams).map((index) => [index + 1, index + 1]), found.beams);
  for (const text of found.examples.sort((a, b) => a.length - b.length)) {
    const chip = made("button", text, part("examples"), { type: "button", dir: "auto" });
    chip.addEventListener("click", () => {
      part("sentence").value = text;
      translate();
    });
  }
  redraw();
  openAddress();
});
