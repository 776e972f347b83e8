"""Signs that a translation is probably wrong, for the commands, `Translator` and the app."""

from collections.abc import Collection, Sequence

from transformers import PreTrainedTokenizerBase

EMPTY = "the translation is empty"
FEW = 64  # tokens of more than one character
UNFAMILIAR = (
    "the text is split into letters or bytes, unlike the text that the model was trained on: its "
    "translation is probably wrong"
)


def fragment_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of tokens that are one Latin letter or one byte, with or without a space before it.

    Letters of other scripts do not count, since one Chinese character can be a word. A vocabulary
    with few longer tokens has no fragments: it splits every text into letters.
    """
    found, vocabulary = set(), tokenizer.get_vocab()
    pieces = {number: token.lstrip("Ġ▁") for token, number in vocabulary.items()}
    if sum(len(piece) > 1 for piece in pieces.values()) < FEW:
        return frozenset()
    for number, piece in pieces.items():
        # byte-level BPE writes the bytes of other scripts as characters below 0x180
        is_one = len(piece) == 1 and ord(piece) < 0x180
        if (is_one and (piece.isalpha() or not piece.isascii())) or piece.startswith("<0x"):
            found.add(number)
    return frozenset(found)


def doubt(ids: Sequence[int], translation: str, fragments: Collection[int]) -> str | None:
    """Why a translation is probably wrong; None: there is no sign of it.

    Args:
        ids: input ids of the text, with its end token.
        translation: of the text.
        fragments: of `fragment_ids`.
    """
    if not translation:
        return EMPTY
    return UNFAMILIAR if 2 * sum(id_ in fragments for id_ in ids) > len(ids) else None
