// The page: a sentence, its translation, and the attention map of the model that runs in the worker.
const facts = JSON.parse(document.getElementById("facts").textContent);
const at = (selector) => document.querySelector(selector);
const KINDS = { cross: "translation to sentence", encoder: "within the sentence", decoder: "within the translation" };

// --- the engine in its worker --------------------------------------------------------------------

/** The worker, from its file, or from the text that a page of one file carries. */
function startWorker() {
  const inlined = document.getElementById("worker");
  if (!inlined) return new Worker("worker.js", { type: "module" });
  return new Worker(URL.createObjectURL(new Blob([inlined.textContent], { type: "text/javascript" })));
}

const worker = startWorker();
const waiting = new Map();
let calls = 0;

/** The promise of what a function of the worker returns; its `id` can be cancelled. */
function ask(call, args, progress = () => {}) {
  const id = ++calls;
  const promise = new Promise((resolve, reject) => waiting.set(id, { resolve, reject, progress }));
  worker.postMessage({ id, call, args });
  return Object.assign(promise, { id });
}

worker.onmessage = ({ data: { id, result, error, progress } }) => {
  const { resolve, reject, progress: tell } = waiting.get(id);
  if (progress) return tell(progress);
  waiting.delete(id);
  if (error === undefined) resolve(result);
  else reject(new Error(error));
};

/** The model's files: the folder's address, or the bytes that a page of one file carries. */
async function modelFiles() {
  const parts = [...document.querySelectorAll("script[data-file]")];
  if (!parts.length) return new URL("model", location.href).href;
  const bytes = ({ textContent: text }) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return Object.fromEntries(parts.map((part) => [part.dataset.file, bytes(part)]));
}

const ready = modelFiles().then((files) => ask("load", [files]));
// for the console: `await hfVanilla.translate("forty-two")`
globalThis.hfVanilla = {
  translate: (text, options = {}) => ready.then(() => ask("translate", [text, options])),
  attentions: (text, ids) => ready.then(() => ask("attentions", [text, ids])),
};

// --- state ---------------------------------------------------------------------------------------

const state = { text: facts.sentence, kind: "cross", layer: 0, head: "mean", row: 0, column: 0 };
for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  if (name === "text" || (name === "kind" && Object.hasOwn(KINDS, value))) state[name] = value;
  if (["layer", "head", "row", "column"].includes(name) && /^\d+$/.test(value)) state[name] = Number(value);
}
let seen = null; // attention of the translation that is shown
let running = null; // the translation that is computed

/** Change the state, write it into the address, and draw. */
function set(changes) {
  Object.assign(state, changes);
  const options = Object.entries(searchOptions());
  const link = new URLSearchParams([...Object.entries(state), ...options]);
  history.replaceState(null, "", `#${link}`);
  draw();
}

function searchOptions() {
  const fields = [...document.querySelectorAll(".search input")].filter((field) => field.value !== "");
  return Object.fromEntries(fields.map((field) => [field.name, Number(field.value)]));
}

// --- translate -----------------------------------------------------------------------------------

function show(text, problem = "") {
  at(".translation").value = problem || text;
  at(".translation").toggleAttribute("data-problem", Boolean(problem));
}

async function translate() {
  const text = at("#source").value;
  if (!text.trim()) return show("", "Type a sentence to translate.");
  if (running) worker.postMessage({ cancel: running.id });
  document.body.setAttribute("aria-busy", "true");
  at(".stop").disabled = false;
  const bar = at(".progress");
  const own = (running = ask("translate", [text, searchOptions()], ({ length, limit }) => {
    Object.assign(bar, { max: limit, value: length });
    at(".status").textContent = `Searching: token ${length} of at most ${limit}.`;
  }));
  try {
    const found = await own;
    const attentions = await ask("attentions", [text, found.ids]);
    if (running !== own) return; // a newer sentence came
    seen = attentions;
    show(found.text);
    at(".status").textContent = report(found);
    set(text === state.text ? {} : { text, row: 0, column: 0 });
  } catch (error) {
    if (running !== own) return;
    at(".status").textContent = "";
    show("", error.message === "stopped" ? "Stopped." : `This did not work: ${error.message}.`);
  } finally {
    if (running === own) finish();
  }
}

function finish() {
  running = null;
  document.body.removeAttribute("aria-busy");
  at(".stop").disabled = true;
}

/** What the page says about a translation: its score, and whether the text is one that the model knows. */
function report(found) {
  const score = `Score ${found.score.toFixed(2)}, log-probability ${found.logProb.toFixed(2)} nats, ${found.steps.length} steps.`;
  const words = found.source.slice(0, -1);
  const isSpelled = words.filter((token) => [...token.replace("␣", "")].length < 2).length > words.length / 2;
  const isUnsure = found.logProb / found.ids.length < -1;
  const doubt = [isSpelled && "most of its tokens are single characters", isUnsure && "the translation is improbable"];
  const reasons = doubt.filter(Boolean).join(", and ");
  return reasons ? `${score} The model may not know such texts: ${reasons}.` : score;
}

// --- chips ---------------------------------------------------------------------------------------

/** A row of chips for one property of the state, remade where its choices change. */
function chips(name, choices) {
  const group = at(`fieldset.${name}`);
  const wanted = JSON.stringify(choices);
  if (group.dataset.choices !== wanted) {
    group.dataset.choices = wanted;
    group.querySelectorAll("label").forEach((label) => label.remove());
    for (const [value, text] of choices) {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "radio", name });
      input.addEventListener("change", () => set({ [name]: value, row: 0, column: 0 }));
      label.append(input, Object.assign(document.createElement("span"), { textContent: text }));
      group.append(label);
    }
  }
  group.querySelectorAll("input").forEach((input, index) => (input.checked = choices[index][0] === state[name]));
}

// --- the attention map ---------------------------------------------------------------------------

/** Tokens and weights of what is chosen: `weights[row][column]`. */
function chosen() {
  const layers = seen[state.kind];
  state.layer = Math.min(state.layer, layers.length - 1); // a link, or the other side, may have more
  const layer = layers[state.layer];
  const queries = state.kind === "encoder" ? seen.source : seen.target;
  const keys = state.kind === "decoder" ? seen.read : seen.source;
  const columns = (row) => (state.kind === "decoder" ? row + 1 : keys.length);
  const heads = layer[0].length / columns(0);
  if (state.head !== "mean") state.head = Math.min(state.head, heads - 1);
  const ofHead = (weights, row, head) => weights.subarray(head * columns(row), (head + 1) * columns(row));
  const mean = (weights, row) =>
    Array.from({ length: columns(row) }, (_, column) =>
      Array.from({ length: heads }, (_, head) => ofHead(weights, row, head)[column] / heads).reduce((a, b) => a + b),
    );
  const weights = layer.map((all, row) => (state.head === "mean" ? mean(all, row) : ofHead(all, row, state.head)));
  return { queries, keys, weights, heads, layers: layers.length };
}

function element(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

const LEAST_CELL = 18, MOST_CELL = 56, GAP = 8;

function draw() {
  at(".chips").hidden = !seen;
  if (!seen) return;
  const { queries, keys, weights, heads, layers } = chosen();
  const numbered = (count) => Array.from({ length: count }, (_, index) => [index, `${index + 1}`]);
  chips("kind", Object.entries(KINDS));
  chips("layer", numbered(layers));
  chips("head", [["mean", "mean"], ...numbered(heads)]);
  const panel = at(".panel");
  const longest = (tokens) => Math.max(...tokens.map((token) => [...token].length));
  const width = panel.clientWidth - 16, height = panel.clientHeight - 16;
  const most = width < 500 ? 10 : 16; // characters of a token
  const letters = Math.min(longest(queries), most), above = Math.min(longest(keys), most);
  const fits = (size) => size * (keys.length + letters * 0.26 + 0.3) <= width && size * (queries.length + above * 0.26 + 0.3) <= height;
  let cell = MOST_CELL;
  while (cell > LEAST_CELL && !fits(cell)) cell--;
  const font = Math.max(12, cell * 0.42), left = letters * font * 0.62 + GAP, top = above * font * 0.62 + GAP;
  const [wide, high] = [left + cell * keys.length + 4, top + cell * queries.length + 4];
  const svg = element("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, "aria-hidden": "true" }, document.createDocumentFragment());
  const short = (token) => ([...token].length > most ? `${[...token].slice(0, most - 1).join("")}…` : token);
  keys.forEach((token, column) => {
    const x = left + (column + 0.5) * cell + font * 0.35, y = top - GAP;
    element("text", { transform: `translate(${x} ${y}) rotate(-90)`, "font-size": font }, svg).textContent = short(token);
  });
  queries.forEach((token, row) => {
    const y = top + row * cell;
    const place = { x: left - GAP, y: y + cell / 2 + font * 0.35, "text-anchor": "end", "font-size": font };
    element("text", place, svg).textContent = short(token);
    weights[row].forEach((weight, column) => {
      const box = { x: left + column * cell, y, width: cell, height: cell };
      element("rect", { ...box, class: "cell", "fill-opacity": weight.toFixed(3) }, svg);
      const frame = element("rect", { ...box, class: "frame", "pointer-events": "all" }, svg);
      frame.addEventListener("click", () => set({ row, column }));
    });
  });
  state.row = Math.min(state.row, queries.length - 1);
  state.column = Math.min(state.column, weights[state.row].length - 1);
  const { row, column } = state;
  const box = { x: left + column * cell, y: top + row * cell, width: cell, height: cell };
  element("rect", { ...box, class: "cursor" }, svg);
  panel.replaceChildren(svg);
  const head = state.head === "mean" ? "In the mean of all heads" : `In head ${state.head + 1}`;
  const percent = (100 * weights[row][column]).toFixed(0);
  at(".said").textContent = `${head} of layer ${state.layer + 1}, “${queries[row]}” attends to “${keys[column]}” with ${percent} %.`;
}

const MOVES = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

at(".panel").addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  if (!move || !seen) return;
  event.preventDefault();
  const { weights } = chosen();
  const row = Math.max(0, Math.min(state.row + move[0], weights.length - 1));
  set({ row, column: Math.max(0, Math.min(state.column + move[1], weights[row].length - 1)) });
});

// --- start ---------------------------------------------------------------------------------------

at("#source").value = state.text;
at(".ask").addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
at("#source").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    translate();
  }
});
at(".stop").addEventListener("click", () => running && worker.postMessage({ cancel: running.id }));
new ResizeObserver(draw).observe(at(".panel"));
at(".status").textContent = "Loading the model.";
ready
  .then(() => ask("settings", []))
  .then((settings) => {
    const own = { num_beams: settings.beams, length_penalty: settings.alpha };
    const linked = new URLSearchParams(location.hash.slice(1));
    for (const field of document.querySelectorAll(".search input")) field.value = linked.get(field.name) ?? own[field.name] ?? "";
    at(".status").textContent = "";
    if (state.text) translate();
  })
  .catch((error) => {
    at(".status").textContent = "";
    show("", `The model was not loaded: ${error.message}.`);
  });
