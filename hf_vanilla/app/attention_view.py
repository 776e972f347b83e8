"""One head's attention as a piece of a web page, whose tokens show where they look.

The texts in it come from visitors: each is escaped here, and `app.js` sets text only.

Shapes: Q tokens that look, K tokens that are looked at.
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
# weights are told in thousandths, which keeps the page small
UNIT = 1000


@dataclass(frozen=True)
class _Kind:
    """What stands on the two sides of one kind of attention."""

    looking: str
    looked_at: str
    hint: str


_SIDES = {
    CROSS: _Kind(
        "Token being written",
        "Source tokens it looked at",
        "What the decoder looked at in the source while it wrote a token.",
    ),
    ENCODER: _Kind(
        "Source token",
        "Source tokens it looked at",
        "What each source token looked at in its own sentence.",
    ),
    DECODER: _Kind(
        "Token being written",
        "Tokens written before, which it looked at",
        "What the decoder looked at in its own text. It never sees ahead.",
    ),
}


def weights_of(seen: Attentions, kind: str) -> Tensor:
    """All weights of one kind, `(layers, H, Q, K)`.

    Raises:
        ValueError: the kind is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: choose one of {', '.join(KINDS)}")
    return {CROSS: seen.cross, ENCODER: seen.encoder, DECODER: seen.decoder}[kind]


def one_head(seen: Attentions, kind: str, layer: int, head: int | str) -> Tensor:
    """Weights of one head, or the mean of all heads of a layer, `(Q, K)`.

    Args:
        seen: where the model looked.
        kind: one of `KINDS`.
        layer: from 0.
        head: from 0, or `MEAN`.

    Raises:
        ValueError: kind, layer or head does not exist.
    """
    weights = weights_of(seen, kind)
    layers, heads = weights.shape[:2]
    if not 0 <= layer < layers:
        raise ValueError(f"layer={layer}: {kind} has layers 0 to {layers - 1}")
    in_layer = weights[layer]
    if head == MEAN:
        return in_layer.mean(dim=0)
    if not isinstance(head, int) or not 0 <= head < heads:
        raise ValueError(f"head={head!r}: {kind} has heads 0 to {heads - 1}, and {MEAN!r}")
    return in_layer[head]


def attention_page(seen: Attentions, kind: str, layer: int, head: int | str) -> str:
    """HTML of one head, or of the mean of a layer's heads; arguments as for `one_head`.

    Raises:
        ValueError: kind, layer or head does not exist.
    """
    weights = one_head(seen, kind, layer, head)
    sides = _SIDES[kind]
    looking = seen.source if kind == ENCODER else seen.target
    looked_at = {CROSS: seen.source, ENCODER: seen.source, DECODER: seen.read}[kind]
    heads = weights_of(seen, kind).shape[1]
    which = f"mean of {heads} heads" if head == MEAN else f"head {head}"
    rows = (weights * UNIT).round().int().tolist()
    return (
        f'<div class="attention" data-weights="{html.escape(json.dumps(rows))}">'
        f'<p class="attention-title"><b>{kind.capitalize()}, layer {layer}, {which}.'
        f"</b> {sides.hint}</p>"
        f'<p class="attention-side">{sides.looking} <span>(point at one, or move with the arrow '
        "keys)</span></p>"
        f'<div class="tokens looking" role="listbox" aria-orientation="horizontal" '
        f'aria-label="{sides.looking}" dir="{direction(looking)}">{_options(looking)}</div>'
        f'<p class="attention-side">{sides.looked_at} <span>(percent)</span></p>'
        f'<ol class="tokens looked-at" aria-label="{sides.looked_at}" '
        f'dir="{direction(looked_at)}">{_items(looked_at)}</ol>'
        '<p class="attention-told" role="status"></p>'
        "</div>"
    )


def _options(tokens: list[str]) -> str:
    return "".join(
        f'<span class="token" role="option" aria-selected="false" tabindex="{-1 if place else 0}" '
        f'data-place="{place}"><bdi>{html.escape(token)}</bdi></span>'
        for place, token in enumerate(tokens)
    )


def _items(tokens: list[str]) -> str:
    return "".join(
        f'<li class="token"><bdi>{html.escape(token)}</bdi><span class="percent"></span></li>'
        for token in tokens
    )


def direction(tokens: list[str]) -> str:
    """`"rtl"` where the first letter with a direction is written from right to left."""
    for character in "".join(tokens):
        side = unicodedata.bidirectional(character)
        if side in ("L", "R", "AL"):
            return "ltr" if side == "L" else "rtl"
    return "ltr"
