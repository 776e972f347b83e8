"""Options that every command which translates has: the model, the engine, the search."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from accelerate import PartialState

from .engines import ENGINES
from .precision import check_dtype
from .translator import Translator, check_tokens_per_batch

SHOWN_LINES = 10  # in the message about failed lines


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Which model translates, and how it searches."""

    model: str = field(metadata={"help": "model folder or Hub id"})
    engine: str = field(
        default="torch",
        metadata={"help": "torch, or ctranslate2 for a folder of hf-vanilla export"},
    )
    dtype: str | None = field(
        default=None,
        metadata={"help": "float32, bfloat16 or int8, of engine torch; default: as it was saved"},
    )
    num_beams: int | None = field(
        default=None, metadata={"help": "beams per sentence; default: the model's own number"}
    )
    tokens_per_batch: int = field(
        default=4096, metadata={"help": "source tokens in a batch, padding included"}
    )
    accept_failures: bool = field(
        default=False, metadata={"help": "exit status 0 even if lines cannot be translated"}
    )

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine={self.engine!r}: choose one of {', '.join(ENGINES)}")
        check_dtype(self.dtype)
        if self.num_beams is not None and self.num_beams < 1:
            raise ValueError(f"num_beams={self.num_beams}: give a positive number")
        check_tokens_per_batch(self.tokens_per_batch)

    @property
    def generate_kwargs(self) -> dict[str, int]:
        """Changes to the model's generation config."""
        return {} if self.num_beams is None else {"num_beams": self.num_beams}

    def check_failures(self, failed: Sequence[int]) -> None:
        """Refuse failed lines, unless `accept_failures` is on.

        Args:
            failed: their line numbers.

        Raises:
            ValueError: there are any.
        """
        if not failed or self.accept_failures:
            return
        numbers = ", ".join(map(str, failed[:SHOWN_LINES]))
        more = ", ..." if len(failed) > SHOWN_LINES else ""
        raise ValueError(
            f"{len(failed)} of the lines could not be translated and are empty: {numbers}{more}; "
            "--accept_failures True accepts this"
        )

    def open_translator(self, processes: PartialState | None = None) -> Translator:
        """Load the model.

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
            processes=processes,
            **self.generate_kwargs,
        )
