"""The paper's model in slow and simple code and double precision; tests compare the package to it.

Written from sections 3.1 to 3.5, 5.4 and 6.1 for **one** sentence pair without padding, so there is
no batch axis and no padding mask. Each sentence of a padded batch must give the same numbers as it
gives here alone. Weights come from the state dict of a `VanillaForConditionalGeneration`, under
their saved names.

Shapes: S source, T target, D width, K width of a head, V vocabulary.
"""

import math

import torch


def assert_same(found, expected):
    """Equal but for rounding: on some processors it depends on where arrays lie in memory."""
    bound = {torch.float64: 1e-12, torch.float32: 1e-5}.get(found.dtype, 0.02)
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


def fields_of(config_class):
    """Names of the fields that a config class of ours and its bases of ours declare."""
    bases = [base for base in config_class.__mro__ if base.__module__.startswith("hf_vanilla.")]
    return {name for base in bases for name in vars(base).get("__annotations__", {})}


def position_vector(position, width, *, layout="interleaved", frequencies="paper"):
    """The sinusoids of one position, number by number (3.5)."""
    last = width / 2 if frequencies == "paper" else width / 2 - 1
    vector = [0.0] * width
    for pair in range(width // 2):
        angle = position / 10_000 ** (pair / last)
        sine, cosine = (2 * pair, 2 * pair + 1)
        if layout == "concatenated":
            sine, cosine = (pair, width // 2 + pair)
        vector[sine], vector[cosine] = math.sin(angle), math.cos(angle)
    return torch.tensor(vector, dtype=torch.float64)


def part(weights, prefix):
    """The weights whose names begin with `prefix`, which is removed from the names."""
    start = prefix + "."
    return {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}


def linear(vectors, weights):
    result = vectors @ weights["weight"].T
    return result + weights["bias"] if "bias" in weights else result


def layer_norm(vectors, weights, eps):
    """Mean 0 and variance 1 for each vector, then scale and shift."""
    rows = []
    for vector in vectors:
        centred = vector - vector.mean()
        rows.append(centred / torch.sqrt((centred**2).mean() + eps))
    return torch.stack(rows) * weights["weight"] + weights["bias"]


def softmax(scores):
    exponentials = torch.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def scaled_dot_product(queries, keys, values, *, is_causal):
    """Mean of the values that each query may attend to, weighted by its keys' scores (3.2.1)."""
    means = []
    for position, query in enumerate(queries):
        seen = position + 1 if is_causal else len(keys)
        likeness = torch.stack([query @ key for key in keys[:seen]]) / math.sqrt(len(query))
        means.append(softmax(likeness) @ values[:seen])
    return torch.stack(means)


def multi_head(query_input, key_input, value_input, weights, *, heads, is_causal=False):
    """Each head uses its own slice of the projections (3.2.2)."""
    queries = linear(query_input, part(weights, "q_proj")).chunk(heads, dim=-1)
    keys = linear(key_input, part(weights, "k_proj")).chunk(heads, dim=-1)
    values = linear(value_input, part(weights, "v_proj")).chunk(heads, dim=-1)
    found = [
        scaled_dot_product(query, key, value, is_causal=is_causal)
        for query, key, value in zip(queries, keys, values, strict=True)
    ]
    return linear(torch.cat(found, dim=-1), part(weights, "out_proj"))


def clip(vectors, low, high):
    return torch.where(vectors < low, low, torch.where(vectors > high, high, vectors))


def sigmoid(vectors):
    return 1 / (1 + torch.exp(-vectors))


def softplus(vectors):
    return torch.log(1 + torch.exp(vectors))


def gelu(vectors):
    return vectors * (1 + torch.erf(vectors / math.sqrt(2))) / 2


def gelu_by_tanh(vectors):
    inner = math.sqrt(2 / math.pi) * (vectors + 0.044715 * vectors**3)
    return vectors * (1 + torch.tanh(inner)) / 2


ACTIVATIONS = {
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "relu2": lambda x: torch.where(x > 0, x, 0.0) ** 2,
    "relu6": lambda x: clip(x, 0.0, 6.0),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "linear": lambda x: x,
    "sigmoid": sigmoid,
    "tanh": lambda x: 2 * sigmoid(2 * x) - 1,
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "hardswish": lambda x: x * clip(x + 3, 0.0, 6.0) / 6,
    "mish": lambda x: x * torch.tanh(softplus(x)),
    "sqrtsoftplus": lambda x: torch.sqrt(softplus(x)),
    "laplace": lambda x: (1 + torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2)))) / 2,
    "gelu": gelu,
    "gelu_python": gelu,
    "gelu_10": lambda x: clip(gelu(x), -10.0, 10.0),
    "gelu_new": gelu_by_tanh,
    "gelu_fast": gelu_by_tanh,
    "gelu_accurate": gelu_by_tanh,
    "gelu_pytorch_tanh": gelu_by_tanh,
    "gelu_python_tanh": gelu_by_tanh,
}


def prelu(vectors, weights):
    return torch.where(vectors > 0, vectors, weights["weight"] * vectors)


def xielu(vectors, weights):
    rise, fall = softplus(weights["alpha_p"]), weights["beta"] + softplus(weights["alpha_n"])
    below = torch.exp(torch.minimum(vectors, weights["eps"])) - 1 - vectors
    return weights["beta"] * vectors + torch.where(vectors > 0, rise * vectors**2, fall * below)


ACTIVATIONS_WITH_WEIGHTS = {"prelu": prelu, "xielu": xielu}


def activation(name, vectors, weights):
    if name in ACTIVATIONS_WITH_WEIGHTS:
        return ACTIVATIONS_WITH_WEIGHTS[name](vectors, part(weights, "activation_fn"))
    return ACTIVATIONS[name](vectors)


def feed_forward(vectors, weights, name):
    inner = activation(name, linear(vectors, part(weights, "fc1")), weights)
    return linear(inner, part(weights, "fc2"))


def encoder_layer(states, weights, config):
    """LayerNorm(x + Sublayer(x)) around self-attention and feed-forward (3.1)."""
    heads, eps = config.encoder_attention_heads, config.layer_norm_eps
    attended = multi_head(states, states, states, part(weights, "self_attn"), heads=heads)
    states = layer_norm(states + attended, part(weights, "self_attn_layer_norm"), eps)
    fed = feed_forward(states, weights, config.activation_function)
    return layer_norm(states + fed, part(weights, "final_layer_norm"), eps)


def decoder_layer(states, source, weights, config):
    """As above, with attention to the source between the two (3.1)."""
    heads, eps = config.decoder_attention_heads, config.layer_norm_eps
    own = part(weights, "self_attn")
    attended = multi_head(states, states, states, own, heads=heads, is_causal=True)
    states = layer_norm(states + attended, part(weights, "self_attn_layer_norm"), eps)
    found = multi_head(states, source, source, part(weights, "encoder_attn"), heads=heads)
    states = layer_norm(states + found, part(weights, "encoder_attn_layer_norm"), eps)
    fed = feed_forward(states, weights, config.activation_function)
    return layer_norm(states + fed, part(weights, "final_layer_norm"), eps)


def embed(ids, weights, config):
    """Embedding times sqrt(d), plus the position; padding has only a position (3.4, 3.5)."""
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    rows = []
    for index, token in enumerate(ids):
        is_zero = config.zero_pad_embedding and token == config.pad_token_id
        vector = weights["embed_tokens.weight"][token] * (not is_zero)
        if config.position_embedding_type == "learned":
            position = weights["embed_positions.weight"][index]
        else:
            position = position_vector(
                index + config.position_offset,
                config.d_model,
                layout=config.position_layout,
                frequencies=config.position_frequencies,
            )
        rows.append(vector * scale + position)
    return torch.stack(rows)


def stack_norm(states, weights, config):
    """The LayerNorm after each stack, which torch.nn.Transformer has and the paper has not."""
    if not config.final_layer_norm:
        return states
    return layer_norm(states, part(weights, "layer_norm"), config.layer_norm_eps)


def encode(source_ids, weights, config):
    """Hidden states of the last encoder layer, (S, D)."""
    states = embed(source_ids, weights, config)
    for index in range(config.encoder_layers):
        states = encoder_layer(states, part(weights, f"layers.{index}"), config)
    return stack_norm(states, weights, config)


def decode(target_ids, source, weights, config):
    """Hidden states of the last decoder layer, (T, D)."""
    states = embed(target_ids, weights, config)
    for index in range(config.decoder_layers):
        states = decoder_layer(states, source, part(weights, f"layers.{index}"), config)
    return stack_norm(states, weights, config)


def transformer(source_ids, target_ids, state_dict, config):
    """Logits of the next token at every target position, (T, V), for two lists of ids."""
    weights = {name: weight.detach().double() for name, weight in state_dict.items()}
    source = encode(source_ids, part(weights, "model.encoder"), config)
    states = decode(target_ids, source, part(weights, "model.decoder"), config)
    return linear(states, part(weights, "lm_head"))


def smoothed_target(label, size, *, smoothing, kind, pad=None):
    """Target probability of each token of the vocabulary where `label` is the true one (5.4)."""
    spared = {"non_target": {label}, "uniform": set(), "non_target_non_pad": {label, pad}}[kind]
    target = torch.zeros(size, dtype=torch.float64)
    for token in range(size):
        if token not in spared:
            target[token] = smoothing / (size - len(spared))
    target[label] += 1 - smoothing
    return target


def smoothed_loss(logits, labels, config):
    """Loss of one sentence in nats, summed over its tokens; logits (T, V), labels T ids."""
    nats = 0.0
    for scores, label in zip(logits, labels, strict=True):
        target = smoothed_target(
            label,
            len(scores),
            smoothing=config.label_smoothing,
            kind=config.label_smoothing_type,
            pad=config.pad_token_id,
        )
        nats = nats - (target * torch.log(softmax(scores))).sum()
    return nats


def beam_search(next_log_probs, *, width, longest, penalty, end):
    """Beam search with a length penalty, stopped by its bound (6.1), for one sentence.

    Args:
        next_log_probs: from the tokens so far to a list of the log-probabilities of the next one.
        width: active hypotheses kept, and finished ones.
        longest: tokens of a hypothesis, its end included.
        penalty: from a number of tokens to the divisor of the score.
        end: the token that ends a hypothesis.

    Returns:
        The finished hypotheses as pairs of score and tokens, best first, and the number of steps.
    """
    active, finished = [(0.0, [])], []
    for length in range(1, longest + 1):
        candidates = [
            (total + log_prob, [*tokens, token])
            for total, tokens in active
            for token, log_prob in enumerate(next_log_probs(tokens))
        ]
        candidates = sorted(candidates, key=lambda found: -found[0])[: 2 * width]
        for total, tokens in candidates[:width]:
            if tokens[-1] == end or length == longest:
                finished.append((total / penalty(length), tokens))
        finished = sorted(finished, key=lambda found: -found[0])[:width]
        active = [found for found in candidates if found[1][-1] != end][:width]
        # a longer hypothesis is never more probable, and the longest has the largest divisor
        bound = active[0][0] / penalty(longest)
        if len(finished) == width and bound <= finished[-1][0]:
            break
    return finished, length
