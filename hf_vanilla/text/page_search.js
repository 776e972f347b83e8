// Views of the search: the probability of each token, and the beam search as a tree.

views.tokens = {
  name: "Tokens",
  hint: "Each token with its probability and the five next best. Arrow keys move.",
  draw(root, room) {
    const { steps } = current();
    const paint = colours();
    const isNarrow = room.width < 640;
    const high = isNarrow ? 68 : 44;
    const label = isNarrow ? room.width * 0.4 : 160;
    const bar = isNarrow ? room.width * 0.4 : 120;
    const start = isNarrow ? 0 : label + bar + 72;
    const wide = (room.width - start) / 6;
    steps.forEach((step, t) => {
      const y = t * high;
      const isChosen = t === state.query;
      box(root, 0, y, room.width, high - 2, { fill: paint.warm, "fill-opacity": isChosen ? 0.15 : 0 });
      write(root, 4, y + 20, fitted(step.token, label - 8), { weight: 700 });
      box(root, label, y + 12, bar, 16, { stroke: paint.line });
      box(root, label, y + 12, bar * step.probability, 16, { fill: paint.strong });
      write(root, label + bar + 6, y + 20, percent(step.probability, 1));
      const all = [...step.others];
      all.splice(Math.min(step.rank, all.length), 0, { ...step, isTaken: true });
      all.forEach(({ token, probability, isTaken }, place) => {
        const [x, top] = [start + place * wide, y + (isNarrow ? 34 : 4)];
        box(root, x, top, wide - 4, isNarrow ? 30 : 34, {
          stroke: isTaken ? paint.good : paint.line, "stroke-width": isTaken ? 2 : 1, rx: 4,
        });
        const name = isTaken ? `✓ ${token}` : token;
        write(root, x + 4, top + 10, fitted(name, wide - 12, 11), { size: 11 });
        write(root, x + 4, top + 23, percent(probability, 2), { size: 10, fill: paint.faint });
      });
      const place = box(root, 0, y, room.width, high - 2, { fill: paint.ground, "fill-opacity": 0 });
      place.dataset.hover = place.dataset.click = change({ query: t, key: null });
    });
    return [room.width, steps.length * high];
  },
  say() {
    const { token, probability, rank, others } = current().steps[Math.min(state.query, current().steps.length - 1)];
    const place = rank ? `${rank + 1}. in order` : "the most probable";
    const names = others.slice(0, 3).map((other) => `${quoted(other.token)} ${percent(other.probability, 2)}`);
    return `${quoted(token)} had a probability of ${percent(probability, 1)} and was ${place}; the others: ${names.join(", ")}.`;
  },
  move(key) {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[key];
    return by ? this.step(by) : null;
  },
  step: (by) => ({ query: moved(state.query, by, current().steps.length), key: null }),
};

// --- beam search --------------------------------------------------------------------------------

const NODE = { wide: 148, high: 44, gap: 44, top: 28 };

// the tokens of a candidate, from the first
function textOf(step, candidate) {
  const tokens = [];
  for (let at = candidate, t = step; t >= 0; t -= 1) {
    const node = answer.steps[t][at];
    tokens.unshift(node.token);
    at = node.parent;
  }
  return tokens.join("");
}

const signed = (value) => value.toFixed(2).replace("-", "−");

function sayStatus(node, isAfter) {
  const { form, alpha } = answer.penalty;
  if (node.status === "finished") {
    const rank = node.rank >= 0 ? `It is number ${node.rank + 1} of the result.` : "Better ones took its place.";
    const formula = form === "gnmt" ? `((5 + ${isAfter + 1}) / 6)^${alpha}` : `${isAfter + 1}^${alpha}`;
    return `It is finished: ${signed(node.logProb)} divided by the length penalty ${formula} = ${node.penalty.toFixed(2)} gives the score ${signed(node.score)}. ${rank}`;
  }
  return {
    kept: `It is kept, as one of the ${answer.beams} best.`,
    pruned: "It is pruned: others are better.",
    stopped: "The search ends here: it can no longer beat the finished ones.",
  }[node.status];
}

function drawNode(root, node, x, y, isChosen) {
  const paint = colours();
  const stroke = { kept: paint.strong, stopped: paint.strong, finished: paint.good, pruned: paint.line }[node.status];
  const style = { fill: paint.ground, stroke, "stroke-width": isChosen ? 4 : node.status === "pruned" ? 1 : 2, rx: 6 };
  if (node.status === "pruned") style["stroke-dasharray"] = "4 3";
  box(root, x, y, NODE.wide, NODE.high - 6, style);
  const ink = node.status === "pruned" ? paint.faint : paint.ink;
  const mark = { finished: "✓ ", pruned: "✕ ", stopped: "■ " }[node.status] ?? "";
  write(root, x + 8, y + 12, fitted(mark + node.token, NODE.wide - 16), { weight: 700, fill: ink });
  const sums = node.status === "finished"
    ? `${signed(node.logProb)} / ${node.penalty.toFixed(2)} = ${signed(node.score)}`
    : signed(node.logProb);
  write(root, x + 8, y + 28, sums, { size: 11, fill: ink });
}

views.search = {
  name: "Search",
  get hint() {
    if (answer.sampling) return "Sampling makes no search.";
    return "The candidates of each step of the beam search. Left and right arrow keys step, up and down choose.";
  },
  draw(root, room) {
    const paint = colours();
    if (answer.sampling) {
      write(root, 0, 12, "Sampling makes no search: there is no tree.", { fill: paint.faint });
      return [room.width, 24];
    }
    const shown = answer.steps.slice(0, state.step + 1);
    const xOf = (t) => 4 + t * (NODE.wide + NODE.gap);
    const yOf = (index) => NODE.top + index * NODE.high;
    const onPath = new Set();
    for (let t = state.step, at = state.candidate; t >= 0; t -= 1) {
      onPath.add(`${t} ${at}`);
      at = answer.steps[t][at].parent;
    }
    shown.forEach((step, t) => {
      write(root, xOf(t), 12, `step ${t + 1}`, { fill: paint.faint, weight: t === state.step ? 700 : 400 });
      step.forEach((node, index) => {
        if (t === 0) return;
        const [x, y, high] = [xOf(t - 1) + NODE.wide, yOf(node.parent) + 19, yOf(index) + 19];
        const isPath = onPath.has(`${t} ${index}`);
        shape("path", {
          d: `M${x} ${y}C${x + 22} ${y} ${x + 22} ${high} ${x + NODE.gap} ${high}`,
          fill: "none", stroke: isPath ? paint.warm : node.status === "pruned" ? paint.line : paint.strong,
          "stroke-width": isPath ? 3 : 1, "stroke-opacity": isPath ? 1 : 0.5,
        }, root);
      });
    });
    shown.forEach((step, t) =>
      step.forEach((node, index) => {
        drawNode(root, node, xOf(t), yOf(index), onPath.has(`${t} ${index}`));
        const place = box(root, xOf(t), yOf(index), NODE.wide, NODE.high, { fill: paint.ground, "fill-opacity": 0 });
        place.dataset.click = change({ step: t, candidate: index });
      }),
    );
    const most = Math.max(...answer.steps.map((step) => step.length));
    return [xOf(shown.length), yOf(most)];
  },
  say() {
    if (answer.sampling) return "No search was made: each token was drawn at random.";
    const step = answer.steps[state.step];
    const node = step[state.candidate];
    const start = `Step ${state.step + 1} of ${answer.steps.length}: ${quoted(textOf(state.step, state.candidate))} has a log-probability of ${signed(node.logProb)} nats.`;
    return `${start} ${sayStatus(node, state.step)}`;
  },
  move(key) {
    if (answer.sampling) return null;
    const by = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (by) return this.step(by);
    const down = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (down) return { candidate: moved(state.candidate, down, answer.steps[state.step].length) };
    if (key === "Home") return { step: 0, candidate: 0 };
    if (key === "End") return { step: answer.steps.length - 1, candidate: 0 };
    return null;
  },
  step(by) {
    if (answer.sampling) return {};
    const step = moved(state.step, by, answer.steps.length);
    return step === state.step ? {} : { step, candidate: 0 };
  },
  // keep the newest step in sight
  follow(panel) {
    const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "instant" : "smooth";
    const right = (state.step + 1) * (NODE.wide + NODE.gap) + 2 * PADDING;
    if (right > panel.scrollLeft + panel.clientWidth || right - NODE.wide < panel.scrollLeft) {
      panel.scrollTo({ left: right - panel.clientWidth, behavior });
    }
  },
};
