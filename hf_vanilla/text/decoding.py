"""Decode any number of sentences: sort by length, batch by tokens, restore the order.

Shapes: B batch, V vocabulary.
"""

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.batching import batch_bounds, padded_with_mask
from hf_vanilla.models.search_vanilla import refuse_nan

logger = logging.getLogger(__name__)

# sentences sorted by length together: enough for batches with little padding
WINDOW_LINES = 8192
TOKENS_PER_BATCH = 4096
SHOWN_LINES = 10  # in a message about many
EMPTY = "the translation is empty"
# what `generate()` returns, whatever the generation config says: ids, one sequence per sentence
IDS_ALONE: dict[str, Any] = {"num_return_sequences": 1, "return_dict_in_generate": False}
FEW = 64  # tokens of more than one character
UNFAMILIAR = (
    "the text is split into letters or bytes, unlike the text that the model was trained on: its "
    "translation is probably wrong"
)


@dataclass(frozen=True)
class Sentence:
    """One sentence to translate.

    Attributes:
        text: raw.
        line: where it stands, for messages and `failed`.
        phrases: what the translation must contain.
    """

    text: str
    line: int
    phrases: Sequence[str] = ()


# whether to show a progress bar; or what is called with the number of sentences of each batch
Progress = bool | Callable[[int], Any]
# ids of a batch of sentences, and the phrases of each, to their results
Decode = Callable[[list[list[int]], list[Sequence[str]]], list[Any]]


class SentenceDecoder:
    """Decodes sentences, in order, each as soon as its window is done.

    Args:
        tokenizer: of the sentences.
        tokens_per_batch: upper limit of sentences times longest source; a longer sentence is a
            batch of its own.
        window: sentences sorted together.
        processes: Accelerate's state, to share every window among its processes.

    Attributes:
        failed: line numbers of the sentences that could not be decoded.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        window: int = WINDOW_LINES,
        processes: PartialState | None = None,
    ) -> None:
        if window < 1:
            raise ValueError(f"window={window}: give a positive number")
        self.tokenizer = tokenizer
        self.tokens_per_batch = tokens_per_batch
        self.window = window
        self.processes = processes
        self.is_main = processes is None or processes.is_main_process
        self.failed: list[int] = []
        self._fragments = fragment_ids(tokenizer)
        self._has_translated = False
        self._error: Exception | None = None  # the engine's latest

    def results(
        self,
        sentences: Iterable[Sentence],
        decode: Decode,
        *,
        blank: Any = "",
        progress: Progress = False,
        total: int | None = None,
    ) -> Iterator[Any]:
        """Yield what `decode` returns for each sentence, in order.

        Args:
            sentences: read ahead by up to `window`; several may have the same line.
            decode: results of a batch of rows of input ids.
            blank: the result of sentences that are blank or fail.
            progress: show a progress bar, on the main process; or a function of the number of
                sentences that each batch has done.
            total: number of sentences, for the progress bar.
        """
        is_hidden = progress is not True or not self.is_main or sys.stderr is None
        sentences = iter(sentences)
        with tqdm(total=total, unit="sent", disable=is_hidden, desc="Translating") as bar:
            advance = progress if callable(progress) else bar.update
            while window := list(islice(sentences, self.window)):
                yield from self._translate_window(window, decode, advance, blank)

    def _translate_window(
        self, window: list[Sentence], decode: Decode, advance: Callable[[int], Any], blank: Any
    ) -> list[Any]:
        if not self._has_translated and not any(isinstance(one.text, str) for one in window):
            raise ValueError(f"{window[0].text!r:.60} is no text: give a list of sentences")
        rows = self._tokenize(window)
        advance(len(window) - len(rows))
        batches = self._batches(rows)
        if self.processes is not None:
            # the batches are sorted by length; every process gets long and short ones
            batches = batches[self.processes.process_index :: self.processes.num_processes]
        found: list[tuple[int, Any]] = []
        for batch in batches:
            found += self._translate_batch(rows, batch, window, decode)
            advance(len(batch))
        if self.processes is not None:
            found = gather_object(found)
            self.failed = gather_object(self.failed)
        self.failed = sorted(set(self.failed))
        self._has_translated |= bool(found)
        if rows and not self._has_translated:  # the engine failed at every sentence up to now
            raise self._no_translation() from self._error
        results = dict(found)
        if self.is_main:
            self._report_doubts(window, rows, results)
        return [results.get(index, blank) for index in range(len(window))]

    def _report_doubts(
        self, window: list[Sentence], rows: dict[int, list[int]], results: dict[int, Any]
    ) -> None:
        """Log the lines whose translation is probably wrong."""
        lines: dict[str, list[int]] = {}
        for index, result in sorted(results.items(), key=lambda pair: pair[0]):
            text = result if isinstance(result, str) else "".join(one.text for one in result)
            reason = doubt(rows[index], text, self._fragments)
            if reason is not None:
                lines.setdefault(reason, []).append(window[index].line)
        for reason, numbers in lines.items():
            logger.warning("%s (lines: %s)", reason, first_numbers(numbers))

    def _no_translation(self) -> ValueError:
        reason = " ".join(str(self._error).split()) or type(self._error).__name__
        return ValueError(f"no sentence can be translated: {reason}")

    def _tokenize(self, window: list[Sentence]) -> dict[int, list[int]]:
        """Input ids of all sentences that are not blank, by index in the window."""
        texts = [sentence.text for sentence in window]
        indices = [i for i, text in enumerate(texts) if not isinstance(text, str) or text.strip()]
        try:
            given = [texts[i] for i in indices]
            ids = self.tokenizer(given, verbose=False).input_ids if given else []
            rows = dict(zip(indices, ids, strict=True))
        except Exception:  # of any kind, because of one sentence: tokenize each alone
            rows = {}
            for index in indices:
                try:
                    if not isinstance(texts[index], str):
                        raise ValueError(f"{texts[index]!r} is no text")
                    if not is_readable(texts[index]):
                        raise ValueError("it is not valid UTF-8: convert it by iconv -t utf-8")
                    (rows[index],) = self.tokenizer([texts[index]], verbose=False).input_ids
                except Exception as error:
                    self._record_failure(window[index].line, error)
        limit = self.tokenizer.model_max_length
        for index, row in rows.items():
            if len(row) > limit:
                message = "line %d has %d tokens; only the first %d are used"
                logger.warning(message, window[index].line, len(row), limit)
                del row[limit - 1 : -1]  # keep </s>, the last one
        return {index: row for index, row in rows.items() if row}

    def _batches(self, rows: dict[int, list[int]]) -> list[list[int]]:
        """Indices of sentences of similar length; the first batch is the longest."""
        lengths = {index: len(row) for index, row in rows.items()}
        return batches_of_similar_length(lengths, self.tokens_per_batch)

    def _translate_batch(
        self, rows: dict[int, list[int]], batch: list[int], window: list[Sentence], decode: Decode
    ) -> list[tuple[int, Any]]:
        """Indices and results; a batch that fails is halved until one sentence is left."""
        try:
            found = decode([rows[i] for i in batch], [window[i].phrases for i in batch])
            if len(found) != len(batch):
                raise ValueError(f"the engine gave {len(found)} texts for {len(batch)} sentences")
            return list(zip(batch, found, strict=True))
        except Exception as error:  # of any kind, out of memory included
            if len(batch) == 1:
                self._error = error
                if not _works(decode, rows[batch[0]][-1:]):
                    if isinstance(error, ValueError | OSError):
                        raise
                    raise self._no_translation() from error
                self._record_failure(window[batch[0]].line, error)
                return []
        half = len(batch) // 2
        first = self._translate_batch(rows, batch[:half], window, decode)
        return first + self._translate_batch(rows, batch[half:], window, decode)

    def _record_failure(self, line: int, error: Exception) -> None:
        reason = " ".join(str(error).split())
        logger.warning("line %d cannot be translated and becomes empty: %s", line, reason)
        self.failed.append(line)


def is_readable(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which neither tokenizers nor files take."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _works(decode: Decode, row: list[int]) -> bool:
    """Whether the engine can translate a sentence that is only an end token."""
    try:
        return len(decode([row], [()])) == 1
    except Exception:
        return False


def batches_of_similar_length(lengths: Mapping[int, int], tokens_per_batch: int) -> list[list[int]]:
    """Numbers of sentences or pairs, divided into batches; the first batch is the longest.

    Args:
        lengths: tokens of each, by number; one that is longer than a batch is a batch of its own.
        tokens_per_batch: upper limit of the number times the longest.
    """
    order = sorted(lengths, key=lambda number: -lengths[number])
    sizes = np.minimum([lengths[number] for number in order], tokens_per_batch)
    bounds = batch_bounds(sizes, tokens_per_batch).tolist()
    return [order[begin:end] for begin, end in pairwise(bounds)]


# --- generate() ---------------------------------------------------------------------------------


def without_nan(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The scores `(B, V)` as they are; from NaN, no token can be drawn.

    Raises:
        ValueError: one is NaN.
    """
    refuse_nan(bool(scores.isnan().any()), step=input_ids.shape[1])
    return scores


@torch.inference_mode()
def generated(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[list[int]],
    **generate_kwargs: Any,
) -> Any:
    """What `generate()` returns for rows of input ids."""
    # greedy and beam search check by themselves
    if generate_kwargs.get("do_sample", model.generation_config.do_sample):
        others = generate_kwargs.get("logits_processor", ())
        generate_kwargs["logits_processor"] = [*others, without_nan]
    input_ids, attention_mask = padded_with_mask(rows, tokenizer.pad_token_id)
    return model.generate(
        input_ids=input_ids.to(model.device),
        attention_mask=attention_mask.to(model.device),
        **generate_kwargs,
    )


def generated_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[list[int]],
    **generate_kwargs: Any,
) -> list[tuple[str, list[int]]]:
    """Text and generated ids, padding included, per row of input ids."""
    # some tokenizers do not count the start token as special
    ids = generated(model, tokenizer, rows, **{**generate_kwargs, **IDS_ALONE})[:, 1:]
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return list(zip(texts, ids.tolist(), strict=True))


# --- signs that a translation is wrong ----------------------------------------------------------


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


def first_numbers(lines: Sequence[int]) -> str:
    """The first line numbers of many, for a message."""
    numbers = ", ".join(map(str, lines[:SHOWN_LINES]))
    return numbers + (", ..." if len(lines) > SHOWN_LINES else "")
