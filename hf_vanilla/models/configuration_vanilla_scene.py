# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Every number that shapes the weights or the function of the forecasters of agents and lanes."""

from huggingface_hub.dataclasses import strict

from .sizes_vanilla import VanillaPreTrainedConfig

FUSION_NAMES = ("late", "early", "hierarchical")
ENCODER_NAMES = ("full", "sequential", "interleaved", "latent")


@strict
class VanillaSceneConfig(VanillaPreTrainedConfig):
    r"""Configuration of the forecasters that read agents and lanes of a scene.

    Args:
        observed_steps (`int`, defaults to 8): steps an agent is observed.
        predicted_steps (`int`, defaults to 12): steps to predict.
        step_seconds (`float`, defaults to 0.4): time between two steps; data of another rate is
            refused.
        unit (`str`, defaults to `"m"`): unit of the coordinates.
        velocity_std (`float`, defaults to 1.0): standard deviation of the training data's
            displacements, in units per step; velocities are divided by it, positions by it times
            `predicted_steps`.
        largest_step (`float`, defaults to 0.0): farthest displacement in a step of the training
            data; predicted ones beyond it count as off-speed. 0: unknown.
        heading_decay (`float`, defaults to 0.7): weight of an observed displacement in the heading
            of an agent, per step before the last.
        num_modes (`int`, defaults to 6): futures of an agent that a prediction keeps.
        num_seeds (`int`, defaults to 6): futures that the decoder computes; where there are more
            than `num_modes`, a prediction keeps those with the most different end points.
        thinning_distance (`float`, defaults to 2.0): end points that are closer count as one future
            when futures are thinned, in units of the world.
        score_loss_weight (`float`, defaults to 1.0): weight of the classification of the closest
            future, beside its likelihood.
        fusion (`str`, defaults to `"early"`): late, early or hierarchical; which tokens meet in
            which encoder.
        encoder (`str`, defaults to `"full"`): full, sequential, interleaved or latent; how an
            encoder attends.
        num_latents (`int`, defaults to 32): learned queries of the latent encoder.
        max_others (`int`, defaults to 32): other agents that an agent sees, the nearest.
        max_lanes (`int`, defaults to 64): polylines that an agent sees, the nearest.
        map_distance (`float`, defaults to 1000.0): a map of which no point is so close to an agent
            of its scene is refused, in units of the world.
        num_lane_kinds (`int`, defaults to 3): kinds of polylines: lane, crossing, boundary.
        num_regions (`int`, defaults to 6): regions of end points, in the form with proposals;
            `num_seeds` is a multiple.
        neighbor_distance (`float`, defaults to 0.0): agents that are farther apart do not see each
            other, in the form with neighbors, in units of the world; 0: no limit.
        num_neighbors (`int`, defaults to 0): nearest agents that an agent sees there; 0: all.
        field_of_view (`float`, defaults to 360.0): degrees around its heading in which it sees.
        gate_reduction (`int`, defaults to 4): the gate of channels has `d_model` divided by this
            hidden channels.
        d_model (`int`, defaults to 64): width of every hidden state.
        encoder_layers (`int`, defaults to 2): layers of an encoder; hierarchical fusion has half of
            them for each kind of token and half across. The sequential and interleaved encoders
            have as many for each of their two axes.
        encoder_attention_heads (`int`, defaults to 4): heads of an encoder layer.
        encoder_ffn_dim (`int`, defaults to 256): width inside its feed-forward network.
        decoder_layers (`int`, defaults to 2): layers of a decoder.
        decoder_attention_heads (`int`, defaults to 4): heads of a decoder layer.
        decoder_ffn_dim (`int`, defaults to 256): width inside its feed-forward network.
        dropout (`float`, defaults to 0.0): on every sublayer's output and on the inputs.
        attention_dropout (`float`, defaults to 0.0): on the attention weights.
        activation_dropout (`float`, defaults to 0.0): inside the feed-forward network.
        activation_function (`str`, defaults to `"relu"`): a name of
            `transformers.activations.ACT2FN`.
        attention_bias (`bool`, defaults to `False`): biases on the projections of attention.
        layer_norm_eps (`float`, defaults to 1e-6): added to the variance in every LayerNorm.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a value has the wrong type or cannot be built;
            the message names the value and the remedy.

    Examples:
        >>> from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
        >>> VanillaSceneConfig(fusion="late", encoder="latent").num_latents
        32
    """

    model_type = "vanilla_scene"
    attribute_map = {  # noqa: RUF012 - transformers' form
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    observed_steps: int = 8
    predicted_steps: int = 12
    step_seconds: float | int = 0.4
    unit: str = "m"
    velocity_std: float | int = 1.0
    largest_step: float | int = 0.0
    heading_decay: float | int = 0.7
    num_modes: int = 6
    num_seeds: int = 6
    thinning_distance: float | int = 2.0
    score_loss_weight: float | int = 1.0
    fusion: str = "early"
    encoder: str = "full"
    num_latents: int = 32
    max_others: int = 32
    max_lanes: int = 64
    map_distance: float | int = 1000.0
    num_lane_kinds: int = 3
    num_regions: int = 6
    neighbor_distance: float | int = 0.0
    num_neighbors: int = 0
    field_of_view: float | int = 360.0
    gate_reduction: int = 4
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
            *("predicted_steps", "num_modes", "num_seeds", "num_latents", "max_others"),
            *("max_lanes", "num_lane_kinds", "num_regions", "gate_reduction", "d_model"),
            *("encoder_layers", "decoder_layers", "encoder_attention_heads"),
            *("decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"),
            *("step_seconds", "velocity_std", "map_distance", "thinning_distance"),
        )
        if self.observed_steps < 2:
            raise ValueError(f"observed_steps={self.observed_steps}: a velocity needs 2 or more")

    def validate_seeds(self) -> None:
        """A prediction keeps no more futures than the decoder computes."""
        if self.num_modes > self.num_seeds:
            raise ValueError(
                f"num_modes={self.num_modes} futures cannot be kept of num_seeds="
                f"{self.num_seeds}: raise num_seeds"
            )

    def validate_names(self) -> None:
        """Fusion and encoder are known; hierarchical fusion has layers for both its parts."""
        for name, known in (("fusion", FUSION_NAMES), ("encoder", ENCODER_NAMES)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: choose one of {', '.join(known)}"
                )
        if self.fusion == "hierarchical" and self.encoder_layers < 2:
            raise ValueError(
                f"encoder_layers={self.encoder_layers}: hierarchical fusion needs 2 or more"
            )

    def validate_positions(self) -> None:
        """Sine and cosine come in pairs; the gate has a hidden channel."""
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd, and sinusoids come in pairs")
        if self.gate_reduction > self.d_model:
            raise ValueError(
                f"gate_reduction={self.gate_reduction} leaves no channel of d_model="
                f"{self.d_model}: lower it"
            )

    def validate_weights(self) -> None:
        """Weights and distances are not negative, the decay is a factor, the angle is one."""
        if not 0 <= self.heading_decay <= 1:
            raise ValueError(f"heading_decay={self.heading_decay}: give a factor from 0 to 1")
        for name in ("score_loss_weight", "largest_step", "neighbor_distance", "num_neighbors"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")
        if not 0 < self.field_of_view <= 360:
            raise ValueError(f"field_of_view={self.field_of_view}: give up to 360 degrees")
