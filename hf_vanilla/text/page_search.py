"""How a visitor wants a sentence to be translated: search or sampling, phrases, lengths, markup."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from hf_vanilla.models.generation_vanilla import filling_ids
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.search_vanilla_constraints import Constraints, Phrase

from .engines import TorchEngine
from .n_best import Hypothesis, best_translations
from .page_input import CHARACTERS_PER_TOKEN, valid
from .page_models import NamedModel
from .search_record import Candidate, SearchRecord
from .terminology import Term, Terminology, phrase_of

MAX_PHRASES, MAX_PHRASE_TOKENS = 8, 32  # of one sentence
MAX_TERMS = 100
MAX_TERM_CHARACTERS = 200
ARROW = "=>"  # between the two sides of a term
MAX_NEW_TOKENS = 512  # of a translation whose length visitors limit
# name: what messages call it, kind of number, smallest, largest; a smaller temperature could
# overflow float32
FIELDS = {
    "temperature": ("temperature", float, 0.01, 10),
    "top_k": ("top-k", int, 1, 10**6),
    "top_p": ("top-p", float, 0.01, 1),
    "seed": ("seed", int, 0, 2**32 - 1),
    "min_new_tokens": ("minimum length", int, 1, MAX_NEW_TOKENS),
    "max_new_tokens": ("maximum length", int, 1, MAX_NEW_TOKENS),
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

    Raises:
        ValueError: the minimum is above the maximum.
    """

    min_new_tokens: int | None = None
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        least, most = self.min_new_tokens, self.max_new_tokens
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"The minimum length of {least} tokens is above the maximum of {most}: lower it."
            )

    def given(self) -> dict[str, int]:
        """Those that are given, for `generate()`."""
        return {name: value for name, value in asdict(self).items() if value is not None}

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
        phrases: that each translation must contain.
        sampling: None: a search.
        lengths: limits of each translation.
        keep_markup: carry tags, URLs, addresses, {variables} and numbers over.
        terms: source and target phrases: where a sentence has the source, its translations must
            contain the target.

    Raises:
        ValueError: there are phrases or terms, and sampling.
    """

    num_beams: int
    phrases: Sequence[str] = ()
    sampling: Sampling | None = None
    lengths: Lengths = Lengths()
    keep_markup: bool = False
    terms: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        if (self.phrases or self.terms) and self.sampling is not None:
            raise ValueError("Sampling takes no phrases: leave them out, or choose beam search.")

    def found_terms(self, sentence: str) -> list[Term]:
        """The terms that a sentence has."""
        return Terminology(self.terms).find(sentence) if self.terms else []

    def constraints(self, model: Any, tokenizer: Any, sentence: str) -> Constraints | None:
        """The phrases and the terms of a sentence for `generate()`; None without any.

        Raises:
            ValueError: the search of this model or with this number of beams takes none, or they
                are too many or too long.
        """
        if not self.phrases and not self.terms:
            return None
        if not isinstance(model, VanillaForConditionalGeneration):
            raise ValueError("The search of this model takes no phrases: leave them out.")
        if self.num_beams < 2:
            raise ValueError("Phrases need a search with 2 or more beams: choose them.")
        if len(self.terms) > MAX_TERMS:
            raise ValueError(f"There are {len(self.terms)} terms; the limit is {MAX_TERMS}.")
        targets = list(dict.fromkeys(term.target for term in self.found_terms(sentence)))
        phrases = [*self.phrases, *(one for one in targets if one not in self.phrases)]
        if len(phrases) > MAX_PHRASES:
            raise ValueError(f"There are {len(phrases)} phrases; the limit is {MAX_PHRASES}.")
        if not phrases:
            return None
        return Constraints([[_phrase(tokenizer, phrase) for phrase in phrases]])

    def run(
        self,
        named: NamedModel,
        sentence: str,
        *,
        constraints: Constraints | None,
        max_seconds: float,
    ) -> tuple[list[Hypothesis], list[list[Candidate]]]:
        """The n-best list of a sentence, and the candidates of each step; none with sampling.

        Args:
            named: the model, or the ensemble.
            sentence: the text.
            constraints: of this search and model.
            max_seconds: decoding stops after them.
        """
        model, tokenizer = named.model, named.tokenizer
        if self.sampling is not None:
            return self._drawn(model, tokenizer, sentence, max_seconds), []
        further = {"constraints": constraints, "ensemble": named.ensemble}
        record = SearchRecord(self.num_beams)
        found = best_translations(
            model,
            tokenizer,
            sentence,
            num_beams=self.num_beams,
            record=record,
            max_time=max_seconds,
            **self.lengths.given(),
            **{name: value for name, value in further.items() if value is not None},
        )
        ends = set(filling_ids(model.generation_config)[0])
        return found, record.steps([one.ids for one in found], ends)

    def _drawn(
        self, model: Any, tokenizer: Any, sentence: str, max_seconds: float
    ) -> list[Hypothesis]:
        assert self.sampling is not None
        settings = {**asdict(self.sampling), **self.lengths.given()}
        settings |= {"do_sample": True, "max_time": max_seconds}
        engine = TorchEngine(model, tokenizer, num_beams=1, **settings)
        rows = tokenizer([sentence], verbose=False).input_ids
        return engine.n_best_rows(rows, self.num_beams)[0]


def sampling_of(texts: Mapping[str, Any]) -> Sampling:
    """What a visitor wrote into the fields of sampling; a blank one has its default.

    Raises:
        ValueError: a text is no number, or one out of range.
    """
    return Sampling(**_numbers(texts, Sampling))


def lengths_of(texts: Mapping[str, Any]) -> Lengths:
    """What a visitor wrote into the fields of the lengths; a blank one is no limit.

    Raises:
        ValueError: a text is no number or one out of range, or the minimum is above the maximum.
    """
    return Lengths(**_numbers(texts, Lengths))


def phrases_of(text: str) -> dict[str, list[Any]]:
    """The `phrases` and `terms` of a `Search` in one text, with semicolons between them.

    A term has an arrow: `dog => Hund`.

    Raises:
        ValueError: a side of a term is blank, it has two arrows, or it is too long.
    """
    phrases, terms = [], []
    for part in filter(None, map(str.strip, text.split(";"))):
        sides = [side.strip() for side in part.split(ARROW)]
        if len(sides) == 1:
            phrases.append(part)
        elif len(sides) == 2 and all(sides) and len(part) <= MAX_TERM_CHARACTERS:
            terms.append((sides[0], sides[1]))
        else:
            raise ValueError(f"{part[:40]!r} is no term: write it as in dog {ARROW} Hund.")
    return {"phrases": phrases, "terms": terms}


def _numbers(texts: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The numbers of the fields of a dataclass, without those that are blank."""
    filled = {one.name: str(texts.get(one.name, "")).strip() for one in fields(kind)}
    return {name: _number(text, *FIELDS[name]) for name, text in filled.items() if text}


def _number(text: str, called: str, kind: type, least: float, most: float) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:  # NaN is not within
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"The {called} is {text[:40]!r}: give {wanted} from {least} to {most}.")
    return value


def _phrase(tokenizer: Any, text: str) -> Phrase:
    limit = MAX_PHRASE_TOKENS * CHARACTERS_PER_TOKEN
    phrase = phrase_of(tokenizer, valid(text[:limit]))
    if len(text) > limit or len(phrase.ids) > MAX_PHRASE_TOKENS:
        raise ValueError(
            f"The phrase {text[:40]!r} has more than {MAX_PHRASE_TOKENS} tokens: shorten it."
        )
    return phrase
