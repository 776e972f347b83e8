# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""What the configs of all trajectory forecasters share."""

from huggingface_hub.dataclasses import strict

from .sizes_vanilla import VanillaTwoSidedConfig


@strict
class VanillaForecasterConfig(VanillaTwoSidedConfig):
    r"""Steps, units and layers of a forecaster; each family adds what is its own.

    The other rates of its layers are fields of `VanillaTwoSidedConfig`.

    Args:
        observed_steps (`int`, defaults to 8): steps an agent is observed.
        predicted_steps (`int`, defaults to 12): steps to predict.
        step_seconds (`float`, defaults to 0.4): time between two steps; data of another rate is
            refused.
        unit (`str`, defaults to `"m"`): unit of the coordinates.
        largest_step (`float`, defaults to 0.0): farthest displacement in a step of the training
            data; predicted ones beyond it count as off-speed. 0: unknown.
        d_model (`int`, defaults to 64): width of every hidden state.
        encoder_layers (`int`, defaults to 2): layers of an encoder.
        encoder_attention_heads (`int`, defaults to 4): heads of an encoder layer.
        encoder_ffn_dim (`int`, defaults to 256): width inside its feed-forward network.
        decoder_layers (`int`, defaults to 2): layers of a decoder.
        decoder_attention_heads (`int`, defaults to 4): heads of a decoder layer.
        decoder_ffn_dim (`int`, defaults to 256): width inside its feed-forward network.
        dropout (`float`, defaults to 0.0): on every sublayer's output and on the inputs.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a value has the wrong type or cannot be built;
            the message names the value and the remedy.
    """

    observed_steps: int = 8
    predicted_steps: int = 12
    step_seconds: float | int = 0.4
    unit: str = "m"
    largest_step: float | int = 0.0
    d_model: int = 64
    encoder_layers: int = 2
    encoder_attention_heads: int = 4
    encoder_ffn_dim: int = 256
    decoder_layers: int = 2
    decoder_attention_heads: int = 4
    decoder_ffn_dim: int = 256
    dropout: float | int = 0.0

    def validate_steps(self) -> None:
        """Steps are positive; velocities need two observed steps."""
        self.require_positive("predicted_steps", "step_seconds")
        self.require_at_least_zero("largest_step")
        if self.observed_steps < 2:
            raise ValueError(f"observed_steps={self.observed_steps}: a velocity needs 2 or more")

    def validate_positions(self) -> None:
        """Sine and cosine come in pairs."""
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd, and sinusoids come in pairs")

    def validate_heading(self) -> None:
        """The decay of the heading, where there is one, is a factor."""
        decay = getattr(self, "heading_decay", 0)
        if not 0 <= decay <= 1:
            raise ValueError(f"heading_decay={decay}: give a factor from 0 to 1")

    def require_at_least_zero(self, *names: str) -> None:
        """Refuse a negative value.

        Args:
            *names: of fields.

        Raises:
            ValueError: one is negative; the message names it.
        """
        for name in names:
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")
