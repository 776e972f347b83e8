"""Translate sentences: sort by length, batch by tokens, decode, restore the order."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import count, islice, pairwise, tee
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.batching import batch_bounds
from hf_vanilla.data.corpus import check_sentences
from hf_vanilla.models.search_vanilla_constraints import Constraints

from .alignment_links import Links
from .alignments import Aligner, AlignmentHead, saved_head
from .doubts import doubt, fragment_ids
from .engines import Engine, TorchEngine
from .loading import load_engine
from .n_best import Hypothesis
from .phrases import sentences_with_phrases
from .terminology import phrase_of

logger = logging.getLogger(__name__)

# sentences sorted by length together: enough for batches with little padding
WINDOW_LINES = 8192
SHOWN_LINES = 10  # in a message about many


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


# ids of a batch of sentences, and the phrases of each, to their results
Decode = Callable[[list[list[int]], list[Sequence[str]]], list[Any]]


class Translator:
    """Translate any number of sentences, in order, each as soon as its window is done.

    Up to `window` sentences are read ahead and sorted by length, so that batches have little
    padding. A blank sentence translates to an empty one. A sentence of more than the tokenizer's
    `model_max_length` tokens is cut there. A sentence that cannot be translated becomes an empty
    one and is counted in `failed`; an error at every sentence is raised. Cuts, failures and what
    `doubt` finds are logged with the line number.

    Args:
        model: folder or Hub id; for the engine `"ctranslate2"`, a folder that
            `hf-vanilla export` wrote. Or an engine.
        engine: `"torch"` or `"ctranslate2"`.
        dtype: numbers of the engine `"torch"`: `"float32"`, `"bfloat16"` or `"int8"`; None: as the
            model was saved.
        tokens_per_batch: upper limit of sentences times longest source; a longer sentence is a
            batch of its own.
        window: sentences sorted together.
        processes: Accelerate's state, to share every window among its processes. All of them must
            then translate the same sentences, and all receive all translations.
        **generate_kwargs: changes to the model's generation config, such as `num_beams`; and
            `ensemble`, `ensemble_average` of `load_engine`.

    Attributes:
        failed: line numbers of the sentences that the latest `translate` could not translate.

    Raises:
        ValueError: the engine is unknown, or the folder has no model for it.
        OSError: no model is found under this name.

    Examples:
        >>> from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, train_tokenizer
        >>> tokenizer = train_tokenizer(["ein Haus", "a house"], vocab_size=270)
        >>> model = VanillaForConditionalGeneration(
        ...     VanillaConfig(vocab_size=270, d_model=16, encoder_layers=1, decoder_layers=1))
        >>> translator = Translator(TorchEngine(model.eval(), tokenizer, max_new_tokens=3))
        >>> len(list(translator.translate(["a house", "", "ein Haus"])))
        3
    """

    def __init__(
        self,
        model: "str | Path | Engine",
        *,
        engine: str = "torch",
        dtype: str | None = None,
        tokens_per_batch: int = 4096,
        window: int = WINDOW_LINES,
        processes: PartialState | None = None,
        **generate_kwargs: Any,
    ) -> None:
        check_tokens_per_batch(tokens_per_batch)
        if window < 1:
            raise ValueError(f"window={window}: give a positive number")
        folder = model if isinstance(model, str | Path) else None
        if isinstance(model, str | Path):
            device = None if processes is None else processes.device
            options = {"device": device, "dtype": dtype, **generate_kwargs}
            model = load_engine(str(model), engine, **options)
        elif generate_kwargs or dtype is not None:
            names = ", ".join([*generate_kwargs, *([] if dtype is None else ["dtype"])])
            raise ValueError(f"{names}: a Translator of an engine takes no options of the search")
        self.engine: Engine = model
        self.tokens_per_batch = tokens_per_batch
        self.window = window
        self.processes = processes
        self.failed: list[int] = []
        self._folder = folder
        self._fragments = fragment_ids(self.engine.tokenizer)
        self._decode_rows: Decode = self._texts_of_rows
        self._has_translated = False
        self._error: Exception | None = None  # the engine's latest

    def translate(
        self,
        sentences: Iterable[str],
        *,
        constraints: Iterable[Sequence[str]] | None = None,
        progress: bool = False,
        first_line: int = 1,
    ) -> Iterator[str]:
        """Yield one translation per sentence, in the same order.

        Args:
            sentences: raw text; read ahead by up to `window` sentences.
            constraints: phrases for each sentence that its translation must contain; an empty list
                for none. They need the engine torch and at least two beams, without sampling.
            progress: show a progress bar, on the main process.
            first_line: line number of the first sentence, for messages.

        Raises:
            ValueError: `sentences` is one text, the search cannot obey constraints, these are of
                more or fewer sentences, or a phrase is blank; or, while translating, the engine
                fails at every sentence.
        """
        check_sentences(sentences)
        if constraints is not None:
            self.check_constraints()
        total = len(sentences) if isinstance(sentences, Sized) else None
        if constraints is None:
            texts: Iterable[Sentence] = map(Sentence, sentences, count(first_line))
        else:
            pairs = enumerate(sentences_with_phrases(sentences, constraints), start=first_line)
            texts = (Sentence(text, line, phrases) for line, (text, phrases) in pairs)
        return self.translate_all(texts, progress=progress, total=total)

    def translate_all(
        self, sentences: Iterable[Sentence], *, progress: bool = False, total: int | None = None
    ) -> Iterator[str]:
        """Yield one translation per `Sentence`, in the same order; see `translate`.

        Args:
            sentences: read ahead by up to `window`; several may have the same line.
            progress: show a progress bar, on the main process.
            total: their number, for the progress bar.
        """
        self.failed = []
        return self._results(sentences, progress, total, self._texts_of_rows, "")

    def translate_aligned(
        self,
        sentences: Iterable[str],
        *,
        head: AlignmentHead | None = None,
        progress: bool = False,
        first_line: int = 1,
    ) -> Iterator[tuple[str, Links]]:
        """Yield the translation of each sentence and its links, as `Aligner.align` has them.

        Args:
            sentences: as for `translate`.
            head: which attention aligns; None: the one that is stored with the model, or else the
                mean of the last layer but one.
            progress: show a progress bar, on the main process.
            first_line: line number of the first sentence, for messages.

        Raises:
            ValueError: as `translate`, and as `aligner`.
        """
        check_sentences(sentences)
        aligner = self.aligner(head)
        total = len(sentences) if isinstance(sentences, Sized) else None
        read, kept = tee(sentences)
        texts = self.translate_all(
            map(Sentence, read, count(first_line)), progress=progress, total=total
        )
        return _aligned(aligner, zip(kept, texts, strict=True), self.window, first_line)

    def aligner(self, head: AlignmentHead | None = None) -> Aligner:
        """What aligns sentences with their translations.

        A copy of the model that shares its weights computes with eager attention, because fused
        attention returns no weights. Of an ensemble, the first model aligns.

        Args:
            head: as for `translate_aligned`.

        Raises:
            ValueError: the engine has no attention weights, the model has no such head, or its
                tokenizer has a vocabulary per language.
        """
        engine = self.engine
        if not isinstance(engine, TorchEngine):
            raise ValueError(
                "alignments need attention weights, which this engine does not return: use "
                "--engine torch"
            )
        if head is None and self._folder is not None:
            head = saved_head(self._folder)
        implementation = engine.model.config._attn_implementation
        if implementation != "eager":
            logger.info(
                "%s attention returns no weights: alignments are computed by eager attention",
                implementation,
            )
        return Aligner(engine.model, engine.tokenizer, head)

    def check_constraints(self) -> None:
        """Refuse constraints that the search cannot obey.

        Raises:
            ValueError: the engine is not a `TorchEngine` with two beams or more, or it samples.
        """
        if not isinstance(self.engine, TorchEngine):
            raise ValueError("constraints and terminology need --engine torch")
        self.engine.check_own_search("constraints and terminology need beam search")
        self.engine.check_beams("constraints and terminology", 2)

    def n_best(
        self, sentences: Iterable[str], n: int, *, progress: bool = False, first_line: int = 1
    ) -> Iterator[list[Hypothesis]]:
        """Yield the n best hypotheses of each sentence, best first; see `translate`.

        A sentence that is blank or fails has an empty list.

        Raises:
            ValueError: as `translate`; or the engine is not a `TorchEngine` with at least n beams.
        """
        check_sentences(sentences)
        engine = self.engine
        if not isinstance(engine, TorchEngine):
            raise ValueError(f"n_best={n} needs --engine torch")
        engine.check_n_best(n)
        self.failed = []
        total = len(sentences) if isinstance(sentences, Sized) else None
        numbered = map(Sentence, sentences, count(first_line))
        return self._results(
            numbered, progress, total, lambda rows, _: engine.n_best_rows(rows, n), []
        )

    def _texts_of_rows(self, rows: list[list[int]], phrases: list[Sequence[str]]) -> list[str]:
        if not any(phrases):
            return self.engine.translate_rows(rows)
        assert isinstance(self.engine, TorchEngine)
        tokenizer = self.engine.tokenizer
        asked = [[phrase_of(tokenizer, text) for text in of_one] for of_one in phrases]
        return self.engine.constrained_rows(rows, Constraints(asked))

    def _results(
        self,
        sentences: Iterable[Sentence],
        progress: bool,
        total: int | None,
        decode: Decode,
        blank: Any,
    ) -> Iterator[Any]:
        """What `decode` returns for each sentence, in order; `blank` for blank and failed ones."""
        self._decode_rows = decode
        is_main = self.processes is None or self.processes.is_main_process
        is_hidden = not progress or not is_main or sys.stderr is None
        sentences = iter(sentences)
        with tqdm(total=total, unit="sent", disable=is_hidden, desc="Translating") as bar:
            while window := list(islice(sentences, self.window)):
                yield from self._translate_window(window, bar, blank)

    def _translate_window(self, window: list[Sentence], bar: tqdm, blank: Any) -> list[Any]:
        rows = self._tokenize(window)
        bar.update(len(window) - len(rows))
        batches = self._batches(rows)
        if self.processes is not None:
            # the batches are sorted by length; every process gets long and short ones
            batches = batches[self.processes.process_index :: self.processes.num_processes]
        found: list[tuple[int, Any]] = []
        for batch in batches:
            found += self._translate_batch(rows, batch, window)
            bar.update(len(batch))
        if self.processes is not None:
            found = gather_object(found)
            self.failed = gather_object(self.failed)
        self.failed = sorted(set(self.failed))
        self._check_progress(rows, found)
        results = [blank] * len(window)
        for index, result in found:
            results[index] = result
        self._report_doubts(window, rows, found)
        return results

    def _report_doubts(
        self, window: list[Sentence], rows: dict[int, list[int]], found: list[tuple[int, Any]]
    ) -> None:
        """Log the lines whose translation is probably wrong."""
        if self.processes is not None and not self.processes.is_main_process:
            return
        lines: dict[str, list[int]] = {}
        for index, result in sorted(found, key=lambda pair: pair[0]):
            text = result if isinstance(result, str) else "".join(one.text for one in result)
            reason = doubt(rows[index], text, self._fragments)
            if reason is not None:
                lines.setdefault(reason, []).append(window[index].line)
        for reason, numbers in lines.items():
            logger.warning("%s (lines: %s)", reason, first_numbers(numbers))

    def _check_progress(self, rows: dict[int, list[int]], found: list[tuple[int, Any]]) -> None:
        """Raise the engine's error if it has failed at every sentence up to now."""
        self._has_translated |= bool(found)
        if rows and not self._has_translated:
            raise self._no_translation() from self._error

    def _no_translation(self) -> ValueError:
        reason = " ".join(str(self._error).split()) or type(self._error).__name__
        return ValueError(f"no sentence can be translated: {reason}")

    def _tokenize(self, window: list[Sentence]) -> dict[int, list[int]]:
        """Input ids of all sentences that are not blank, by index in the window."""
        texts = [sentence.text for sentence in window]
        indices = [i for i, text in enumerate(texts) if not isinstance(text, str) or text.strip()]
        try:
            ids = self._input_ids([texts[i] for i in indices])
            rows = dict(zip(indices, ids, strict=True))
        except Exception:  # of any kind, because of one sentence: tokenize each alone
            rows = {}
            for index in indices:
                try:
                    (rows[index],) = self._input_ids([texts[index]])
                except Exception as error:
                    self._record_failure(window[index].line, error)
        limit = self.engine.tokenizer.model_max_length
        for index, row in rows.items():
            if len(row) > limit:
                message = "line %d has %d tokens; only the first %d are used"
                logger.warning(message, window[index].line, len(row), limit)
                del row[limit - 1 : -1]  # keep </s>, the last one
        return {index: row for index, row in rows.items() if row}

    def _input_ids(self, sentences: list[str]) -> list[list[int]]:
        return self.engine.tokenizer(sentences, verbose=False).input_ids if sentences else []

    def _batches(self, rows: dict[int, list[int]]) -> list[list[int]]:
        """Indices of sentences of similar length; the first batch is the longest."""
        indices = sorted(rows, key=lambda index: -len(rows[index]))
        # a sentence longer than the limit is a batch of its own
        lengths = np.minimum([len(rows[index]) for index in indices], self.tokens_per_batch)
        bounds = batch_bounds(lengths, self.tokens_per_batch).tolist()
        return [indices[begin:end] for begin, end in pairwise(bounds)]

    def _translate_batch(
        self, rows: dict[int, list[int]], batch: list[int], window: list[Sentence]
    ) -> list[tuple[int, Any]]:
        """Indices and results; a batch that fails is halved until one sentence is left."""
        try:
            phrases = [window[i].phrases for i in batch]
            found = self._decode([rows[i] for i in batch], phrases)
            return list(zip(batch, found, strict=True))
        except Exception as error:  # of any kind, out of memory included
            if len(batch) == 1:
                self._error = error
                if not self._works(rows[batch[0]][-1:]):
                    if isinstance(error, ValueError | OSError):
                        raise
                    raise self._no_translation() from error
                self._record_failure(window[batch[0]].line, error)
                return []
        half = len(batch) // 2
        return [
            pair
            for part in (batch[:half], batch[half:])
            for pair in self._translate_batch(rows, part, window)
        ]

    def _decode(self, rows: list[list[int]], phrases: list[Sequence[str]]) -> list[Any]:
        found = self._decode_rows(rows, phrases)
        if len(found) != len(rows):
            raise ValueError(f"the engine returned {len(found)} texts for {len(rows)} sentences")
        return found

    def _works(self, row: list[int]) -> bool:
        """Whether the engine can translate a sentence that is only an end token."""
        try:
            self._decode([row], [()])
        except Exception:
            return False
        return True

    def _record_failure(self, line: int, error: Exception) -> None:
        reason = " ".join(str(error).split())
        logger.warning("line %d cannot be translated and becomes empty: %s", line, reason)
        self.failed.append(line)


def first_numbers(lines: Sequence[int]) -> str:
    """The first line numbers of many, for a message."""
    numbers = ", ".join(map(str, lines[:SHOWN_LINES]))
    return numbers + (", ..." if len(lines) > SHOWN_LINES else "")


def _aligned(
    aligner: Aligner, pairs: Iterator[tuple[Any, str]], window: int, first_line: int
) -> Iterator[tuple[str, Links]]:
    """The translations of pairs with their links; a failed one is empty and has none."""
    while read := list(islice(pairs, window)):
        texts = [(source if isinstance(source, str) else "", text) for source, text in read]
        found = aligner.align(texts, first_line=first_line)
        for (_, text), links in zip(texts, found, strict=True):
            yield text, links
        first_line += len(read)


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    tokens_per_batch: int = 4096,
    progress: bool = False,
    **generate_kwargs: Any,
) -> list[str]:
    """Translate sentences with a loaded model: see `Translator`.

    Args:
        model: a sequence-to-sequence model in evaluation mode.
        tokenizer: its tokenizer.
        sentences: raw text.
        tokens_per_batch: upper limit of sentences times longest source.
        progress: show a progress bar.
        **generate_kwargs: passed on to `model.generate`.
    """
    engine = TorchEngine(model, tokenizer, **generate_kwargs)
    translator = Translator(engine, tokens_per_batch=tokens_per_batch)
    return list(translator.translate(sentences, progress=progress))


def check_tokens_per_batch(tokens_per_batch: int) -> None:
    """Refuse a limit below 1.

    Raises:
        ValueError: it is below 1.
    """
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch={tokens_per_batch}: give a positive number")
