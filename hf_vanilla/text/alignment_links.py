"""From attention weights between tokens to links between words, and links as text.

Shapes: S source tokens, T target tokens, U parts of the source, V parts of the target.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_vanilla.models.search_vanilla import NAN_CAUSE

# characters of a text, from and to; numbers of a source and a target part
Spans = Sequence[tuple[int, int]]
Links = list[tuple[int, int]]


@dataclass(frozen=True)
class AlignedPair:
    """A pair of texts whose alignment is known.

    Attributes:
        source: text.
        target: text.
        source_spans: first and last-plus-one character of each part of the source.
        target_spans: likewise of the target.
        sure: pairs of part numbers, source and target, that translate each other.
        possible: pairs that are neither right nor wrong, `sure` included.
    """

    source: str
    target: str
    source_spans: tuple[tuple[int, int], ...]
    target_spans: tuple[tuple[int, int], ...]
    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]


def word_spans(text: str) -> Spans:
    """The words of a text, separated by white space, as characters from and to."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def token_shares(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str, spans: Spans
) -> Tensor:
    """Which share of a token lies in which part of its text: `(tokens, parts)`.

    The characters of a token are those by which it lengthens the decoded text, without white
    space, so this holds for every tokenizer that decodes what it has encoded. Special tokens have
    none.

    Args:
        tokenizer: of the text.
        ids: the tokens of the text.
        text: raw.
        spans: the parts in their order, as characters from and to.
    """
    part_of: list[int | None] = []  # by character that is not white space
    part = 0
    for place, character in enumerate(text):
        if character.isspace():
            continue
        while part < len(spans) and spans[part][1] <= place:
            part += 1
        is_inside = part < len(spans) and spans[part][0] <= place
        part_of.append(part if is_inside else None)
    shares, seen = torch.zeros(len(ids), len(spans)), 0
    for number in range(len(ids)):
        decoded = tokenizer.decode(ids[: number + 1], skip_special_tokens=True)
        length = min(sum(not character.isspace() for character in decoded), len(part_of))
        for own in part_of[seen:length]:
            if own is not None:
                shares[number, own] += 1 / (length - seen)
        seen = max(seen, length)
    return shares


def part_weights(
    attention: Tensor, source_shares: Tensor, target_shares: Tensor, *, is_next: bool
) -> Tensor:
    """Attention between parts: mean over the tokens of a target part, sum over a source part.

    Args:
        attention: `(T + 1, S)` or larger by padding.
        source_shares: `(S, U)`.
        target_shares: `(T, V)`.
        is_next: row t + 1 belongs to target token t, instead of row t.

    Returns:
        `(V, U)`.
    """
    tokens, first = len(target_shares), int(is_next)
    rows = attention[first : first + tokens, : len(source_shares)]  # (T, S)
    mean = target_shares / target_shares.sum(0).clamp(min=1e-9)
    return mean.T @ rows @ source_shares


def best_links(weights: Tensor) -> Links:
    """Each target part with its source part of the largest weight; none where all weights are 0.

    Args:
        weights: `(V, U)`.

    Raises:
        ValueError: a weight is NaN.
    """
    if weights.isnan().any():
        raise ValueError(f"attention weights are NaN: {NAN_CAUSE}")
    largest, sources = weights.max(dim=1)  # both (V,)
    pairs = zip(sources.tolist(), largest.tolist(), strict=True)
    return sorted((source, target) for target, (source, weight) in enumerate(pairs) if weight > 0)


def pharaoh(links: Links) -> str:
    """Links as `source-target`, separated by spaces."""
    return " ".join(f"{source}-{target}" for source, target in links)


def alignment_line(texts: tuple[str, str], links: Links, form: str) -> str:
    """One alignment as a line of Pharaoh's format or of JSON."""
    if form == "pharaoh":
        return pharaoh(links) + "\n"
    words = [text.split() for text in texts]
    record = {"source": words[0], "target": words[1], "alignment": links}
    return json.dumps(record, ensure_ascii=False) + "\n"
