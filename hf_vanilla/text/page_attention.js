// Views of attention: a map, lines, all heads, and two results side by side.

const LABEL = 128; // widest label, in px

function moved(index, by, count) {
  return clamp(0, (index ?? (by > 0 ? -1 : count)) + by, count - 1);
}

// `key` of a view whose rows are queries and whose columns, if any, are keys
function moveInGrid(pressed, hasKeys) {
  const { queries, keys, isFromRight } = headOf(current());
  const forward = isFromRight ? "ArrowLeft" : "ArrowRight";
  const backward = isFromRight ? "ArrowRight" : "ArrowLeft";
  const across = { [forward]: 1, [backward]: -1 }[pressed];
  const down = { ArrowDown: 1, ArrowUp: -1, ...(hasKeys ? {} : { [forward]: 1, [backward]: -1 }) }[pressed];
  if (down) return { query: moved(state.query, down, queries.length), key: null };
  if (across) return { key: moved(state.key, across, keys.length) };
  if (pressed === "Home") return { query: 0, key: null };
  if (pressed === "End") return { query: queries.length - 1, key: null };
  return null;
}

const stepQuery = (by) => ({ query: moved(state.query, by, headOf(current()).queries.length), key: null });

function sayWeights() {
  const { queries, keys, rows } = headOf(current());
  const query = quoted(queries[state.query]);
  const name = nameOfHead();
  const start = `${name[0].toUpperCase()}${name.slice(1)}: ${query}`;
  if (state.key !== null) {
    return `${start} gives ${quoted(keys[state.key])} ${percent(rows[state.query][state.key])} of its attention.`;
  }
  return `${start} attends to ${heaviest(rows[state.query], keys)}.`;
}

// First and last index of each word; nothing where every token is a word.
function wordSpans(starts, count) {
  if (starts.length === count) return [];
  return starts.map((first, index) => [first, (starts[index + 1] ?? count) - 1]);
}

// A bracket beside the tokens of each word, on both sides of a map.
function drawWords(root, { queries, keys, words }, { left, top, cell, wide, column }) {
  const style = { fill: colours().faint };
  for (const [first, last] of wordSpans(words[0], queries.length)) {
    box(root, left - 7, top + first * cell + 2, 3, (last - first + 1) * cell - 4, style);
  }
  for (const [first, last] of wordSpans(words[1], keys.length)) {
    const start = Math.min(column(first), column(last));
    box(root, start + 2, top - 7, (last - first + 1) * wide - 4, 3, style);
  }
}

// Draw a heat map at a place; returns its width and height.
function drawMap(root, room, shown, { isActive = true } = {}) {
  const { queries, keys, rows, isFromRight } = shown;
  const paint = colours();
  const left = 14 + Math.min(LABEL, room.width / 4, Math.max(...queries.map((token) => textWidth(token))));
  const longest = Math.max(...keys.map((token) => textWidth(token)));
  const across = Math.floor((room.width - left) / keys.length);
  const isFlat = longest < across - 6;
  const top = isFlat ? 30 : 14 + Math.min(LABEL, room.height / 4, longest);
  const down = Math.floor((room.height - top) / queries.length);
  const cell = clamp(16, Math.min(across, down), 64);
  const wide = clamp(cell, across, isFlat ? 96 : cell);
  const column = (k) => left + (isFromRight ? keys.length - 1 - k : k) * wide;
  keys.forEach((token, k) => {
    const style = { weight: isActive && k === state.key ? 700 : 400 };
    if (isFlat) write(root, column(k) + wide / 2, 12, token, { ...style, anchor: "middle" });
    else write(root, column(k) + wide / 2, top - 12, fitted(token, top - 14), { ...style, turn: -90 });
  });
  drawWords(root, shown, { left, top, cell, wide, column });
  queries.forEach((token, q) => {
    const y = top + q * cell;
    const isChosen = isActive && q === state.query;
    const label = write(root, left - 12, y + cell / 2, fitted(token, left - 14), {
      anchor: "end",
      weight: isChosen ? 700 : 400,
    });
    label.dataset.click = change({ query: q, key: null });
    rows[q].forEach((weight, k) => {
      const fill = { fill: paint.strong, "fill-opacity": weight.toFixed(3), "stroke-width": 0.5, stroke: paint.line };
      const field = box(root, column(k), y, wide, cell, fill);
      field.dataset.hover = field.dataset.click = change({ query: q, key: k });
      if (cell < 26 || weight < 0.005) return;
      const ink = weight > 0.5 ? paint.ground : paint.ink;
      const digits = write(root, column(k) + wide / 2, y + cell / 2, String(Math.round(100 * weight)), {
        anchor: "middle", size: 11, fill: ink,
      });
      digits.setAttribute("pointer-events", "none");
    });
    if (!isChosen) return;
    const frame = { stroke: paint.warm, "stroke-width": 2, "pointer-events": "none" };
    box(root, left, y, wide * keys.length, cell, frame);
    if (state.key !== null) box(root, column(state.key), y, wide, cell, { ...frame, "stroke-width": 4 });
  });
  return [left + wide * keys.length + 2, top + cell * queries.length + 2];
}

views.map = {
  name: "Map",
  hint: "Rows attend to columns, in percent. Arrow keys move.",
  draw: (root, room) => drawMap(root, room, headOf(current())),
  say: sayWeights,
  move: (key) => moveInGrid(key, true),
  step: stepQuery,
};

// Draw keys on the left, queries on the right, and a line for each weight; returns width and height.
// `selects` is the change of the state by a query.
function drawLines(root, room, { queries, keys, rows, chosen, captions, selects }) {
  const paint = colours();
  const most = Math.max(queries.length, keys.length);
  const high = clamp(rowHeight(), (room.height - 28) / most, 48);
  const side = Math.min(LABEL, room.width / 3);
  const width = Math.min(room.width, 880);
  const at = (index) => 28 + (index + 0.5) * high;
  write(root, side, 10, captions[0], { anchor: "end", size: 12, fill: paint.faint });
  write(root, width - side, 10, captions[1], { size: 12, fill: paint.faint });
  rows.forEach((row, q) =>
    row.forEach((weight, k) => {
      if (weight < 0.02) return;
      const isChosen = q === chosen;
      const d = `M${side + 6} ${at(k)}C${width / 2} ${at(k)} ${width / 2} ${at(q)} ${width - side - 6} ${at(q)}`;
      const line = { d, fill: "none", stroke: isChosen ? paint.warm : paint.strong, "stroke-width": 1 + 5 * weight };
      const opacity = weight * (isChosen ? 1 : 0.35);
      shape("path", { ...line, "stroke-opacity": opacity.toFixed(3), "pointer-events": "none" }, root);
    }),
  );
  keys.forEach((token, k) => {
    const weight = rows[chosen][k];
    write(root, side, at(k), fitted(token, side), { anchor: "end", weight: weight > 0.2 ? 700 : 400 });
  });
  queries.forEach((token, q) => {
    const isChosen = q === chosen;
    write(root, width - side, at(q), fitted(token, side), { weight: isChosen ? 700 : 400 });
    const place = box(root, width - side - 6, at(q) - high / 2, side + 6, high, {
      fill: paint.warm, "fill-opacity": isChosen ? 0.15 : 0,
    });
    place.dataset.hover = place.dataset.click = change(selects(q));
  });
  return [width, 28 + most * high];
}

views.lines = {
  name: "Lines",
  hint: "Each line is a weight, from the token that attends on the right. Arrow keys move.",
  draw: (root, room) =>
    drawLines(root, room, {
      ...headOf(current()),
      chosen: state.query,
      captions: ["is attended to", "attends"],
      selects: (query) => ({ query, key: null }),
    }),
  say: sayWeights,
  move: (key) => moveInGrid(key, false),
  step: stepQuery,
};

// --- all heads ----------------------------------------------------------------------------------

// a small picture of one head, a pixel for each weight
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

function patternOf(layer, head) {
  const { name, share, entropy } = current().kinds[state.kind].patterns[layer][head];
  const isNamed = !["mixed", "spread", "one token"].includes(name);
  return [name, isNamed ? ` ${percent(share)}` : "", `${entropy.toFixed(1)} bits`];
}

const chosenHead = () => (state.head === MEAN ? 0 : state.head);

views.heads = {
  name: "Heads",
  hint: "All heads of this kind, and what each does most. Arrow keys move, Enter opens the map.",
  draw(root, room) {
    const [layers, heads] = current().kinds[state.kind].shape;
    const paint = colours();
    const isNarrow = room.width < 560; // then the name of a layer is above its row
    const [side, above] = isNarrow ? [0, 20] : [64, 0];
    const wide = clamp(84, (room.width - side) / heads, 200);
    const picture = Math.min(wide - 12, 132);
    const high = above + picture + 48;
    for (const layer of range(layers)) {
      const beside = layer * high + (isNarrow ? 8 : picture / 2);
      write(root, 0, beside, `layer ${layer}`, { fill: paint.faint });
      for (const head of range(heads)) {
        const [x, y] = [side + head * wide, layer * high + above];
        const isChosen = layer === state.layer && head === state.head;
        shape("image", {
          x, y, width: picture, height: picture, preserveAspectRatio: "none",
          href: thumbnail(headOf(current(), state.kind, layer, head)),
          "image-rendering": "pixelated",
        }, root);
        box(root, x, y, picture, picture, {
          stroke: isChosen ? paint.warm : paint.line, "stroke-width": isChosen ? 3 : 1,
        });
        const [name, share, entropy] = patternOf(layer, head);
        const label = wide < 120 ? name : name + share;
        write(root, x, y + picture + 12, fitted(label, wide - 6, 12), { size: 12, weight: 700 });
        const caption = wide < 120 ? `${head}: ${entropy}` : `head ${head}, ${entropy}`;
        write(root, x, y + picture + 28, caption, { size: 11, fill: paint.faint });
        const place = box(root, x, y, wide - 6, high - above - 8, { fill: paint.ground, "fill-opacity": 0 });
        place.dataset.hover = change({ layer, head });
        place.dataset.click = change({ layer, head, view: "map" });
      }
    }
    return [side + heads * wide, layers * high];
  },
  say() {
    const [layers, heads] = current().kinds[state.kind].shape;
    const [name, share, entropy] = patternOf(state.layer, chosenHead());
    return `${layers} layers of ${heads} heads, ${state.kind}. Layer ${state.layer}, head ${chosenHead()}: ${name}${share}, ${entropy} of entropy.`;
  },
  move(key) {
    const [layers, heads] = current().kinds[state.kind].shape;
    const across = { ArrowRight: 1, ArrowLeft: -1 }[key];
    const down = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (across) return { layer: state.layer, head: moved(chosenHead(), across, heads) };
    if (down) return { layer: moved(state.layer, down, layers), head: chosenHead() };
    if (key === "Enter") return { head: chosenHead(), view: "map" };
    return null;
  },
  step(by) {
    const [layers, heads] = current().kinds[state.kind].shape;
    const place = clamp(0, state.layer * heads + chosenHead() + by, layers * heads - 1);
    return { layer: Math.floor(place / heads), head: place % heads };
  },
};

// --- side by side -------------------------------------------------------------------------------

// The two results: name, hypothesis and attention of each; the second may be missing.
function compared() {
  const first = { name: `${state.hypothesis + 1}`, hypothesis: answer.hypotheses[state.hypothesis], attention: current() };
  if (state.other === "model") {
    if (!second) return [first, null];
    return [first, { name: second.model, hypothesis: second.hypotheses[0], attention: second.attention }];
  }
  const attention = attentions[state.other];
  const hypothesis = answer.hypotheses[state.other];
  return [first, attention && { name: `${state.other + 1}`, hypothesis, attention }];
}

function hasHead({ attention }) {
  const [layers, heads] = attention.kinds[state.kind].shape;
  return state.layer < layers && (state.head === MEAN || state.head < heads);
}

views.compare = {
  name: "Compare",
  hint: "Two translations side by side, with the same head. Arrow keys move.",
  draw(root, room) {
    const sides = compared();
    const paint = colours();
    const isNarrow = room.width < 560;
    const width = isNarrow ? room.width : room.width / 2 - 8;
    let [right, bottom] = [0, 0];
    sides.forEach((side, index) => {
      const [x, y] = isNarrow ? [0, bottom + (index ? 16 : 0)] : [index * (width + 16), 0];
      const group = shape("g", { transform: `translate(${x} ${y})` }, root);
      if (!side) {
        write(group, 0, 12, "Choose what to compare with, below.", { fill: paint.faint });
        return;
      }
      const { score, text } = side.hypothesis;
      write(group, 0, 12, fitted(`${side.name}: ${text}`, width), { weight: 700 });
      write(group, 0, 32, `score ${score.toFixed(3)}, ${side.attention.steps.length} tokens`, { fill: paint.faint, size: 12 });
      const bars = shape("g", { transform: "translate(0 44)" }, group);
      const wide = Math.min(width / side.attention.steps.length, 40);
      side.attention.steps.forEach(({ probability }, t) => {
        const high = 32 * probability;
        box(bars, t * wide, 32 - high, wide - 2, high, { fill: paint.strong });
        box(bars, t * wide, 0, wide - 2, 32, { stroke: paint.line, "stroke-width": 0.5 });
      });
      const map = shape("g", { transform: "translate(0 88)" }, group);
      let [w, h] = [width, 24];
      if (hasHead(side)) [w, h] = drawMap(map, { width, height: room.height - 88 }, headOf(side.attention), { isActive: index === 0 });
      else write(map, 0, 12, "This model has no such head.", { fill: paint.faint });
      [right, bottom] = [Math.max(right, x + w), Math.max(bottom, y + 88 + h)];
    });
    return [right, bottom];
  },
  say() {
    const [first, other] = compared();
    const start = `${quoted(first.hypothesis.text)} has the score ${first.hypothesis.score.toFixed(3)}`;
    if (!other) return `${start}. Nothing to compare with is chosen.`;
    return `${start}, ${quoted(other.hypothesis.text)} ${other.hypothesis.score.toFixed(3)}. Bars are the probabilities of the tokens. ${nameOfHead()}.`;
  },
  move: (key) => moveInGrid(key, false),
  step: stepQuery,
};
