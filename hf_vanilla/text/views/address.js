// The state in the address behind `#`: a link shows the same to others. It is not sent to a server.
import { KINDS, MEAN } from "./attention.js";

const isCount = (text) => /^\d{1,4}$/.test(text);
const isAny = () => true;
// name in the address: name in the state, and whether a text is one of its values
const FIELDS = {
  v: ["view", (text) => /^[a-z]+$/.test(text)],
  k: ["kind", (text) => KINDS.includes(text)],
  l: ["layer", isCount],
  d: ["head", (text) => text === MEAN || isCount(text)],
  q: ["query", isCount],
  y: ["key", isCount],
  h: ["hypothesis", isCount],
  o: ["other", (text) => text === "asked" || isCount(text)],
  om: ["otherModel", isAny],
  ot: ["otherText", isAny],
  t: ["step", isCount],
  c: ["candidate", isCount],
  r: ["source", isCount],
  x: ["box", isCount],
  p: ["present", isCount],
};

/** Write text, settings of the search by their names, and state. */
export function writeAddress(model, question, state) {
  const fields = new URLSearchParams({ m: model, s: question.text });
  for (const [name, text] of Object.entries(question.settings)) if (text !== "") fields.set(name, text);
  for (const [short, [name]] of Object.entries(FIELDS)) {
    if (state[name] !== null && state[name] !== "") fields.set(short, state[name]);
  }
  history.replaceState(null, "", `#${fields}`);
}

/** `{ text, settings, changes, problem }` of the address; null: it has none. What cannot be used is left out, and `problem` says so. */
export function readAddress(model, settingNames) {
  if (location.hash.length < 2) return null;
  const fields = new URLSearchParams(location.hash.slice(1)), found = { text: fields.get("s") ?? "", settings: {}, changes: {}, problem: "" };
  if (!found.text) return { ...found, problem: "The link is damaged: it is ignored." };
  if ((fields.get("m") ?? model) !== model) found.problem = `The link was made with another model, ${fields.get("m").slice(0, 80)}.`;
  for (const name of settingNames) if (fields.has(name)) found.settings[name] = fields.get(name).slice(0, 40);
  for (const [short, [name, isValue]] of Object.entries(FIELDS)) {
    const text = fields.get(short);
    if (text === null) continue;
    if (isValue(text)) found.changes[name] = isValue !== isAny && isCount(text) ? Number(text) : text;
    else found.problem ||= "A part of the link is damaged: it is ignored.";
  }
  return found;
}
