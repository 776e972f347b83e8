"""The words of one sentence and its translation, aligned by weights that are computed already."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from .alignment_links import Links, best_links, part_weights, token_shares, word_spans
from .alignments import AlignmentHead, check_head, default_head, has_one_vocabulary, head_weights
from .attentions import Attentions


@dataclass(frozen=True, kw_only=True)
class AlignedWords:
    """The words of a sentence and of its translation.

    Attributes:
        source: words of the sentence, separated by white space.
        target: those of the translation.
        starts: the first token of each target word.
        links: as of `Aligner.align`.
        head: whose attention it is.
    """

    source: list[str]
    target: list[str]
    starts: list[int]
    links: Links
    head: AlignmentHead


def aligned_words(
    attentions: Attentions,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    head: AlignmentHead | None = None,
) -> AlignedWords | None:
    """Align the words of a sentence by weights that are computed already.

    Args:
        attentions: of the sentence and its translation.
        tokenizer: of the model.
        sentence: source text.
        head: which attention; None: the mean of the last layer but one.

    Returns:
        None where the tokenizer has a vocabulary per language.

    Raises:
        ValueError: the model has no such layer or head.
    """
    if not has_one_vocabulary(tokenizer):
        return None
    layers, heads = attentions.cross.shape[:2]
    head = default_head(layers) if head is None else head
    check_head(head, layers, heads)
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
    source, target = (
        [text[first:last] for first, last in of] for text, of in zip(texts, spans, strict=True)
    )
    starts = (shares[1] > 0).int().argmax(0).tolist() if target else []
    return AlignedWords(source=source, target=target, starts=starts, links=links, head=head)
