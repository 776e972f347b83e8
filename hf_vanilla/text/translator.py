"""Translate sentences: with an engine, alignments, n-best lists, given phrases."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice, tee
from operator import length_hint
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.lines import check_sentences
from hf_vanilla.models.search_vanilla_constraints import Constraints

from .alignments import Aligner, AlignmentHead, Links, saved_head
from .decoding import TOKENS_PER_BATCH, WINDOW_LINES, Progress, Sentence, SentenceDecoder
from .engines import Engine, TorchEngine, check_beams, check_memory_limit, check_n_best, load_engine
from .generation_fields import check_own_search
from .n_best import Hypothesis
from .terminology import phrase_of, sentences_with_phrases

logger = logging.getLogger(__name__)


class Translator(SentenceDecoder):
    """Translate any number of sentences, in order, each as soon as its window is done.

    Up to `window` sentences are read ahead and sorted by length, so that batches have little
    padding. A blank sentence translates to an empty one. A sentence of more than the tokenizer's
    `model_max_length` tokens is cut there. A sentence that cannot be translated becomes an empty
    one and is counted in `failed`; an error at every sentence is raised. Cuts, failures and what
    `doubt` finds are logged with the line number.

    Args:
        model: folder or Hub id; for the engines `"ctranslate2"` and `"onnx"`, a folder that
            `hf-vanilla export` wrote. Or an engine.
        engine: `"torch"`, `"ctranslate2"` or `"onnx"`.
        dtype: numbers of the engine `"torch"`: `"float32"`, `"bfloat16"` or `"int8"`; None: as the
            model was saved.
        tokens_per_batch: upper limit of sentences times longest source; a longer sentence is a
            batch of its own.
        max_batch_memory: MiB that a batch may take beside the weights, by the upper bound
            `TorchEngine.sentence_bytes`: larger batches are split. None: no limit.
        window: sentences sorted together.
        processes: Accelerate's state, to share every window among its processes. All of them must
            then translate the same sentences, and all receive all translations.
        **generate_kwargs: changes to the model's generation config, such as `num_beams`; and
            `device`, `ensemble`, `ensemble_average` of `load_engine`.

    Attributes:
        failed: line numbers of the sentences that the latest `translate` could not translate.

    Raises:
        ValueError: the engine is unknown, the folder has no model for it, or memory is to be
            limited and it is no model of this package.
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

    def __init__(  # noqa: PLR0913 - how it loads, batches and shares the work
        self,
        model: "str | Path | Engine",
        *,
        engine: str = "torch",
        dtype: str | None = None,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        max_batch_memory: float | None = None,
        window: int = WINDOW_LINES,
        processes: PartialState | None = None,
        **generate_kwargs: Any,
    ) -> None:
        if not isinstance(tokens_per_batch, int) or tokens_per_batch < 1:
            raise ValueError(f"tokens_per_batch={tokens_per_batch}: give a positive whole number")
        self._folder = model if isinstance(model, str | Path) else None
        options = generate_kwargs if dtype is None else {**generate_kwargs, "dtype": dtype}
        if isinstance(model, str | Path):
            device = None if processes is None else processes.device
            model = load_engine(str(model), engine, **{"device": device, **options})
        elif options:
            names = ", ".join(options)
            raise ValueError(f"{names}: a Translator of an engine takes no options of the search")
        elif not hasattr(model, "tokenizer"):
            raise ValueError(
                f"{type(model).__name__} is neither a folder nor an engine: for a loaded model, "
                "call hf_vanilla.translate(model, tokenizer, sentences)"
            )
        self.engine: Engine = model
        self.max_batch_memory = max_batch_memory
        if max_batch_memory is not None:
            check_memory_limit(max_batch_memory, self.engine, "limit tokens_per_batch")
        super().__init__(
            model.tokenizer, tokens_per_batch=tokens_per_batch, window=window, processes=processes
        )

    def __reduce__(self) -> Any:
        raise ValueError("a Translator cannot be copied to another process: make one there")

    def translate(
        self,
        sentences: Iterable[str],
        *,
        constraints: Iterable[Sequence[str]] | None = None,
        progress: Progress = False,
        first_line: int = 1,
    ) -> Iterator[str]:
        """Yield one translation per sentence, in the same order.

        Args:
            sentences: raw text; read ahead by up to `window` sentences.
            constraints: phrases for each sentence that its translation must contain; an empty list
                for none. They need the engine torch and at least two beams, without sampling.
            progress: show a progress bar, on the main process; or a function of the number of
                sentences that each batch has done.
            first_line: line number of the first sentence, for messages.

        Raises:
            ValueError: `sentences` is one text, the search cannot obey constraints, these are of
                more or fewer sentences, or a phrase is blank; or, while translating, the engine
                fails at every sentence.
        """
        check_sentences(sentences)
        total = length_hint(sentences) or None
        if constraints is None:
            texts: Iterable[Sentence] = map(Sentence, sentences, count(first_line))
        else:
            self.check_constraints()
            pairs = enumerate(sentences_with_phrases(sentences, constraints), start=first_line)
            texts = (Sentence(text, line, phrases) for line, (text, phrases) in pairs)
        return self.translate_all(texts, progress=progress, total=total)

    def translate_all(
        self, sentences: Iterable[Sentence], *, progress: Progress = False, total: int | None = None
    ) -> Iterator[str]:
        """Yield one translation per `Sentence`, in the same order; see `translate`.

        Args:
            sentences: read ahead by up to `window`; several may have the same line.
            progress: as for `translate`.
            total: their number, for the progress bar.
        """
        self.failed = []
        return self.results(sentences, self._texts_of_rows, progress=progress, total=total)

    def translate_aligned(
        self,
        sentences: Iterable[str],
        *,
        head: AlignmentHead | None = None,
        progress: Progress = False,
        first_line: int = 1,
    ) -> Iterator[tuple[str, Links]]:
        """Yield the translation of each sentence and its links, as `Aligner.align` has them.

        Args:
            sentences: as for `translate`.
            head: which attention aligns; None: the one that is stored with the model, or else the
                mean of the last layer but one.
            progress: as for `translate`.
            first_line: line number of the first sentence, for messages.

        Raises:
            ValueError: as `translate`, and as `aligner`.
        """
        check_sentences(sentences)
        aligner = self.aligner(head)
        total = length_hint(sentences) or None
        read, kept = tee(sentences)
        given = map(Sentence, read, count(first_line))
        texts = self.translate_all(given, progress=progress, total=total)
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
        needs = "alignments need attention weights, which this engine does not return: use"
        engine = self._torch_engine(needs)
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
        what = "constraints and terminology"
        engine = self._torch_engine(f"{what} need")
        check_own_search(f"{what} need beam search", *engine.search)
        check_beams(what, 2, *engine.search)

    def n_best(
        self, sentences: Iterable[str], n: int, *, progress: Progress = False, first_line: int = 1
    ) -> Iterator[list[Hypothesis]]:
        """Yield the n best hypotheses of each sentence, best first; see `translate`.

        A sentence that is blank or fails has an empty list.

        Raises:
            ValueError: as `translate`; or the engine is not a `TorchEngine` with at least n beams.
        """
        check_sentences(sentences)
        engine = self._torch_engine(f"n_best={n} needs")
        check_n_best(n, *engine.search)
        self.failed = []
        return self.results(
            map(Sentence, sentences, count(first_line)),
            lambda rows, _: engine.n_best_rows(rows, n),
            blank=[],
            progress=progress,
            total=length_hint(sentences) or None,
        )

    def _batches(self, rows: dict[int, list[int]]) -> list[list[int]]:
        """As above, within `max_batch_memory`."""
        batches = super()._batches(rows)
        if self.max_batch_memory is None:
            return batches
        engine, parts = self._torch_engine("max_batch_memory needs"), []
        for batch in batches:
            size = engine.sentences_within(self.max_batch_memory, len(rows[batch[0]]))
            parts += [batch[first : first + size] for first in range(0, len(batch), size)]
        return parts

    def _texts_of_rows(self, rows: list[list[int]], phrases: list[Sequence[str]]) -> list[str]:
        if not any(phrases):
            return self.engine.translate_rows(rows)
        required = [[phrase_of(self.tokenizer, text) for text in of_one] for of_one in phrases]
        return self._torch_engine("constraints need").constrained_rows(rows, Constraints(required))

    def _torch_engine(self, needs: str) -> TorchEngine:
        """The engine; `needs` is the beginning of the message where it is another one."""
        if not isinstance(self.engine, TorchEngine):
            raise ValueError(f"{needs} --engine torch")
        return self.engine


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
    tokens_per_batch: int = TOKENS_PER_BATCH,
    progress: Progress = False,
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
