"""How a visitor wants a sentence to be translated: search or sampling, lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.models.generation_vanilla import filling_ids

from .engines import TorchEngine
from .n_best import Candidate, Hypothesis, SearchRecord, best_translations

MAX_SECONDS = 30.0  # of the searches of one text, which are then stopped
MAX_NEW_TOKENS = 512  # of a translation whose length visitors limit
# name: what messages call it, type of number, smallest, largest; a smaller temperature could
# overflow float32
FIELDS = {
    "temperature": ("temperature", float, 0.01, 10),
    "top_k": ("top-k", int, 1, 10**6),
    "top_p": ("top-p", float, 0.01, 1),
    "seed": ("seed", int, 0, 2**32 - 1),
    "min_new_tokens": ("minimum length", int, 1, MAX_NEW_TOKENS),
    "max_new_tokens": ("maximum length", int, 1, MAX_NEW_TOKENS),
    "length_penalty": ("length penalty", float, 0, 5),
}


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, as `generate()` names it.

    Attributes:
        temperature: divides the logits.
        top_k: draw from so many tokens only; 0: from all.
        top_p: draw from the most probable tokens that have this probability together.
        seed: what is drawn for a sentence is a function of seed and sentence.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Lengths:
    """Of a translation in tokens, as `generate()` names it; None: as the model decodes.

    Attributes:
        min_new_tokens: at least, without the end token.
        max_new_tokens: at most, with the end token.
        length_penalty: exponent of the penalty, which favours long translations (6.1).

    Raises:
        ValueError: the minimum is above the maximum.
    """

    min_new_tokens: int | None = None
    max_new_tokens: int | None = None
    length_penalty: float | None = None

    def __post_init__(self) -> None:
        least, most = self.min_new_tokens, self.max_new_tokens
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"The minimum length of {least} tokens is above the maximum of {most}: lower it."
            )

    def check(self, found: Sequence[Hypothesis]) -> None:
        """Check that the translations have the minimum length.

        Raises:
            ValueError: the model's own limit ended one before.
        """
        shortest = min(len(hypothesis.ids) for hypothesis in found)
        if self.min_new_tokens is not None and shortest < self.min_new_tokens:
            raise ValueError(
                f"The model's limit for this sentence is {shortest} tokens, and the minimum length "
                f"is {self.min_new_tokens}: lower it, or give a maximum length."
            )


@dataclass(frozen=True)
class Search:
    """What a visitor chose.

    Attributes:
        num_beams: beams, or drawn translations; the length of the n-best list.
        sampling: None: a search.
        lengths: limits of each translation.
    """

    num_beams: int
    sampling: Sampling | None = None
    lengths: Lengths = Lengths()

    def run(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentence: str
    ) -> tuple[list[Hypothesis], list[list[Candidate]]]:
        """The n-best list of a sentence, and the candidates of each step; none with sampling.

        Args:
            model: in evaluation mode.
            tokenizer: its tokenizer.
            sentence: the text.
        """
        lengths = asdict(self.lengths).items()
        settings: dict[str, Any] = {name: value for name, value in lengths if value is not None}
        settings["max_time"] = MAX_SECONDS
        if self.sampling is not None:
            settings |= {**asdict(self.sampling), "do_sample": True}
            engine = TorchEngine(model, tokenizer, num_beams=1, **settings)
            rows = tokenizer([sentence], verbose=False).input_ids
            return engine.n_best_rows(rows, self.num_beams)[0], []
        record = SearchRecord(self.num_beams)
        found = best_translations(
            model, tokenizer, sentence, num_beams=self.num_beams, record=record, **settings
        )
        ends = set(filling_ids(model.generation_config)[0])
        return found, record.steps([one.ids for one in found], ends)


def filled_in(kind: type, texts: Mapping[str, Any]) -> Any:
    """What a visitor wrote into the fields of `Sampling` or `Lengths`; a blank one is not given.

    Raises:
        ValueError: a text is no number or one out of range, or the minimum is above the maximum.
    """
    filled = {one.name: str(texts.get(one.name, "")).strip() for one in fields(kind)}
    return kind(**{name: _number(text, *FIELDS[name]) for name, text in filled.items() if text})


def _number(text: str, called: str, number: type, least: float, most: float) -> Any:
    try:
        value = number(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:  # NaN is not within
        wanted = "a whole number" if number is int else "a number"
        raise ValueError(f"The {called} is {text[:40]!r}: give {wanted} from {least} to {most}.")
    return value
