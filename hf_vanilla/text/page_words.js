// View of the word alignment, drawn as lines between both sides.

// The target word of the chosen token; the last one for the end token.
const chosenWord = ({ starts }) => Math.max(starts.filter((first) => first <= state.query).length - 1, 0);
const hasLinks = (words) => words !== null && words.links.length > 0;

function selectWord({ starts }, index) {
  return { query: starts[clamp(0, index, starts.length - 1)], key: null };
}

function moveWord(by) {
  const { words } = current();
  return hasLinks(words) ? selectWord(words, chosenWord(words) + by) : null;
}

views.words = {
  name: "Words",
  hint: "Each word of the translation is linked to one of the sentence. Arrow keys move.",
  draw(root, room) {
    const { words } = current();
    if (!hasLinks(words)) {
      write(root, 0, 12, "There are no words to align.", { fill: colours().faint });
      return [room.width, 24];
    }
    const rows = words.target.map(() => words.source.map(() => 0));
    for (const [source, target] of words.links) rows[target][source] = 1;
    return drawLines(root, room, {
      queries: words.target,
      keys: words.source,
      rows,
      chosen: chosenWord(words),
      captions: ["sentence", "translation"],
      selects: (index) => selectWord(words, index),
    });
  },
  say() {
    const { words, kinds } = current();
    if (words === null) return "This tokenizer has a vocabulary per language: words cannot be aligned.";
    if (!hasLinks(words)) return "The translation has no words.";
    const { layer, head, is_next: isNext } = words.head;
    const chosen = chosenWord(words);
    const sources = words.links.filter(([, target]) => target === chosen).map(([source]) => quoted(words.source[source]));
    const of = head === null ? `the mean of ${kinds[KINDS[0]].shape[1]} heads` : `head ${head}`;
    const step = isNext ? "when the word is read" : "when the word is written";
    return `${quoted(words.target[chosen])} is aligned with ${sources.join(", ")}: cross-attention of layer ${layer}, ${of}, ${step}.`;
  },
  move: (key) => {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[key];
    if (by) return moveWord(by);
    return key === "Home" ? moveWord(-Infinity) : key === "End" ? moveWord(Infinity) : null;
  },
  step: (by) => moveWord(by) ?? {},
};
