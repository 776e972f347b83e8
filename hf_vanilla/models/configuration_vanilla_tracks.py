# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Every number that shapes the weights or the function of the trajectory forecasters."""

from huggingface_hub.dataclasses import strict

from .sizes_vanilla import LAYER_TP_PLAN, VanillaPreTrainedConfig


@strict
class VanillaTracksConfig(VanillaPreTrainedConfig):
    r"""Configuration of the trajectory forecasters of all forms.

    Args:
        observed_steps (`int`, defaults to 8): steps an agent is observed.
        predicted_steps (`int`, defaults to 12): steps to predict.
        step_seconds (`float`, defaults to 0.4): time between two steps; data of another rate is
            refused.
        unit (`str`, defaults to `"m"`): unit of the coordinates.
        velocity_std (`float`, defaults to 1.0): standard deviation of the training data's
            displacements, in units per step; inputs are divided by it.
        largest_step (`float`, defaults to 0.0): farthest displacement in a step of the training
            data; predicted ones beyond it count as off-speed. 0: unknown.
        follows_heading (`bool`, defaults to `True`): turn each agent so that its heading points
            along x.
        heading_decay (`float`, defaults to 0.7): the heading is the mean of the observed
            displacements, each weighted by this factor per step before the last; 0: the last one.
        num_modes (`int`, defaults to 20): futures of the form with several modes; samples of the
            quantized form.
        num_codes (`int`, defaults to 1000): classes of velocities of the quantized form.
        score_loss_weight (`float`, defaults to 0.2): weight of the modes' classification.
        final_loss_weight (`float`, defaults to 0.3): weight of the distance at the last step,
            beside the mean distance, in the form with several modes.
        forcing_loss_weight (`float`, defaults to 0.0): weight of the distance of the next steps
            after the true ones (teacher forcing), in the form with one future.
        rollout_loss_weight (`float`, defaults to 1.0): weight of the distance of the positions that
            the model reaches on its own steps, in the form with one future.
        d_model (`int`, defaults to 64): width of every hidden state.
        encoder_layers (`int`, defaults to 2): layers of the encoder.
        encoder_attention_heads (`int`, defaults to 4): heads of an encoder layer.
        encoder_ffn_dim (`int`, defaults to 256): width inside its feed-forward network.
        decoder_layers (`int`, defaults to 2): layers of the decoder.
        decoder_attention_heads (`int`, defaults to 4): heads of a decoder layer.
        decoder_ffn_dim (`int`, defaults to 256): width inside its feed-forward network.
        dropout (`float`, defaults to 0.0): on every sublayer's output and on the inputs.
        attention_dropout (`float`, defaults to 0.0): on the attention weights.
        activation_dropout (`float`, defaults to 0.0): inside the feed-forward network.
        activation_function (`str`, defaults to `"relu"`): a name of
            `transformers.activations.ACT2FN`.
        attention_bias (`bool`, defaults to `False`): biases on the four projections of attention.
        layer_norm_eps (`float`, defaults to 1e-6): added to the variance in every LayerNorm.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a value has the wrong type or cannot be built;
            the message names the value and the remedy.

    Examples:
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> VanillaTracksConfig(predicted_steps=30).predicted_steps
        30
    """

    model_type = "vanilla_tracks"
    attribute_map = {  # noqa: RUF012 - transformers' form
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    base_model_tp_plan = LAYER_TP_PLAN

    observed_steps: int = 8
    predicted_steps: int = 12
    step_seconds: float | int = 0.4
    unit: str = "m"
    velocity_std: float | int = 1.0
    largest_step: float | int = 0.0
    follows_heading: bool = True
    heading_decay: float | int = 0.7
    num_modes: int = 20
    num_codes: int = 1000
    score_loss_weight: float | int = 0.2
    final_loss_weight: float | int = 0.3
    forcing_loss_weight: float | int = 0.0
    rollout_loss_weight: float | int = 1.0
    d_model: int = 64
    encoder_layers: int = 2
    encoder_attention_heads: int = 4
    encoder_ffn_dim: int = 256
    decoder_layers: int = 2
    decoder_attention_heads: int = 4
    decoder_ffn_dim: int = 256
    dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    attention_bias: bool = False
    layer_norm_eps: float = 1e-6
    is_encoder_decoder: bool = True

    def validate_sizes(self) -> None:
        """Sizes, counts and units are positive; velocities need two observed steps."""
        self.require_positive(
            *("predicted_steps", "num_modes", "d_model", "encoder_layers", "decoder_layers"),
            "num_codes",
            *("encoder_attention_heads", "decoder_attention_heads"),
            *("encoder_ffn_dim", "decoder_ffn_dim", "step_seconds", "velocity_std"),
        )
        if self.observed_steps < 2:
            raise ValueError(f"observed_steps={self.observed_steps}: a velocity needs 2 or more")

    def validate_positions(self) -> None:
        """Sine and cosine come in pairs."""
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd, and sinusoids come in pairs")

    def validate_weights(self) -> None:
        """Weights of the loss and the largest step are not negative, the decay is a factor."""
        if not 0 <= self.heading_decay <= 1:
            raise ValueError(f"heading_decay={self.heading_decay}: give a factor from 0 to 1")
        weights = ("score_loss_weight", "forcing_loss_weight", "rollout_loss_weight")
        for name in (*weights, "final_loss_weight", "largest_step"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")
        if not self.forcing_loss_weight + self.rollout_loss_weight > 0:
            raise ValueError("forcing_loss_weight and rollout_loss_weight are both 0: raise one")
