# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Every number that shapes the weights or the function of AgentFormer (2103.14023)."""

from dataclasses import field

from huggingface_hub.dataclasses import strict

from .configuration_vanilla_tracks import VanillaForecasterConfig


@strict
class VanillaAgentFormerConfig(VanillaForecasterConfig):
    r"""Configuration of AgentFormer, first and second stage.

    The defaults are the authors' sizes for ETH and UCY. The layers of the encoder are those of the
    context encoder, the layers of the decoder those of the future decoder.

    Args:
        position_scale (`float`, defaults to 1.0): units of the world per unit inside the model and
            of its loss.
        origin_is_past_mean (`bool`, defaults to `False`): the origin of a scene is the mean of all
            observed positions; otherwise of those of the last step.
        connection_distance (`float`, defaults to 0.0): agents that are farther apart at the last
            observed step do not see each other, in units of the world; 0: all do.
        num_modes (`int`, defaults to 20): joint futures of a scene.
        latent_dim (`int`, defaults to 32): numbers of the latent of each agent.
        head_dims (`list[int]`, defaults to `[]`): widths of hidden layers in front of the output
            of positions and that of the posterior.
        reconstruction_weight (`float`, defaults to 1.0): of the squared error of the future that is
            decoded from the posterior.
        divergence_weight (`float`, defaults to 1.0): of the divergence of posterior and prior.
        divergence_floor (`float`, defaults to 2.0): nats per agent below which it has no gradient.
        sample_weight (`float`, defaults to 1.0): of the squared error of each agent's closest
            sample.
        joint_weight (`float`, defaults to 0.0): of the squared error of the sample that is closest
            for all agents of a scene together; beside the authors' losses.
        map_dims (`list[int]`, defaults to `[512, 256]`): hidden widths of the second stage.
        map_reconstruction_weight (`float`, defaults to 5.0): second stage, closest sample.
        map_divergence_weight (`float`, defaults to 0.1): second stage, divergence from the prior.
        map_divergence_floor (`float`, defaults to 10.0): second stage, nats per agent.
        diversity_weight (`float`, defaults to 5.0): second stage, similarity of samples.
        diversity_scale (`float`, defaults to 5.0): second stage, squared distance at which the
            similarity of two samples has fallen to 1/e.
        d_model (`int`, defaults to 256): width of every hidden state.
        encoder_attention_heads (`int`, defaults to 8): heads of its layers.
        encoder_ffn_dim (`int`, defaults to 512): width inside their feed-forward networks.
        posterior_layers (`int`, defaults to 2): layers of the future encoder.
        decoder_attention_heads (`int`, defaults to 8): heads of future encoder and decoder.
        decoder_ffn_dim (`int`, defaults to 512): width inside their feed-forward networks.
        dropout (`float`, defaults to 0.1): on every sublayer's output and on the inputs.
        attention_dropout (`float`, defaults to 0.1): on the attention weights.
        activation_dropout (`float`, defaults to 0.1): inside the feed-forward network.
        attention_bias (`bool`, defaults to `True`): biases on the projections of attention.
        layer_norm_eps (`float`, defaults to 1e-5): added to the variance in every LayerNorm.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a value has the wrong type or cannot be built;
            the message names the value and the remedy.

    Examples:
        >>> from hf_vanilla.models.configuration_vanilla_agentformer import (
        ...     VanillaAgentFormerConfig)
        >>> VanillaAgentFormerConfig(predicted_steps=30).predicted_steps
        30
    """

    model_type = "vanilla_agentformer"

    position_scale: float | int = 1.0
    origin_is_past_mean: bool = False
    connection_distance: float | int = 0.0
    num_modes: int = 20
    latent_dim: int = 32
    head_dims: list[int] = field(default_factory=list)
    reconstruction_weight: float | int = 1.0
    divergence_weight: float | int = 1.0
    divergence_floor: float | int = 2.0
    sample_weight: float | int = 1.0
    joint_weight: float | int = 0.0
    map_dims: list[int] = field(default_factory=lambda: [512, 256])
    map_reconstruction_weight: float | int = 5.0
    map_divergence_weight: float | int = 0.1
    map_divergence_floor: float | int = 10.0
    diversity_weight: float | int = 5.0
    diversity_scale: float | int = 5.0
    d_model: int = 256
    encoder_attention_heads: int = 8
    encoder_ffn_dim: int = 512
    posterior_layers: int = 2
    decoder_attention_heads: int = 8
    decoder_ffn_dim: int = 512
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.1
    activation_dropout: float | int = 0.1
    attention_bias: bool = True
    layer_norm_eps: float = 1e-5

    def validate_hidden_widths(self) -> None:
        """Widths of hidden layers are positive; the second stage has at least one."""
        for name in ("head_dims", "map_dims"):
            if any(width < 1 for width in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)}: give positive widths")
        if not self.map_dims:
            raise ValueError("map_dims=[]: the second stage needs at least one hidden layer")

    def validate_weights(self) -> None:
        """Weights, floors and distances are not negative; something is learned."""
        self.require_positive(
            *("num_modes", "latent_dim", "posterior_layers", "position_scale", "diversity_scale")
        )
        learned = ("reconstruction_weight", "sample_weight", "joint_weight")
        self.require_at_least_zero(
            *learned,
            *("divergence_weight", "divergence_floor", "map_divergence_weight"),
            *("map_reconstruction_weight", "map_divergence_floor", "diversity_weight"),
            "connection_distance",
        )
        if not any(getattr(self, name) for name in learned):
            raise ValueError(f"{', '.join(learned)} are all 0: raise one")
