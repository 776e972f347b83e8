"""Word alignments from cross-attention (3.2.3): which source words a target word translates.

Shapes: S source tokens, T target tokens, H heads, U parts of the source, V parts of the target.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.file_values import checked
from hf_vanilla.files import write_text
from hf_vanilla.hub.card import ALIGNMENT_FILE, file_of
from hf_vanilla.models.search_vanilla import NAN_CAUSE

from .attentions import Attentions, eager_copy, forced_outputs

logger = logging.getLogger(__name__)

PAIRS_PER_BATCH = 32
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


@dataclass(frozen=True, kw_only=True)
class AlignmentHead:
    """Which cross-attention aligns.

    Attributes:
        layer: of the decoder, from 0.
        head: from 0; None: the mean of all heads.
        is_next: a target token has the weights of the step that reads it; otherwise of the step
            that writes it.
    """

    layer: int
    head: int | None = None
    is_next: bool = False


def saved_head(folder: str | Path) -> AlignmentHead | None:
    """What `save_head` wrote beside a model; None where it wrote nothing.

    Raises:
        ValueError: the file is damaged.
    """
    path = file_of(str(folder), ALIGNMENT_FILE)
    if path is None:
        return None
    try:
        best = AlignmentHead(**json.loads(path.read_text(encoding="utf-8"))["best"])
        checked(best.is_next, bool, "is_next")
        head = checked(best.head, (int, NoneType), "head")
        if min(checked(best.layer, int, "layer"), head or 0) < 0:
            raise ValueError("a number is negative")
        return best
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(
            f"{path} names no layer: remove it, or write it again by hf-vanilla align --gold"
        ) from None


def save_head(folder: str | Path, rates: dict[AlignmentHead, float], data: str) -> AlignmentHead:
    """Write the head of the lowest alignment error rate beside a model, and all rates; returns it.

    Args:
        folder: of the model.
        rates: alignment error rates in [0, 1].
        data: what they were measured on.
    """
    best = min(rates, key=lambda head: rates[head])
    measured = [{**asdict(head), "error_rate": round(rate, 4)} for head, rate in rates.items()]
    content = {"best": asdict(best), "data": data, "measured": measured}
    write_text(Path(folder) / ALIGNMENT_FILE, json.dumps(content, indent=1) + "\n")
    return best


def read_head(text: str) -> AlignmentHead:
    """A layer, or a layer and a head, written as LAYER or LAYER:HEAD.

    Raises:
        ValueError: it is something else.
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if match is None:
        raise ValueError(f"alignment_head={text!r}: give LAYER or LAYER:HEAD, such as 3:0")
    return AlignmentHead(layer=int(match[1]), head=None if match[2] is None else int(match[2]))


class Aligner:
    """Aligns sentences with their translations.

    The model keeps its attention implementation; a copy that shares its weights computes with the
    eager one, since fused kernels return no attention weights.

    Args:
        model: an encoder-decoder in evaluation mode.
        tokenizer: its tokenizer, of one vocabulary for both languages.
        head: which attention; None: the mean of the last layer but one.

    Raises:
        ValueError: the tokenizer has a vocabulary per language, or the model has no such layer or
            head.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        head: AlignmentHead | None = None,
    ) -> None:
        if not has_one_vocabulary(tokenizer):
            raise ValueError("alignments need a tokenizer with one vocabulary for both languages")
        # T5 and others have names of their own for these
        decoder = model.config.get_text_config(decoder=True)
        self.layers, self.heads = decoder.num_hidden_layers, decoder.num_attention_heads
        self.head = checked_head(head, self.layers, self.heads)
        self._model, self._tokenizer = eager_copy(model), tokenizer

    def align(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        parts_of: Callable[[str], Spans] | None = None,
        first_line: int | None = None,
    ) -> list[Links]:
        """The source word of each target word, for each pair of texts.

        A side that is longer than the tokenizer's limit is read up to there; words after it have
        no links.

        Args:
            pairs: sources and translations.
            parts_of: what counts as a word; None: what white space separates.
            first_line: line number of the first pair, to log which pairs are too long; None: they
                are not logged.

        Returns:
            Pairs of word numbers from 0, source and target, sorted; none for a pair with a blank
            side.

        Raises:
            ValueError: the model's attention is NaN.
        """
        found: list[Links] = [[] for _ in pairs]
        filled = [i for i, texts in enumerate(pairs) if all(text.strip() for text in texts)]
        for first in range(0, len(filled), PAIRS_PER_BATCH):
            batch = filled[first : first + PAIRS_PER_BATCH]
            texts = [pairs[i] for i in batch]
            parts = word_spans if parts_of is None else parts_of
            spans = [(parts(source), parts(target)) for source, target in texts]
            lines = () if first_line is None else [first_line + i for i in batch]
            found_weights = self.weights(texts, spans, [self.head], lines=lines)
            for i, weights in zip(batch, found_weights, strict=True):
                found[i] = best_links(weights[0])
        return found

    @torch.inference_mode()
    def weights(
        self,
        pairs: Sequence[tuple[str, str]],
        spans: Sequence[tuple[Spans, Spans]],
        heads: Sequence[AlignmentHead],
        *,
        lines: Sequence[int] = (),
    ) -> list[Tensor]:
        """The attention of every part of a target to every part of its source.

        Args:
            pairs: sources and translations, not blank.
            spans: the parts of both, as characters from and to.
            heads: which attentions.
            lines: numbers of the pairs, to log those that are too long; empty: they are not logged.

        Returns:
            `(len(heads), V, U)` for each pair.
        """
        sources = self._tokenizer([source for source, _ in pairs], verbose=False).input_ids
        targets = self._tokenizer(text_target=[text for _, text in pairs], verbose=False).input_ids
        limit = self._tokenizer.model_max_length
        for line, source, target in zip(lines, sources, targets, strict=False):
            for name, ids in (("source", source), ("target", target)):
                if len(ids) > limit:
                    logger.warning(
                        "line %d: the %s has %d tokens; only the words of the first %d are aligned",
                        *(line, name, len(ids), limit),
                    )
        sources, targets = ([ids[:limit] for ids in side] for side in (sources, targets))
        # (B, H, T + 1, S) per layer: step t writes target token t and reads token t - 1
        outputs = forced_outputs(self._model, sources, targets, output_attentions=True)
        attentions = outputs.cross_attentions
        found = []
        for row, (texts, parts) in enumerate(zip(pairs, spans, strict=True)):
            shares = [
                token_shares(self._tokenizer, ids[row], text, of)
                for ids, text, of in zip((sources, targets), texts, parts, strict=True)
            ]
            of_heads = [
                part_weights(head_weights(attentions, head, row), *shares, is_next=head.is_next)
                for head in heads
            ]
            found.append(torch.stack(of_heads))
        return found


def has_one_vocabulary(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether source and target have the same token ids."""
    is_double = tokenizer.init_kwargs.get("target_pieces") is not None
    return not is_double and not getattr(tokenizer, "separate_vocabs", False)


def checked_head(head: AlignmentHead | None, layers: int, heads: int) -> AlignmentHead:
    """A head that a decoder of so many layers and heads has.

    None is the mean of the last layer but one, where nothing was chosen on data.

    Raises:
        ValueError: there is none of that number.
    """
    if head is None:
        return AlignmentHead(layer=max(layers - 2, 0))
    if not 0 <= head.layer < layers:
        raise ValueError(f"layer={head.layer}: the decoder has the layers 0 to {layers - 1}")
    if head.head is not None and not 0 <= head.head < heads:
        raise ValueError(f"head={head.head}: a layer has the heads 0 to {heads - 1}")
    return head


def head_weights(layers: Sequence[Tensor], head: AlignmentHead, row: int) -> Tensor:
    """`(T, S)` weights of pair `row`, padding included, of the `(B, H, T, S)` of each layer."""
    weights = layers[head.layer][row].float().cpu()  # (H, T, S)
    return weights.mean(0) if head.head is None else weights[head.head]


def error_rate(found: Sequence[Links], gold: Sequence[AlignedPair]) -> float:
    """Alignment error rate of Och and Ney 2003, in [0, 1]: 0 where all links are right."""
    right, counted = 0, 0
    for links, pair in zip(found, gold, strict=True):
        chosen = set(links)
        right += len(chosen & pair.sure) + len(chosen & pair.possible)
        counted += len(chosen) + len(pair.sure)
    return 1 - right / max(counted, 1)


def error_rates(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, gold: Sequence[AlignedPair]
) -> dict[AlignmentHead, float]:
    """The alignment error rate of every layer: each head, the mean of all, both steps.

    Args:
        model: an encoder-decoder in evaluation mode.
        tokenizer: its tokenizer.
        gold: pairs with known alignments.
    """
    aligner = Aligner(model, tokenizer)
    heads = [
        AlignmentHead(layer=layer, head=head, is_next=is_next)
        for layer in range(aligner.layers)
        for head in (None, *range(aligner.heads))
        for is_next in (False, True)
    ]
    links: dict[AlignmentHead, list[Links]] = {head: [] for head in heads}
    for first in range(0, len(gold), PAIRS_PER_BATCH):
        batch = gold[first : first + PAIRS_PER_BATCH]
        texts = [(pair.source, pair.target) for pair in batch]
        spans = [(pair.source_spans, pair.target_spans) for pair in batch]
        for weights in aligner.weights(texts, spans, heads):
            for head, of_head in zip(heads, weights, strict=True):
                links[head].append(best_links(of_head))
    return {head: error_rate(links[head], gold) for head in heads}


def aligned_words(
    attentions: Attentions,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    head: AlignmentHead | None = None,
) -> dict[str, Any] | None:
    """Align the words of a sentence by weights that are computed already.

    Args:
        attentions: of the sentence and its translation.
        tokenizer: of the model.
        sentence: source text.
        head: which attention; None: the mean of the last layer but one.

    Returns:
        `source`, the words of the sentence, separated by white space; `target`, those of the
        translation; `starts`, the first token of each of these; `links`, as of `Aligner.align`;
        `head`, the layer, head and step of the attention. None where the tokenizer has a vocabulary
        per language.

    Raises:
        ValueError: the model has no such layer or head.
    """
    if not has_one_vocabulary(tokenizer):
        return None
    layers, heads = attentions.cross.shape[:2]
    head = checked_head(head, layers, heads)
    ids = (tokenizer(sentence, verbose=False).input_ids, attentions.target_ids)
    texts = (sentence, tokenizer.decode(ids[1], skip_special_tokens=True))
    spans = [word_spans(text) for text in texts]
    shares = [token_shares(tokenizer, *one) for one in zip(ids, texts, spans, strict=True)]
    links: Links = []
    if all(spans):
        rows = head_weights(attentions.cross.unsqueeze(1).unbind(), head, 0)
        # a translation that reached its limit has no step that reads the last token
        rows = torch.cat([rows, rows[-1:]])
        links = best_links(part_weights(rows, *shares, is_next=head.is_next))
    source, target = (text.split() for text in texts)
    starts = (shares[1] > 0).int().argmax(0).tolist() if target else []
    words = {"source": source, "target": target, "starts": starts}
    return {**words, "links": links, "head": asdict(head)}


# --- from attention between tokens to links between words, and links as text ---------------------


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
    owners = {
        place: part for part, (first, last) in enumerate(spans) for place in range(first, last)
    }
    part_of = [owners.get(place) for place, sign in enumerate(text) if not sign.isspace()]
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
