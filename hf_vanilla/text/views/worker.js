// Runs the engine outside the page's thread. It answers `{ id, call, request }` by `{ id, answer }`, with `{ id, progress }`
// before; an answer may be `{ error }`. `{ cancel: id }` ends a translation.
import { attended, insideOf, open, translated } from "./answer.js";

const PAUSE_MS = 50; // between two looks for a cancelled translation
const models = {}; // by name: the promise of the model
const cancelled = new Set();

/** What a generator returns; meanwhile, it tells the page its progress and lets a cancel in. */
async function finished(id, steps) {
  let looked = performance.now(), step = steps.next();
  for (; !step.done; step = steps.next()) {
    if (performance.now() - looked < PAUSE_MS) continue;
    postMessage({ id, progress: step.value });
    await new Promise((resolve) => setTimeout(resolve));
    looked = performance.now();
    if (cancelled.has(id)) throw new Error("Stopped.");
  }
  return step.value;
}

const settingsOf = ({ model, name, about }) => {
  const { beams, alpha } = model.settings(1, {});
  return { name, about, beams, penalty: alpha };
};
const calls = {
  open: (_, { facts, files }) => (models[facts.name] = open(facts, files)).then(settingsOf),
  translate: (id, request, own) => finished(id, translated(own, request)),
  attend: (_, request, own) => attended(own, request),
  inside: (_, request, own) => insideOf(own, request),
  // for the console, as the engine itself answers
  plain: (id, { text, options }, { model }) => finished(id, model.steps(text, options)),
};

onmessage = async ({ data: { id, call, request, cancel } }) => {
  if (cancel !== undefined) return void cancelled.add(cancel);
  try {
    postMessage({ id, answer: await calls[call](id, request, await models[request.model]) });
  } catch (error) {
    postMessage({ id, answer: { error: error.message } });
  }
};
