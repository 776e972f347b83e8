// The page of translation: its state, its colours, and how a view is drawn into the panel. A view
// is an entry of `views` with these functions; each reads `state` and `answer`:
//   draw(root, room)   draws into an SVG element; returns the width and height it needs
//   say()              the same in words
//   move(key)          changes of the state by a key, or null
//   step(by)           changes of the state by the buttons for back and next
// Elements with `data-hover` or `data-click` hold changes of the state as JSON.

const views = {};
const KINDS = ["cross-attention", "encoder self-attention", "decoder self-attention"];
const MEAN = "mean";
const state = {
  view: "map",
  kind: KINDS[0],
  layer: 0,
  head: MEAN, // index, or MEAN
  query: 0,
  key: null, // index; null: none is selected
  hypothesis: 0,
  other: 1, // the hypothesis to compare with, or "model"
  step: 0, // of the search, from 0
  candidate: 0, // of that step
};
let answer = null; // to the last text; null: none, or an error
let second = null; // the answer of a second model to the same sentence
let attentions = []; // of each hypothesis, as far as asked for

const COLOURS = {
  light: {
    ground: "#ffffff", ink: "#0f172a", faint: "#475569", line: "#94a3b8",
    strong: "#1d4ed8", warm: "#b45309", good: "#047857",
  },
  dark: {
    ground: "#0f172a", ink: "#f1f5f9", faint: "#b6c2d2", line: "#64748b",
    strong: "#60a5fa", warm: "#fbbf24", good: "#34d399",
  },
};
const darkness = matchMedia("(prefers-color-scheme: dark)");
const colours = () => COLOURS[darkness.matches ? "dark" : "light"];
const FONT = "Segoe UI, Roboto, Helvetica Neue, Noto Sans, Arial, sans-serif";
const SIZE = 13; // of text, in px
const measure = document.createElement("canvas").getContext("2d");
const isCoarse = () => matchMedia("(pointer: coarse)").matches;
const rowHeight = () => (isCoarse() ? 44 : 28);

const clamp = (low, value, high) => Math.max(low, Math.min(value, high));
const quoted = (token) => `“\u2068${token}\u2069”`;
const sum = (values) => values.reduce((total, value) => total + value, 0);
const range = (count) => Array.from({ length: count }, (_, index) => index);

function textWidth(text, size = SIZE) {
  measure.font = `700 ${size}px ${FONT}`; // any text may be bold
  return measure.measureText(text).width;
}

function fitted(text, width, size = SIZE) {
  if (textWidth(text, size) <= width) return text;
  const letters = [...text];
  while (letters.length && textWidth(`${letters.join("")}…`, size) > width) letters.pop();
  return `${letters.join("")}…`;
}

function write(root, x, y, text, options = {}) {
  const { anchor = "start", size = SIZE, fill = colours().ink, weight = 400, turn = 0 } = options;
  const attributes = { x, y, fill, "font-size": size, "font-weight": weight, "text-anchor": anchor };
  if (turn) attributes.transform = `rotate(${turn} ${x} ${y})`;
  return shape("text", { ...attributes, "dominant-baseline": "central" }, root, text);
}

function box(root, x, y, width, height, options = {}) {
  const { fill = "none", stroke = "none", ...rest } = options;
  return shape("rect", { x, y, width, height, fill, stroke, ...rest }, root);
}

const change = (changes) => JSON.stringify(changes);

// the words of what the largest weights go to
function heaviest(weights, tokens, count = 3) {
  const order = range(tokens.length).sort((a, b) => weights[b] - weights[a]);
  const parts = order.slice(0, count).filter((i) => weights[i] >= 0.01);
  return parts.map((i) => `${quoted(tokens[i])} ${percent(weights[i])}`).join(", ");
}

// --- the weights that are shown -----------------------------------------------------------------

function withBytes(attention) {
  for (const kind of KINDS) attention.kinds[kind].bytes = numbers(attention.kinds[kind].weights);
  return attention;
}

const current = () => attentions[state.hypothesis];

// Tokens of both axes, where words begin in them, and rows of weights from 0 to 1 of one head, or of the mean of a layer.
function headOf(attention, kind = state.kind, layer = state.layer, head = state.head) {
  const { queries, keys, words, shape: size, bytes } = attention.kinds[kind];
  const [, heads, Q, K] = size;
  const chosen = head === MEAN ? range(heads) : [head];
  const rows = range(Q).map((q) =>
    range(K).map((k) => sum(chosen.map((h) => bytes[((layer * heads + h) * Q + q) * K + k])) / (255 * chosen.length)),
  );
  const isFromRight = attention.directions[kind === KINDS[2] ? 1 : 0] === "rtl";
  return { queries, keys, words, rows, isFromRight };
}

function nameOfHead() {
  const heads = current().kinds[state.kind].shape[1];
  return `${state.kind}, layer ${state.layer}, ${state.head === MEAN ? `mean of ${heads} heads` : `head ${state.head}`}`;
}

// --- the panel ----------------------------------------------------------------------------------

const PADDING = 8;

function redraw() {
  const panel = part("panel");
  if (!answer || !current()) {
    const hint = part("sentence").value ? "Press “Translate”" : "Type a sentence or choose an example";
    panel.replaceChildren(made("p", `${hint}: here you see what each token attends to.`));
    part("said").textContent = "";
    return;
  }
  const view = views[state.view];
  const svg = shape("svg", { xmlns: SVG, "font-family": FONT, "aria-hidden": "true", focusable: "false" });
  const room = {
    width: panel.clientWidth - 2 * PADDING,
    height: panel.clientHeight - 2 * PADDING,
  };
  const [width, height] = view.draw(svg, room).map(Math.ceil);
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) {
    svg.setAttribute(name, value);
  }
  panel.replaceChildren(svg);
  panel.ariaLabel = `${view.name}. ${view.hint}`;
  part("said").textContent = view.say();
  view.follow?.(panel);
}

// --- download -----------------------------------------------------------------------------------

function save(content, kind) {
  const link = made("a", "", null, { href: content, download: `hf_vanilla_${state.view}.${kind}` });
  link.click();
}

function svgText() {
  const svg = part("panel").querySelector("svg").cloneNode(true);
  const ground = shape("rect", { width: "100%", height: "100%", fill: colours().ground });
  svg.prepend(ground);
  svg.removeAttribute("aria-hidden");
  svg.removeAttribute("focusable");
  for (const marked of svg.querySelectorAll("[data-hover], [data-click]")) {
    delete marked.dataset.hover;
    delete marked.dataset.click;
  }
  return new XMLSerializer().serializeToString(svg);
}

const fileOf = (text, kind) => `data:${kind};charset=utf-8,${encodeURIComponent(text)}`;

async function download(kind) {
  if (!answer) return;
  if (kind === "json") {
    const { attention, ...rest } = answer;
    const all = { ...rest, attention: { ...attention, kinds: plainKinds(attention) } };
    save(fileOf(JSON.stringify(all), "application/json"), kind);
    return;
  }
  const drawing = fileOf(svgText(), "image/svg+xml");
  if (kind === "svg") {
    save(drawing, kind);
    return;
  }
  const image = new Image();
  image.src = drawing;
  await image.decode();
  const canvas = made("canvas", "", null, { width: 2 * image.naturalWidth, height: 2 * image.naturalHeight });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  save(canvas.toDataURL("image/png"), kind);
}

// without the decoded bytes; `weights` stay, as base64
function plainKinds(attention) {
  return Object.fromEntries(
    KINDS.map((kind) => {
      const { bytes, ...rest } = attention.kinds[kind];
      return [kind, rest];
    }),
  );
}
