// Runs the engine outside the page's thread. It answers `{ id, call, args }` by `{ id, result }` or `{ id, error }`,
// with `{ id, progress }` before; `{ cancel: id }` ends a translation.
import { load } from "./engine/index.js";

const PAUSE_MS = 50; // between two looks for a cancelled translation
let model;
const cancelled = new Set();
const calls = {
  load: async (_, files) => void (model = await load(files)),
  settings: () => model.settings(1, {}),
  translate: async (id, text, options) => {
    let looked = performance.now();
    const steps = model.steps(text, options);
    let step = steps.next();
    for (; !step.done; step = steps.next()) {
      if (performance.now() - looked < PAUSE_MS) continue;
      postMessage({ id, progress: step.value });
      await new Promise((resolve) => setTimeout(resolve)); // lets a message in
      looked = performance.now();
      if (cancelled.has(id)) throw new Error("stopped");
    }
    return step.value;
  },
  attentions: (_, text, ids) => ({ ...model.attentions(text, ids), vectors: null }),
};

onmessage = async ({ data: { id, call, args, cancel } }) => {
  if (cancel !== undefined) return void cancelled.add(cancel);
  try {
    postMessage({ id, result: await calls[call](id, ...args) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
};
