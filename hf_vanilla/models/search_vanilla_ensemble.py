# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""One search with several models of one vocabulary: the mean of their predictions.

Shapes: B sentences at the start, b of them still active, n beams, P prompt, S source, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .search_vanilla_decoder import SearchDecoder
from .stacks_vanilla import VanillaPreTrainedModel

AVERAGES = ("probabilities", "log_probabilities")
# ids that all models must share
SHARED_FIELDS = ("eos_token_id", "pad_token_id", "decoder_start_token_id")


@dataclass(frozen=True)
class Ensemble:
    """Models that translate together with the one whose `generate(ensemble=...)` is called.

    Attributes:
        models: `VanillaForConditionalGeneration`s in evaluation mode, on the same device.
        average: of `"probabilities"`, or of `"log_probabilities"`, whose mean is normalized.

    Raises:
        ValueError: there is no model, or the average is unknown.
    """

    models: Sequence[Any]
    average: str = "probabilities"

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("an ensemble needs a second model")
        if self.average not in AVERAGES:
            raise ValueError(f"average={self.average!r}: choose one of {', '.join(AVERAGES)}")

    def check(self, first: VanillaPreTrainedModel) -> None:
        """Refuse models that do not share the vocabulary of the first one.

        Raises:
            ValueError: sizes or special ids differ, or a model trains.
        """
        for model in self.models:
            sizes = [(m.config.vocab_size, m.config.target_vocab_size) for m in (first, model)]
            if sizes[0] != sizes[1]:
                raise ValueError(
                    f"the models of an ensemble have vocabularies of {sizes[0]} and {sizes[1]} "
                    "tokens (source, target): give models of one vocabulary"
                )
            for name in SHARED_FIELDS:
                values = [getattr(m.config, name) for m in (first, model)]
                if values[0] != values[1]:
                    raise ValueError(
                        f"{name} is {values[0]} in one model of an ensemble and {values[1]} in "
                        "another: give models of one vocabulary"
                    )
            if model.training:
                raise ValueError("a model of the ensemble is in training mode: call eval()")

    @torch.no_grad()
    def encode(self, input_ids: Tensor, attention_mask: Tensor | None) -> "EncodedEnsemble":
        """Read the source `(B, S)` with every model."""
        states = [
            model.base_model.encoder(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state
            for model in self.models
        ]
        return EncodedEnsemble(self, states, attention_mask)


@dataclass(frozen=True)
class EncodedEnsemble:
    """The models with their encoder outputs.

    Attributes:
        ensemble: the models.
        states: `(B, S, D)` of each model.
        attention_mask: `(B, S)`; None: all tokens are real.
    """

    ensemble: Ensemble
    states: Sequence[Tensor]
    attention_mask: Tensor | None

    def decoder(self, first: SearchDecoder) -> "EnsembleDecoder":
        """The decoder of all models, that of the calling model first."""
        others = [
            SearchDecoder(model, states, self.attention_mask, beams=first.beams)
            for model, states in zip(self.ensemble.models, self.states, strict=True)
        ]
        return EnsembleDecoder([first, *others], self.ensemble.average)


class EnsembleDecoder:
    """`SearchDecoder`s that read the same tokens; their logits are joined log-probabilities.

    Args:
        members: one decoder per model.
        average: as in `Ensemble`.
    """

    def __init__(self, members: Sequence[SearchDecoder], average: str) -> None:
        self.members, self.average = members, average

    def read_prompt(self, input_ids: Tensor) -> Tensor:
        """Log-probabilities `(B * n, V)` after the prompt `(B, P)`."""
        return self._joined([member.read_prompt(input_ids) for member in self.members])

    def read(self, input_ids: Tensor) -> Tensor:
        """Log-probabilities `(b * n, V)` after one more token of each beam, `(b, n)`."""
        return self._joined([member.read(input_ids) for member in self.members])

    def reorder(self, parents: Tensor) -> None:
        """As `SearchDecoder.reorder`."""
        for member in self.members:
            member.reorder(parents)

    def select(self, rows: Tensor) -> None:
        """As `SearchDecoder.select`."""
        for member in self.members:
            member.select(rows)

    def past_key_values(self) -> Any:
        """The cache of the first model."""
        return self.members[0].past_key_values()

    def _joined(self, logits: Sequence[Tensor]) -> Tensor:
        log_probs = torch.stack([one.float().log_softmax(dim=-1) for one in logits])
        if self.average == "probabilities":
            return log_probs.logsumexp(dim=0) - math.log(len(logits))
        return log_probs.mean(dim=0).log_softmax(dim=-1)
