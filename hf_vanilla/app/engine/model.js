// The Transformer of "Attention Is All You Need", section 3, for one sentence. In Python: layers_vanilla.py,
// attention_vanilla.py, positions_vanilla.py, stacks_vanilla.py. A matrix `(L, D)` is an array of L rows.
// Shapes: S source tokens, L tokens, n beams, D d_model, H heads, K key width, W value width, V vocabulary.
import { refuse } from "./tokenizer.js";

/** x A^T + b: rows `(L, I)` times a weight `(O, I)`. Four rows at a time share what is read of the weight. */
function linear(x, { weight, bias, width: I }) {
  const O = weight.length / I, y = x.map(() => new Float32Array(O));
  for (let row = 0; row < x.length; row += 4) {
    const four = [row, row + 1, row + 2, row + 3].map((at) => Math.min(at, x.length - 1)); // the last one again
    const [x0, x1, x2, x3] = four.map((at) => x[at]), [y0, y1, y2, y3] = four.map((at) => y[at]);
    for (let o = 0; o < O; o++) {
      let a0 = bias ? bias[o] : 0, a1 = a0, a2 = a0, a3 = a0;
      for (let i = 0; i < I; i++) {
        const w = weight[o * I + i];
        a0 += w * x0[i]; a1 += w * x1[i]; a2 += w * x2[i]; a3 += w * x3[i];
      }
      y0[o] = a0; y1[o] = a1; y2[o] = a2; y3[o] = a3;
    }
  }
  return y;
}

/** Logarithm of softmax; the largest number is subtracted, so that no power overflows. */
function logSoftmax(numbers) {
  const most = numbers.reduce((best, number) => Math.max(best, number), -Infinity);
  const total = most + Math.log(numbers.reduce((sum, number) => sum + Math.exp(number - most), 0));
  return numbers.map((number) => number - total);
}

/** LayerNorm(x + Sublayer(x)) (3.1), `(L, D)`. Without a sublayer: some models have one more norm after a stack. */
function addAndNorm(x, sublayer, { weight, bias }, epsilon) {
  return x.map((row, at) => {
    const y = row.map((value, i) => value + (sublayer ? sublayer[at][i] : 0));
    const mean = y.reduce((sum, value) => sum + value, 0) / y.length;
    const variance = y.reduce((sum, value) => sum + (value - mean) ** 2, 0) / y.length;
    return y.map((value, i) => ((value - mean) / Math.sqrt(variance + epsilon)) * weight[i] + bias[i]);
  });
}

/**
 * Scaled dot-product attention (3.2.1), softmax(q k^T / sqrt(K)) v, of one query `(H K)` in every head: to keys
 * `(L, H K)` and values `(L, H W)`. Returns the weighted mean of the values, `(H W)`, and the weights, `(H L)`.
 */
function scaledDotProduct(query, { keys, values }, heads) {
  const L = keys.length, K = query.length / heads, W = values[0].length / heads;
  const mean = new Float32Array(heads * W), weights = new Float32Array(heads * L);
  for (let head = 0; head < heads; head++) {
    const scores = weights.subarray(head * L, (head + 1) * L);
    for (let j = 0; j < L; j++) {
      let product = 0;
      for (let i = head * K; i < (head + 1) * K; i++) product += query[i] * keys[j][i];
      scores[j] = product / Math.sqrt(K);
    }
    scores.set(logSoftmax(scores).map(Math.exp));
    for (let j = 0; j < L; j++) {
      for (let i = head * W; i < (head + 1) * W; i++) mean[i] += scores[j] * values[j][i];
    }
  }
  return { mean, weights };
}

const keysAndValues = (x, { k_proj, v_proj }) => ({ keys: linear(x, k_proj), values: linear(x, v_proj) });

/** Multi-head attention (3.2.2), `(L, D)`, of rows `x`, each to the keys and values of its own memory. */
function multiHead(x, layer, memories, heads, see) {
  const query = linear(x, layer.q_proj);
  const found = query.map((one, row) => scaledDotProduct(one, memories[row], heads));
  const means = found.map((one) => one.mean), weights = found.map((one) => one.weights);
  const attended = linear(means, layer.out_proj);
  see({ x, query, memories, weights, means, attended });
  return attended;
}

const silu = (x) => x / (1 + Math.exp(-x));
const tanhGelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const ACTIVATIONS = {
  relu: (x) => Math.max(x, 0), tanh: Math.tanh, silu, swish: silu, gelu_new: tanhGelu, gelu_pytorch_tanh: tanhGelu,
};

/** A layer (3.1), `(L, D)`: self-attention; in a decoder, attention to the source; feed-forward (3.3). */
function layerOutput(x, layer, { own, source, heads, config, see }) {
  const { layer_norm_eps: epsilon, activation_function: name } = config;
  const attended = multiHead(x, layer.self_attn, own, heads, (vectors) => see(".self_attn", vectors));
  const first = addAndNorm(x, attended, layer.self_attn_layer_norm, epsilon);
  let normed = first;
  if (source) {
    const memories = x.map(() => source);
    const read = multiHead(first, layer.encoder_attn, memories, heads, (vectors) => see(".encoder_attn", vectors));
    normed = addAndNorm(first, read, layer.encoder_attn_layer_norm, epsilon);
  }
  const inner = linear(normed, layer.fc1).map((row) => row.map(ACTIVATIONS[name]));
  const fed = linear(inner, layer.fc2); // max(0, x W_1 + b_1) W_2 + b_2
  const output = addAndNorm(normed, fed, layer.final_layer_norm, epsilon);
  see("", { first, normed, fed, output });
  return output;
}

/** sqrt(D) times the embedding (3.4) plus the position (3.5), `(L, D)`; each id has its position. */
function embed(ids, positions, { table, learned }, config) {
  const D = config.d_model, scale = Math.fround(config.scale_embedding ? Math.sqrt(D) : 1);
  return ids.map((id, row) => {
    const isZero = config.zero_pad_embedding && id === config.pad_token_id, at = positions[row];
    const position = learned ? learned.subarray(at * D, (at + 1) * D) : sinusoid(at, config);
    if (!position.length) throw new Error(`the model has ${learned.length / D} positions: shorten the text`);
    return position.map((value, i) => (isZero ? 0 : Math.fround(table[id * D + i] * scale)) + value);
  });
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

  /** N layers of self-attention and feed-forward: source ids to `(S, D)`; `see` gets the vectors by their place. */
  encode(ids, see = () => {}) {
    const { config, encoder } = this, heads = config.encoder_attention_heads;
    let x = embed(ids, ids.map((_, position) => position), encoder, config);
    encoder.layers.forEach((layer, index) => {
      const memory = keysAndValues(x, layer.self_attn), own = x.map(() => memory); // all tokens attend to all
      const note = (part, vectors) => see(`encoder.${index}${part}`, vectors);
      x = layerOutput(x, layer, { own, heads, config, see: note });
    });
    return encoder.norm ? addAndNorm(x, null, encoder.norm, config.layer_norm_eps) : x;
  }
}

/** N layers of masked self-attention, attention to the source and feed-forward, a token of each beam at a time. */
export class Decoder {
  /** @param encoded `(S, D)` @param see gets the vectors by their place */
  constructor(transformer, encoded, see = () => {}) {
    Object.assign(this, { transformer, see });
    const { layers } = transformer.decoder;
    this.source = layers.map((layer) => keysAndValues(encoded, layer.encoder_attn)); // once per sentence
    this.past = layers.map(() => [{ keys: [], values: [] }]); // of each beam
  }

  /** Log-probabilities of the next token, n times `(V,)`, after a token of each beam, which continues its parent. */
  read(ids, parents) {
    const { transformer, past, see } = this, { config, decoder } = transformer, heads = config.decoder_attention_heads;
    let x = embed(ids, ids.map(() => past[0][0].keys.length), decoder, config);
    decoder.layers.forEach((layer, index) => {
      const { keys, values } = keysAndValues(x, layer.self_attn), source = this.source[index];
      const own = parents.map((parent, beam) => ({
        keys: [...past[index][parent].keys, keys[beam]], values: [...past[index][parent].values, values[beam]],
      }));
      past[index] = own;
      const note = (part, vectors) => see(`decoder.${index}${part}`, vectors);
      x = layerOutput(x, layer, { own, source, heads, config, see: note });
    });
    if (decoder.norm) x = addAndNorm(x, null, decoder.norm, config.layer_norm_eps);
    return linear(x, transformer.output).map(logSoftmax);
  }
}
