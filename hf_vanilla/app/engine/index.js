// A model of this package, the same in a browser and in node:
//   const model = await load("model");      // a folder, or the bytes of its files by name
//   model.translate("forty-two").text;      // "zweiundvierzig"
import { Decoder, Transformer } from "./model.js";
import { search } from "./search.js";
import { refuse, refuseAny, Tokenizer } from "./tokenizer.js";

const JSON_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
// what a generation config may say; the rest, such as sampling, is refused
const OPTIONS = ["num_beams", "length_penalty", "length_penalty_form", "early_stopping", "max_new_tokens"];
const KNOWN = [
  ...OPTIONS, "max_length", "max_tokens_beyond_source", "bos_token_id", "pad_token_id", "eos_token_id",
  "decoder_start_token_id", "num_return_sequences", "use_cache", "transformers_version", "_from_model_config",
];
const DEFAULT_MAX_LENGTH = 20; // of transformers; `Seq2SeqTrainer` writes it into a model, and means no limit by it

async function fileBytes(folder, name) {
  if (typeof folder === "object") return folder[name];
  if (globalThis.process?.versions?.node) {
    const { readFile } = await import("node:fs/promises");
    return new Uint8Array(await readFile(`${folder}/${name}`));
  }
  const answer = await fetch(`${folder}/${name}`);
  if (!answer.ok) throw new Error(`${folder}/${name}: ${answer.status} ${answer.statusText}`);
  return new Uint8Array(await answer.arrayBuffer());
}

const READERS = {
  F32: (raw) => new Float32Array(raw),
  BF16: (raw) => new Float32Array(Uint32Array.from(new Uint16Array(raw), (half) => half << 16).buffer), // upper half
  I8: (raw) => new Int8Array(raw),
};

/** The tensors of a safetensors file as float32, in a tree by their names: `model.shared.weight`. */
function readWeights(bytes) {
  const begin = 8 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const { __metadata__, ...entries } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, begin)));
  const read = ({ dtype, data_offsets: [from, to] }) => READERS[dtype](bytes.slice(begin + from, begin + to).buffer);
  const tree = {};
  for (const [name, entry] of Object.entries(entries)) {
    const path = name.split("."), leaf = path.pop(), width = entry.shape.at(-1);
    const node = path.reduce((at, part) => (at[part] ??= {}), tree);
    refuse(`dtype of ${name}`, entry.dtype, ...Object.keys(READERS));
    const numbers = read(entry), scales = entry.dtype === "I8" && read(entries[`${name}_scale`]); // of each row
    node[leaf] = scales ? Float32Array.from(numbers, (level, i) => level * scales[Math.floor(i / width)]) : numbers;
    if (leaf === "weight") node.width = width;
  }
  return tree;
}

/** Load a model from its folder, an address or a path, or from `{ name: bytes }` of its files. */
export async function load(folder) {
  const text = async (name) => JSON.parse(new TextDecoder().decode(await fileBytes(folder, name)));
  return new Model(...(await Promise.all(JSON_FILES.map(text))), await fileBytes(folder, "model.safetensors"));
}

class Model {
  constructor(config, generation, tokenizer, tokenizerConfig, weights) {
    refuseAny(generation, ...Object.keys(generation).filter((name) => !KNOWN.includes(name)));
    this.generation = generation;
    this.tokenizer = new Tokenizer(tokenizer, tokenizerConfig);
    this.transformer = new Transformer(readWeights(weights), config);
    this.startId = generation.decoder_start_token_id ?? config.decoder_start_token_id;
  }

  /** `{ text, tokens, ids, score, source, hypotheses, steps, penalty }`, as `generate()` with these options. */
  translate(text, options = {}) {
    const steps = this.steps(text, options);
    let step = steps.next();
    while (!step.done) step = steps.next();
    return step.value;
  }

  /** The same step by step: yields `{ length, limit }` after each step, and returns what `translate` returns. */
  *steps(text, options = {}) {
    const { tokenizer, transformer } = this, ids = this.sourceIds(text);
    const settings = this.settings(ids.length, options), { form, alpha } = settings;
    const decoder = new Decoder(transformer, transformer.encode(ids));
    const found = yield* search((...step) => decoder.read(...step), settings);
    const named = (one) => ({ text: tokenizer.decode(one.ids), tokens: tokenizer.readable(one.ids), ...one });
    const hypotheses = found.hypotheses.map(named);
    const steps = found.steps.map((step) => step.map((one) => ({ token: tokenizer.readable([one.id])[0], ...one })));
    return { ...hypotheses[0], source: tokenizer.readable(ids), hypotheses, steps, penalty: { form, alpha } };
  }

  /**
   * All that is computed for a text and the ids of its translation, which are read one by one: weights
   * `encoder[layer][s]` `(H, S)`; of the step that wrote `ids[t]`, `decoder[layer][t]` `(H, t + 1)`,
   * `cross[layer][t]` `(H, S)` and `logProbs[t]` `(V,)`; `vectors` by their place.
   */
  attentions(text, ids) {
    const { tokenizer, transformer } = this, sourceIds = this.sourceIds(text), vectors = {};
    const see = (place, seen) => (vectors[place] ??= []).push(seen);
    const reader = new Decoder(transformer, transformer.encode(sourceIds, see), see);
    const logProbs = ids.map((_, t) => reader.read([t ? ids[t - 1] : this.startId], [0])[0]);
    const weights = (stack, part) =>
      transformer[stack].layers.map((_, layer) => vectors[`${stack}.${layer}.${part}`].flatMap((seen) => seen.weights));
    const target = tokenizer.readable(ids), read = ["<start>", ...target.slice(0, -1)];
    const cross = weights("decoder", "encoder_attn"), decoder = weights("decoder", "self_attn");
    const encoder = weights("encoder", "self_attn"), source = tokenizer.readable(sourceIds);
    return { source, target, read, encoder, decoder, cross, logProbs, vectors };
  }

  sourceIds(text) {
    const ids = this.tokenizer.encode(text), { maxLength } = this.tokenizer, length = ids.length;
    if (length > maxLength) throw new Error(`the text has ${length} tokens, and the model accepts ${maxLength}: shorten it`);
    return ids;
  }

  /** Settings of a search: the model's own, and those of the call (6.1). */
  settings(sourceLength, options) {
    const unknown = Object.keys(options).find((name) => !OPTIONS.includes(name));
    if (unknown) throw new Error(`${unknown}: the page does not know this option; there are ${OPTIONS.join(", ")}`);
    const entries = [...Object.entries(this.generation), ...Object.entries(options)];
    const given = Object.fromEntries(entries.filter(([, value]) => value != null)), { config } = this.transformer;
    const { max_tokens_beyond_source: beyond = Infinity, max_length: longest = DEFAULT_MAX_LENGTH } = given;
    const positions = config.position_embedding_type === "learned" ? config.max_position_embeddings : Infinity;
    const end = Math.min(beyond < Infinity && longest === DEFAULT_MAX_LENGTH ? Infinity : longest, positions);
    const limit = given.max_new_tokens ?? Math.min(sourceLength + beyond, Math.max(end - 1, 1));
    const { num_beams: beams = 1, length_penalty: alpha = 1, early_stopping: earlyStopping = false } = given;
    const { length_penalty_form: form = "power", eos_token_id: ends = [] } = given;
    refuse("length_penalty_form", form, "gnmt", "power");
    const whole = Object.entries({ num_beams: beams, max_new_tokens: limit });
    const wrong = whole.find(([, value]) => !Number.isInteger(value) || value < 1);
    if (wrong) throw new Error(`${wrong.join("=")}: give a whole number from 1`);
    return { beams, limit, form, alpha, earlyStopping, startId: this.startId, endIds: new Set([ends].flat()) };
  }
}
