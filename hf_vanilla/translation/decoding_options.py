"""Options that every command which translates has: the model, the engine, the search."""

from dataclasses import dataclass, field

from accelerate import PartialState

from .engines import ENGINES
from .translator import Translator, check_tokens_per_batch


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Which model translates, and how it searches."""

    model: str = field(metadata={"help": "model folder or Hub id"})
    engine: str = field(
        default="torch",
        metadata={"help": "torch, or ctranslate2 for a folder of hf-vanilla export"},
    )
    num_beams: int | None = field(
        default=None, metadata={"help": "beams per sentence; default: the model's own number"}
    )
    tokens_per_batch: int = field(
        default=4096, metadata={"help": "source tokens in a batch, padding included"}
    )

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine={self.engine!r}: choose one of {', '.join(ENGINES)}")
        if self.num_beams is not None and self.num_beams < 1:
            raise ValueError(f"num_beams={self.num_beams}: give a positive number")
        check_tokens_per_batch(self.tokens_per_batch)

    @property
    def generate_kwargs(self) -> dict[str, int]:
        """Changes to the model's generation config."""
        return {} if self.num_beams is None else {"num_beams": self.num_beams}

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
            tokens_per_batch=self.tokens_per_batch,
            processes=processes,
            **self.generate_kwargs,
        )
