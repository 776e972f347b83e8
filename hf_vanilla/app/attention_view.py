"""The attention figure: HTML that shows the weights of one head for each query token.

Texts come from visitors: they are escaped here, and `app.js` sets text only.

Shapes: H heads, Q query tokens, K key tokens.
"""

import html
import json
import unicodedata
from dataclasses import dataclass

from torch import Tensor

from hf_vanilla.translation.attentions import Attentions

CROSS, ENCODER, DECODER = "cross-attention", "encoder self-attention", "decoder self-attention"
KINDS = (CROSS, ENCODER, DECODER)
MEAN = "mean"
SCALE = 1000  # weights are sent as integers, which keeps the page small


@dataclass(frozen=True)
class _Kind:
    """Labels of the queries and the keys of one kind of attention."""

    queries: str
    keys: str
    hint: str


_LABELS = {
    CROSS: _Kind(
        "Target token being written",
        "Source tokens it attends to",
        "Attention from the decoder to the source at each step.",
    ),
    ENCODER: _Kind(
        "Source token",
        "Source tokens it attends to",
        "Attention from each source token to the source sentence.",
    ),
    DECODER: _Kind(
        "Target token being written",
        "Earlier target tokens it attends to",
        "Attention from the decoder to the target tokens before each step.",
    ),
}


def weights_of(attentions: Attentions, kind: str) -> Tensor:
    """All weights of one kind, `(layers, H, Q, K)`.

    Raises:
        ValueError: the kind is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
    return {CROSS: attentions.cross, ENCODER: attentions.encoder, DECODER: attentions.decoder}[kind]


def one_head(attentions: Attentions, kind: str, layer: int, head: int | str) -> Tensor:
    """Weights of one head, or the mean of all heads of a layer, `(Q, K)`.

    Args:
        attentions: weights of one sentence and its translation.
        kind: one of `KINDS`.
        layer: from 0.
        head: from 0, or `MEAN`.

    Raises:
        ValueError: kind, layer or head does not exist.
    """
    weights = weights_of(attentions, kind)
    layers, heads = weights.shape[:2]
    if not 0 <= layer < layers:
        raise ValueError(f"layer={layer}: {kind} has layers 0 to {layers - 1}")
    in_layer = weights[layer]
    if head == MEAN:
        return in_layer.mean(dim=0)
    if not isinstance(head, int) or not 0 <= head < heads:
        raise ValueError(f"head={head!r}: {kind} has heads 0 to {heads - 1}, and {MEAN!r}")
    return in_layer[head]


def attention_figure(attentions: Attentions, kind: str, layer: int, head: int | str) -> str:
    """HTML of one head, or of the mean of a layer's heads; arguments as for `one_head`.

    Raises:
        ValueError: kind, layer or head does not exist.
    """
    weights = one_head(attentions, kind, layer, head)
    labels = _LABELS[kind]
    queries = attentions.source if kind == ENCODER else attentions.target
    keys = {CROSS: attentions.source, ENCODER: attentions.source, DECODER: attentions.read}[kind]
    heads = weights_of(attentions, kind).shape[1]
    which = f"mean of {heads} heads" if head == MEAN else f"head {head}"
    rows = (weights * SCALE).round().int().tolist()
    return (
        f'<div class="attention" data-weights="{html.escape(json.dumps(rows))}">'
        f'<p class="attention-title"><b>{kind.capitalize()}, layer {layer}, {which}.'
        f"</b> {labels.hint}</p>"
        f'<p class="attention-side">{labels.queries} <span>(point at one, or use the arrow '
        "keys)</span></p>"
        f'<div class="tokens queries" role="listbox" aria-orientation="horizontal" '
        f'aria-label="{labels.queries}" dir="{direction(queries)}">{_options(queries)}</div>'
        f'<p class="attention-side">{labels.keys} <span>(percent)</span></p>'
        f'<ol class="tokens keys" aria-label="{labels.keys}" '
        f'dir="{direction(keys)}">{_items(keys)}</ol>'
        '<p class="attention-summary" role="status"></p>'
        "</div>"
    )


def _options(tokens: list[str]) -> str:
    return "".join(
        f'<span class="token" role="option" aria-selected="false" tabindex="{-1 if index else 0}" '
        f'data-index="{index}"><bdi>{html.escape(token)}</bdi></span>'
        for index, token in enumerate(tokens)
    )


def _items(tokens: list[str]) -> str:
    return "".join(
        f'<li class="token"><bdi>{html.escape(token)}</bdi><span class="percent"></span></li>'
        for token in tokens
    )


def direction(tokens: list[str]) -> str:
    """`"rtl"` if the first letter with a direction is written from right to left."""
    for character in "".join(tokens):
        side = unicodedata.bidirectional(character)
        if side in ("L", "R", "AL"):
            return "ltr" if side == "L" else "rtl"
    return "ltr"
