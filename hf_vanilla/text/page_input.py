"""The text that a visitor typed: checked, in valid Unicode, split into sentences."""

from .sentence_splitting import Piece, SentenceSplitter

CHARACTERS_PER_TOKEN = 20  # a longer text is refused without tokenizing it
MAX_MESSAGE = 400  # characters of an error
MAX_SENTENCES = 20  # of a text that is split


def checked_text(text: str, max_tokens: int) -> str:
    """The text on one line, in valid Unicode.

    Raises:
        ValueError: it is blank, or much too long.
    """
    limit = max_tokens * CHARACTERS_PER_TOKEN
    if len(text) > limit:
        raise ValueError(
            f"The text has {len(text):,} characters; the limit is {limit:,}: give a shorter one."
        )
    sentence = " ".join(valid(text).splitlines())
    if not sentence.strip():
        raise ValueError("There is no text: type a sentence.")
    return sentence


def split_text(text: str, language: str) -> list[Piece]:
    """The sentences of a text.

    Raises:
        ValueError: sentencex is not installed, the language is no code, or they are too many.
    """
    try:
        pieces = SentenceSplitter(language).split(text.strip())
    except ImportError as error:
        raise ValueError(one_line(error)) from error
    if len(pieces) > MAX_SENTENCES:
        raise ValueError(
            f"The text has {len(pieces)} sentences; the limit is {MAX_SENTENCES}: give fewer at a "
            "time."
        )
    return pieces


def one_line(error: Exception) -> str:
    """The message of an error on one line, shortened to `MAX_MESSAGE` characters."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"


def valid(text: str) -> str:
    """In valid Unicode: tokenizers refuse a lone half of a surrogate pair."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
