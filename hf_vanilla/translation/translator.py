"""Sentences to sentences: sort by length, batch by tokens, decode, restore order."""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_vanilla.data.batching import batch_bounds
from hf_vanilla.data.corpus import decoded_lines, read_lines
from hf_vanilla.files import check_output_file, whole_file

from .engines import ENGINES, CTranslate2Engine, Engine, TorchEngine, store_by_columns

logger = logging.getLogger(__name__)

# lines sorted by length together: enough for dense batches, little enough to hold
WINDOW_LINES = 8192
STANDARD_STREAM = "-"


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Which model, and how it decodes."""

    model: str = field(metadata={"help": "model folder or Hub id"})
    engine: str = field(
        default="torch",
        metadata={"help": "torch, or ctranslate2 for a folder of hf-vanilla export"},
    )
    num_beams: int | None = field(
        default=None, metadata={"help": "hypotheses kept per sentence; default: as the model saved"}
    )
    tokens_per_batch: int = field(
        default=4096, metadata={"help": "source tokens decoded together, padding included"}
    )

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine={self.engine!r}: choose one of {', '.join(ENGINES)}")
        if self.num_beams is not None and self.num_beams < 1:
            raise ValueError(f"num_beams={self.num_beams}: give a positive number")
        _check_budget(self.tokens_per_batch)

    @property
    def generate_kwargs(self) -> dict[str, int]:
        """What to tell the engine beyond the model's own settings."""
        return {} if self.num_beams is None else {"num_beams": self.num_beams}


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(DecodingOptions):
    """Translate a file or stdin, a sentence a line."""

    input: str = field(
        default="-", metadata={"help": "UTF-8 text, plain or .gz, a sentence a line; -: stdin"}
    )
    output: str = field(default="-", metadata={"help": "file for the translations; -: stdout"})
    overwrite: bool = field(default=False, metadata={"help": "replace an existing output file"})


class Translator:
    """Sentences in, sentences out: any number, in their order, as soon as they are there.

    Up to `window` sentences are read ahead and sorted by length, so that batches hold little
    padding. A blank sentence translates to an empty one. One of more than the tokenizer's
    `model_max_length` tokens is cut there. One that cannot be translated at all becomes an empty
    one; only where the engine fails at everything is its error raised. Cuts and failures are
    logged with the number of the line.

    Args:
        model: folder or Hub id; for the engine `"ctranslate2"`, a folder that
            `hf-vanilla export` wrote. Or an engine that is there already.
        engine: `"torch"` or `"ctranslate2"`.
        tokens_per_batch: sentences times longest source, at most; a longer one stands alone.
        window: sentences sorted together.
        processes: Accelerate's state, to share every window among its processes. All of them must
            then translate the same sentences, and all receive all translations.
        **generate_kwargs: changes to the model's own decoding, such as `num_beams`.

    Attributes:
        failed: numbers of the lines that could not be translated, of the latest `translate`.

    Raises:
        ValueError: the engine is unknown, or the folder holds no model for it.
        OSError: nothing is found under that name.

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
        tokens_per_batch: int = 4096,
        window: int = WINDOW_LINES,
        processes: PartialState | None = None,
        **generate_kwargs: Any,
    ) -> None:
        _check_budget(tokens_per_batch)
        if window < 1:
            raise ValueError(f"window={window}: give a positive number")
        if isinstance(model, str | Path):
            device = None if processes is None else processes.device
            model = load_engine(str(model), engine, device=device, **generate_kwargs)
        elif generate_kwargs:
            names = ", ".join(generate_kwargs)
            raise ValueError(f"{names}: an engine that is there already has its own decoding")
        self.engine: Engine = model
        self.tokens_per_batch = tokens_per_batch
        self.window = window
        self.processes = processes
        self.failed: list[int] = []

    def translate(
        self, sentences: Iterable[str], *, progress: bool = False, first_line: int = 1
    ) -> Iterator[str]:
        """Translations one by one, in the order of the sentences and as many.

        Args:
            sentences: raw text; read as far ahead as `window` asks.
            progress: show a progress bar, on the main process.
            first_line: number of the first sentence in messages.
        """
        self.failed = []
        total = len(sentences) if isinstance(sentences, Sized) else None
        is_hidden = not progress or not (self.processes is None or self.processes.is_main_process)
        sentences = iter(sentences)
        with tqdm(total=total, unit="sent", disable=is_hidden, desc="Translating") as bar:
            while window := list(islice(sentences, self.window)):
                yield from self._translate_window(window, first_line, bar)
                first_line += len(window)

    def _translate_window(self, window: list[str], first_line: int, bar: tqdm) -> list[str]:
        rows = self._rows(window, first_line)
        bar.update(len(window) - len(rows))
        batches = self._batches(rows)
        if self.processes is not None:
            # dealt in turn, since they are sorted: every process has long ones and short ones
            batches = batches[self.processes.process_index :: self.processes.num_processes]
        found: list[tuple[int, str]] = []
        for batch in batches:
            found += self._translate_batch(rows, batch, first_line)
            bar.update(len(batch))
        if self.processes is not None:
            found = gather_object(found)
            self.failed = sorted(set(gather_object(self.failed)))
        translations = [""] * len(window)
        for place, text in found:
            translations[place] = text
        return translations

    def _rows(self, window: list[str], first_line: int) -> dict[int, list[int]]:
        """The ids of all sentences that have any, by place."""
        places = [i for i, text in enumerate(window) if not isinstance(text, str) or text.strip()]
        try:
            rows = dict(zip(places, self._ids([window[i] for i in places]), strict=True))
        except Exception:  # one of them, and whatever a tokenizer raises
            rows = {}
            for place in places:
                try:
                    (rows[place],) = self._ids([window[place]])
                except Exception as error:
                    self._fail(first_line + place, error)
        limit = self.engine.tokenizer.model_max_length
        for place, row in rows.items():
            if len(row) > limit:
                told = "line %d has %d tokens; only the first %d are used"
                logger.warning(told, first_line + place, len(row), limit)
                del row[limit - 1 : -1]  # the last one is </s>
        return {place: row for place, row in rows.items() if row}

    def _ids(self, sentences: list[str]) -> list[list[int]]:
        return self.engine.tokenizer(sentences, verbose=False).input_ids if sentences else []

    def _batches(self, rows: dict[int, list[int]]) -> list[list[int]]:
        """Places of sentences of like length, longest first: memory runs out at once or never."""
        places = sorted(rows, key=lambda place: -len(rows[place]))
        # one longer than the budget fills it alone
        heights = np.minimum([len(rows[place]) for place in places], self.tokens_per_batch)
        bounds = batch_bounds(heights, self.tokens_per_batch).tolist()
        return [places[begin:end] for begin, end in pairwise(bounds)]

    def _translate_batch(
        self, rows: dict[int, list[int]], batch: list[int], first_line: int
    ) -> list[tuple[int, str]]:
        """Places and texts; a batch that fails is halved until the sentence at fault is alone."""
        try:
            texts = self.engine.translate_rows([rows[place] for place in batch])
            return list(zip(batch, texts, strict=True))
        except Exception as error:  # whatever an engine raises, running out of memory included
            if len(batch) == 1:
                if not self._works(rows[batch[0]][-1:]):
                    raise
                self._fail(first_line + batch[0], error)
                return []
        half = len(batch) // 2
        return [
            pair
            for part in (batch[:half], batch[half:])
            for pair in self._translate_batch(rows, part, first_line)
        ]

    def _works(self, row: list[int]) -> bool:
        """Whether the engine can translate anything: a sentence that is only its end."""
        try:
            self.engine.translate_rows([row])
        except Exception:
            return False
        return True

    def _fail(self, line: int, error: Exception) -> None:
        reason = " ".join(str(error).split())
        logger.warning("line %d cannot be translated and becomes empty: %s", line, reason)
        self.failed.append(line)


def load_engine(
    name: str, engine: str = "torch", *, device: torch.device | None = None, **generate_kwargs: Any
) -> Engine:
    """The engine of a model folder or Hub id.

    Args:
        name: folder or Hub id; for `"ctranslate2"` a folder of `hf-vanilla export`.
        engine: `"torch"` or `"ctranslate2"`.
        device: where to compute; None: a GPU if there is one.
        **generate_kwargs: changes to the model's own decoding.

    Raises:
        ValueError: the engine is unknown, or the folder holds no model for it.
        OSError: nothing is found under that name.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: choose one of {', '.join(ENGINES)}")
    if engine == "ctranslate2":
        return CTranslate2Engine(name, device=device, **generate_kwargs)
    model, tokenizer = load_translator(name)
    store_by_columns(model)
    return TorchEngine(model.to(device or model.device), tokenizer, **generate_kwargs)


def load_translator(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model in evaluation mode and tokenizer of a folder or Hub id.

    Raises:
        ValueError: a local folder holds no model, or not one that translates.
        OSError: nothing is found under that name.
    """
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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(name).to(device).eval()
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
    """Translate sentences with a model that is there already: see `Translator`.

    Args:
        model: a sequence-to-sequence model in evaluation mode.
        tokenizer: its tokenizer.
        sentences: raw text.
        tokens_per_batch: sentences times longest source, at most.
        progress: show a progress bar.
        **generate_kwargs: passed on to `model.generate`.
    """
    engine = TorchEngine(model, tokenizer, **generate_kwargs)
    translator = Translator(engine, tokens_per_batch=tokens_per_batch)
    return list(translator.translate(sentences, progress=progress))


def translate_file(options: TranslateOptions) -> Path | None:
    """Translate a file or stdin, line by line and in order, into a file or stdout.

    Started by `accelerate launch` or `torchrun`, the processes share the work and the first writes.

    Returns:
        The file written; None for stdout, and on processes that write nothing.

    Raises:
        ValueError: the model folder or the input is not what it should be.
        OSError: a file cannot be read, or the output exists and `overwrite` is off.
    """
    # told that there is no GPU, Accelerate lets processes on CPUs find each other
    processes = PartialState(cpu=not torch.cuda.is_available())
    output = Path(options.output)
    if options.output != STANDARD_STREAM:
        check_output_file(output, overwrite=options.overwrite)
    if options.input != STANDARD_STREAM and not Path(options.input).is_file():
        raise FileNotFoundError(f"{options.input}: no such file")
    if options.input == STANDARD_STREAM and processes.num_processes > 1:
        raise ValueError(
            f"{processes.num_processes} processes cannot read one stdin: give a file by --input"
        )
    translator = Translator(
        options.model,
        engine=options.engine,
        tokens_per_batch=options.tokens_per_batch,
        processes=processes if processes.num_processes > 1 else None,
        **options.generate_kwargs,
    )
    is_seen = sys.stderr.isatty() or options.output != STANDARD_STREAM
    translations = translator.translate(_lines(options.input), progress=is_seen)
    if not processes.is_main_process:
        for _ in translations:
            pass
        return None
    if options.output == STANDARD_STREAM:
        write_lines(translations, sys.stdout)
        return None
    with whole_file(output) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        write_lines(translations, file)
    return output


def write_lines(texts: Iterable[str], file: TextIO) -> int:
    """Write each text on a line of its own as it comes; returns how many."""
    count = 0
    for text in texts:
        # a line feed that the model wrote must not become a line of its own
        file.write(text.replace("\n", " ") + "\n")
        file.flush()
        count += 1
    return count


def _lines(name: str) -> Iterator[str]:
    return decoded_lines(sys.stdin.buffer, "stdin") if name == STANDARD_STREAM else read_lines(name)


def _check_budget(tokens_per_batch: int) -> None:
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch={tokens_per_batch}: give a positive number")
