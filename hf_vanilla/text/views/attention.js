// Views of attention weights: a map, lines, words, and all heads.
import {
  box, clamp, colours, fitted, heaviest, LEAST, made, moveAlong, moved, percent, place, quoted, range, shape, textWidth, write,
} from "./drawing.js";

export const CROSS = "cross-attention", ENCODER = "encoder self-attention", DECODER = "decoder self-attention";
export const KINDS = [CROSS, ENCODER, DECODER];
export const MEAN = "mean";
const LABEL = 128; // widest label
const decoded = new WeakMap(); // bytes of the weights of a kind

function bytesOf(kind) {
  if (!decoded.has(kind)) decoded.set(kind, Uint8Array.from(atob(kind.weights), (letter) => letter.charCodeAt(0)));
  return decoded.get(kind);
}

/** Tokens of both axes, where words begin in them, and rows of weights from 0 to 1 of one head, or of a layer's mean. */
export function headOf(attention, { kind, layer, head }) {
  const { queries, keys, words, shape: [, heads, Q, K] } = attention.kinds[kind];
  const bytes = bytesOf(attention.kinds[kind]);
  const chosen = head === MEAN ? range(heads) : [head];
  const weight = (q, k) => chosen.reduce((sum, h) => sum + bytes[((layer * heads + h) * Q + q) * K + k], 0);
  const rows = range(Q).map((q) => range(K).map((k) => weight(q, k) / (255 * chosen.length)));
  const isFromRight = attention.directions[kind === DECODER ? 1 : 0] === "rtl";
  return { queries, keys, words, rows, isFromRight };
}

const shown = ({ attention, state }) => headOf(attention, state);

const nameOfHead = ({ attention, state: { kind, layer, head } }) =>
  `${kind}, layer ${layer}, ${head === MEAN ? `mean of ${attention.kinds[kind].shape[1]} heads` : `head ${head}`}`;

/** `move` of a view whose rows are queries and whose columns, if any, are keys. */
function moveInGrid(pressed, now, hasKeys) {
  const { state } = now, { queries, keys, isFromRight } = shown(now);
  const forward = isFromRight ? "ArrowLeft" : "ArrowRight", backward = isFromRight ? "ArrowRight" : "ArrowLeft";
  const across = { [forward]: 1, [backward]: -1 }[pressed];
  const down = { ArrowDown: 1, ArrowUp: -1, ...(hasKeys ? {} : { [forward]: 1, [backward]: -1 }) }[pressed];
  if (down) return { query: moved(state.query, down, queries.length), key: null };
  if (across) return { key: moved(state.key, across, keys.length) };
  if (pressed === "Home") return { query: 0, key: null };
  if (pressed === "End") return { query: queries.length - 1, key: null };
  return null;
}

// what the views share whose Play goes from token to token
export const byQuery = {
  uses: ["kind", "layer", "head"],
  move: (key, now) => moveInGrid(key, now, false),
  step: (by, now) => ({ query: moved(now.state.query, by, shown(now).queries.length), key: null }),
  frames: (now) => shown(now).queries.length,
  frame: (index) => ({ query: index, key: null }),
};

/** Who attends: a token of the sentence, or the step of the decoder that writes a token. */
export const attending = (kind, token) => `${kind === ENCODER ? "" : "the step that writes "}${quoted(token)}`;

export function sayWeights(now) {
  const { state } = now, { queries, keys, rows } = shown(now), name = nameOfHead(now);
  const start = `${name[0].toUpperCase()}${name.slice(1)}: ${attending(state.kind, queries[state.query])}`;
  if (state.key === null) return `${start} attends to ${heaviest(rows[state.query], keys)}.`;
  return `${start} gives ${quoted(keys[state.key])} ${percent(rows[state.query][state.key])} of its attention.`;
}

/** First and last index of each word; nothing where every token is a word. */
function spansOf(starts, count) {
  if (starts.length === count) return [];
  return starts.map((first, index) => [first, (starts[index + 1] ?? count) - 1]);
}

/** Draw a heat map with brackets beside the tokens of each word; returns its width and height. */
export function drawMap(root, room, { queries, keys, words, rows, isFromRight }, { state, played }, isActive = true) {
  const paint = colours();
  const left = 14 + Math.min(LABEL, room.width / 4, Math.max(...queries.map((token) => textWidth(token))));
  const longest = Math.max(...keys.map((token) => textWidth(token)));
  const across = Math.floor((room.width - left) / keys.length);
  const isFlat = longest < across - 6;
  const top = isFlat ? 30 : 14 + Math.min(LABEL, room.height / 4, longest);
  const cell = clamp(16, Math.min(across, Math.floor((room.height - top - 2) / queries.length)), 64);
  const wide = clamp(cell, across, isFlat ? 96 : cell);
  const column = (k) => left + (isFromRight ? keys.length - 1 - k : k) * wide;
  keys.forEach((token, k) => {
    const style = { weight: isActive && k === state.key ? 700 : 400 };
    if (isFlat) write(root, column(k) + wide / 2, 12, token, { ...style, anchor: "middle" });
    else write(root, column(k) + wide / 2, top - 12, fitted(token, top - 14), { ...style, turn: -90 });
  });
  for (const [first, last] of spansOf(words[0], queries.length)) {
    if (first <= played) box(root, left - 7, top + first * cell + 2, 3, (last - first + 1) * cell - 4, { fill: paint.faint });
  }
  for (const [first, last] of spansOf(words[1], keys.length)) {
    const start = Math.min(column(first), column(last));
    box(root, start + 2, top - 7, (last - first + 1) * wide - 4, 3, { fill: paint.faint });
  }
  queries.forEach((token, q) => {
    if (q > played) return;
    const y = top + q * cell, isChosen = isActive && q === state.query;
    write(root, left - 12, y + cell / 2, fitted(token, left - 14), { anchor: "end", weight: isChosen ? 700 : 400 });
    if (isActive) place(root, 0, y, left, cell, { query: q, key: null }, null);
    rows[q].forEach((weight, k) => {
      box(root, column(k), y, wide, cell, { fill: paint.strong, "fill-opacity": weight.toFixed(3), "stroke-width": 0.5, stroke: paint.line });
      if (cell >= 26 && weight >= 0.005) {
        const [few, many, from] = paint.numbers, ink = weight > from ? many : few;
        write(root, column(k) + wide / 2, y + cell / 2, String(Math.round(100 * weight)), { anchor: "middle", size: LEAST, fill: ink });
      }
      place(root, column(k), y, wide, cell, { query: q, key: k });
    });
    if (!isChosen) return;
    const frame = { stroke: paint.warm, "stroke-width": 2, "pointer-events": "none" };
    box(root, left, y, wide * keys.length, cell, frame);
    if (state.key !== null) box(root, column(state.key), y, wide, cell, { ...frame, "stroke-width": 4 });
  });
  return [left + wide * keys.length + 2, top + cell * queries.length + 2];
}

export const map = {
  ...byQuery,
  name: "Map",
  hint: "Rows attend to columns, in percent.",
  draw: (root, room, now) => drawMap(root, room, shown(now), now),
  say: sayWeights,
  move: (key, now) => moveInGrid(key, now, true),
};

/** Draw keys on the left, queries on the right, and a line for each weight; `selects` changes the state by a query. */
function drawLines(root, room, { queries, keys, rows, chosen, captions, selects }, played) {
  const paint = colours();
  const most = Math.max(queries.length, keys.length);
  const high = clamp(24, (room.height - 28) / most, 48);
  const side = Math.min(LABEL, room.width / 3), width = Math.min(room.width, 880);
  const at = (index) => 28 + (index + 0.5) * high;
  write(root, side, 10, captions[0], { anchor: "end", size: LEAST, fill: paint.faint });
  write(root, width - side, 10, captions[1], { size: LEAST, fill: paint.faint });
  rows.slice(0, played + 1).forEach((row, q) =>
    row.forEach((weight, k) => {
      if (weight < 0.02) return;
      const isChosen = q === chosen;
      const d = `M${side + 6} ${at(k)}C${width / 2} ${at(k)} ${width / 2} ${at(q)} ${width - side - 6} ${at(q)}`;
      const line = { d, fill: "none", stroke: isChosen ? paint.warm : paint.strong, "stroke-width": 1 + 5 * weight };
      const opacity = weight * (isChosen ? 1 : 0.35);
      shape("path", { ...line, "stroke-opacity": opacity.toFixed(3), "pointer-events": "none" }, root);
    }),
  );
  keys.forEach((token, k) => write(root, side, at(k), fitted(token, side), { anchor: "end", weight: rows[chosen][k] > 0.2 ? 700 : 400 }));
  queries.forEach((token, q) => {
    if (q > played) return;
    const isChosen = q === chosen, [x, y] = [width - side - 6, at(q) - high / 2];
    box(root, x, y, side + 6, high, { fill: paint.warm, "fill-opacity": isChosen ? 0.15 : 0 });
    write(root, width - side, at(q), fitted(token, side), { weight: isChosen ? 700 : 400 });
    place(root, x, y, side + 6, high, selects(q));
  });
  return [width, 28 + most * high];
}

export const lines = {
  ...byQuery,
  name: "Lines",
  hint: "Each line is a weight, from the token that attends on the right.",
  draw(root, room, now) {
    const captions = ["is attended to", "attends"], selects = (query) => ({ query, key: null });
    return drawLines(root, room, { ...shown(now), chosen: now.state.query, captions, selects }, now.played);
  },
  say: sayWeights,
};

// --- words: each of the translation with the one of the sentence that it is aligned with ---------

/** The target word of the chosen token; the last one for the end token. */
const chosenWord = ({ attention: { words: { starts } }, state }) => Math.max(starts.filter((first) => first <= state.query).length - 1, 0);
const startOf = ({ attention: { words: { starts } } }, index) => ({ query: starts[clamp(0, index, starts.length - 1)], key: null });

export const words = {
  name: "Words",
  hint: "Each word of the translation is linked to one of the sentence.",
  uses: [],
  isShown: ({ attention: { words: found } }) => found !== null && found.target.length > 1 && found.links.length > 0,
  draw(root, room, now) {
    const { source, target, links } = now.attention.words;
    const rows = target.map((_, word) => source.map((_, own) => Number(links.some(([s, t]) => s === own && t === word))));
    const sides = { queries: target, keys: source, rows, captions: ["sentence", "translation"] };
    return drawLines(root, room, { ...sides, chosen: chosenWord(now), selects: (word) => startOf(now, word) }, now.played);
  },
  say(now) {
    const { source, target, links, head: { layer, head, is_next: isNext } } = now.attention.words;
    const chosen = chosenWord(now), sources = links.filter(([, word]) => word === chosen).map(([own]) => quoted(source[own]));
    const of = head === null ? `the mean of ${now.attention.kinds[CROSS].shape[1]} heads` : `head ${head}`;
    const step = isNext ? "in the step after it is written" : "in the step that writes it";
    return `${quoted(target[chosen])} is aligned with ${sources.join(", ")}: cross-attention of layer ${layer}, ${of}, ${step}.`;
  },
  move: moveAlong,
  step: (by, now) => startOf(now, chosenWord(now) + by),
  frames: ({ attention }) => attention.words.target.length,
  frame: (index, now) => startOf(now, index),
};

// --- all heads ----------------------------------------------------------------------------------

/** A small picture of one head, a pixel for each weight. */
function thumbnail({ rows, isFromRight }) {
  const [high, wide] = [rows.length, rows[0].length];
  const canvas = made("canvas", "", null, { width: wide, height: high });
  const drawing = canvas.getContext("2d");
  drawing.fillStyle = colours().strong;
  rows.forEach((row, q) =>
    row.forEach((weight, k) => {
      drawing.globalAlpha = weight;
      drawing.fillRect(isFromRight ? wide - 1 - k : k, q, 1, 1);
    }),
  );
  return canvas.toDataURL("image/png");
}

function patternOf({ attention, state }, layer, head) {
  const { name, share, entropy } = attention.kinds[state.kind].patterns[layer][head];
  const isNamed = !["mixed", "spread", "one token"].includes(name);
  return [name, isNamed ? ` ${percent(share)}` : "", `${entropy.toFixed(1)} bits`];
}

export const chosenHead = ({ head }) => (head === MEAN ? 0 : head);
const sizeOf = ({ attention, state }) => attention.kinds[state.kind].shape;

export const heads = {
  name: "Heads",
  hint: "All heads of this kind, and what each does most. Enter opens the map.",
  uses: ["kind"],
  draw(root, room, now) {
    const { attention, state, played } = now, [layers, count] = sizeOf(now), paint = colours();
    const isNarrow = room.width < 560; // then the name of a layer is above its row
    const [side, above] = isNarrow ? [0, 20] : [64, 0];
    const wide = clamp(84, (room.width - side) / count, 220);
    const picture = clamp(48, Math.min(wide - 12, (room.height - layers * (above + 46)) / layers), 160);
    const high = above + picture + 46;
    for (const layer of range(layers)) {
      write(root, 0, layer * high + (isNarrow ? 8 : picture / 2), `layer ${layer}`, { fill: paint.faint });
      for (const head of range(count)) {
        if (layer * count + head > played) continue;
        const [x, y] = [side + head * wide, layer * high + above];
        const href = thumbnail(headOf(attention, { kind: state.kind, layer, head }));
        const picked = { x, y, width: picture, height: picture, preserveAspectRatio: "none", href };
        shape("image", { ...picked, "image-rendering": "pixelated" }, root);
        const isChosen = layer === state.layer && head === state.head;
        box(root, x, y, picture, picture, { stroke: isChosen ? paint.warm : paint.line, "stroke-width": isChosen ? 3 : 1 });
        const [name, share, entropy] = patternOf(now, layer, head);
        const label = wide < 120 ? name : name + share, caption = wide < 120 ? `${head}: ${entropy}` : `head ${head}, ${entropy}`;
        write(root, x, y + picture + 12, fitted(label, wide - 6, LEAST), { size: LEAST, weight: 700 });
        write(root, x, y + picture + 28, caption, { size: LEAST, fill: paint.faint });
        place(root, x, y, wide - 6, high - above - 8, { layer, head, view: "map" }, { layer, head });
      }
    }
    return [side + count * wide, layers * high];
  },
  say(now) {
    const { state } = now, [layers, count] = sizeOf(now), head = chosenHead(state);
    const [name, share, entropy] = patternOf(now, state.layer, head);
    return `${layers} ${layers > 1 ? "layers" : "layer"} of ${count} heads, ${state.kind}. Layer ${state.layer}, head ${head}: ${name}${share}, ${entropy} of entropy.`;
  },
  move(key, now) {
    const { state } = now, [layers, count] = sizeOf(now), head = chosenHead(state);
    const across = { ArrowRight: 1, ArrowLeft: -1 }[key], down = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (across) return { layer: state.layer, head: moved(head, across, count) };
    if (down) return { layer: moved(state.layer, down, layers), head };
    return key === "Enter" ? { head, view: "map" } : null;
  },
  step(by, now) {
    const [layers, count] = sizeOf(now);
    return this.frame(clamp(0, now.state.layer * count + chosenHead(now.state) + by, layers * count - 1), now);
  },
  frames: (now) => sizeOf(now)[0] * sizeOf(now)[1],
  frame: (index, now) => ({ layer: Math.floor(index / sizeOf(now)[1]), head: index % sizeOf(now)[1] }),
};
