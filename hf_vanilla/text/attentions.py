"""Attention weights of every layer and head for one sentence and its translation (3.2.3).

`layer_steps` has every vector of one token on its way through a head and its layer.

Shapes: S source, T target, H heads, V vocabulary, D `d_model`, K key width, W value width.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from tokenizers import decoders
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hf_vanilla.data.batching import padded_with_mask
from hf_vanilla.models.attention_vanilla import VanillaAttention, split_heads
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration

from .decoding import IDS_ALONE

START = "<start>"
CROSS, ENCODER, DECODER = "cross-attention", "encoder self-attention", "decoder self-attention"
KINDS = (CROSS, ENCODER, DECODER)
SPACE, LINE_END = "␣", "↵"
# bytes of a split character, as "surrogateescape" decodes them
INCOMPLETE = {0xDC00 + byte: f"⟨{byte:02X}⟩" for byte in range(0x80, 0x100)}


@dataclass(frozen=True)
class Attentions:
    """The weights of the three kinds of attention; every row sums to 1.

    Attributes:
        source: S readable tokens, `</s>` included.
        target: T readable tokens of the translation, `</s>` included.
        read: T tokens that the decoder read: `<start>`, then `target` without its last. The last
            input of the step that wrote `target[t]` is `read[t]`.
        encoder: `(layers, H, S, S)`; row s is the attention of source token s.
        decoder: `(layers, H, T, T)`; row t belongs to the step that wrote `target[t]`, columns
            belong to `read`. Later positions, right of the diagonal, are 0.
        cross: `(layers, H, T, S)`; row t belongs to the step that wrote `target[t]`.
        log_probs: `(T, V)`, nats, of every token at the step that wrote `target[t]`.
        target_ids: T token ids.
    """

    source: list[str]
    target: list[str]
    read: list[str]
    encoder: Tensor
    decoder: Tensor
    cross: Tensor
    log_probs: Tensor
    target_ids: list[int]

    def of(self, kind: str) -> Tensor:
        """The weights of one kind, `(layers, H, queries, keys)`.

        Raises:
            ValueError: the kind is unknown.
        """
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
        return {CROSS: self.cross, ENCODER: self.encoder, DECODER: self.decoder}[kind]

    def tokens(self, kind: str) -> tuple[list[str], list[str]]:
        """The queries and the keys of one kind."""
        queries = self.source if kind == ENCODER else self.target
        return queries, self.read if kind == DECODER else self.source


def is_special(token: str) -> bool:
    """Whether a readable token is one in angle brackets, such as `</s>`."""
    return len(token) > 2 and token[0] == "<" and token[-1] == ">"


def word_starts(tokens: Sequence[str]) -> list[int]:
    """Index of the first token of each word among readable tokens.

    A word begins at a space, or after a token that ends with one; `</s>`, `<start>` and other
    tokens in angle brackets are words of their own.
    """
    return [
        index
        for index, token in enumerate(tokens)
        if index == 0 or token[:1] in (SPACE, LINE_END) or is_special(token)
        or is_special(tokens[index - 1]) or tokens[index - 1][1:].endswith(SPACE)
    ]  # fmt: skip


def attentions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    *,
    translation: str | Sequence[int] | None = None,
) -> Attentions:
    """Compute all attention weights for a sentence and its translation.

    The model is not changed, so other threads may use it at the same time.

    Args:
        model: an encoder-decoder of any attention implementation.
        tokenizer: its tokenizer.
        sentence: source text.
        translation: text, or ids as `generate` returns them but without the start token. None:
            the model's own translation.

    Raises:
        ValueError: the sentence or the translation is blank, the sentence is longer than the
            tokenizer's limit, or the model does not translate.
    """
    if not model.config.is_encoder_decoder or not model.can_generate():
        raise ValueError(f"{type(model).__name__} does not translate: no encoder and decoder")
    if not sentence.strip():
        raise ValueError("the sentence is blank: give some text")
    inputs, written = model_inputs(model, tokenizer, sentence, translation)
    eager = eager_copy(model)
    with torch.inference_mode():
        outputs = eager(**inputs, output_attentions=True, use_cache=False)
    target = readable_tokens(tokenizer, written[1:])
    kinds = (outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions)
    encoder, decoder, cross = (torch.stack(layers)[:, 0].float().cpu() for layers in kinds)
    return Attentions(
        source=readable_tokens(tokenizer, inputs["input_ids"][0].tolist(), is_source=True),
        target=target,
        read=[START, *target[:-1]],
        encoder=encoder,
        decoder=decoder,
        cross=cross,
        log_probs=outputs.logits[0].float().log_softmax(dim=-1).cpu(),
        target_ids=list(written[1:]),
    )


def model_inputs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    translation: str | Sequence[int] | None,
) -> tuple[dict[str, Tensor], list[int]]:
    """What the model reads for a sentence and its translation, and the ids that it writes.

    Args:
        model: an encoder-decoder.
        tokenizer: its tokenizer.
        sentence: source text.
        translation: as for `attentions`.

    Returns:
        Arguments of the model's forward pass for a batch of one; the ids of the translation after
        the start token.

    Raises:
        ValueError: the translation is blank, or the sentence is too long.
    """
    inputs = tokenizer(sentence, return_tensors="pt", verbose=False).to(model.device)
    length, limit = inputs.input_ids.shape[1], tokenizer.model_max_length
    if length > limit:
        raise ValueError(f"the sentence has {length} tokens, the model accepts {limit}: shorten it")
    if translation is None:
        written = model.generate(**inputs, **IDS_ALONE)[0].tolist()
    else:
        if not (translation.strip() if isinstance(translation, str) else len(translation)):
            raise ValueError("the translation is blank: give some text or ids")
        if isinstance(translation, str):
            translation = tokenizer(text_target=translation).input_ids
        written = [start_token_id(model), *translation]
    read = torch.tensor([written[:-1]], device=model.device)
    return {**inputs, "decoder_input_ids": read}, written


def start_token_id(model: PreTrainedModel) -> int:
    """The id that the decoder reads first."""
    start = model.generation_config.decoder_start_token_id
    return model.config.decoder_start_token_id if start is None else start


def forced_outputs(
    model: PreTrainedModel,
    sources: Sequence[Sequence[int]],
    read: Sequence[Sequence[int]],
    **options: Any,
) -> Any:
    """What a model returns whose decoder reads given tokens.

    Args:
        model: an encoder-decoder.
        sources: B rows of input ids.
        read: what the decoder reads after the start token; T - 1 tokens in the longest row.
        **options: further arguments of the forward pass.
    """
    pad, start, device = model.config.pad_token_id, start_token_id(model), model.device
    input_ids, attention_mask = padded_with_mask(sources, pad)  # (B, S)
    decoder_input_ids, _ = padded_with_mask([[start, *row] for row in read], pad)  # (B, T)
    return model(
        input_ids=input_ids.to(device),
        attention_mask=attention_mask.to(device),
        # padding is on the right, and the decoder is causal: no decoder_attention_mask is needed
        decoder_input_ids=decoder_input_ids.to(device),
        use_cache=False,
        **options,
    )


def eager_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the modules, share the weights, and switch the copy to eager attention.

    Other implementations return no attention weights. Switching the model itself would switch it
    for every thread that uses it.
    """
    tensors: dict[int, Any] = {}
    _collect_tensors(model, tensors, set())
    eager = copy.deepcopy(model, tensors).eval()  # deepcopy does not copy what is in its memo
    eager.set_attn_implementation("eager")
    return eager


def _collect_tensors(value: Any, tensors: dict[int, Any], seen: set[int]) -> None:
    """Add all tensors inside a value by their ids; packed weights are no parameters or buffers."""
    if id(value) in seen or isinstance(value, type | FunctionType | ModuleType):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        tensors[id(value)] = value
        return
    if not isinstance(value, dict | list | tuple):
        value = getattr(value, "__dict__", {})
    for item in value.values() if isinstance(value, dict) else value:
        _collect_tensors(item, tensors, seen)


def readable_tokens(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, is_source: bool = False
) -> list[str]:
    """Each token as text, with visible spaces; bytes of a split character in hexadecimal.

    Invisible characters are shown by their code points.

    Args:
        tokenizer: with one vocabulary, or one per side.
        ids: token ids of one side.
        is_source: they belong to the source; otherwise to the target.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    is_bytes = isinstance(getattr(backend, "decoder", None), decoders.ByteLevel)
    word_end = getattr(getattr(backend, "model", None), "end_of_word_suffix", None)
    special = set(tokenizer.all_special_tokens)
    alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
    texts = []
    for token in _tokens(tokenizer, ids, is_source=is_source):
        if token in special:
            texts.append(token)
            continue
        text = token if is_bytes else token.replace("▁", " ")
        if is_bytes and set(token) <= alphabet.keys():
            text = bytes(alphabet[c] for c in token).decode("utf-8", "surrogateescape")
            text = text.translate(INCOMPLETE)
        if word_end and text.endswith(word_end):
            text = f"{text.removesuffix(word_end)} "
        text = text.replace(" ", SPACE).replace("\n", LINE_END)
        texts.append("".join(c if c.isprintable() else f"⟨U+{ord(c):04X}⟩" for c in text))
    return texts


def _tokens(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, is_source: bool
) -> list[str]:
    """Vocabulary entries of one side."""
    if is_source and getattr(tokenizer, "separate_vocabs", False):  # MarianTokenizer
        tokens = {token_id: token for token, token_id in tokenizer.get_src_vocab().items()}
        return [tokens[token_id] for token_id in ids]
    own = None if is_source else tokenizer.init_kwargs.get("target_pieces")
    return tokenizer.convert_ids_to_tokens(list(ids)) if own is None else [own[i] for i in ids]


# --- the vectors of one token (3.1 to 3.3) --------------------------------------------------------


@dataclass(frozen=True)
class LayerSteps:
    """The vectors of one token in one head of one layer, in the order of computation.

    Attributes:
        embedded: `(D,)`, scaled embedding of the token (3.4).
        position: `(D,)`, what is added to it (3.5).
        x: `(D,)`, input of the attention sublayer.
        query: `(K,)`, `x W^Q` of the head.
        keys: `(S, K)`, of all tokens.
        values: `(S, W)`.
        weights: `(S,)`, `softmax(q k^T / sqrt(K))`.
        head: `(W,)`, the weighted mean of the values.
        attended: `(D,)`, all heads through `W^O`.
        normed: `(D,)`, `LayerNorm(x + attended)`.
        fed: `(D,)`, the feed-forward sublayer.
        output: `(D,)`, of the layer.
    """

    embedded: Tensor
    position: Tensor
    x: Tensor
    query: Tensor
    keys: Tensor
    values: Tensor
    weights: Tensor
    head: Tensor
    attended: Tensor
    normed: Tensor
    fed: Tensor
    output: Tensor


@torch.inference_mode()
def layer_steps(  # noqa: PLR0913 - a place in a model has four parts
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    *,
    translation: list[int],
    kind: str,
    layer: int,
    head: int,
    token: int,
) -> LayerSteps:
    """Compute the vectors of one query token.

    The model is not changed, so other threads may use it at the same time.

    Args:
        model: `VanillaForConditionalGeneration`.
        tokenizer: its tokenizer.
        sentence: source text.
        translation: ids without the start token.
        kind: of attention, one of `KINDS`.
        layer: from 0.
        head: from 0.
        token: the query, from 0.

    Raises:
        ValueError: the model is of another package, or the place does not exist.
    """
    if not isinstance(model, VanillaForConditionalGeneration):
        raise ValueError(f"{type(model).__name__} is not a model of this package")
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
    inputs, _ = model_inputs(model, tokenizer, sentence, translation)
    eager: Any = eager_copy(model)
    side, ids = ("encoder", "input_ids") if kind == ENCODER else ("decoder", "decoder_input_ids")
    stack = getattr(eager.model, side)
    layers, heads = stack.layers, getattr(model.config, f"{side}_attention_heads")
    shape = (len(layers), heads, inputs[ids].shape[1])
    places = {"layer": layer, "head": head, "token": token}
    for (name, value), count in zip(places.items(), shape, strict=True):
        if not 0 <= value < count:
            raise ValueError(f"{name}={value}: the model has {name}s 0 to {count - 1} here")
    own = layers[layer]
    attention = own.encoder_attn if kind == CROSS else own.self_attn
    norm = own.encoder_attn_layer_norm if kind == CROSS else own.self_attn_layer_norm
    seen: dict[str, Any] = {}
    modules = {"attention": attention, "norm": norm, "fc2": own.fc2, "own": own}
    for name, module in {**modules, "table": stack.embed_tokens, "first": layers[0]}.items():
        module.register_forward_hook(
            lambda _, args, output, name=name: seen.update({name: (args, output)})
        )
    eager(**inputs, output_attentions=True, use_cache=False)
    embedded = seen["table"][1][0, token].float() * stack.embed_scale
    position = seen["first"][0][0][0, token].float() - embedded
    vectors = _vectors(attention, seen, head=head, token=token)
    return LayerSteps(embedded=embedded, position=position, **vectors)


def _vectors(
    attention: VanillaAttention, seen: dict[str, Any], *, head: int, token: int
) -> dict[str, Tensor]:
    """Vectors of the sublayers, from inputs and outputs of the modules for a batch of one."""
    inputs, (attended, weights) = seen["attention"]
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    widths = attention.head_dim, attention.head_dim, attention.v_head_dim
    query, key, value = (
        split_heads(projection(states), width)[0, head].float()
        for projection, states, width in zip(projections, inputs[:3], widths, strict=True)
    )
    of_token = weights[0, head, token].float()  # (S,)
    rows = {
        "x": inputs[0],
        "attended": attended,
        "normed": seen["norm"][1],
        "fed": seen["fc2"][1],
        "output": seen["own"][1],
    }
    return {
        "query": query[token],
        "keys": key,
        "values": value,
        "weights": of_token,
        "head": of_token @ value,
        **{name: states[0, token].float() for name, states in rows.items()},
    }
