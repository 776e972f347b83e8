// Views of the search: the probability of each token, and the beam search as a tree.
import { box, clamp, colours, fitted, LEAST, moveAlong, moved, note, percent, place, quoted, range, shape, signed, write } from "./drawing.js";

export const tokens = {
  name: "Tokens",
  hint: "Each token with its probability and the next best.",
  uses: [],
  draw(root, room, { attention: { steps }, state, played }) {
    const paint = colours(), isNarrow = room.width < 640;
    const high = isNarrow ? 68 : clamp(40, room.height / steps.length, 48);
    const label = isNarrow ? room.width * 0.4 : 140, bar = isNarrow ? room.width * 0.35 : 120;
    const start = isNarrow ? 0 : label + bar + 72;
    const wide = (room.width - start) / 6;
    steps.slice(0, played + 1).forEach((step, t) => {
      const y = t * high;
      box(root, 0, y, room.width, high - 2, { fill: paint.warm, "fill-opacity": t === state.query ? 0.15 : 0 });
      write(root, 4, y + 20, fitted(step.token, label - 8), { weight: 700 });
      box(root, label, y + 12, bar, 16, { stroke: paint.line });
      box(root, label, y + 12, bar * step.probability, 16, { fill: paint.strong });
      write(root, label + bar + 6, y + 20, percent(step.probability, 1));
      const all = [...step.others];
      all.splice(Math.min(step.rank, all.length), 0, { ...step, isTaken: true });
      all.forEach(({ token, probability, isTaken }, rank) => {
        const [x, top] = [start + rank * wide, y + (isNarrow ? 34 : 2)];
        const frame = { stroke: isTaken ? paint.good : paint.line, "stroke-width": isTaken ? 2 : 1, rx: 4 };
        box(root, x, top, wide - 4, isNarrow ? 31 : 34, frame);
        write(root, x + 4, top + 10, fitted(isTaken ? `✓ ${token}` : token, wide - 10, LEAST), { size: LEAST });
        write(root, x + 4, top + 24, fitted(percent(probability, 2), wide - 6, LEAST), { size: LEAST, fill: paint.faint });
      });
      place(root, 0, y, room.width, high - 2, { query: t, key: null });
    });
    return [room.width, steps.length * high];
  },
  say({ attention: { steps }, state }) {
    const { token, probability, rank, others } = steps[Math.min(state.query, steps.length - 1)];
    const order = rank ? `${rank + 1}. in order` : "the most probable";
    const names = others.slice(0, 3).map((other) => `${quoted(other.token)} ${percent(other.probability, 2)}`);
    return `${quoted(token)} had a probability of ${percent(probability, 1)} and was ${order}; the others: ${names.join(", ")}.`;
  },
  move: moveAlong,
  step: (by, { attention, state }) => ({ query: moved(state.query, by, attention.steps.length), key: null }),
  frames: ({ attention }) => attention.steps.length,
  frame: (index) => ({ query: index, key: null }),
};

// --- beam search: all steps at once, with a cursor ------------------------------------------------

/** The candidates from the first step to one, as indices by step. */
function pathTo(steps, step, candidate) {
  const path = [];
  for (let t = step, at = candidate; t >= 0; t -= 1) {
    path[t] = at;
    at = steps[t][at].parent;
  }
  return path;
}

/** The way of the best translation, as far as it goes; behind its end, the first candidate. */
export function bestPath(steps) {
  for (const [t, step] of steps.entries()) {
    const found = step.findIndex((node) => node.rank === 0);
    if (found >= 0) return pathTo(steps, t, found);
  }
  return [];
}

function sayStatus({ penalty: { form, alpha }, hypotheses, steps }, node, length) {
  if (node.status === "finished") {
    const rank = node.rank >= 0 ? `It is number ${node.rank + 1} of the result.` : "Better ones took its place.";
    const formula = form === "gnmt" ? `((5 + ${length}) / 6)^${alpha}` : `${length}^${alpha}`;
    return `It is finished: ${signed(node.logProb)} divided by the length penalty ${formula} = ${node.penalty.toFixed(2)} gives the score ${signed(node.score)}. ${rank}`;
  }
  const kept = `the ${hypotheses.length} best`;
  const least = Math.min(...steps[length - 1].filter((one) => one.status !== "pruned").map((one) => one.logProb));
  // only an end is dropped while a worse candidate goes on
  const why = node.logProb > least ? `an end counts only among ${kept} candidates of its step` : `it is not one of ${kept}; the last of them has ${signed(least)}`;
  return {
    kept: `It is kept, as one of ${kept}.`,
    pruned: `It is dropped: ${why}.`,
    stopped: "The search ends here: it can no longer beat the finished ones.",
  }[node.status];
}

const MARKS = { finished: "✓ ", pruned: "✕ ", stopped: "■ " };

function drawNode(root, node, x, y, { wide, high }, isChosen) {
  const paint = colours(), isPruned = node.status === "pruned";
  const stroke = isChosen ? paint.warm : { finished: paint.good, pruned: paint.line }[node.status] ?? paint.strong;
  const frame = { fill: paint.ground, stroke, "stroke-width": isChosen ? 3 : isPruned ? 1 : 2, rx: 5 };
  if (isPruned) frame["stroke-dasharray"] = "4 3";
  box(root, x, y, wide, high - 5, frame);
  const ink = isPruned ? paint.faint : paint.ink, middle = (high - 5) / 2, isOneLine = high < 34;
  const token = fitted((MARKS[node.status] ?? "") + node.token, wide - 8, LEAST);
  write(root, x + 5, y + (isOneLine ? middle : middle - 8), token, { weight: 700, fill: ink, size: LEAST });
  const value = signed(node.logProb, wide < 60 ? 1 : 2), score = `${value}, score ${signed(node.score)}`;
  const text = node.status === "finished" && fitted(score, wide - 6, LEAST) === score ? score : fitted(value, wide - 6, LEAST);
  if (!isOneLine) write(root, x + 5, y + middle + 8, text, { size: LEAST, fill: ink });
}

export const search = {
  name: "Search",
  hint: "The candidates of each step of the beam search: left and right step, up and down choose.",
  uses: [],
  draw(root, room, { answer: { steps }, state, played }) {
    if (!steps.length) return note(root, room, "Sampling makes no search: there is no tree.");
    const paint = colours(), top = 24;
    const most = Math.max(...steps.map((step) => step.length));
    const gap = clamp(12, room.width / steps.length / 5, 44);
    const wide = clamp(44, (room.width - 8) / steps.length - gap, 148);
    const size = { wide, high: clamp(24, (room.height - top) / most, 56) };
    const [xOf, yOf] = [(t) => 4 + t * (wide + gap), (index) => top + index * size.high];
    const path = pathTo(steps, state.step, state.candidate);
    const visible = steps.slice(0, played + 1);
    visible.forEach((step, t) => {
      write(root, xOf(t), 10, wide < 60 ? t + 1 : `step ${t + 1}`, { size: LEAST, fill: paint.faint, weight: t === state.step ? 700 : 400 });
      step.forEach((node, index) => {
        if (t === 0) return;
        const [x, from, to] = [xOf(t - 1) + wide, yOf(node.parent) + size.high / 2 - 2, yOf(index) + size.high / 2 - 2];
        const isPath = path[t] === index, stroke = isPath ? paint.warm : node.status === "pruned" ? paint.line : paint.strong;
        const d = `M${x} ${from}C${x + gap / 2} ${from} ${x + gap / 2} ${to} ${x + gap} ${to}`;
        shape("path", { d, fill: "none", stroke, "stroke-width": isPath ? 3 : 1, "stroke-opacity": isPath ? 1 : 0.5 }, root);
      });
    });
    visible.forEach((step, t) =>
      step.forEach((node, index) => {
        drawNode(root, node, xOf(t), yOf(index), size, path[t] === index);
        const isCursor = t === state.step && index === state.candidate;
        if (isCursor) box(root, xOf(t) - 4, yOf(index) - 4, wide + 8, size.high + 3, { stroke: paint.warm, "stroke-width": 2, rx: 8 });
        place(root, xOf(t), yOf(index), wide, size.high, { step: t, candidate: index }, null);
      }),
    );
    return [xOf(steps.length), yOf(most)];
  },
  say({ answer, state }) {
    const { steps } = answer;
    if (!steps.length) return "No search was made: each token was drawn at random.";
    const text = pathTo(steps, state.step, state.candidate).map((at, t) => steps[t][at].token).join("");
    const node = steps[state.step][state.candidate];
    const start = `Step ${state.step + 1} of ${steps.length}: ${quoted(text)} has a log-probability of ${signed(node.logProb)} nats.`;
    return `${start} ${sayStatus(answer, node, state.step + 1)}`;
  },
  move(key, now) {
    const { answer: { steps }, state } = now;
    const by = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[key], down = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (!steps.length || !(by || down)) return null;
    return by ? this.step(by, now) : { candidate: moved(state.candidate, down, steps[state.step].length) };
  },
  step(by, { answer: { steps }, state }) {
    if (!steps.length) return {};
    const step = moved(state.step, by, steps.length);
    return step === state.step ? {} : { step, candidate: bestPath(steps)[step] ?? 0 };
  },
  frames: ({ answer }) => answer.steps.length,
  frame: (index, { answer: { steps } }) => ({ step: index, candidate: bestPath(steps)[index] ?? 0 }),
  focus: ({ state, answer: { steps } }) => state.step / Math.max(steps.length, 1), // what must be in sight, as a share of the width
};
