// What computes the answers: the engine in a worker, or the service that served this page. Both take the same requests
// (`start`, `load`, `translate`, `attend`, `inside`), and give the same JSON; `{ error }` says in one line what is wrong.

export const facts = JSON.parse(document.getElementById("facts").textContent);
export const isService = facts.engine === "service";
const waiting = new Map(); // calls of the worker, by their number
let calls = 0, worker = null;

/** The worker, from its file, or from the text that a page of one file carries. */
function startWorker() {
  const inlined = document.getElementById("worker");
  worker = inlined
    ? new Worker(URL.createObjectURL(new Blob([inlined.textContent], { type: "text/javascript" })))
    : new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data: { id, answer, progress } }) => {
    const { resolve, tell } = waiting.get(id);
    if (progress) return tell(progress);
    waiting.delete(id);
    resolve(answer);
  };
}

async function fetched(call, request, signal) {
  const headers = { "content-type": "application/json" };
  try {
    const response = await fetch(`v1/view/${call}`, { method: "POST", headers, body: JSON.stringify(request), signal });
    return await response.json();
  } catch {
    return { error: signal.aborted ? "Stopped." : "The server does not answer." };
  }
}

/** The promise of an answer; its `cancel()` ends the work. `tell` gets the progress of the engine. */
export function ask(call, request, tell = () => {}) {
  if (isService) {
    const control = new AbortController();
    return Object.assign(fetched(call, request, control.signal), { cancel: () => control.abort() });
  }
  const id = ++calls;
  const promise = new Promise((resolve) => waiting.set(id, { resolve, tell }));
  worker.postMessage({ id, call, request });
  return Object.assign(promise, { cancel: () => worker.postMessage({ cancel: id }) });
}

/** The files of a model of the engine: the folder's address, or the bytes that a page of one file carries. */
function filesOf({ name, folder }) {
  const parts = [...document.querySelectorAll("script[data-file]")].filter((part) => part.dataset.model === name);
  if (!parts.length) return new URL(folder, location.href).href;
  const bytes = ({ textContent }) => Uint8Array.from(atob(textContent), (character) => character.charCodeAt(0));
  return Object.fromEntries(parts.map((part) => [part.dataset.file, bytes(part)]));
}

/** What the page needs at the start: models, settings, a sentence. The other models of the engine are loaded behind it. */
export async function start() {
  if (isService) return ask("start", null);
  startWorker();
  const [first, ...others] = facts.models.map((model) => () => ask("open", { facts: model, files: filesOf(model) }));
  const found = await first();
  if (found.error) return { error: `The model was not loaded: ${found.error}.` };
  for (const open of others) open();
  const { name, about, beams, penalty } = found, { sentence, examples, models } = facts;
  return { model: name, about, beams, penalty, maxBeams: 10, sentence, examples, models: models.map((model) => model.name), isFixed: true };
}
