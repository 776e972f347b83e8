// Answers of the page's worker: `node run_page.mjs ANSWER.js JOBS.json ANSWERS.json`.
import { readFile, writeFile } from "node:fs/promises";

const { attended, insideOf, open, translated } = await import(process.argv[2]);

/** The answer to a translation, whose steps are run through. */
function finished(steps) {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

const calls = { translate: (own, request) => finished(translated(own, request)), attend: attended, inside: insideOf };
const { facts, folder, requests } = JSON.parse(await readFile(process.argv[3], "utf-8"));
const own = await open(facts, folder);
const answers = requests.map(([call, request]) => {
  try {
    return calls[call](own, request);
  } catch (error) {
    return { error: error.message };
  }
});
await writeFile(process.argv[4], JSON.stringify(answers));
