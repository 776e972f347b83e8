# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""What the paper's decoding (6.1) adds to transformers' `generate()`: length penalty and limits.

Two entries of our own live in the generation config and are saved with it: `length_penalty_form`
("gnmt" or "power") and `max_tokens_beyond_source`.

Shapes: B sentences, n beams, L tokens so far, V vocabulary.
"""

import copy
import math
import sys
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, PreTrainedConfig, StoppingCriteria

LENGTH_PENALTY_FORMS = ("gnmt", "power")
# `output_scores` for the scores of the results alone; transformers' search takes it for True
RESULTS_ALONE = "results"
# settings that need transformers' search; `custom_generate=` also takes stop strings' tokenizer
OTHER_SETTINGS = (
    "is_assistant", "low_memory", "output_attentions", "output_hidden_states",
    "prefill_chunk_size", "stop_strings", "token_healing",
)  # fmt: skip


def paper_decoding(config: PreTrainedConfig) -> GenerationConfig:
    """Beam 4, GNMT penalty with alpha 0.6, at most source length + 50 tokens (6.1).

    Args:
        config: of the model; read for its special tokens.
    """
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_form="gnmt",
        # the paper's bound: stop when no active beam can still get a better score
        early_stopping="never",
        max_tokens_beyond_source=50,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def forget_defaults(config: GenerationConfig) -> None:
    """Remove the defaults that `Seq2SeqTrainer` writes into a model's generation config.

    An evaluation of the Trainer fills every field that is None with transformers' own default, and
    the one of `max_length`, 20, would cut translations. A config with a field that still is None
    was not filled, and stays as it is.

    Args:
        config: changed in place.
    """
    defaults = GenerationConfig._get_default_generation_params()
    defaults = {name: value for name, value in defaults.items() if value is not None}
    if all(getattr(config, name, None) is not None for name in defaults):
        for name, value in defaults.items():
            if getattr(config, name) == value:
                setattr(config, name, None)


def is_plain_search(settings: GenerationConfig) -> bool:
    """Greedy or beam search with a growing cache and no record of what happens inside."""
    return (
        settings.get_generation_mode() in ("greedy_search", "beam_search")
        and not any(getattr(settings, name, None) for name in OTHER_SETTINGS)
        and settings.use_cache is not False
        and settings.cache_implementation in (None, "dynamic")
    )


# --- length penalty ----------------------------------------------------------------------------


def length_penalty(length: float, alpha: float, form: str) -> float:
    """What the log-probability of a hypothesis is divided by.

    Args:
        length: generated tokens, the end token included.
        alpha: exponent; 0 turns the penalty off.
        form: `"gnmt"`, `((5 + length) / 6) ** alpha` of Wu et al. 2016, or `"power"`,
            `length ** alpha` of transformers.
    """
    return ((5 + length) / 6) ** alpha if form == "gnmt" else length**alpha


def penalty_form(generation_config: GenerationConfig) -> str:
    """The `length_penalty_form` of a generation config; `"power"` where it names none.

    Raises:
        ValueError: the form is unknown.
    """
    form = getattr(generation_config, "length_penalty_form", None) or "power"
    if form not in LENGTH_PENALTY_FORMS:
        names = ", ".join(LENGTH_PENALTY_FORMS)
        raise ValueError(f"length_penalty_form={form!r}: choose one of {names}")
    return form


def penalty_of(length: int, settings: GenerationConfig) -> float:
    """`length_penalty` by the alpha and the form of a generation config."""
    alpha = 1.0 if settings.length_penalty is None else settings.length_penalty
    return length_penalty(length, alpha, penalty_form(settings))


class GnmtExponent(float):
    """An alpha for which `length ** alpha` is the GNMT penalty.

    transformers' own beam search divides by `length ** length_penalty` and has no other entry for
    a penalty. Used only where that search must run; it lives for one call and is never saved.
    """

    __slots__ = ()

    def __rpow__(self, length: float, modulus: None = None) -> float:
        """GNMT penalty of a hypothesis of `length` tokens."""
        return length_penalty(length, float(self), "gnmt")


# --- settings of one call ----------------------------------------------------------------------


def merged_settings(
    own: GenerationConfig, arguments: dict[str, Any]
) -> tuple[GenerationConfig, dict[str, Any]]:
    """The settings of one call, to be read only, and the arguments that are no settings.

    Args:
        own: the model's generation config.
        arguments: keyword arguments of the call; what its `generation_config` leaves out is the
            model's, and the others win over both.
    """
    others = dict(arguments)
    settings = copy.copy(others.pop("generation_config", None) or GenerationConfig())
    settings.update(**own.to_dict(), defaults_only=True, allow_custom_entries=True)
    return settings, settings.update(**others)


def returned_scores(settings: GenerationConfig) -> dict[str, Any]:
    """Settings that return the scores of the results, and not those of every step: gigabytes.

    Sampling without beams has no such scores, and transformers' search would keep every step.

    Args:
        settings: of the call.
    """
    is_sampling = settings.do_sample and (settings.num_beams or 1) == 1
    return {
        "return_dict_in_generate": True,
        "output_scores": False if is_sampling else RESULTS_ALONE,
    }


def gathers_for_generate(model: nn.Module) -> bool:
    """Whether `generate` was just replaced by one that gathers the weights of a sharded model.

    Under FSDP2, the embeddings belong to the whole model and are gathered by its `forward`, but
    `generate()` calls the encoder first.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # without it, nothing is sharded
    if fsdp is None or not isinstance(model, fsdp.FSDPModule) or "generate" in vars(model):
        return False
    fsdp.register_fsdp_forward_method(model, "generate")
    return True


def check_call(settings: GenerationConfig, arguments: dict[str, Any]) -> None:
    """Refuse what would otherwise fail deep inside the search.

    Args:
        settings: of the call.
        arguments: of the call, without settings.

    Raises:
        ValueError: `num_beams` is no whole number above 0, `length_penalty` is no finite number,
            `max_tokens_beyond_source` is no whole number, or ids are not `(B, L)` with at least one
            token.
    """
    beams, penalty = settings.num_beams, settings.length_penalty
    if beams is not None and not (isinstance(beams, Integral) and int(beams) > 0):
        raise ValueError(f"num_beams={beams!r}: give 1 for greedy search, or a larger whole number")
    if penalty is not None and not (isinstance(penalty, Real) and math.isfinite(penalty)):
        raise ValueError(f"length_penalty={penalty!r}: give a finite number")
    beyond = getattr(settings, "max_tokens_beyond_source", None)
    if beyond is not None and not isinstance(beyond, Integral):
        raise ValueError(f"max_tokens_beyond_source={beyond!r}: give a whole number")
    for name in ("input_ids", "decoder_input_ids"):
        ids = arguments.get(name)
        if isinstance(ids, Tensor) and (ids.dim() != 2 or ids.numel() == 0):
            raise ValueError(
                f"{name} has shape {tuple(ids.shape)}: give (batch, length), both 1 or more"
            )


def with_settings(
    changes: dict[str, Any], given: GenerationConfig | None, arguments: dict[str, Any]
) -> tuple[GenerationConfig | None, dict[str, Any]]:
    """Generation config and keyword arguments of a call with some settings changed.

    transformers warns where both bring settings, so they go where the call brought its own.

    Args:
        changes: settings by name.
        given: the generation config of the call; it stays as it is.
        arguments: keyword arguments of the call.
    """
    if given is None:
        return None, {**arguments, **changes}
    given = copy.copy(given)
    given.update(**changes)
    return given, {name: value for name, value in arguments.items() if name not in changes}


def filling_ids(config: GenerationConfig) -> tuple[list[int], int]:
    """The end tokens, and the token after a finished hypothesis; -1 where neither is set."""
    ends = config.eos_token_id
    end_ids = [] if ends is None else torch.as_tensor(ends).flatten().tolist()
    if config.pad_token_id is not None:
        return end_ids, int(config.pad_token_id)
    return end_ids, end_ids[0] if end_ids else -1


def source_lengths(arguments: dict[str, Any]) -> Tensor:
    """Real tokens of each source, `(B,)` int64.

    Args:
        arguments: of `generate()`; read for `attention_mask` and the source in any form.
    """
    if (mask := arguments.get("attention_mask")) is not None:
        return mask.sum(dim=-1)
    states = getattr(arguments.get("encoder_outputs"), "last_hidden_state", None)
    for source in (arguments.get("input_ids"), arguments.get("inputs_embeds"), states):
        if source is not None:
            rows, length = source.shape[:2]
            return torch.full((rows,), length, device=source.device)
    return torch.ones(1, dtype=torch.long)  # transformers begins with one token


def prompt_length(settings: GenerationConfig, decoder_input_ids: Tensor | None) -> int:
    """Tokens of the decoder's prompt; `generate()` adds a start token where no row has one."""
    if decoder_input_ids is None:
        return 1
    start = settings.decoder_start_token_id
    start = settings.bos_token_id if start is None else start
    if start is None:
        return decoder_input_ids.shape[1]
    starts = torch.as_tensor(start, device=decoder_input_ids.device)
    return decoder_input_ids.shape[1] + bool((decoder_input_ids[:, 0] != starts).all())


def sentence_limits(
    config: PreTrainedConfig, settings: GenerationConfig, arguments: dict[str, Any]
) -> Tensor | None:
    """Most tokens of each sentence (6.1), the prompt included, `(B,)` int64.

    At least one token is generated in any case. None: transformers' limits.

    Args:
        config: of the model; learned positions end.
        settings: of the call.
        arguments: of the call, without settings.
    """
    beyond = getattr(settings, "max_tokens_beyond_source", None)
    if beyond is None or settings.max_new_tokens is not None:
        return None
    prompt = prompt_length(settings, arguments.get("decoder_input_ids"))
    new_tokens = (source_lengths(arguments) + beyond).clamp(min=1)
    is_learned = config.position_embedding_type == "learned"
    for end in (settings.max_length, config.max_position_embeddings if is_learned else None):
        new_tokens = new_tokens if end is None else new_tokens.clamp(max=max(end - prompt, 1))
    return new_tokens + prompt


class SourceLimits:
    """A rule with a limit for each sentence of a batch.

    Args:
        max_lengths: `(B,)` int64, tokens a hypothesis of each sentence may have, prompt included.
    """

    def __init__(self, max_lengths: Tensor) -> None:
        self.max_lengths = max_lengths

    def select(self, rows: Tensor) -> None:
        """Keep sentences `rows`, in that order; `(b,)` int64."""
        self.max_lengths = self.max_lengths[rows]

    def per_hypothesis(self, input_ids: Tensor) -> Tensor:
        """The limit of each of the `(B * n, L)` hypotheses, `(B * n,)`."""
        per_sentence = input_ids.shape[0] // self.max_lengths.shape[0]
        return self.max_lengths.repeat_interleave(per_sentence).to(input_ids.device)


class SourceLengthCriteria(SourceLimits, StoppingCriteria):
    """Ends each hypothesis at its own source's length plus a constant (6.1).

    The limit is per sentence, so a short sentence beside a long one decodes as it would alone.
    """

    def __call__(self, input_ids: Tensor, scores: object, **kwargs: object) -> Tensor:
        """Which of the `(B * n, L)` hypotheses are at their limit, `(B * n,)` bool."""
        return input_ids.shape[1] >= self.per_hypothesis(input_ids)


class SourceLengthEnd(SourceLimits, LogitsProcessor):
    """Forces an end token where a hypothesis reaches its own source's limit.

    transformers' own `forced_eos_token_id` reaches only the longest sentence of a batch.

    Args:
        max_lengths: as for `SourceLimits`.
        end_ids: `forced_eos_token_id` of the generation config.
    """

    def __init__(self, max_lengths: Tensor, end_ids: int | list[int]) -> None:
        super().__init__(max_lengths)
        self.first_limit = int(max_lengths.min())
        self.end_ids = end_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `(B * n, V)`; where the next token is the last: 0 for an end token, else -inf."""
        if input_ids.shape[1] + 1 < self.first_limit:
            return scores
        is_last = input_ids.shape[1] + 1 >= self.per_hypothesis(input_ids)
        ends = torch.full_like(scores, float("-inf"))
        ends[:, self.end_ids] = 0
        return torch.where(is_last.unsqueeze(-1), ends, scores)
