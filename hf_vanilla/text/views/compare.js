// View of two translations side by side: of one sentence, of two sentences, or of two models.
import { byQuery, drawMap, headOf, MEAN, sayWeights } from "./attention.js";
import { box, colours, fitted, LEAST, quoted, shape, write } from "./drawing.js";

/** The chosen translation as a side; the other side is `now.other`, or null. */
const sides = (now) => [{ hypothesis: now.answer.hypotheses[now.state.hypothesis], attention: now.attention, model: now.answer.model }, now.other];

function hasHead({ attention }, { kind, layer, head }) {
  const [layers, heads] = attention.kinds[kind].shape;
  return layer < layers && (head === MEAN || head < heads);
}

export const compare = {
  ...byQuery,
  name: "Compare",
  hint: "Two translations side by side, with the same head.",
  draw(root, room, now) {
    const paint = colours(), isNarrow = room.width < 560;
    const width = isNarrow ? room.width : room.width / 2 - 12;
    let bottom = 0;
    const names = new Set(sides(now).map((side) => side?.model));
    sides(now).forEach((side, index) => {
      const [x, y] = isNarrow ? [0, bottom + (index ? 16 : 0)] : [index * (width + 24), 0];
      const group = shape("g", { transform: `translate(${x} ${y})` }, root);
      if (!side) {
        write(group, 0, 12, "Choose what to compare with.", { fill: paint.faint });
        return;
      }
      const { steps } = side.attention, { score, text } = side.hypothesis;
      write(group, 0, 12, fitted(names.size > 1 ? `${side.model}: ${text}` : text, width), { weight: 700 });
      write(group, 0, 32, `score ${score.toFixed(3)}, ${steps.length} tokens, and their probabilities:`, { fill: paint.faint, size: LEAST });
      const wide = Math.min(width / steps.length, 40);
      steps.forEach(({ probability }, t) => {
        box(group, t * wide, 76 - 32 * probability, wide - 2, 32 * probability, { fill: paint.strong });
        box(group, t * wide, 44, wide - 2, 32, { stroke: paint.line, "stroke-width": 0.5 });
      });
      const map = shape("g", { transform: "translate(0 88)" }, group);
      const field = { width, height: isNarrow ? room.height : room.height - 88 };
      let high = 24;
      if (hasHead(side, now.state)) [, high] = drawMap(map, field, headOf(side.attention, now.state), now, index === 0);
      else write(map, 0, 12, "This model has no such head.", { fill: paint.faint });
      bottom = Math.max(bottom, y + 88 + high);
    });
    return [room.width, bottom];
  },
  say(now) {
    const [first, other] = sides(now), start = `${quoted(first.hypothesis.text)} has the score ${first.hypothesis.score.toFixed(3)}`;
    if (!other) return `${start}. Nothing to compare with is chosen.`;
    return `${start}, ${quoted(other.hypothesis.text)} ${other.hypothesis.score.toFixed(3)}. ${sayWeights(now)}`;
  },
};
