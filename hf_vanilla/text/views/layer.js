// View of one token's way through an attention head and its layer: numbers, bars, and the paper's formulas.
import { attending, byQuery, chosenHead, CROSS, DECODER, headOf } from "./attention.js";
import { bars, box, clamp, colours, fitted, heaviest, LEAST, moved, note, percent, place, quoted, signed, write } from "./drawing.js";

export const FOREIGN = "This view needs a model of this package: the layers of this one have other parts.";

/** The place that the view shows: `head` is one, also where the mean of all is chosen. */
const placeOf = ({ state }) => ({ kind: state.kind, layer: state.layer, head: chosenHead(state), token: state.query });

/** The chosen key, or that of the largest weight. */
export const shownKey = (weights, key) => key ?? weights.indexOf(Math.max(...weights));

/** The first numbers of a vector, as many as there is room for. */
function someNumbers(values, width) {
  const texts = values.slice(0, 40).map((value) => signed(value));
  const count = clamp(1, Math.floor(width / 42), texts.length);
  return texts.slice(0, count).join("  ") + (count < values.length ? " …" : "");
}

/** q · k of one key, as the softmax gets it: `score / √size = scaled → weight`. */
function scoreOf({ query, keys, weights }, key) {
  const score = query.reduce((sum, value, index) => sum + value * keys[key][index], 0);
  return `${signed(score)} / √${query.length} = ${signed(score / Math.sqrt(query.length))} → ${percent(weights[key])}`;
}

/** The steps of an attention head (3.2): name, formula, vector, and names of its entries. */
export function headSteps(vectors, keys, best, input) {
  const of = quoted(keys[best]);
  return [
    ["x, the input", input, vectors.x],
    ["q, the query", "q = x W_Q (3.2.2)", vectors.query],
    [`k, the key of ${of}`, "k = x′ W_K (3.2.2)", vectors.keys[best]],
    [`weights: ${scoreOf(vectors, best)}`, "softmax(q · k / √d_k) (3.2.1)", vectors.weights, keys],
    [`v, the value of ${of}`, "v = x′ W_V (3.2.2)", vectors.values[best]],
    ["output of the head", "sum of weight · v (3.2.1)", vectors.head],
    ["all heads", "concat(heads) W_O (3.2.2)", vectors.attended],
  ];
}

const inputOf = ({ kind, layer }) =>
  kind === CROSS ? "output of the self-attention (3.1)" : layer ? "output of the layer before (3.1)" : "√d_model · embedding + position (3.4, 3.5)";

const hasFeedForward = ({ state }) => state.kind !== DECODER; // after the decoder's self-attention comes its cross-attention

const rowsOf = (now, vectors) => {
  const { keys } = now.attention.kinds[now.state.kind];
  const head = headSteps(vectors, keys, shownKey(vectors.weights, now.state.key), inputOf(now.state));
  return [
    ...head.map((row) => (row[3] ? [...row, (key) => ({ key })] : row)),
    ["added and normed", "y = LayerNorm(x + all heads) (3.1)", vectors.normed],
    ...(hasFeedForward(now)
      ? [["feed-forward", "max(0, y W_1 + b_1) W_2 + b_2 (3.3)", vectors.fed], ["output of the layer", "LayerNorm(y + feed-forward) (3.1)", vectors.output]]
      : []),
  ];
};

/** Rows of name, formula, bars and numbers, or names to choose by, in a field, one above the other where it is narrow; returns their height. */
export function drawSteps(root, rows, room, played = Infinity) {
  const paint = colours(), isNarrow = room.width < 640, left = isNarrow ? 0 : 310, wide = room.width - left;
  const high = isNarrow ? clamp(64, room.height / rows.length, 120) : clamp(42, room.height / rows.length, 64);
  const small = { size: LEAST, fill: paint.faint }, label = (isNarrow ? room.width : left) - 8;
  rows.forEach(([name, formula, values, names, selects], index) => {
    if (index > played) return;
    const y = index * high, top = y + (isNarrow ? 36 : 2), tall = high - (isNarrow ? 56 : 22);
    if (index === played) box(root, 0, y, room.width, high - 2, { fill: paint.warm, "fill-opacity": 0.15 });
    write(root, 2, y + 10, fitted(name, label), { weight: 700 });
    write(root, 2, y + 27, fitted(formula, label, LEAST), small);
    bars(root, values, left, top, Math.min(wide, names ? Infinity : values.length * 6), tall, names);
    if (selects) values.forEach((_, at) => place(root, left + (at * wide) / values.length, top, wide / values.length, tall + 20, selects(at)));
    if (names) return;
    write(root, left, top + tall + 10, someNumbers(values, wide - 90), small);
    write(root, room.width, top + tall + 10, `${values.length} numbers`, { ...small, anchor: "end" });
  });
  return rows.length * high;
}

export const layer = {
  ...byQuery,
  name: "Layer",
  isOfOneHead: true,
  hint: "One token's vectors through a head and its layer: left and right choose the token, up and down the key.",
  draw(root, room, now) {
    if (!now.answer.hasLayers) return note(root, room, FOREIGN);
    const vectors = now.inside(placeOf(now));
    if (!vectors) return note(root, room, "Computing…");
    return [room.width, drawSteps(root, rowsOf(now, vectors), room, now.played)];
  },
  say(now) {
    if (!now.answer.hasLayers) return FOREIGN;
    const { queries, keys } = now.attention.kinds[now.state.kind];
    const { layer: number, head, token, kind } = placeOf(now), vectors = now.inside(placeOf(now));
    const start = `Layer ${number}, head ${head}, ${kind}: ${attending(kind, queries[token])}`;
    if (!vectors) return `${start}.`;
    if (now.played < Infinity) return `${start}. ${rowsOf(now, vectors)[now.played]?.slice(0, 2).join(": ")}.`;
    const best = shownKey(vectors.weights, now.state.key);
    return `${start}; q · k of ${quoted(keys[best])} is ${scoreOf(vectors, best)}; the weights go to ${heaviest(vectors.weights, keys)}.`;
  },
  move(key, now) {
    const by = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[key], down = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (by) return this.step(by, now);
    const { rows, keys } = headOf(now.attention, { ...now.state, head: chosenHead(now.state) });
    return down ? { key: moved(shownKey(rows[now.state.query], now.state.key), down, keys.length) } : null;
  },
  frames: (now) => (hasFeedForward(now) ? 10 : 8),
  frame: () => ({}),
};
