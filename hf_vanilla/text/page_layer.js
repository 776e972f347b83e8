// View of one token's way through an attention head and its layer: each vector as small bars.

let vectors = null; // the answer of the server
let requestOfVectors = ""; // what they answer

function vectorPlace() {
  const head = state.head === MEAN ? 0 : state.head;
  return { kind: state.kind, layer: state.layer, head, token: state.query };
}

function vectorRequest() {
  const { ids } = answer.hypotheses[state.hypothesis];
  return { model: answer.model, text: answer.sentence, ids, ...vectorPlace() };
}

// the chosen key, or that of the largest weight
const shownKey = () => state.key ?? vectors.weights.indexOf(Math.max(...vectors.weights));

// Ask for the vectors of the selected place, then draw again.
async function fetchVectors() {
  const [asked, request] = [answer, vectorRequest()];
  const found = await call("inside", request);
  if (!found || answer !== asked) return;
  showProblem(found.error ?? "");
  if (found.error) return;
  [vectors, requestOfVectors] = [found, JSON.stringify(request)];
  redraw();
}

const hasVectors = () => requestOfVectors === JSON.stringify(vectorRequest());

// Bars of a vector around a middle line, in a field of this size.
function drawBars(root, values, x, y, width, high, names = null) {
  const paint = colours();
  const largest = Math.max(...values.map(Math.abs), 1e-9);
  const isSigned = values.some((value) => value < 0);
  const middle = isSigned ? y + high / 2 : y + high;
  const wide = width / values.length;
  values.forEach((value, index) => {
    const tall = (Math.abs(value) / largest) * (isSigned ? high / 2 : high);
    box(root, x + index * wide, value < 0 ? middle : middle - tall, Math.max(wide - (wide > 4 ? 1 : 0), 0.5), tall, {
      fill: value < 0 ? paint.warm : paint.strong,
    });
    if (names) write(root, x + (index + 0.5) * wide, y + high + 10, fitted(names[index], wide - 2, 11), { size: 11, anchor: "middle" });
  });
  shape("line", { x1: x, x2: x + width, y1: middle, y2: middle, stroke: paint.line }, root);
}

// the rows of the view: name, formula with section, vector, names of its entries
function rowsOfLayer(keys) {
  const best = shownKey();
  const of = quoted(keys[best]);
  const isFirst = state.layer === 0 && state.kind !== KINDS[0];
  const from = isFirst ? "√d_model · embedding + position (3.4, 3.5)" : "output of what comes before (3.1)";
  return [
    ["x, the input", from, vectors.x],
    ["q, the query", "q = x W_Q (3.2.2)", vectors.query],
    [`k, the key of ${of}`, "k = x' W_K (3.2.2)", vectors.keys[best]],
    [`v, the value of ${of}`, "v = x' W_V (3.2.2)", vectors.values[best]],
    ["weights", "softmax(q · k / √d_k) (3.2.1)", vectors.weights, keys],
    ["output of the head", "sum of weight · v (3.2.1)", vectors.head],
    ["all heads", "concat(heads) W_O (3.2.2)", vectors.attended],
    ["added and normed", "LayerNorm(x + all heads) (3.1)", vectors.normed],
    ["feed-forward", "max(0, y W_1 + b_1) W_2 + b_2 (3.3)", vectors.fed],
    ["output of the layer", "LayerNorm(y + feed-forward) (3.1)", vectors.output],
  ];
}

views.layer = {
  name: "Layer",
  hint: "One token's vectors through a head and its layer. Left and right choose the token, up and down the key.",
  draw(root, room) {
    const paint = colours();
    if (!answer.hasLayers) {
      write(root, 0, 12, "This view needs a model of this package.", { fill: paint.faint });
      return [room.width, 24];
    }
    if (!hasVectors()) {
      fetchVectors();
      write(root, 0, 12, "Computing…", { fill: paint.faint });
      return [room.width, 24];
    }
    const { keys } = current().kinds[state.kind];
    const isNarrow = room.width < 640;
    const side = isNarrow ? 0 : 250;
    let y = 0;
    for (const [name, formula, values, names] of rowsOfLayer(keys)) {
      write(root, 0, y + 10, name, { weight: 700 });
      write(root, isNarrow ? room.width : 0, y + (isNarrow ? 10 : 28), formula, {
        fill: paint.faint, size: 12, anchor: isNarrow ? "end" : "start",
      });
      write(root, isNarrow ? room.width : 0, y + (isNarrow ? 58 : 44), `${values.length} numbers`, {
        fill: paint.faint, size: 11, anchor: isNarrow ? "end" : "start",
      });
      const width = Math.min(room.width - side, names ? Infinity : values.length * 5);
      drawBars(root, values, side, y + (isNarrow ? 22 : 4), width, isNarrow ? 28 : 36, names);
      y += isNarrow ? 72 : 60;
    }
    return [room.width, y];
  },
  say() {
    if (!answer.hasLayers) return "The layers of this model have other parts.";
    const { queries, keys } = current().kinds[state.kind];
    const { layer, head, token } = vectorPlace();
    const start = `${quoted(queries[token])} in head ${head} of layer ${layer}, ${state.kind}`;
    if (!hasVectors()) return `${start}.`;
    return `${start}: its query meets the keys, and the weights go to ${heaviest(vectors.weights, keys)}.`;
  },
  move(key) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (by) return this.step(by);
    const down = { ArrowDown: 1, ArrowUp: -1 }[key];
    return down ? { key: moved(vectors && shownKey(), down, current().kinds[state.kind].keys.length) } : null;
  },
  step: stepQuery,
};
