// Byte-level BPE (5.1): text to token ids and back, as `tokenizer.json` says.

// GPT-2's words: a contraction; letters, digits or signs with the space before them; spaces
const SPACE = String.raw`\p{White_Space}`; // JavaScript's \s has another character and lacks one
const WORDS = new RegExp(
  String.raw`'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^${SPACE}\p{L}\p{N}]+|${SPACE}+(?![^${SPACE}])|${SPACE}+`, "gu",
);

const FIRST_SPACES = new RegExp(`^${SPACE}+`, "u");

// the printable character that stands for each byte in the vocabulary
let next = 256;
const isPrintable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
const ALPHABET = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : next++));
const BYTES = new Map(ALPHABET.map((character, byte) => [character, byte]));

/** Refuse what this engine does not compute: a value that is not among `known`. */
export function refuse(name, value, ...known) {
  if (known.includes(value ?? null)) return;
  throw new Error(`${name}=${JSON.stringify(value)}: the page does not compute this; use the model in Python`);
}

/** Refuse settings of these names, unless they are off. */
export const refuseAny = (settings, ...names) => names.forEach((name) => refuse(name, settings[name] || null, null));

/** One normalizer of `tokenizer.json` as a function from text to text. */
function normalizer(settings) {
  if (!settings) return (text) => text;
  const { type, normalizers, strip_left: left, strip_right: right, pattern, content } = settings;
  refuse("normalizer", type, "Sequence", "Strip", "Replace");
  const parts = normalizers?.map(normalizer);
  if (parts) return (text) => parts.reduce((before, part) => part(before), text);
  const edges = [left && `^${SPACE}+`, right && `${SPACE}+$`].filter(Boolean).join("|");
  const found = pattern?.String ?? new RegExp(pattern?.Regex.replaceAll("\\s", SPACE) ?? edges, "gu");
  return (text) => text.replaceAll(found, () => content ?? "");
}

/** What splits a text at added tokens and keeps them. */
function splitter(tokens) {
  const escaped = tokens.map(({ content }) => content.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
  const longestFirst = escaped.sort((a, b) => b.length - a.length).join("|");
  return new RegExp(`(${longestFirst || "(?!)"})`, "u"); // without one, nothing matches
}

export class Tokenizer {
  /** @param file `tokenizer.json` @param settings `tokenizer_config.json` */
  constructor(file, settings) {
    const { model, pre_tokenizer: words, post_processor: ends, decoder, added_tokens: added } = file;
    const types = { tokenizer: model, pre_tokenizer: words, decoder, post_processor: ends };
    const known = ["BPE", "ByteLevel", "ByteLevel", "TemplateProcessing"];
    Object.entries(types).forEach(([name, part], index) => refuse(name, part?.type, known[index]));
    refuseAny(model, "continuing_subword_prefix", "end_of_word_suffix", "dropout", "ignore_merges", "byte_fallback");
    // without it, transformers cleans up no text of BPE, whatever clean_up_tokenization_spaces says
    refuseAny(settings, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output");
    this.maxLength = settings.model_max_length ?? Infinity;
    this.normalize = normalizer(file.normalizer);
    [this.addsSpace, this.words] = [words.add_prefix_space, words.use_regex === false ? /[^]+/gu : WORDS];
    this.readVocabulary(model, added);
    const of = (parts) => parts.flatMap((part) => ends.special_tokens[part.SpecialToken.id].ids);
    const middle = ends.single.findIndex((part) => part.Sequence);
    Object.assign(this, { before: of(ends.single.slice(0, middle)), behind: of(ends.single.slice(middle + 1)) });
    // with `split_special_tokens`, a "</s>" in a text is five characters
    const inText = added.filter((token) => !(token.special && settings.split_special_tokens));
    for (const token of inText) refuseAny(token, "single_word", "lstrip");
    this.takesSpaces = new Set(inText.filter((token) => token.rstrip).map(({ content }) => content)); // those behind it
    const isLate = (token) => Boolean(token.normalized); // it is found in normalized text
    this.added = splitter(inText.filter((token) => !isLate(token)));
    this.lateAdded = splitter(inText.filter(isLate));
  }

  readVocabulary({ vocab, merges }, added) {
    this.ids = new Map([...Object.entries(vocab), ...added.map(({ content, id }) => [content, id])]);
    this.tokens = [];
    for (const [token, id] of this.ids) this.tokens[id] = token;
    this.special = new Set(added.filter((token) => token.special).map((token) => token.id));
    this.byteIds = ALPHABET.map((character) => vocab[character]);
    if (this.byteIds.includes(undefined)) throw new Error("the vocabulary of tokenizer.json lacks a byte");
    const pairs = merges.map((merge) => (typeof merge === "string" ? merge.split(" ") : merge));
    this.merged = pairs.map(([left, right]) => vocab[left + right]); // id by rank
    this.ranks = Array.from(this.tokens, () => new Map()); // of each token with the one behind it
    pairs.forEach(([left, right], rank) => this.ranks[vocab[left]].set(vocab[right], rank));
  }

  /** Token ids of a text, with the end token. */
  encode(text) {
    if (/\p{Surrogate}/u.test(text)) throw new Error("the text holds half a character (a lone surrogate): remove it");
    const late = (part) => this.split(this.normalize(part), this.lateAdded, (words) => this.encodePart(words));
    return [...this.before, ...this.split(text, this.added, late), ...this.behind];
  }

  /** Ids of the added tokens that `pattern` finds in a text, and of the parts between them. */
  split(text, pattern, idsOf) {
    return text.split(pattern).flatMap((part, index, parts) => {
      if (index % 2) return [this.ids.get(part)]; // every second one is an added token
      return idsOf(this.takesSpaces.has(parts[index - 1]) ? part.replace(FIRST_SPACES, "") : part);
    });
  }

  encodePart(text) {
    const spaced = text && this.addsSpace && text[0] !== " " ? ` ${text}` : text;
    return (spaced.match(this.words) ?? []).flatMap((word) => this.merge(new TextEncoder().encode(word)));
  }

  /** Tokens of a word: join every pair of the lowest rank, until no pair has a rank. */
  merge(bytes) {
    let ids = Array.from(bytes, (byte) => this.byteIds[byte]);
    for (;;) {
      const ranks = ids.map((id, at) => this.ranks[id].get(ids[at + 1]) ?? Infinity);
      const lowest = ranks.reduce((least, rank) => Math.min(least, rank), Infinity);
      if (lowest === Infinity) return ids;
      const joined = [];
      for (let at = 0; at < ids.length; at++) {
        if (ranks[at] === lowest) joined.push(this.merged[ranks[at++]]); // of "aaa", the first two are joined
        else joined.push(ids[at]);
      }
      ids = joined;
    }
  }

  /** Text of token ids, without special tokens; bytes that are no UTF-8 become U+FFFD. */
  decode(ids) {
    return textOf(ids.filter((id) => !this.special.has(id)).flatMap((id) => bytesOf(this.tokens[id])));
  }

  /** Each token as text with visible spaces; bytes of a split character in hexadecimal. */
  readable(ids) {
    return ids.map((id) => (this.special.has(id) ? this.tokens[id] : visible(bytesOf(this.tokens[id]))));
  }
}

/** Bytes of a vocabulary entry; of one that stands for no bytes, those of its text; none of an unused id. */
function bytesOf(token = "") {
  const bytes = Array.from(token, (character) => BYTES.get(character));
  return bytes.includes(undefined) ? [...new TextEncoder().encode(token)] : bytes;
}

const CHARACTERS = /[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}|[^]/g;

function visible(bytes) {
  const hex = (number, digits) => number.toString(16).toUpperCase().padStart(digits, "0");
  const parts = String.fromCharCode(...bytes).match(CHARACTERS) ?? []; // a character here is a byte
  const codes = parts.map((part) => Array.from(part, (byte) => byte.charCodeAt(0)));
  const texts = codes.map((code) => (code.length === 1 && code[0] > 127 ? `⟨${hex(code[0], 2)}⟩` : textOf(code)));
  const shown = texts.join("").replaceAll(" ", "␣").replaceAll("\n", "↵");
  return shown.replace(/[\p{C}\p{Z}]/gu, (character) => `⟨U+${hex(character.codePointAt(0), 4)}⟩`);
}

const textOf = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes));
