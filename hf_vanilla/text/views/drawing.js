// What all views draw with: elements, text, bars. Names that come from models or visitors are set as text, never as HTML.
// A view is an object with these functions of `now` (page.js), and each reads the same JSON, of the engine or the service:
//   draw(root, room, now)  draws into an SVG element; returns the width and height that it needs
//   say(now)               the same in words
//   move(key, now)         changes of the state by a key, or null
//   step(by, now)          changes of the state by the buttons for back and next
//   frames(now), frame(index, now)  how many steps Play has, and the changes of the state at each
//   isOfOneHead            true: it shows the first head in place of the mean of all
// Elements with `data-hover` or `data-click` hold changes of the state as JSON.

export const SVG = "http://www.w3.org/2000/svg";
export const SIZE = 13; // of text; none is smaller than LEAST, which Present scales to 20 px
export const LEAST = 12;
export const FONT = "Segoe UI, Roboto, Helvetica Neue, Noto Sans, Arial, sans-serif";
const COLOURS = { // `numbers`: on a cell of a map, up to this weight and above, so that their contrast is at least 4.5
  light: {
    ground: "#ffffff", ink: "#0f172a", faint: "#475569", line: "#94a3b8",
    strong: "#1d4ed8", warm: "#b45309", good: "#047857", box: "#eef2f7", numbers: ["#000000", "#ffffff", 0.8],
  },
  dark: {
    ground: "#0f172a", ink: "#f1f5f9", faint: "#b6c2d2", line: "#64748b",
    strong: "#60a5fa", warm: "#fbbf24", good: "#34d399", box: "#1b2638", numbers: ["#ffffff", "#000000", 0.68],
  },
};
export const colours = () => COLOURS[matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"];
const measure = document.createElement("canvas").getContext("2d");

export const clamp = (low, value, high) => Math.max(low, Math.min(value, high));
export const range = (count) => Array.from({ length: count }, (_, index) => index);
export const quoted = (token) => `“\u2068${token}\u2069”`;
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
export const signed = (value, digits = 2) => value.toFixed(digits).replace("-", "−");
export const change = (changes) => JSON.stringify(changes);

/** The index `by` steps further; from none (null), the first or the last. */
export const moved = (index, by, count) => clamp(0, (index ?? (by > 0 ? -1 : count)) + by, count - 1);

/** `move` of a view that is one list. */
export function moveAlong(key, now) {
  const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[key];
  return by ? this.step(by, now) : null;
}

export function made(name, text, parent, attributes = {}) {
  const child = document.createElement(name);
  child.textContent = text;
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  parent?.append(child);
  return child;
}

export function shape(name, attributes, parent, text) {
  const child = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (text !== undefined) child.textContent = text;
  parent?.append(child);
  return child;
}

export function textWidth(text, size = SIZE) {
  measure.font = `700 ${size}px ${FONT}`; // any text may be bold
  return measure.measureText(text).width;
}

export function fitted(text, width, size = SIZE) {
  if (textWidth(text, size) <= width) return text;
  const letters = [...text];
  while (letters.length && textWidth(`${letters.join("")}…`, size) > width) letters.pop();
  return `${letters.join("")}…`;
}

export function write(root, x, y, text, options = {}) {
  const { anchor = "start", size = SIZE, fill = colours().ink, weight = 400, turn = 0 } = options;
  const attributes = { x, y, fill, "font-size": size, "font-weight": weight, "text-anchor": anchor };
  if (turn) attributes.transform = `rotate(${turn} ${x} ${y})`;
  return shape("text", { ...attributes, "dominant-baseline": "central" }, root, text);
}

export function box(root, x, y, width, height, options = {}) {
  const { fill = "none", stroke = "none", ...rest } = options;
  return shape("rect", { x, y, width, height, fill, stroke, ...rest }, root);
}

/** An invisible place over a part of the picture, which a pointer selects; only a click where it opens another view. */
export function place(root, x, y, width, height, changes, hover = changes) {
  const found = box(root, x, y, width, height, { fill: colours().ground, "fill-opacity": 0 });
  found.dataset.click = change(changes);
  if (hover) found.dataset.hover = change(hover);
}

/** A line of text in place of a picture. */
export function note(root, room, text) {
  write(root, 0, 16, text, { fill: colours().faint });
  return [room.width, 32];
}

/** A vector as bars around a middle line, one for each number; below them the names, if any. */
export function bars(root, values, x, y, width, high, names = null) {
  const paint = colours();
  const largest = Math.max(...values.map(Math.abs), 1e-9);
  const isSigned = values.some((value) => value < 0);
  const middle = isSigned ? y + high / 2 : y + high;
  const wide = width / values.length;
  const paths = { [paint.strong]: "", [paint.warm]: "" }; // one path of all bars of a colour
  values.forEach((value, index) => {
    const tall = (value / largest) * (isSigned ? high / 2 : high);
    const thick = Math.max(wide - (wide > 4 ? 1 : 0), 0.5);
    paths[value < 0 ? paint.warm : paint.strong] += `M${(x + index * wide).toFixed(2)} ${middle}v${(-tall).toFixed(2)}h${thick.toFixed(2)}v${tall.toFixed(2)}z`;
    if (names) write(root, x + (index + 0.5) * wide, y + high + 10, fitted(names[index], wide - 2, LEAST), { size: LEAST, anchor: "middle" });
  });
  for (const [fill, d] of Object.entries(paths)) if (d) shape("path", { d, fill }, root);
  shape("line", { x1: x, x2: x + width, y1: middle, y2: middle, stroke: paint.line }, root);
}

/** The words of what the largest weights go to. */
export function heaviest(weights, tokens, count = 3) {
  const order = range(tokens.length).sort((a, b) => weights[b] - weights[a]);
  const parts = order.slice(0, count).filter((index) => weights[index] >= 0.01);
  return parts.map((index) => `${quoted(tokens[index])} ${percent(weights[index])}`).join(", ");
}
