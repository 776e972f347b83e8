"""Options that every command which translates has: the model, the engine, the search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import PartialState

from hf_vanilla.models.search_vanilla_decoder import AVERAGES
from hf_vanilla.options import Options, option

from .decoding import first_numbers
from .engines import ENGINES
from .generation_fields import check_fields
from .loading import DTYPES
from .terminology import Terminology, read_terminology
from .text_translator import SentenceSplitter, TextTranslator
from .translator import Translator


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(Options):
    """Which model translates, and how it searches."""

    model: str = option(text="model folder or Hub id")
    ensemble: list[str] = option(
        (),
        "further models of one vocabulary that decode together with it; --model A --model B is the "
        "same",
        repeats_model=True,
    )
    ensemble_average: str = option(
        "probabilities", f"mean of their {' or '.join(AVERAGES)}", choices=AVERAGES
    )
    engine: str = option(
        "torch", "torch; ctranslate2 or onnx for a folder of hf-vanilla export", choices=ENGINES
    )
    dtype: str | None = option(
        None, "float32, bfloat16 or int8, of engine torch; default: as it was saved", choices=DTYPES
    )
    num_beams: int | None = option(None, "beams per sentence; default: the model's", at_least=1)
    generation: dict[str, Any] = option(
        {},
        "field of the generation config: --generation.KEY VALUE, such as --generation.top_k 10",
        is_section=True,
    )
    seed: int | None = option(None, "of sampling, where generation.do_sample is true")
    split_sentences: str | None = option(None, "language code: split each line into sentences")
    keep_markup: bool = option(False, "carry over tags, URLs, {variables} and numbers")
    terminology: str | None = option(None, "file of terms that must appear: source, tab, target")
    tokens_per_batch: int = option(4096, "source tokens in a batch, padding included", at_least=1)
    max_batch_memory: int | None = option(
        None,
        "MiB that a batch may take beside the weights, by an upper bound; larger ones are split",
        at_least=1,
    )
    accept_failures: bool = option(False, "exit status 0 even if lines cannot be translated")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ensemble_average != AVERAGES[0] and not self.ensemble:
            raise ValueError(f"ensemble_average={self.ensemble_average!r} needs a second --model")
        check_fields("generation", self.generation)
        if "num_beams" in self.generation:
            raise ValueError("generation.num_beams: give --num_beams")
        if self.seed is not None and not self.generation.get("do_sample"):
            raise ValueError(f"seed={self.seed} needs --generation.do_sample true")

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Changes to the model's generation config, and the seed of sampling.

        A field of `generation` that is None is to have no value, whatever the model has.
        """
        others = {"num_beams": self.num_beams, "seed": self.seed}
        given = {name: value for name, value in others.items() if value is not None}
        return {**self.generation, **given}

    def check_failures(self, failed: Sequence[int]) -> None:
        """Refuse failed lines, unless `accept_failures` is on.

        Args:
            failed: their line numbers.

        Raises:
            ValueError: there are any.
        """
        if not failed or self.accept_failures:
            return
        raise ValueError(
            f"{len(failed)} of the lines could not be translated and are empty: "
            f"{first_numbers(failed)}; --accept_failures True accepts this"
        )

    def open_texts(
        self, processes: PartialState | None = None, *, terms: Terminology | None = None
    ) -> Translator | TextTranslator:
        """Load the model and what the options ask for around it.

        Args:
            processes: as for `Translator`.
            terms: those of `terminology`, if they are read already; a pipe is read only once.

        Raises:
            ValueError: the folder has no model for this engine, the file of terms is wrong, or the
                engine cannot do what is asked.
            OSError: no model is found under this name, or the file of terms cannot be read.
            ImportError: sentences are to be split and sentencex is not installed.
        """
        if self.terminology is not None and terms is None:
            terms = read_terminology(self.terminology)
        if self.split_sentences is not None:
            SentenceSplitter(self.split_sentences)  # before the model is loaded
        translator = self.open_translator(processes)
        if not self.asks_for_texts:
            return translator
        return TextTranslator(
            translator,
            split_sentences=self.split_sentences,
            keep_markup=self.keep_markup,
            terminology=terms,
        )

    def check_single_sentences(self, name: str) -> None:
        """Refuse an option that is of single sentences beside those around them.

        Args:
            name: of the option.

        Raises:
            ValueError: `split_sentences`, `keep_markup` or `terminology` is on.
        """
        if self.asks_for_texts:
            raise ValueError(
                f"{name} is of single sentences: no split_sentences, keep_markup or terminology"
            )

    @property
    def asks_for_texts(self) -> bool:
        """Whether anything is asked for around the translation of single sentences."""
        return bool(self.split_sentences or self.keep_markup or self.terminology)

    def open_translator(self, processes: PartialState | None = None) -> Translator:
        """Load the model, for single sentences.

        Args:
            processes: as for `Translator`.

        Raises:
            ValueError: the folder has no model for this engine.
            OSError: no model is found under this name.
        """
        return Translator(
            self.model,
            engine=self.engine,
            dtype=self.dtype,
            tokens_per_batch=self.tokens_per_batch,
            max_batch_memory=self.max_batch_memory,
            processes=processes,
            ensemble=self.ensemble,
            ensemble_average=self.ensemble_average,
            **self.generate_kwargs,
        )
