"""How a visitor wants a sentence to be translated: search or sampling, lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.models.generation_vanilla import filling_ids

from .engines import TorchEngine
from .n_best import Candidate, Hypothesis, SearchRecord, best_translations

MAX_BEAMS = 10
MAX_SECONDS = 30.0  # of the searches of one text, which are then stopped
MAX_NEW_TOKENS = 512  # of a translation whose length visitors limit
Fields = Mapping[str, tuple[str, type, float, float]]
# name in `generate()`: what messages call it, type of number, smallest, largest; a smaller
# temperature could overflow float32
SAMPLING: Fields = {
    "temperature": ("temperature", float, 0.01, 10),
    "top_k": ("top-k", int, 1, 10**6),
    "top_p": ("top-p", float, 0.01, 1),
    "seed": ("seed", int, 0, 2**32 - 1),  # with the sentence, it decides what is drawn
}
LENGTHS: Fields = {  # the minimum without the end token, the maximum with it
    "min_new_tokens": ("minimum length", int, 1, MAX_NEW_TOKENS),
    "max_new_tokens": ("maximum length", int, 1, MAX_NEW_TOKENS),
    "length_penalty": ("length penalty", float, 0, 5),
}
# what is drawn from where a visitor gives nothing else: all tokens
DRAWN = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0}


@dataclass(frozen=True)
class Search:
    """What a visitor chose.

    Attributes:
        num_beams: beams, or drawn translations; the length of the n-best list.
        sampling: settings of `SAMPLING` that are given; None: a search.
        lengths: those of `LENGTHS`; without one, as the model decodes.

    Raises:
        ValueError: the minimum length is above the maximum.
    """

    num_beams: int
    sampling: Mapping[str, Any] | None = None
    lengths: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least, most = map(self.lengths.get, ("min_new_tokens", "max_new_tokens"))
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"The minimum length of {least} tokens is above the maximum of {most}: lower it."
            )

    def run(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentence: str
    ) -> tuple[list[Hypothesis], list[list[Candidate]]]:
        """The n-best list of a sentence, and the candidates of each step; none with sampling.

        Args:
            model: in evaluation mode.
            tokenizer: its tokenizer.
            sentence: the text.
        """
        settings = {**self.lengths, "max_time": MAX_SECONDS}
        if self.sampling is not None:
            settings |= {**DRAWN, **self.sampling}
            engine = TorchEngine(model, tokenizer, num_beams=1, **settings)
            rows = tokenizer([sentence], verbose=False).input_ids
            return engine.n_best_rows(rows, self.num_beams)[0], []
        record = SearchRecord(self.num_beams)
        found = best_translations(
            model, tokenizer, sentence, num_beams=self.num_beams, record=record, **settings
        )
        ends = set(filling_ids(model.generation_config)[0])
        return found, record.steps([one.ids for one in found], ends)

    def check(self, found: Sequence[Hypothesis]) -> None:
        """Check that the translations have the minimum length.

        Raises:
            ValueError: the model's own limit ended one before.
        """
        shortest, least = min(len(one.ids) for one in found), self.lengths.get("min_new_tokens", 0)
        if shortest < least:
            raise ValueError(
                f"The model's limit for this sentence is {shortest} tokens, and the minimum length "
                f"is {least}: lower it, or give a maximum length."
            )


def read_search(request: Mapping[str, Any]) -> Search:
    """The search of a request: its number of `beams`, and the texts in two groups of fields.

    Raises:
        ValueError: there are too many beams, or as `filled_in` and `Search`.
    """
    beams, sampling = int(request["beams"]), request.get("sampling")
    if not 1 <= beams <= MAX_BEAMS:
        raise ValueError(f"beams={beams}: give 1 to {MAX_BEAMS}")
    return Search(
        beams,
        sampling=None if sampling is None else filled_in(SAMPLING, sampling),
        lengths=filled_in(LENGTHS, request.get("lengths", {})),
    )


def filled_in(wanted: Fields, texts: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a visitor wrote into fields; a blank one is not given.

    Raises:
        ValueError: a text is no number or one out of range.
    """
    found = {}
    for name, (called, number, least, most) in wanted.items():
        text = str(texts.get(name, "")).strip()
        if not text:
            continue
        try:
            value = number(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:  # NaN is not within
            kind = "a whole number" if number is int else "a number"
            raise ValueError(f"The {called} is {text[:40]!r}: give {kind} from {least} to {most}.")
        found[name] = value
    return found
