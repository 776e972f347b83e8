# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Every number that shapes the weights or the function of the trajectory forecasters."""

from dataclasses import field

from huggingface_hub.dataclasses import strict

from .pretrained_vanilla import LAYER_TP_PLAN, VanillaTwoSidedConfig


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
        """Steps are positive; velocities need two observed steps, sinusoids an even width."""
        self.require_positive("predicted_steps", "step_seconds")
        self.require_at_least_zero("largest_step")
        if self.observed_steps < 2:
            raise ValueError(f"observed_steps={self.observed_steps}: a velocity needs 2 or more")
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd, and sinusoids come in pairs")

    def validate_heading(self) -> None:
        """The decay of the heading, where there is one, is a factor."""
        decay = getattr(self, "heading_decay", 0)
        if not 0 <= decay <= 1:
            raise ValueError(f"heading_decay={decay}: give a factor from 0 to 1")


@strict
class VanillaTracksConfig(VanillaForecasterConfig):
    r"""Configuration of the trajectory forecasters of all forms.

    Args:
        velocity_std (`float`, defaults to 1.0): standard deviation of the training data's
            displacements, in units per step; inputs are divided by it.
        follows_paper (`bool`, defaults to `False`): the forms with one future and with codes as in
            their paper: a start token, teacher forcing and no rollout in training, whole velocities
            along the world's axes.
        velocity_mean (`list[float]`, defaults to `[0, 0]`): mean of the training data's
            displacements, in units per step, x and y; read with `follows_paper`, where
            `velocity_std` is not.
        velocity_deviation (`list[float]`, defaults to `[1, 1]`): their standard deviations.
        follows_heading (`bool`, defaults to `True`): turn each agent so that its heading points
            along x; not with `follows_paper`.
        heading_decay (`float`, defaults to 0.7): the heading is the mean of the observed
            displacements, each weighted by this factor per step before the last; 0: the last one.
        num_modes (`int`, defaults to 20): futures of the form with several modes; samples of the
            form with codes.
        num_codes (`int`, defaults to 1000): codes of velocities of the form
            with codes.
        score_loss_weight (`float`, defaults to 0.2): weight of the modes' classification.
        final_loss_weight (`float`, defaults to 0.3): weight of the distance at the last step,
            beside the mean distance, in the form with several modes.
        forcing_loss_weight (`float`, defaults to 0.0): weight of the distance of the next steps
            after the true ones (teacher forcing), in the form with one future.
        rollout_loss_weight (`float`, defaults to 1.0): weight of the distance of the positions that
            the model reaches on its own steps, in the form with one future.
        constant_velocity_share (`float`, defaults to 0.0): share of constant velocity in the
            forecast of the form with one future, outside training; 0.5: the mean of both tracks.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a value has the wrong type or cannot be built;
            the message names the value and the remedy.

    Examples:
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> VanillaTracksConfig(predicted_steps=30).predicted_steps
        30
    """

    model_type = "vanilla_tracks"
    base_model_tp_plan = LAYER_TP_PLAN

    velocity_std: float | int = 1.0
    follows_paper: bool = False
    velocity_mean: list[float | int] = field(default_factory=lambda: [0, 0])
    velocity_deviation: list[float | int] = field(default_factory=lambda: [1, 1])
    follows_heading: bool = True
    heading_decay: float | int = 0.7
    num_modes: int = 20
    num_codes: int = 1000
    score_loss_weight: float | int = 0.2
    final_loss_weight: float | int = 0.3
    forcing_loss_weight: float | int = 0.0
    rollout_loss_weight: float | int = 1.0
    constant_velocity_share: float | int = 0.0

    def validate_weights(self) -> None:
        """Counts and units are positive, weights of the loss are not negative."""
        self.require_positive("num_modes", "num_codes", "velocity_std")
        parts = ("forcing_loss_weight", "rollout_loss_weight")
        self.require_at_least_zero(*parts, "score_loss_weight", "final_loss_weight")
        if not any(getattr(self, name) for name in parts):
            raise ValueError(f"{' and '.join(parts)} are both 0: raise one")
        if not 0 <= self.constant_velocity_share <= 1:
            raise ValueError(
                f"constant_velocity_share={self.constant_velocity_share}: give a share from 0 to 1"
            )
        if len(self.velocity_mean) != 2 or len(self.velocity_deviation) != 2:
            raise ValueError("velocity_mean and velocity_deviation: give two numbers each")
        if min(self.velocity_deviation) <= 0:
            raise ValueError(f"velocity_deviation={self.velocity_deviation}: give positive numbers")
