# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The paper's decoding (6.1) in transformers' `generate()`: what its beam search does not have.

Two entries of our own live in the generation config and are saved with it: `length_penalty_form`
("gnmt" or "power") and `max_tokens_beyond_source`.
"""

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from .configuration_vanilla import VanillaConfig

LENGTH_PENALTY_FORMS = ("gnmt", "power")


def paper_decoding(config: VanillaConfig) -> GenerationConfig:
    """Beam 4, GNMT penalty with alpha 0.6, at most source length + 50 tokens (6.1)."""
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_form="gnmt",
        # the paper's bound: stop once no open beam can still overtake the finished ones
        early_stopping="never",
        max_tokens_beyond_source=50,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


class GnmtLengthPenalty(float):
    """An alpha for which `n ** alpha` is the penalty of Wu et al. 2016, `((5 + n) / 6) ** alpha`.

    transformers' beam search divides by `length ** length_penalty`; with this exponent the same
    line computes the paper's score. It lives for one call and is never saved.
    """

    __slots__ = ()

    def __rpow__(self, length: float, modulus: None = None) -> float:
        """Penalty of a hypothesis of `length` tokens, the end token included."""
        return ((5 + length) / 6) ** float(self)


def length_penalty(generation_config: GenerationConfig) -> float:
    """The exponent that beam search must use for this generation config.

    Raises:
        ValueError: `length_penalty_form` is unknown.
    """
    form = getattr(generation_config, "length_penalty_form", None) or "power"
    if form not in LENGTH_PENALTY_FORMS:
        names = ", ".join(LENGTH_PENALTY_FORMS)
        raise ValueError(f"length_penalty_form={form!r}: choose one of {names}")
    alpha = generation_config.length_penalty
    return GnmtLengthPenalty(alpha) if form == "gnmt" else alpha


class SourceLengthCriteria(StoppingCriteria):
    """Ends each hypothesis at its own source's length plus a constant (6.1).

    A limit per row, not per batch: a short sentence beside a long one decodes as it would alone.

    Args:
        max_lengths: `(B,)` int64, tokens a hypothesis of each sentence may have, prompt included.
    """

    def __init__(self, max_lengths: Tensor) -> None:
        self.max_lengths = max_lengths

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences, in this order; `(b,)` int64."""
        self.max_lengths = self.max_lengths[rows]

    def __call__(self, input_ids: Tensor, scores: object, **kwargs: object) -> Tensor:
        """Which of the `(B * n, L)` hypotheses are at their limit, `(B * n,)` bool."""
        limits = limit_of_each(input_ids, self.max_lengths)
        return torch.as_tensor(input_ids.shape[1], device=input_ids.device) >= limits


class SourceLengthEnd(LogitsProcessor):
    """Makes an end token the last of each hypothesis that reaches its own source's limit.

    transformers' own `forced_eos_token_id` reaches only the longest sentence of a batch.

    Args:
        max_lengths: as for `SourceLengthCriteria`.
        end_ids: `forced_eos_token_id` of the generation config.
    """

    def __init__(self, max_lengths: Tensor, end_ids: int | list[int]) -> None:
        self.max_lengths = max_lengths
        self.first_limit = int(max_lengths.min())
        self.end_ids = end_ids

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences, in this order; `(b,)` int64."""
        self.max_lengths = self.max_lengths[rows]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `(B * n, V)` of the next word, where it is the last: 0 for an end, else -inf."""
        if input_ids.shape[1] + 1 < self.first_limit:
            return scores
        is_last = input_ids.shape[1] + 1 >= limit_of_each(input_ids, self.max_lengths)
        ends = torch.full_like(scores, float("-inf"))
        ends[:, self.end_ids] = 0
        return torch.where(is_last.unsqueeze(-1), ends, scores)


def limit_of_each(input_ids: Tensor, max_lengths: Tensor) -> Tensor:
    """The limits `(B,)` of the sentences as those of their `(B * n, L)` hypotheses, `(B * n,)`."""
    per_sentence = input_ids.shape[0] // max_lengths.shape[0]
    return max_lengths.repeat_interleave(per_sentence).to(input_ids.device)
