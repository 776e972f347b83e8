"""What the page of translation gets: results of the service as plain values for JSON.

Attention weights travel once, as bytes: 255ths of one, in base64. Shapes: H heads, Q queries,
K keys, V vocabulary.
"""

import base64
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase

from hf_vanilla.models.generation_vanilla import penalty_form, penalty_of

from .attentions import CROSS, DECODER, ENCODER, KINDS, Attentions, readable_tokens, word_starts
from .n_best import Candidate, Hypothesis

ALTERNATIVES = 5  # tokens listed beside each one that was chosen
DIGITS = 4
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


def answer_of_search(
    found: Sequence[Hypothesis],
    steps: Sequence[list[Candidate]],
    settings: GenerationConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, Any]:
    """The n-best list and the search.

    Args:
        found: n-best list, best first.
        steps: the candidates of each step of the search; none with sampling.
        settings: of decoding.
        tokenizer: of the model.
    """
    alpha = 1.0 if settings.length_penalty is None else float(settings.length_penalty)
    penalties = [penalty_of(len(one.ids), settings) for one in found]
    return {
        "hypotheses": [
            {
                "text": one.text,
                "ids": one.ids,
                "score": rounded(one.score),
                "penalty": rounded(penalty),
                "logProb": rounded(one.score * penalty),
            }
            for one, penalty in zip(found, penalties, strict=True)
        ],
        "penalty": {"form": penalty_form(settings), "alpha": alpha},
        "steps": [_step(step, settings, tokenizer) for step in steps],
    }


def _step(
    step: list[Candidate], settings: GenerationConfig, tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """The candidates of one step of the search."""
    tokens = readable_tokens(tokenizer, [candidate.ids[-1] for candidate in step])
    penalties = [penalty_of(len(candidate.ids), settings) for candidate in step]
    return [
        {
            "token": token,
            "parent": one.parent,
            "logProb": rounded(one.log_prob),
            "penalty": rounded(penalty),
            "score": rounded(one.log_prob / penalty),
            "status": one.status,
            "rank": one.rank,
        }
        for one, token, penalty in zip(step, tokens, penalties, strict=True)
    ]


def answer_of_attention(
    attentions: Attentions, tokenizer: PreTrainedTokenizerBase, words: dict[str, Any] | None
) -> dict[str, Any]:
    """All weights with the tokens of both axes, what each head does, probabilities, aligned words.

    Args:
        attentions: of a sentence and a translation.
        tokenizer: of the model.
        words: of `aligned_words`.
    """
    kinds = {}
    for kind in KINDS:
        weights = attentions.of(kind)
        queries, keys = attentions.tokens(kind)
        kinds[kind] = {
            "queries": queries,
            "keys": keys,
            "words": [word_starts(queries), word_starts(keys)],
            "shape": list(weights.shape),
            "weights": base64.b64encode((weights * 255).round().byte().numpy().tobytes()).decode(),
            "patterns": [[head_pattern(head, kind) for head in layer] for layer in weights],
        }
    return {
        "kinds": kinds,
        "steps": _probabilities(attentions, tokenizer),
        "words": words,
        "directions": [direction(attentions.source), direction(attentions.target)],
    }


def _probabilities(
    attentions: Attentions, tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """Of each token of the translation: its probability, its rank, and the most probable tokens."""
    log_probs = attentions.log_probs  # (T, V)
    best, ids = log_probs.topk(min(ALTERNATIVES + 1, log_probs.shape[1]))
    steps = []
    for row, chosen in enumerate(attentions.target_ids):
        own = log_probs[row, chosen]
        others = [
            (token, prob)
            for token, prob in zip(ids[row].tolist(), best[row].exp().tolist(), strict=True)
            if token != chosen
        ][:ALTERNATIVES]
        names = readable_tokens(tokenizer, [token for token, _ in others])
        steps.append(
            {
                "token": attentions.target[row],
                "probability": rounded(own.exp().item()),
                "rank": int((log_probs[row] > own).sum()),
                "others": [
                    {"token": name, "probability": rounded(prob)}
                    for name, (_, prob) in zip(names, others, strict=True)
                ],
            }
        )
    return steps


def direction(tokens: list[str]) -> str:
    """`"rtl"` if the first letter with a direction is written from right to left."""
    for character in "".join(tokens):
        side = unicodedata.bidirectional(character)
        if side in ("L", "R", "AL"):
            return "ltr" if side == "L" else "rtl"
    return "ltr"


def rounded(value: Any) -> Any:
    """A number, or those of a list, rounded; None where it is none, which JSON does not know."""
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, DIGITS) if math.isfinite(value) else None


def head_pattern(weights: Tensor, kind: str) -> dict[str, Any]:
    """The pattern of one head.

    Args:
        weights: `(Q, K)`, rows sum to 1.
        kind: of attention, one of `KINDS`.

    Returns:
        `name`, that of the largest share; without a pattern `"one token"` where each query attends
        to little else, `"spread"` where weights are nearly equal, or `"mixed"`. `share` of the
        attention weights that follow the pattern, mean over the queries; of a head without a
        pattern, the largest share of any. `entropy` of the weights of a query, in bits, mean over
        the queries.
    """
    # at its first step, a decoder has only the start token to attend to
    first = int(kind == DECODER and len(weights) > 1)
    weights = weights[first:]
    shares = {name: _share(weights, name, first) for name in PATTERNS[kind]}
    entropy = float((torch.special.entr(weights).sum(-1) / math.log(2)).mean())
    name = max(shares, key=lambda name: shares[name])
    share = shares[name]
    if share < NAMED_FROM:
        most = math.log2(max(weights.shape[1], 2))
        name = SPREAD if entropy > SPREAD_FROM * most else MIXED
        name = FOCUSED if entropy < FOCUSED_BELOW else name
    return {"name": name, "share": rounded(share), "entropy": rounded(entropy)}


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
