"""The way of one token through one attention head and its layer: every vector (3.1 to 3.3).

Shapes: Q queries, S keys, D `d_model`, K key width, W value width.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.models.attention_vanilla import VanillaAttention, split_heads
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration

from .attentions import CROSS, ENCODER, KINDS, eager_copy, model_inputs


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


def has_layer_steps(model: PreTrainedModel) -> bool:
    """Whether a model has the layers of this package, whose parts are known here."""
    return isinstance(model, VanillaForConditionalGeneration)


def check_place(shape: tuple[int, ...], *, layer: int, head: int, token: int) -> None:
    """Refuse a layer, head or query token that does not exist.

    Args:
        shape: layers, heads and queries.
        layer: from 0.
        head: from 0.
        token: from 0.

    Raises:
        ValueError: it does not exist.
    """
    places = {"layer": layer, "head": head, "token": token}
    for (name, value), count in zip(places.items(), shape, strict=True):
        if not 0 <= value < count:
            raise ValueError(f"{name}={value}: the model has {name}s 0 to {count - 1} here")


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
    if not has_layer_steps(model):
        raise ValueError(f"{type(model).__name__} is not a model of this package")
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
    inputs, _ = model_inputs(model, tokenizer, sentence, translation)
    eager: Any = eager_copy(model)
    stack = eager.model.encoder if kind == ENCODER else eager.model.decoder
    layers = stack.layers
    side = "input_ids" if kind == ENCODER else "decoder_input_ids"
    heads = model.config.encoder_attention_heads
    if kind != ENCODER:
        heads = model.config.decoder_attention_heads
    shape = (len(layers), heads, inputs[side].shape[1])
    check_place(shape, layer=layer, head=head, token=token)
    own = layers[layer]
    attention = own.encoder_attn if kind == CROSS else own.self_attn
    norm = own.encoder_attn_layer_norm if kind == CROSS else own.self_attn_layer_norm
    seen: dict[str, Any] = {}
    modules = {"attention": attention, "norm": norm, "fc2": own.fc2, "own": own}
    for name, module in {**modules, "table": stack.embed_tokens, "first": layers[0]}.items():
        module.register_forward_hook(partial(_note, seen, name), with_kwargs=True)
    eager(**inputs, output_attentions=True, use_cache=False)
    embedded = seen["table"][1][0, token].float() * stack.embed_scale
    position = seen["first"][0][0][0, token].float() - embedded
    vectors = _vectors(attention, seen, head=head, token=token)
    return LayerSteps(embedded=embedded, position=position, **vectors)


def _note(
    seen: dict[str, Any],
    name: str,
    _module: nn.Module,
    args: tuple[Any, ...],
    _kwargs: dict[str, Any],
    output: Any,
) -> None:
    seen[name] = (args, output)


def _vectors(
    attention: VanillaAttention, seen: dict[str, Any], *, head: int, token: int
) -> dict[str, Tensor]:
    """Vectors of the sublayers, from inputs and outputs of the modules for a batch of one."""
    (query_input, key_input, value_input, *_), (attended, weights) = seen["attention"]
    query, key = (
        split_heads(projection(states), attention.head_dim)[0, head].float()
        for projection, states in (
            (attention.q_proj, query_input),
            (attention.k_proj, key_input),
        )
    )
    value = split_heads(attention.v_proj(value_input), attention.v_head_dim)[0, head].float()
    of_token = weights[0, head, token].float()  # (S,)
    rows = {
        "x": query_input,
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
