// Answers of the engine in JavaScript: `node run_engine.mjs JOBS.json ANSWERS.json`.
import { readFile, writeFile } from "node:fs/promises";
import { load } from "../../hf_vanilla/app/engine/index.js";

/** What `work` returns, or the message of its error. */
function answer(work) {
  try {
    return work();
  } catch (error) {
    return { error: error.message };
  }
}

async function answersOf({ folder, encode = [], decode = [], translate = [], attentions = [] }) {
  let model;
  try {
    model = await load(folder);
  } catch (error) {
    return { error: error.message };
  }
  const began = process.cpuUsage().user;
  const translations = translate.map(([text, options]) => answer(() => model.translate(text, options)));
  const seconds = (process.cpuUsage().user - began) / 1e6;
  const weights = attentions.map(([text, ids]) => {
    const { vectors, logProbs, ...seen } = model.attentions(text, ids);
    return { ...seen, logProbs: logProbs.map((row) => [...row]), names: Object.keys(vectors) };
  });
  return {
    ids: encode.map((text) => answer(() => model.tokenizer.encode(text))),
    texts: decode.map((ids) => model.tokenizer.decode(ids)),
    readable: decode.map((ids) => model.tokenizer.readable(ids)),
    translations,
    attentions: weights,
    seconds,
  };
}

const plain = (_, value) => (ArrayBuffer.isView(value) ? [...value] : value);
const jobs = JSON.parse(await readFile(process.argv[2], "utf-8"));
const answers = [];
for (const job of jobs) answers.push(await answersOf(job));
await writeFile(process.argv[3], JSON.stringify(answers, plain));
