"""What each attention head does in one sentence: how much of its attention follows a pattern.

Shapes: H heads, Q queries, K keys.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .attentions import CROSS, DECODER, ENCODER

NAMED_FROM = 0.4  # a head with a smaller share of every pattern has no name of a pattern
SPREAD_FROM = 0.75  # entropy as a share of that of equal weights
FOCUSED_BELOW = 0.5  # bits of entropy
MIXED, SPREAD, FOCUSED = "mixed", "spread", "one token"
# of a decoder, keys are the tokens that it read: the last one is that before the query
PATTERNS = {
    ENCODER: ("same token", "previous token", "next token", "end token"),
    DECODER: ("last token", "token before the last", "start token"),
    CROSS: ("diagonal", "end token"),
}
_OFFSETS = {"previous token": -1, "token before the last": -1, "next token": 1}


@dataclass(frozen=True)
class HeadPattern:
    """The pattern of one head.

    Attributes:
        name: that of the largest share; without a pattern `"one token"` where each query attends to
            little else, `"spread"` where weights are nearly equal, or `"mixed"`.
        share: of the attention weights that follow the pattern, mean over the queries; of a head
            without a pattern, the largest share of any.
        entropy: of the weights of a query, in bits, mean over the queries.
    """

    name: str
    share: float
    entropy: float


def head_patterns(weights: Tensor, kind: str) -> list[list[HeadPattern]]:
    """The pattern of every layer and head.

    Args:
        weights: `(layers, H, Q, K)`, rows sum to 1.
        kind: of attention, one of `KINDS`.
    """
    return [[_pattern(head, kind) for head in layer] for layer in weights]


def _pattern(weights: Tensor, kind: str) -> HeadPattern:
    """The pattern of one head, `(Q, K)`."""
    if kind == DECODER and len(weights) > 1:
        weights = weights[1:]  # at its first step, a decoder has only the start token to attend to
        first = 1
    else:
        first = 0
    shares = {name: _share(weights, name, first) for name in PATTERNS[kind]}
    entropy = torch.special.entr(weights).sum(-1) / math.log(2)  # (Q,)
    name = max(shares, key=lambda name: shares[name])
    share = shares[name]
    if share < NAMED_FROM:
        name = _without_pattern(float(entropy.mean()), weights.shape[1])
    return HeadPattern(name, share, float(entropy.mean()))


def _without_pattern(entropy: float, keys: int) -> str:
    if entropy < FOCUSED_BELOW:
        return FOCUSED
    return SPREAD if entropy > SPREAD_FROM * math.log2(max(keys, 2)) else MIXED


def _share(weights: Tensor, name: str, first: int) -> float:
    """Mean weight of the keys that a pattern names, over the queries that have such a key.

    Args:
        weights: `(Q, K)`.
        name: of the pattern.
        first: index of the first query.
    """
    queries, keys = weights.shape
    rows = torch.arange(queries)
    if name in ("end token", "start token"):
        return float(weights[:, -1 if name == "end token" else 0].mean())
    if name == "diagonal":  # of two sentences of unlike length
        columns = (rows * (keys - 1) / max(queries - 1, 1)).round().long()
    else:
        columns = rows + first + _OFFSETS.get(name, 0)
    exists = (columns >= 0) & (columns < keys)
    if not exists.any():
        return 0.0
    return float(weights[rows[exists], columns[exists]].mean())
