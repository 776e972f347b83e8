// What the engine answers to a request of the page: the JSON that the service gives (page.py, page_answer.py), so that a
// view does not know which of the two computed it.
import { load } from "./engine/index.js";

const CROSS = "cross-attention", ENCODER = "encoder self-attention", DECODER = "decoder self-attention";
const ALTERNATIVES = 5, MAX_TOKENS = 512, CHARACTERS_PER_TOKEN = 20, MAX_BEAMS = 10, MAX_NEW_TOKENS = 512;
const NAMED_FROM = 0.4, SPREAD_FROM = 0.75, FOCUSED_BELOW = 0.5, FEW = 64;
const UNFAMILIAR = "the text is split into letters or bytes, unlike the text that the model was trained on: its translation is probably wrong";
const BLANK = /[\p{White_Space}\x1c-\x1f]/u, RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/;
const rounded = (value) => (Number.isFinite(value) ? Math.round(value * 1e4) / 1e4 : null);
const numbersOf = (count) => Array.from({ length: count }, (_, index) => index);

/** A model with what the page's facts say of it: `name`, `about`, `alignment`. */
export async function open(facts, files) {
  const model = await load(files);
  const pieces = Array.from(model.tokenizer.tokens, (token = "") => token.replace(/^[Ġ▁]+/, ""));
  const isFragment = (piece) => (/^.$/su.test(piece) && piece < "\u0180" && /[\p{L}\x80-\u017f]/u.test(piece)) || piece.startsWith("<0x");
  const isLong = pieces.filter((piece) => [...piece].length > 1).length >= FEW; // otherwise it splits every text into letters
  const fragments = new Set(numbersOf(pieces.length).filter((id) => isLong && isFragment(pieces[id])));
  return { ...facts, model, fragments, seen: {} };
}

/** The text on one line, in valid Unicode. */
function checkedText(text) {
  const letters = [...text], limit = MAX_TOKENS * CHARACTERS_PER_TOKEN;
  if (letters.length > limit) {
    throw new Error(`The text has ${letters.length.toLocaleString("en")} characters; the limit is ${limit.toLocaleString("en")}: give a shorter one.`);
  }
  const sentence = text.replace(/\p{Surrogate}/gu, "\ufffd").split(/\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]/).join(" ");
  if (![...sentence].some((letter) => !BLANK.test(letter))) throw new Error("There is no text: type a sentence.");
  return sentence;
}

/** What a visitor wrote into the fields of the lengths, as options of the engine. */
function optionsOf(texts = {}) {
  const fields = { max_new_tokens: ["maximum length", 1, MAX_NEW_TOKENS, "a whole number"], length_penalty: ["length penalty", 0, 5, "a number"] };
  if (texts.min_new_tokens) throw new Error("The engine of this page knows no minimum length: leave the field empty.");
  return Object.fromEntries(Object.entries(fields).filter(([name]) => texts[name]).map(([name, [called, least, most, kind]]) => {
    const value = Number(texts[name]), isWhole = kind === "a number" || Number.isInteger(value);
    if (isWhole && value >= least && value <= most) return [name, value];
    throw new Error(`The ${called} is '${texts[name].slice(0, 40)}': give ${kind} from ${least} to ${most}.`);
  }));
}

/** Answer a request to translate, step by step: yields `{ length, limit }`. */
export function* translated(own, { text, beams, lengths, sampling }) {
  const sentence = checkedText(text), { tokenizer } = own.model, ids = tokenizer.encode(sentence);
  if (sampling) throw new Error("The engine of this page does not sample: choose beam search.");
  if (!(beams >= 1 && beams <= MAX_BEAMS)) throw new Error(`beams=${beams}: give 1 to ${MAX_BEAMS}`);
  const longest = Math.min(MAX_TOKENS, tokenizer.maxLength);
  if (ids.length > longest) {
    throw new Error(`The text has ${ids.length.toLocaleString("en")} tokens; the limit is ${longest} for a sentence: give shorter sentences, one at a time.`);
  }
  const { hypotheses, steps, penalty } = yield* own.model.steps(sentence, { num_beams: beams, ...optionsOf(lengths) });
  return {
    model: own.name,
    sentence,
    hypotheses: hypotheses.map(({ text: written, ids: own, score, penalty: divisor, logProb }) => (
      { text: written, ids: own, score: rounded(score), penalty: rounded(divisor), logProb: rounded(logProb) }
    )),
    penalty,
    steps: steps.map((step) => step.map(({ token, parent, logProb, penalty: divisor, score, status, rank }) => (
      { token, parent, logProb: rounded(logProb), penalty: rounded(divisor), score: rounded(score), status, rank }
    ))),
    hasLayers: true,
    attention: attended(own, { text: sentence, ids: hypotheses[0].ids }),
    doubt: doubtOf(own, ids, hypotheses[0].text),
  };
}

function doubtOf({ fragments }, ids, translation) {
  if (!translation) return "the translation is empty";
  return 2 * ids.filter((id) => fragments.has(id)).length > ids.length ? UNFAMILIAR : null;
}

/** All that the model computed for a sentence and a translation; kept for the next request. */
function seenBy(own, text, ids) {
  const key = JSON.stringify([text, ids]);
  if (own.seen.key !== key) own.seen = { key, ...own.model.attentions(text, ids) };
  return own.seen;
}

// --- attention ------------------------------------------------------------------------------------

/** Answer a request for the weights of a text and its translation `ids`. */
export function attended(own, { text, ids }) {
  const sentence = checkedText(text), seen = seenBy(own, sentence, ids), { source, target, read } = seen;
  const sides = [[CROSS, seen.cross, target, source], [ENCODER, seen.encoder, source, source], [DECODER, seen.decoder, target, read]];
  const kinds = Object.fromEntries(sides.map(([kind, layers, queries, keys]) => {
    const grids = layers.map((rows) => gridsOf(rows, keys.length, kind === DECODER));
    const bytes = grids.flat(3).map((weight) => Math.round(255 * weight));
    const patterns = grids.map((heads) => heads.map((rows) => patternOf(rows, kind)));
    const shape = [layers.length, grids[0].length, queries.length, keys.length];
    return [kind, { queries, keys, words: [wordStarts(queries), wordStarts(keys)], shape, weights: base64(bytes), patterns }];
  }));
  const directions = [source, target].map((tokens) => {
    const first = [...tokens.join("")].find((letter) => /\p{L}/u.test(letter)) ?? "";
    return RIGHT_TO_LEFT.test(first) ? "rtl" : "ltr";
  });
  return { kinds, steps: probabilities(own, seen, ids), words: alignedWords(own, sentence, ids, seen), directions };
}

/** Rows of each head, `(H, Q, K)`, from the weights of each query, `(H, its keys)`; later keys have 0. */
function gridsOf(rows, keys, isCausal) {
  const own = (row) => (isCausal ? row + 1 : keys), heads = rows[0].length / own(0);
  const weight = (row, head, key) => (key < own(row) ? rows[row][head * own(row) + key] : 0);
  return numbersOf(heads).map((head) => rows.map((_, row) => numbersOf(keys).map((key) => weight(row, head, key))));
}

const base64 = (bytes) => btoa(bytes.map((byte) => String.fromCharCode(byte)).join(""));
const isSpecial = (token = "") => token.length > 2 && token.startsWith("<") && token.endsWith(">");

/** Index of the first token of each word. */
function wordStarts(tokens) {
  return numbersOf(tokens.length).filter((index) => index === 0 || "␣↵".includes(tokens[index][0]) || isSpecial(tokens[index]) || isSpecial(tokens[index - 1]));
}

/** Of each token of the translation: its probability, its rank, and the most probable other tokens. */
function probabilities({ model }, { target, logProbs }, ids) {
  return ids.map((id, row) => {
    const own = logProbs[row], best = numbersOf(own.length).sort((a, b) => own[b] - own[a]).slice(0, ALTERNATIVES + 1);
    const others = best.filter((other) => other !== id).slice(0, ALTERNATIVES);
    const names = model.tokenizer.readable(others);
    return {
      token: target[row],
      probability: rounded(Math.exp(own[id])),
      rank: own.filter((value) => value > own[id]).length,
      others: others.map((other, index) => ({ token: names[index], probability: rounded(Math.exp(own[other])) })),
    };
  });
}

// --- what a head does ---------------------------------------------------------------------------

// of a decoder, keys are the tokens that it read: the last one is that before the query
const PATTERNS = {
  [ENCODER]: ["same token", "previous token", "next token", "end token"],
  [DECODER]: ["last token", "token before the last", "start token"],
  [CROSS]: ["diagonal", "end token"],
};
const OFFSETS = { "previous token": -1, "token before the last": -1, "next token": 1 };
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Name, share of the weights and entropy of one head, `(Q, K)`. */
function patternOf(all, kind) {
  const isShort = kind === DECODER && all.length > 1; // at its first step, a decoder has only the start token
  const rows = isShort ? all.slice(1) : all, keys = rows[0].length;
  const shares = PATTERNS[kind].map((name) => shareOf(rows, name, isShort ? 1 : 0));
  const entropy = mean(rows.map((row) => -row.reduce((sum, weight) => sum + (weight ? weight * Math.log2(weight) : 0), 0)));
  const share = Math.max(...shares);
  let name = PATTERNS[kind][shares.indexOf(share)];
  if (share < NAMED_FROM) name = entropy < FOCUSED_BELOW ? "one token" : entropy > SPREAD_FROM * Math.log2(Math.max(keys, 2)) ? "spread" : "mixed";
  return { name, share: rounded(share), entropy: rounded(entropy) };
}

/** Mean weight of the keys that a pattern names, over the queries that have such a key. */
function shareOf(rows, name, first) {
  const [queries, keys] = [rows.length, rows[0].length];
  const column = (row) => {
    if (name === "end token" || name === "start token") return name === "end token" ? keys - 1 : 0;
    if (name === "diagonal") return evenRound((row * (keys - 1)) / Math.max(queries - 1, 1));
    return row + first + (OFFSETS[name] ?? 0);
  };
  const found = rows.map((row, index) => row[column(index)]).filter((weight) => weight !== undefined);
  return found.length ? mean(found) : 0;
}

const evenRound = (value) => (value % 1 === 0.5 ? 2 * Math.round(value / 2) : Math.round(value)); // as torch rounds

// --- words --------------------------------------------------------------------------------------

/** The words of both sides, each target word linked to the source word of the largest weight (alignments.py). */
function alignedWords({ model, alignment }, sentence, ids, { cross }) {
  const layers = cross.length, { layer, head, is_next: isNext } = alignment ?? { layer: Math.max(layers - 2, 0), head: null, is_next: false };
  const texts = [sentence, model.tokenizer.decode(ids)], tokens = [model.tokenizer.encode(sentence), ids];
  const parts = texts.map((text) => text.split(BLANK).filter(Boolean));
  const shares = texts.map((text, side) => sharesOf(model.tokenizer, tokens[side], text));
  const grid = gridsOf(cross[layer], tokens[0].length, false);
  const rows = ids.map((_, row) => tokens[0].map((_, column) => {
    const at = Math.min(row + Number(isNext), ids.length - 1);
    return head === null ? mean(grid.map((one) => one[at][column])) : grid[head][at][column];
  }));
  const best = parts[1].map((_, word) => {
    const total = shares[1].reduce((sum, share) => sum + (share[word] ?? 0), 0);
    const weights = parts[0].map((_, own) => rows.reduce((sum, row, t) => sum + ((shares[1][t][word] ?? 0) / Math.max(total, 1e-9)) * row.reduce((all, weight, s) => all + weight * (shares[0][s][own] ?? 0), 0), 0));
    return [weights.indexOf(Math.max(...weights)), word, Math.max(...weights)];
  });
  const links = best.filter(([, , weight]) => weight > 0).map(([own, word]) => [own, word]).sort(([a, b], [c, d]) => a - c || b - d);
  const starts = parts[1].map((_, word) => shares[1].findIndex((share) => share[word] > 0));
  return { source: parts[0], target: parts[1], starts, links, head: { layer, head, is_next: isNext } };
}

/** Which share of each token lies in which word: `{ word: share }` for each token. */
function sharesOf(tokenizer, ids, text) {
  const wordOf = []; // by character that is no space
  let word = -1, isInside = false;
  for (const letter of text) {
    const isBlank = BLANK.test(letter);
    if (!isBlank && !isInside) word++;
    if (!isBlank) wordOf.push(word);
    isInside = !isBlank;
  }
  let seen = 0;
  return ids.map((_, index) => {
    const decoded = [...tokenizer.decode(ids.slice(0, index + 1))].filter((letter) => !BLANK.test(letter));
    const length = Math.min(decoded.length, wordOf.length), share = {};
    for (const own of wordOf.slice(seen, length)) share[own] = (share[own] ?? 0) + 1 / (length - seen);
    seen = Math.max(seen, length);
    return share;
  });
}

// --- the vectors of one token in one head ---------------------------------------------------------

/** sqrt(D) times the row of a token in the table of its side (3.4), `(D,)`. */
function embeddingOf(transformer, stack, id) {
  const { d_model: D, scale_embedding: isScaled, zero_pad_embedding: isZeroed, pad_token_id: pad } = transformer.config;
  const row = transformer[stack].table.subarray(id * D, (id + 1) * D);
  return Array.from(row, (value) => (isZeroed && id === pad ? 0 : value * (isScaled ? Math.sqrt(D) : 1)));
}

/** Answer a request for the vectors at a `kind`, `layer`, `head` and `token` (attentions.py). */
export function insideOf(own, { text, ids, kind, layer, head, token }) {
  const sentence = checkedText(text), { vectors } = seenBy(own, sentence, ids), { transformer, startId } = own.model;
  const stack = kind === ENCODER ? "encoder" : "decoder", heads = transformer.config[`${stack}_attention_heads`];
  // the encoder computes all tokens at once, the decoder one by one
  const [step, row] = kind === ENCODER ? [0, token] : [token, 0];
  const steps = vectors[`${stack}.${layer}.${kind === CROSS ? "encoder_attn" : "self_attn"}`], part = steps[step];
  const end = vectors[`${stack}.${layer}`][step], { keys, values } = steps.at(-1).memories[0]; // the last step has all
  const numbers = (all) => Array.from(all, rounded);
  const ofHead = (all) => numbers(all.subarray((all.length / heads) * head, (all.length / heads) * (head + 1)));
  const id = kind === ENCODER ? own.model.sourceIds(sentence)[token] : token ? ids[token - 1] : startId;
  const embedded = embeddingOf(transformer, stack, id), start = vectors[`${stack}.0.self_attn`][step].x[row];
  const weights = ofHead(part.weights[row]);
  return {
    embedded: numbers(embedded),
    position: embedded.map((value, index) => rounded(start[index] - value)),
    x: numbers(part.x[row]),
    query: ofHead(part.query[row]),
    keys: keys.map(ofHead), values: values.map(ofHead),
    weights: [...weights, ...Array(keys.length - weights.length).fill(0)], // later tokens have 0
    head: ofHead(part.means[row]),
    attended: numbers(part.attended[row]),
    normed: numbers((kind === DECODER ? end.first : end.normed)[row]),
    fed: numbers(end.fed[row]), output: numbers(end.output[row]),
  };
}
