"""Fields of the generation config that a user may set, and which values each may have."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig

from hf_vanilla.file_values import check_names, is_finite_number
from hf_vanilla.models.generation_vanilla import (
    LENGTH_PENALTY_FORMS,
    OTHER_SETTINGS,
    is_plain_search,
    merged_settings,
)

MOST_TOKENS = 100_000  # of a translation; the search allocates its sequences at the start
# beyond these exponents, scores leave the range of float32 numbers
LENGTH_PENALTIES = (-2, 5)
TINY = math.ulp(0.0)  # the smallest positive number


@dataclass(frozen=True)
class Kind:
    """The values that a field may have.

    Attributes:
        accepts: whether a value is one of them.
        remedy: for messages: what to give.
        has_none: whether the field may also have no value.
    """

    accepts: Callable[[Any], bool]
    remedy: str
    has_none: bool = False


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(least: int, most: int = sys.maxsize, *, has_none: bool = False) -> Kind:
    limits = f"{least} or more" if most == sys.maxsize else f"from {least} to {most}"
    return Kind(
        lambda value: _is_whole(value) and least <= value <= most,
        f"give a whole number, {limits}",
        has_none,
    )


def _number(least: float, most: float, remedy: str = "", *, has_none: bool = False) -> Kind:
    return Kind(
        lambda value: is_finite_number(value) and least <= value <= most,
        remedy or f"give a number from {least} to {most}",
        has_none,
    )


def _list_of(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(map(accepts, value))


def _pair_of(*accept: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list)
        and len(value) == 2
        and all(accepts(one) for accepts, one in zip(accept, value, strict=True))
    )


_is_id = _whole(0).accepts
_is_ids = _list_of(_is_id)
_is_bias = _pair_of(_is_ids, lambda value: isinstance(value, float) and is_finite_number(value))
_is_decay = _pair_of(_is_id, _number(TINY, 10).accepts)
FLAG = Kind(lambda value: isinstance(value, bool), "give true or false")
ID = Kind(_is_id, "give a token id", has_none=True)
IDS = Kind(_is_ids, "give a list of token ids, such as [3, 5]", has_none=True)
ID_OR_IDS = Kind(lambda value: _is_id(value) or _is_ids(value), "give token ids", has_none=True)
ID_LISTS = Kind(_list_of(_is_ids), "give lists of token ids, such as [[3, 5]]", has_none=True)
BIASES = Kind(
    _list_of(_is_bias),
    "give lists of token ids with a bias, such as [[[3, 5], -2.0]]",
    has_none=True,
)
KINDS = {
    # how to search
    "do_sample": FLAG,
    "num_beams": _whole(1),
    "early_stopping": Kind(
        lambda value: isinstance(value, bool) or value == "never", "give true, false or never"
    ),
    "length_penalty": _number(*LENGTH_PENALTIES),
    "length_penalty_form": Kind(
        lambda value: value in LENGTH_PENALTY_FORMS,
        f"choose one of {', '.join(LENGTH_PENALTY_FORMS)}",
    ),
    "num_return_sequences": _whole(1),
    "use_cache": FLAG,
    # how long
    "max_length": _whole(1, MOST_TOKENS, has_none=True),
    "max_new_tokens": _whole(1, MOST_TOKENS, has_none=True),
    "max_tokens_beyond_source": _whole(-MOST_TOKENS, MOST_TOKENS, has_none=True),
    "min_length": _whole(0, MOST_TOKENS),
    "min_new_tokens": _whole(0, MOST_TOKENS, has_none=True),
    "max_time": _number(TINY, math.inf, "give a positive number", has_none=True),
    "exponential_decay_length_penalty": Kind(
        _is_decay, "give the first token and a factor up to 10, such as [20, 1.1]", has_none=True
    ),
    # how to sample
    "temperature": _number(0.001, 1000),
    "top_k": _whole(0),
    "top_p": _number(0, 1),
    "min_p": _number(0, 1, has_none=True),
    "top_h": _number(TINY, 1, "give a positive number up to 1", has_none=True),
    "typical_p": _number(TINY, 1, "give a positive number up to 1"),
    "epsilon_cutoff": _number(0, 0.999),
    "eta_cutoff": _number(0, 0.999),
    # what to prefer, to force and to exclude
    "repetition_penalty": _number(0.001, 1000),
    "encoder_repetition_penalty": _number(0.001, 1000),
    "no_repeat_ngram_size": _whole(0),
    "encoder_no_repeat_ngram_size": _whole(0),
    "bad_words_ids": ID_LISTS,
    "suppress_tokens": IDS,
    "begin_suppress_tokens": IDS,
    "sequence_bias": BIASES,
    "forced_bos_token_id": ID,
    "forced_eos_token_id": ID_OR_IDS,
    "renormalize_logits": FLAG,
    "remove_invalid_values": FLAG,
    # special tokens
    "bos_token_id": ID,
    "decoder_start_token_id": ID,
    "eos_token_id": ID_OR_IDS,
    "pad_token_id": ID,
}
WITH_IDS = [name for name, kind in KINDS.items() if kind in (ID, IDS, ID_OR_IDS, ID_LISTS, BIASES)]


def check_fields(section: str, fields: Any) -> None:
    """Refuse fields of the generation config that are unknown or whose values are impossible.

    Args:
        section: where they were given, for messages.
        fields: values by name; None where a field is to have no value.

    Raises:
        ValueError: a name is unknown or a value impossible, or no limit of the length is left.
    """
    check_names(section, fields, KINDS)
    for name, value in fields.items():
        kind = KINDS[name]
        if not (kind.has_none if value is None else kind.accepts(value)):
            shown = "null" if value is None else repr(value)
            raise ValueError(f"{section}.{name}={shown:.60}: {kind.remedy}")
    limits = [fields.get(name) for name in ("max_length", "max_new_tokens")]
    if fields.get("max_tokens_beyond_source", 0) is None and limits == [None, None]:
        raise ValueError(
            f"{section}.max_tokens_beyond_source=null: give max_length or max_new_tokens instead"
        )


def check_token_ids(fields: dict[str, Any], vocab_size: int) -> None:
    """Refuse token ids that a vocabulary does not have.

    Args:
        fields: of the generation config, by name; others are not looked at.
        vocab_size: tokens of the target vocabulary.

    Raises:
        ValueError: there is one.
    """
    for name in WITH_IDS:
        for token_id in _ids(fields.get(name)):
            if token_id >= vocab_size:
                raise ValueError(f"{name}={token_id}: the vocabulary ends at {vocab_size - 1}")


def check_own_search(what: str, saved: GenerationConfig, changes: dict[str, Any]) -> None:
    """Refuse settings with which `VanillaForConditionalGeneration` cannot search by itself.

    Args:
        what: needs that search.
        saved: the model's generation config.
        changes: to it, by this call.

    Raises:
        ValueError: there is sampling, or another such setting; it is named.
    """
    settings, _ = merged_settings(saved, changes)
    if settings.do_sample:
        raise ValueError(f"{what}: leave out generation.do_sample, or set it to false")
    if not is_plain_search(settings):
        names = ("use_cache", "cache_implementation", *OTHER_SETTINGS)
        given = ", ".join(name for name in names if name in changes) or "other settings"
        raise ValueError(f"{what} of the usual settings: leave out {given}")


def _ids(value: Any) -> Iterator[int]:
    """All ids in a value: one, a list, or a list of lists."""
    if isinstance(value, list):
        for one in value:
            yield from _ids(one)
    elif _is_whole(value):
        yield value
