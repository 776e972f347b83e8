// The Transformer of "Attention Is All You Need", section 3, for one sentence. In Python: layers_vanilla.py,
// attention_vanilla.py, positions_vanilla.py, stacks_vanilla.py. A matrix is a Float32Array, row after row.
// Shapes: S source tokens, L tokens, n beams, D d_model, H heads, K key width, W value width, V vocabulary.
import { refuse } from "./tokenizer.js";

/** x A^T + b: `(rows, I)` times a weight `(O, I)`. Four rows and two outputs at a time share what they read. */
function linear(x, { weight, bias, width: I }) {
  const [rows, O] = [x.length / I, weight.length / I];
  const y = new Float32Array(rows * O);
  for (let row = 0; row < rows; row += 4) {
    // behind the last row, it is computed again; so is the last output
    const r1 = Math.min(row + 1, rows - 1), r2 = Math.min(row + 2, rows - 1), r3 = Math.min(row + 3, rows - 1);
    const x0 = row * I, x1 = r1 * I, x2 = r2 * I, x3 = r3 * I;
    for (let o = 0; o < O; o += 2) {
      const o1 = Math.min(o + 1, O - 1), w0 = o * I, w1 = o1 * I;
      let a0 = bias ? bias[o] : 0, a1 = a0, a2 = a0, a3 = a0;
      let b0 = bias ? bias[o1] : 0, b1 = b0, b2 = b0, b3 = b0;
      for (let i = 0; i < I; i++) {
        const a = weight[w0 + i], b = weight[w1 + i];
        const c0 = x[x0 + i], c1 = x[x1 + i], c2 = x[x2 + i], c3 = x[x3 + i];
        a0 += a * c0; a1 += a * c1; a2 += a * c2; a3 += a * c3;
        b0 += b * c0; b1 += b * c1; b2 += b * c2; b3 += b * c3;
      }
      y[row * O + o] = a0; y[r1 * O + o] = a1; y[r2 * O + o] = a2; y[r3 * O + o] = a3;
      y[row * O + o1] = b0; y[r1 * O + o1] = b1; y[r2 * O + o1] = b2; y[r3 * O + o1] = b3;
    }
  }
  return y;
}

/** Logarithm of the sum of e to the power of each number. */
function logSumExp(numbers) {
  let most = -Infinity, sum = 0;
  for (const number of numbers) if (number > most) most = number;
  for (const number of numbers) sum += Math.exp(number - most);
  return most + Math.log(sum);
}

/** LayerNorm(x + Sublayer(x)) (3.1), `(L, D)`. Without a sublayer: some models have one more norm behind a stack. */
function addAndNorm(x, sublayer, { weight, bias }, epsilon) {
  const D = weight.length, y = x.map((value, i) => value + (sublayer ? sublayer[i] : 0));
  for (let row = 0; row < x.length; row += D) {
    let mean = 0, variance = 0;
    for (let i = 0; i < D; i++) mean += y[row + i] / D;
    for (let i = 0; i < D; i++) variance += (y[row + i] - mean) ** 2 / D;
    const scale = 1 / Math.sqrt(variance + epsilon);
    for (let i = 0; i < D; i++) y[row + i] = (y[row + i] - mean) * scale * weight[i] + bias[i];
  }
  return y;
}

/**
 * Scaled dot-product attention (3.2.1), softmax(q k^T / sqrt(K)) v, of every head. Query `(L, H K)`, keys
 * `(slots, H K)`, values `(slots, H W)`; `visible` lists the slots that each query may attend to. Returns means
 * `(L, H W)`, and for each query its weights `(H, its slots)`.
 */
function scaledDotProduct(query, keys, values, visible, heads, W) {
  const K = query.length / visible.length / heads;
  const means = new Float32Array(visible.length * heads * W);
  const weights = visible.map((slots) => new Float32Array(heads * slots.length));
  visible.forEach((slots, row) => {
    for (let head = 0; head < heads; head++) {
      const scores = weights[row].subarray(head * slots.length, (head + 1) * slots.length);
      const q = (row * heads + head) * K, m = (row * heads + head) * W;
      for (let j = 0; j < slots.length; j++) {
        let product = 0;
        for (let i = 0, k = (slots[j] * heads + head) * K; i < K; i++) product += query[q + i] * keys[k + i];
        scores[j] = product / Math.sqrt(K);
      }
      const total = logSumExp(scores);
      for (let j = 0; j < slots.length; j++) {
        const weight = (scores[j] = Math.exp(scores[j] - total)); // softmax
        for (let i = 0, v = (slots[j] * heads + head) * W; i < W; i++) means[m + i] += weight * values[v + i];
      }
    }
  });
  return { means, weights };
}

/** Multi-head attention (3.2.2) from `x` `(L, D)` to keys and values that are there: `(L, D)`. */
function multiHead(x, layer, { keys, values }, visible, heads, see) {
  const query = linear(x, layer.q_proj);
  const { means, weights } = scaledDotProduct(query, keys, values, visible, heads, layer.out_proj.width / heads);
  const attended = linear(means, layer.out_proj);
  see({ x, query, keys, values, visible, weights, means, attended });
  return attended;
}

const silu = (x) => x / (1 + Math.exp(-x));
const tanhGelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const relu = (x) => (x > 0 ? x : 0);
const ACTIVATIONS = { relu, tanh: Math.tanh, silu, swish: silu, gelu_new: tanhGelu, gelu_pytorch_tanh: tanhGelu };

/** The feed-forward network (3.3), max(0, x W_1 + b_1) W_2 + b_2, and behind its norm the output of the layer, `(L, D)`. */
function feedForward(x, { fc1, fc2, final_layer_norm: norm }, { activation_function: name, layer_norm_eps: epsilon }) {
  const fed = linear(linear(x, fc1).map(ACTIVATIONS[name]), fc2);
  return { fed, output: addAndNorm(x, fed, norm, epsilon) };
}

/** sqrt(D) times the embedding (3.4) plus the position (3.5), `(L, D)`; each id has its position. */
function embed(ids, positions, { table, learned }, config) {
  const D = config.d_model, scale = Math.fround(config.scale_embedding ? Math.sqrt(D) : 1);
  const x = new Float32Array(ids.length * D);
  ids.forEach((id, row) => {
    const isZero = config.zero_pad_embedding && id === config.pad_token_id;
    const at = positions[row];
    const position = learned ? learned.subarray(at * D, (at + 1) * D) : sinusoid(at, config);
    if (!position.length) throw new Error(`the model has ${learned.length / D} positions: shorten the text`);
    for (let i = 0; i < D; i++) x[row * D + i] = (isZero ? 0 : Math.fround(table[id * D + i] * scale)) + position[i];
  });
  return x;
}

/** Sines and cosines of a position (3.5), `(D,)`. */
function sinusoid(position, { d_model: D, position_offset: offset, position_layout: layout, position_frequencies }) {
  const last = position_frequencies === "paper" ? D / 2 : Math.max(D / 2 - 1, 1);
  return Float32Array.from({ length: D }, (_, i) => {
    const [pair, isSine] = layout === "interleaved" ? [i >> 1, i % 2 === 0] : [i % (D / 2), i < D / 2];
    const angle = (position + offset) * 10000 ** (-pair / last);
    return isSine ? Math.sin(angle) : Math.cos(angle);
  });
}

/** The weights, a tree by their names, with the config: encoder and decoder (3.1). */
export class Transformer {
  constructor({ model, lm_head: head }, config) {
    refuse("model_type", config.model_type, "vanilla");
    refuse("is_encoder_decoder", config.is_encoder_decoder, true);
    refuse("activation_function", config.activation_function, ...Object.keys(ACTIVATIONS));
    const side = ({ layers, layer_norm: norm, embed_positions: positions, embed_tokens: own }) => ({
      layers: Object.values(layers), norm, table: (model.shared ?? own).weight, learned: positions?.weight,
    });
    Object.assign(this, { config, encoder: side(model.encoder), decoder: side(model.decoder) });
    this.output = { weight: head?.weight ?? this.decoder.table, bias: head?.bias, width: config.d_model };
  }

  /** N layers of self-attention and feed-forward (3.1): source ids to `(S, D)`. */
  encode(ids, see = () => {}) {
    const { config, encoder } = this;
    const slots = ids.map((_, slot) => slot);
    const visible = ids.map(() => slots); // every token may attend to every token
    let x = embed(ids, slots, encoder, config);
    encoder.layers.forEach((layer, index) => {
      const own = layer.self_attn, source = { keys: linear(x, own.k_proj), values: linear(x, own.v_proj) };
      const note = (vectors) => see(`encoder.${index}.self_attn`, vectors);
      const attended = multiHead(x, own, source, visible, config.encoder_attention_heads, note);
      const normed = addAndNorm(x, attended, layer.self_attn_layer_norm, config.layer_norm_eps);
      const { fed, output } = feedForward(normed, layer, config);
      see(`encoder.${index}`, { normed, fed, output });
      x = output;
    });
    return encoder.norm ? addAndNorm(x, null, encoder.norm, config.layer_norm_eps) : x;
  }
}

/**
 * N layers of masked self-attention, attention to the source and feed-forward (3.1), a token of each beam at a time.
 * A slot of the cache holds one token of one beam, and each beam has the list of its own slots: nothing is copied.
 */
export class Decoder {
  /** @param encoded `(S, D)` @param slots most tokens of all beams together @param see gets the vectors */
  constructor(transformer, encoded, slots, see = () => {}) {
    const { config, decoder } = transformer;
    Object.assign(this, { transformer, see, paths: [[]], used: 0 });
    const room = ({ weight, width }) => new Float32Array((slots * weight.length) / width);
    this.past = decoder.layers.map(({ self_attn: own }) => ({ keys: room(own.k_proj), values: room(own.v_proj) }));
    this.source = decoder.layers.map(({ encoder_attn: { k_proj, v_proj } }) => ({
      keys: linear(encoded, k_proj), values: linear(encoded, v_proj), // once per sentence
    }));
    this.ofSource = Array.from({ length: encoded.length / config.d_model }, (_, slot) => slot);
  }

  /** Log-probabilities of the next token, n times `(V,)`, after a token of each beam, which continues its parent. */
  read(ids, parents) {
    const { transformer, source, past, see, used } = this, { config, decoder } = transformer;
    const { decoder_attention_heads: heads, layer_norm_eps: epsilon } = config;
    this.paths = parents.map((parent, beam) => [...this.paths[parent], used + beam]);
    this.used += ids.length;
    let x = embed(ids, this.paths.map((path) => path.length - 1), decoder, config);
    decoder.layers.forEach((layer, index) => {
      const { self_attn: own, encoder_attn: cross } = layer;
      const note = (part) => (vectors) => see(`decoder.${index}.${part}`, vectors);
      const [keys, values] = [linear(x, own.k_proj), linear(x, own.v_proj)];
      past[index].keys.set(keys, (used * keys.length) / ids.length);
      past[index].values.set(values, (used * values.length) / ids.length);
      const attended = multiHead(x, own, past[index], this.paths, heads, note("self_attn"));
      const first = addAndNorm(x, attended, layer.self_attn_layer_norm, epsilon);
      const ofSource = ids.map(() => this.ofSource);
      const read = multiHead(first, cross, source[index], ofSource, heads, note("encoder_attn"));
      const normed = addAndNorm(first, read, layer.encoder_attn_layer_norm, epsilon);
      const { fed, output } = feedForward(normed, layer, config);
      see(`decoder.${index}`, { first, normed, fed, output });
      x = output;
    });
    if (decoder.norm) x = addAndNorm(x, null, decoder.norm, epsilon);
    const logits = linear(x, transformer.output), V = logits.length / ids.length; // (n, V)
    return ids.map((_, beam) => {
      const ofBeam = logits.subarray(beam * V, (beam + 1) * V);
      const total = logSumExp(ofBeam);
      return ofBeam.map((logit) => logit - total);
    });
  }
}
