"""Translate sentences: sort by length, batch by tokens, decode, restore the order."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.data.batching import batch_bounds
from hf_vanilla.models.packing_vanilla import pack
from hf_vanilla.models.search_vanilla_ensemble import Ensemble

from .engines import ENGINES, CTranslate2Engine, Engine, TorchEngine, store_by_columns
from .n_best import Hypothesis
from .precision import check_dtype, load_in

logger = logging.getLogger(__name__)

# sentences sorted by length together: enough for batches with little padding
WINDOW_LINES = 8192


class Translator:
    """Translate any number of sentences, in order, each as soon as its window is done.

    Up to `window` sentences are read ahead and sorted by length, so that batches have little
    padding. A blank sentence translates to an empty one. A sentence of more than the tokenizer's
    `model_max_length` tokens is cut there. A sentence that cannot be translated becomes an empty
    one and is counted in `failed`; an error at every sentence is raised. Cuts and failures are
    logged with the line number.

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
        self._decode_rows: Callable[[list[list[int]]], list[Any]] = self.engine.translate_rows
        self._has_translated = False
        self._error: Exception | None = None  # the engine's latest

    def translate(
        self, sentences: Iterable[str], *, progress: bool = False, first_line: int = 1
    ) -> Iterator[str]:
        """Yield one translation per sentence, in the same order.

        Args:
            sentences: raw text; read ahead by up to `window` sentences.
            progress: show a progress bar, on the main process.
            first_line: line number of the first sentence, for messages.

        Raises:
            ValueError: `sentences` is one text; or, while translating, the engine fails at every
                sentence.
        """
        check_sentences(sentences)
        self.failed = []
        return self._results(sentences, progress, first_line, self.engine.translate_rows, "")

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
        return self._results(
            sentences, progress, first_line, lambda rows: engine.n_best_rows(rows, n), []
        )

    def _results(
        self,
        sentences: Iterable[str],
        progress: bool,
        first_line: int,
        decode: Callable[[list[list[int]]], list[Any]],
        blank: Any,
    ) -> Iterator[Any]:
        """What `decode` returns for each sentence, in order; `blank` for blank and failed ones."""
        self._decode_rows = decode
        total = len(sentences) if isinstance(sentences, Sized) else None
        is_main = self.processes is None or self.processes.is_main_process
        is_hidden = not progress or not is_main or sys.stderr is None
        sentences = iter(sentences)
        with tqdm(total=total, unit="sent", disable=is_hidden, desc="Translating") as bar:
            while window := list(islice(sentences, self.window)):
                yield from self._translate_window(window, first_line, bar, blank)
                first_line += len(window)

    def _translate_window(
        self, window: list[str], first_line: int, bar: tqdm, blank: Any
    ) -> list[Any]:
        rows = self._tokenize(window, first_line)
        bar.update(len(window) - len(rows))
        batches = self._batches(rows)
        if self.processes is not None:
            # the batches are sorted by length; every process gets long and short ones
            batches = batches[self.processes.process_index :: self.processes.num_processes]
        found: list[tuple[int, Any]] = []
        for batch in batches:
            found += self._translate_batch(rows, batch, first_line)
            bar.update(len(batch))
        if self.processes is not None:
            found = gather_object(found)
            self.failed = sorted(set(gather_object(self.failed)))
        self._check_progress(rows, found)
        results = [blank] * len(window)
        for index, result in found:
            results[index] = result
        return results

    def _check_progress(self, rows: dict[int, list[int]], found: list[tuple[int, Any]]) -> None:
        """Raise the engine's error if it has failed at every sentence up to now."""
        self._has_translated |= bool(found)
        if rows and not self._has_translated:
            reason = " ".join(str(self._error).split())
            raise ValueError(f"no sentence can be translated: {reason}") from self._error

    def _tokenize(self, window: list[str], first_line: int) -> dict[int, list[int]]:
        """Input ids of all sentences that are not blank, by index in the window."""
        indices = [i for i, text in enumerate(window) if not isinstance(text, str) or text.strip()]
        try:
            ids = self._input_ids([window[i] for i in indices])
            rows = dict(zip(indices, ids, strict=True))
        except Exception:  # of any kind, because of one sentence: tokenize each alone
            rows = {}
            for index in indices:
                try:
                    (rows[index],) = self._input_ids([window[index]])
                except Exception as error:
                    self._record_failure(first_line + index, error)
        limit = self.engine.tokenizer.model_max_length
        for index, row in rows.items():
            if len(row) > limit:
                message = "line %d has %d tokens; only the first %d are used"
                logger.warning(message, first_line + index, len(row), limit)
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
        self, rows: dict[int, list[int]], batch: list[int], first_line: int
    ) -> list[tuple[int, Any]]:
        """Indices and results; a batch that fails is halved until one sentence is left."""
        try:
            return list(zip(batch, self._decode([rows[i] for i in batch]), strict=True))
        except Exception as error:  # of any kind, out of memory included
            if len(batch) == 1:
                self._error = error
                if not self._works(rows[batch[0]][-1:]):
                    raise
                self._record_failure(first_line + batch[0], error)
                return []
        half = len(batch) // 2
        return [
            pair
            for part in (batch[:half], batch[half:])
            for pair in self._translate_batch(rows, part, first_line)
        ]

    def _decode(self, rows: list[list[int]]) -> list[Any]:
        found = self._decode_rows(rows)
        if len(found) != len(rows):
            raise ValueError(f"the engine returned {len(found)} texts for {len(rows)} sentences")
        return found

    def _works(self, row: list[int]) -> bool:
        """Whether the engine can translate a sentence that is only an end token."""
        try:
            self._decode([row])
        except Exception:
            return False
        return True

    def _record_failure(self, line: int, error: Exception) -> None:
        reason = " ".join(str(error).split())
        logger.warning("line %d cannot be translated and becomes empty: %s", line, reason)
        self.failed.append(line)


def load_engine(
    name: str,
    engine: str = "torch",
    *,
    device: torch.device | None = None,
    dtype: str | None = None,
    ensemble: Sequence[str] = (),
    ensemble_average: str = "probabilities",
    **generate_kwargs: Any,
) -> Engine:
    """Load the engine of a model folder or Hub id.

    Args:
        name: folder or Hub id; for `"ctranslate2"` a folder of `hf-vanilla export`.
        engine: `"torch"` or `"ctranslate2"`.
        device: where to compute; None: a GPU if there is one.
        dtype: as for `Translator`.
        ensemble: further models, which decode together with the first one.
        ensemble_average: mean of their `"probabilities"` or `"log_probabilities"`.
        **generate_kwargs: changes to the model's generation config.

    Raises:
        ValueError: the engine is unknown, the folder has no model for it, the dtype is not
            possible, or the models of an ensemble have different vocabularies.
        OSError: no model is found under this name.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: choose one of {', '.join(ENGINES)}")
    check_dtype(dtype)
    if engine == "ctranslate2" and dtype is not None:
        raise ValueError(
            f"dtype={dtype!r} is for the engine torch: choose the numbers of CTranslate2 by "
            "hf-vanilla export --quantization"
        )
    if engine == "ctranslate2" and ensemble:
        raise ValueError("an ensemble needs the engine torch")
    if engine == "ctranslate2":
        return CTranslate2Engine(name, device=device, **generate_kwargs)
    model, tokenizer = load_translator(name, dtype=dtype, device=device)
    others = [_further_model(name, tokenizer, other, dtype, device) for other in ensemble]
    for one in (model, *others):
        pack(one)
        store_by_columns(one)  # what could not be packed
    if others:
        generate_kwargs["ensemble"] = Ensemble(others, ensemble_average)
    return TorchEngine(model, tokenizer, **generate_kwargs)


def _further_model(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    other: str,
    dtype: str | None,
    device: torch.device | None,
) -> PreTrainedModel:
    """Load the model `other`, whose vocabulary must be the one of `tokenizer`, of model `name`."""
    model, its_tokenizer = load_translator(other, dtype=dtype, device=device)
    if its_tokenizer.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"{name} and {other} have different vocabularies: an ensemble needs models of one "
            "tokenizer"
        )
    return model


def load_translator(
    name: str, *, dtype: str | None = None, device: torch.device | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer of a folder or Hub id; the model is in evaluation mode.

    Args:
        name: folder or Hub id.
        dtype: as for `Translator`.
        device: where to compute; None: a GPU if there is one, for int8 always a CPU.

    Raises:
        ValueError: a local folder has no model, or one that does not translate, or the dtype is
            not possible.
        OSError: no model is found under this name.
    """
    check_dtype(dtype)
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise ValueError(
            f"{name} is not a model folder: it has no config.json; "
            "give the folder that training or save_pretrained wrote"
        )
    if (Path(name) / "model.bin").is_file() and (Path(name) / "config.json").is_file():
        raise ValueError(f"{name} is a model for CTranslate2: translate with --engine ctranslate2")
    parent = Path(name).parent
    if not Path(name).is_dir() and parent != Path() and parent.is_dir():
        raise FileNotFoundError(f"{name}: no such folder")
    try:
        model = load_in(name, dtype, device)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise OSError(f"{name}: no such folder, and not found on the Hub: {reason}") from None
    return model, AutoTokenizer.from_pretrained(name)


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


def check_sentences(sentences: Any) -> None:
    """Refuse one text where a sequence of texts is needed; it would be read letter by letter.

    Raises:
        ValueError: it is one text.
    """
    if isinstance(sentences, str | bytes):
        raise ValueError(f"{sentences!r:.60} is one text: give a list of sentences, [text]")


def check_tokens_per_batch(tokens_per_batch: int) -> None:
    """Refuse a limit below 1.

    Raises:
        ValueError: it is below 1.
    """
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch={tokens_per_batch}: give a positive number")
