// Figure 1 of the paper, with the real vectors of a source token and of a step of the decoder, from the embedding to the
// softmax: a box shows the vector that leaves it, and the chosen box is explained beside the figure.
import { chosenHead, CROSS, DECODER, ENCODER, headOf, MEAN } from "./attention.js";
import { bars, box, clamp, colours, fitted, LEAST, moved, note, percent, place, quoted, shape, SIZE, write } from "./drawing.js";
import { drawSteps, FOREIGN, headSteps, shownKey } from "./layer.js";

const NORM = "LayerNorm(x + Sublayer(x)) (3.1)", FEED = "max(0, x W_1 + b_1) W_2 + b_2 (3.3)";
const BELOW = "what leaves the box below (3.1)";
const LIKELY = 6; // tokens that the softmax shows

/** The source token that is followed: the chosen one, or the one that this step attends to most. */
function sourceToken({ attention, state }) {
  const { rows, keys } = headOf(attention, { kind: CROSS, layer: attention.kinds[CROSS].shape[0] - 1, head: MEAN });
  return Math.min(shownKey(rows[state.query], state.source), keys.length - 1);
}

/** The vectors of the three attentions on the way; null while one is not there yet. */
function vectorsOf(now) {
  const { state, attention } = now;
  const at = (kind, token) => {
    const [layers, heads] = attention.kinds[kind].shape;
    return now.inside({ kind, layer: Math.min(state.layer, layers - 1), head: Math.min(chosenHead(state), heads - 1), token });
  };
  const found = [at(ENCODER, sourceToken(now)), at(DECODER, state.query), at(CROSS, state.query)];
  return found.every(Boolean) ? found : null;
}

/** Embedding and position of a side (3.4, 3.5); a box has the vector that leaves it and the steps that explain it. */
function inputBoxes(side, { embedded, position }, token) {
  const own = [`embedding of ${quoted(token)}`, "√d_model · row of the table (3.4)", embedded];
  const sum = embedded.map((value, index) => value + position[index]);
  const added = [["position", "sines and cosines (3.5)", position], ["sum", "what the first layer reads", sum]];
  return [
    { side, row: 1, name: side ? "Output embedding" : "Input embedding", steps: [own] },
    { side, row: 2, name: "+ position", steps: [own, ...added] },
  ];
}

/** A sublayer and its norm (3.1). */
function sublayer(side, row, name, x, steps, normed) {
  const rows = [["x", BELOW, x], ["Sublayer(x)", `of “${name}”`, steps.at(-1)[2]], ["normed", NORM, normed]];
  return [{ side, row, name, steps, isSublayer: true }, { side, row: row + 1, name: "Add & norm", steps: rows }];
}

/** All boxes in the order of computation; `row` counts from the bottom of the figure. */
function boxesOf(now, [own, masked, cross]) {
  const { attention: { kinds, steps }, state } = now, source = kinds[ENCODER].keys, read = kinds[DECODER].keys;
  const attend = (vectors, keys) => headSteps(vectors, keys, shownKey(vectors.weights, null), BELOW).slice(1);
  const feed = ({ normed, fed }) => [["x", BELOW, normed], ["feed-forward", FEED, fed]];
  const step = steps[state.query], likely = [step, ...step.others].sort((a, b) => b.probability - a.probability).slice(0, LIKELY);
  const names = likely.map(({ token }) => token), shares = likely.map(({ probability }) => probability);
  const logits = shares.map((share) => Math.log(Math.max(share, 1e-4)));
  return [
    ...inputBoxes(0, own, source[sourceToken(now)]),
    ...sublayer(0, 3, "Self-attention", own.x, attend(own, source), own.normed),
    ...sublayer(0, 5, "Feed forward", own.normed, feed(own), own.output),
    ...inputBoxes(1, masked, read[state.query]),
    ...sublayer(1, 3, "Masked attention", masked.x, attend(masked, read), masked.normed),
    ...sublayer(1, 5, "Cross-attention", cross.x, attend(cross, source), cross.normed),
    ...sublayer(1, 7, "Feed forward", cross.normed, feed(cross), cross.output),
    { side: 1, row: 9.5, name: "Linear", steps: [["x", "what leaves the last layer", cross.output], ["logits", "x Eᵀ, less log Σ exp: the best (3.4)", logits, names]] },
    { side: 1, row: 10.5, name: "Softmax", steps: [["probabilities", "softmax(logits), the best (3.4)", shares, names]] },
  ];
}

const ROWS = 12.2; // of the figure: ten and a half of boxes, tokens below, the token that is written above

/** Places of the figure: columns, rows from the bottom, and box sizes. */
function figureOf(room) {
  const isNarrow = room.width < 640, width = isNarrow ? room.width : clamp(440, room.width * 0.58, 700);
  const high = clamp(24, (room.height - 2) / ROWS, 58), space = Math.round(high / 4), gap = isNarrow ? 20 : 36;
  const wide = (width - gap) / 2 - 16;
  return {
    isNarrow, width, high, wide, space, height: high * ROWS,
    x: (side) => 16 + side * (wide + gap + 4),
    y: (row) => high * (ROWS - 1 - row) + 2,
  };
}

/** The tokens of a side as a strip, each a place to choose it, with the name of the followed one. */
function drawTokens(root, figure, side, tokens, chosen, selects) {
  const { x, y, wide, high } = figure, paint = colours(), each = wide / tokens.length;
  tokens.forEach((_, index) => {
    const isChosen = index === chosen;
    box(root, x(side) + index * each, y(0), Math.max(each - 2, 1), 8, { fill: isChosen ? paint.warm : paint.line, rx: 2 });
    place(root, x(side) + index * each, y(0) - 4, each, high, selects(index), null);
  });
  const name = `${side ? "reads" : "sentence"}: ${quoted(tokens[chosen])}`;
  write(root, x(side) + wide / 2, y(0) + 18, fitted(name, wide), { anchor: "middle", weight: 700 });
}

/** Lines of the figure: upwards, around each sublayer (the residual connection), and from the encoder to the decoder. */
function drawWires(root, { x, y, wide, high, space }, boxes) {
  const style = { fill: "none", stroke: colours().line, "stroke-width": 1.5 };
  const middle = (side) => x(side) + wide / 2;
  for (const { side, row, isSublayer } of boxes) {
    shape("path", { ...style, d: `M${middle(side)} ${y(row) + high}V${y(row) + high - space}` }, root);
    if (!isSublayer) continue;
    const [left, from, to] = [x(side), y(row) + high - space / 2, y(row + 1) + (high - space) / 2];
    shape("path", { ...style, d: `M${middle(side)} ${from}H${left - 9}V${to}H${left}` }, root);
  }
  const across = x(0) + wide + 10;
  shape("path", { ...style, d: `M${middle(0)} ${y(6)}V${y(6) - space / 2}H${across}V${y(5) + (high - space) / 2}H${x(1)}` }, root);
}

function drawBox(root, { x, y, wide, high, space, isNarrow }, { side, row, name, steps }, isChosen, isReached) {
  const paint = colours(), [left, top, tall] = [x(side), y(row), high - space];
  const [, , values] = steps.at(-1), label = wide * (isNarrow ? 0.7 : 0.66);
  const stroke = isChosen ? paint.warm : paint.line;
  box(root, left, top, wide, tall, { fill: paint.box, stroke, "stroke-width": isChosen ? 3 : 1, rx: 6 });
  const size = isNarrow ? LEAST : SIZE;
  write(root, left + 6, top + tall / 2, fitted(name, label - 8, size), { size, weight: isChosen ? 700 : 400 });
  if (isReached) bars(root, values, left + label, top + 4, wide - label - 6, tall - 8);
}

export const overview = {
  name: "Overview",
  isOfOneHead: true,
  hint: "Figure 1 of the paper: up and down follow the vectors from box to box, left and right choose the token.",
  uses: ["layer", "head"],
  draw(root, room, now) {
    if (!now.answer.hasLayers) return note(root, room, FOREIGN);
    const vectors = vectorsOf(now);
    if (!vectors) return note(root, room, "Computing…");
    const { state, played, attention } = now, paint = colours(), figure = figureOf(room), { x, y, wide, high, space } = figure;
    const boxes = boxesOf(now, vectors), chosen = boxes[state.box], token = attention.steps[state.query];
    for (const side of [0, 1]) {
      const layers = attention.kinds[side ? DECODER : ENCODER].shape[0], top = side ? 8 : 6;
      box(root, x(side) - 14, y(top) - space / 2, wide + 20, y(2) - y(top), { stroke: paint.line, "stroke-dasharray": "3 3", rx: 10 });
      const caption = `${side ? "decoder" : "encoder"}, layer ${Math.min(state.layer, layers - 1)} (0 to ${layers - 1})`;
      write(root, x(side) - 10, y(top) - space - 3, fitted(caption, wide + 16, LEAST), { size: LEAST, fill: paint.faint });
    }
    drawWires(root, figure, boxes);
    boxes.forEach((one, index) => {
      drawBox(root, figure, one, index === state.box, index <= played);
      place(root, x(one.side), y(one.row), wide, high - 2, { box: index }, null);
    });
    drawTokens(root, figure, 0, attention.kinds[ENCODER].keys, sourceToken(now), (source) => ({ source }));
    drawTokens(root, figure, 1, attention.kinds[DECODER].keys, state.query, (query) => ({ query, key: null }));
    const written = `writes ${quoted(token.token)} ${percent(token.probability)}`;
    if (played >= boxes.length - 1) write(root, x(1) + wide / 2, Math.max(y(11.5) + high - 16, 9), fitted(written, wide), { anchor: "middle", weight: 700, fill: paint.good });
    const aside = figure.isNarrow ? [0, figure.height + 16] : [figure.width + 24, 0];
    const group = shape("g", { transform: `translate(${aside.join(" ")})` }, root);
    const field = { width: room.width - aside[0], height: Math.max(room.height - 32, 200) };
    write(group, 2, 12, `${chosen.name} (${chosen.side ? "decoder" : "encoder"})`, { size: 16, weight: 700 });
    const rows = shape("g", { transform: "translate(0 30)" }, group);
    const tall = drawSteps(rows, chosen.steps, field);
    return [room.width, Math.max(figure.height, aside[1] + tall + 32)];
  },
  say(now) {
    if (!now.answer.hasLayers) return FOREIGN;
    const { attention, state } = now, vectors = vectorsOf(now);
    if (!vectors) return "Computing.";
    const boxes = boxesOf(now, vectors), { name, side, steps } = boxes[state.box], { token, probability } = attention.steps[state.query];
    const [what, formula] = steps.at(-1);
    const followed = side ? `the step that writes ${quoted(token)} (${percent(probability)})` : quoted(attention.kinds[ENCODER].keys[sourceToken(now)]);
    return `Box ${state.box + 1} of ${boxes.length}, ${side ? "decoder" : "encoder"}, ${name}, for ${followed}: ${what} = ${formula}.`;
  },
  move(key, now) {
    const down = { ArrowUp: 1, ArrowDown: -1, Home: -Infinity, End: Infinity }[key], by = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (down) return this.step(down, now);
    if (!by) return null;
    const { attention: { kinds }, state } = now;
    if (state.box < 6) return { source: moved(sourceToken(now), by, kinds[ENCODER].keys.length) };
    return { query: moved(state.query, by, kinds[DECODER].queries.length), key: null };
  },
  step: (by, { state }) => ({ box: clamp(0, state.box + by, BOXES - 1) }),
  frames: () => BOXES,
  frame: (index) => ({ box: index }),
};
const BOXES = 16; // of the figure
