# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""AgentFormer (2103.14023): joint futures of all agents of a scene.

Shapes: B scenes, A agents, T observed steps, P predicted steps, K samples, D `d_model`,
Z `latent_dim`.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import initialization as init
from transformers.utils import ModelOutput
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vanilla_agentformer import AgentAwareAttention
from .configuration_vanilla_agentformer import VanillaAgentFormerConfig
from .inputs_vanilla_forecaster import known_part, rollout_steps
from .kernels_vanilla import at_least_float32
from .pretrained_vanilla import VanillaPreTrainedModel
from .stacks_vanilla_agentformer import (
    ContextEncoder,
    FutureDecoder,
    FutureEncoder,
    Gaussian,
    HiddenLayers,
    Observed,
    read_observed,
)

# --- losses of both stages, per agent, in squared units inside the model and nats ---------------

# Each is a sum over agents, divided by their number in the optimizer step. For a batch of one scene
# they are the authors' losses; they divide by the agents of one scene, which is a step of theirs.


@dataclass(frozen=True)
class JointErrors:
    """What futures are compared with.

    Attributes:
        future: `(B, A, P, 2)` relative to the origin; 0 where not known.
        is_known: `(B, A, P)` bool; False for padding.
        is_agent: `(B, A)` bool.
        divisor: `()` agents of the optimizer step.
    """

    future: Tensor
    is_known: Tensor
    is_agent: Tensor
    divisor: Tensor

    def squared_errors(self, futures: Tensor) -> Tensor:
        """Squared distances of `(B, N, P, A, 2)`, summed over known steps: `(B, N, A)`."""
        truth = self.future.transpose(1, 2).unsqueeze(1)  # (B, 1, P, A, 2)
        squares = (futures - truth).square().sum(dim=-1)
        return (squares * self.is_known.transpose(1, 2).unsqueeze(1)).sum(dim=2)

    def closest(self, futures: Tensor) -> Tensor:
        """Squared error of each agent's closest sample of `(B, N, P, A, 2)`."""
        return self.squared_errors(futures).amin(dim=1).sum() / self.divisor

    def closest_together(self, futures: Tensor) -> Tensor:
        """Squared error of the sample that is closest for all agents of a scene together."""
        return self.squared_errors(futures).sum(dim=2).amin(dim=1).sum() / self.divisor

    def needed_samples(self, futures: Tensor, *, together: bool) -> Tensor:
        """Numbers of the samples that a loss depends on, `(B, M)`, of `(B, N, P, A, 2)`.

        They are the closest ones of the agents, and with `together` the closest one of all agents
        of a scene. M is that of the scene with most of them; other scenes have further samples.
        """
        errors = self.squared_errors(futures)  # (B, N, A)
        closest = errors.argmin(dim=1)  # (B, A)
        agents = torch.zeros_like(errors[..., 0]).scatter_add(1, closest, self.is_agent.to(errors))
        if together:
            agents.scatter_(1, errors.sum(dim=2).argmin(dim=1, keepdim=True), 1.0)
        return agents.topk(int((agents > 0).sum(dim=1).max()), dim=1).indices

    def divergence(self, nats: Tensor, floor: float) -> Tensor:
        """Divergences `(B, A)`; where a scene's mean is below the floor, that has no gradient."""
        agents = self.is_agent.sum(dim=1)
        means = (nats * self.is_agent).sum(dim=1) / agents.clamp(min=1)
        return (means.clamp(min=floor) * agents).sum() / self.divisor

    def similarity(self, futures: Tensor, scale: float) -> Tensor:
        """Mean over pairs of samples of `exp(-squared distance / scale)`, `(B, N, P, A, 2)`.

        The distance is over all steps. 0 for a single sample.
        """
        samples = futures.shape[1]
        first, second = torch.triu_indices(samples, samples, 1, device=futures.device)
        if not len(first):
            return futures.sum() * 0
        apart = (futures[:, first] - futures[:, second]).square().sum(dim=(2, 4))  # (B, pairs, A)
        likeness = (-apart / scale).exp().mean(dim=1)  # (B, A)
        return (likeness * self.is_agent).sum() / self.divisor


def read_future(
    config: VanillaAgentFormerConfig,
    past: Observed,
    future_values: Tensor,
    future_observed_mask: Tensor | None,
    *,
    num_items_in_batch: "Tensor | float | None" = None,
    **kwargs: Any,
) -> JointErrors:
    """Check and centre the future of a batch; arguments as of the models.

    Raises:
        ValueError: a shape does not fit, or a value is not finite.
    """
    future, is_known = known_part(
        config, "future", future_values, future_observed_mask, past.is_agent
    )
    future = torch.where(is_known.unsqueeze(-1), future / config.position_scale - past.origin, 0)
    count = past.is_agent.sum() if num_items_in_batch is None else num_items_in_batch
    divisor = torch.as_tensor(count, device=future.device).clamp(min=1)
    return JointErrors(future, is_known, past.is_agent, divisor)


# --- the first stage ------------------------------------------------------------------------------


@dataclass
class VanillaJointTrajectoryOutput(ModelOutput):
    """What a joint forecaster returns.

    Attributes:
        loss: weighted sum of the other losses.
        trajectories: `(B, A, K, P, 2)` positions in the world; sample k of all agents of a scene
            belongs together.
        mode_logits: `(B, A, K)` zeros: samples are equally probable.
        sample_loss: squared error of each agent's closest sample.
        reconstruction_loss: squared error of the future decoded from the posterior; first stage.
        divergence: nats per agent.
        similarity: of the samples of an agent, from 0 to 1; second stage.
        attentions: weights `(B, H, T A, T A)` of each layer of the context encoder, with
            `output_attentions=True`.
    """

    loss: Tensor | None = None
    trajectories: Tensor | None = None
    mode_logits: Tensor | None = None
    sample_loss: Tensor | None = None
    reconstruction_loss: Tensor | None = None
    divergence: Tensor | None = None
    similarity: Tensor | None = None
    attentions: tuple[Tensor, ...] | None = None


class VanillaAgentFormerPreTrainedModel(VanillaPreTrainedModel):
    """The base of both stages."""

    config_class = VanillaAgentFormerConfig
    main_input_name = "past_values"
    is_rollout: ClassVar[bool] = True  # `predicted_steps` may be larger than in training
    supports_gradient_checkpointing = False  # it drops the cache, which the rollout needs
    # the scores of one agent's steps are overwritten, which only the formula itself can do
    _supports_sdpa = False
    _supports_flash_attn = False
    _supports_flex_attn = False
    _supports_attention_backend = False
    _can_record_outputs = {
        "attentions": OutputRecorder(AgentAwareAttention, index=1, layer_name="context_encoder")
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot; small heads, so that training starts near a standing agent and equal latents."""
        super()._init_weights(module)
        bound = getattr(module, "init_bound", None)
        if bound is not None:
            init.uniform_(module.weight, -bound, bound)
            init.uniform_(module.bias, -bound, bound)


class VanillaForJointTrajectoryPrediction(VanillaAgentFormerPreTrainedModel):
    """First stage: K futures of a whole scene, each drawn with a latent for each agent.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_agentformer import (
        ...     VanillaAgentFormerConfig)
        >>> from hf_vanilla.models.modeling_vanilla_agentformer import (
        ...     VanillaForJointTrajectoryPrediction)
        >>> config = VanillaAgentFormerConfig(d_model=16, num_modes=5)
        >>> model = VanillaForJointTrajectoryPrediction(config).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 5, 12, 2])
    """

    def __init__(self, config: VanillaAgentFormerConfig) -> None:
        super().__init__(config)
        self.context_encoder = ContextEncoder(config)
        self.future_encoder = FutureEncoder(config)
        self.future_decoder = FutureDecoder(config)
        self.post_init()

    @capture_outputs
    def forward(  # noqa: PLR0913 - the inputs of every stage, and noise
        self,
        past_values: Tensor,
        past_observed_mask: Tensor | None = None,
        agent_mask: Tensor | None = None,
        future_values: Tensor | None = None,
        future_observed_mask: Tensor | None = None,
        noise: Tensor | None = None,
        *,
        return_loss: bool = True,
        **kwargs: Any,
    ) -> VanillaJointTrajectoryOutput:
        """Joint futures of the agents of each scene; with `future_values` the losses.

        Args:
            past_values: `(B, A, T, 2)` positions in the world.
            past_observed_mask: `(B, A, T)`, 1 = observed; None: all are. Each agent's last step is.
            agent_mask: `(B, A)`, 1 = agent, 0 = padding; None: all are agents.
            future_values: `(B, A, P, 2)` positions to predict.
            future_observed_mask: `(B, A, P)`, 1 = known; None: all are.
            noise: `(B, A, K, Z)` standard normal draws; None: drawn. Their number decides K.
            return_loss: compute the losses where there are `future_values`.
            **kwargs: `num_items_in_batch`, agents of the optimizer step; without `future_values`
                `predicted_steps`, another number of steps, and `samples_at_once`, fewer need less
                memory; `output_attentions`.

        Raises:
            ValueError: an input does not fit; the message says which and how.
        """
        past = read_observed(self.config, past_values, past_observed_mask, agent_mask)
        context, agent_context = self.context_encoder(past)
        prior = self.future_decoder.prior(agent_context)
        noise = self._noise(prior.mean, noise)  # (B, A, K, Z)
        of_samples = Gaussian(prior.mean.unsqueeze(2), prior.log_variance.unsqueeze(2))
        latents = of_samples.draw(noise).transpose(1, 2)  # (B, K, A, Z)
        if future_values is None or not return_loss:
            futures = decode_samples(self, past, context, latents, **kwargs)
            return scene_output(self.config, past, futures)
        truth = read_future(self.config, past, future_values, future_observed_mask, **kwargs)
        posterior = self.future_encoder(past, context, truth.future, truth.is_known)
        one = posterior.draw(torch.randn_like(posterior.mean)).unsqueeze(1)  # (B, 1, A, Z)
        both = torch.cat((one, latents), dim=1)
        with torch.no_grad():
            decoded = decode_samples(self, past, context, both)
        output = scene_output(self.config, past, decoded[:, 1:])
        config = self.config
        if torch.is_grad_enabled():
            # only the closest samples have a gradient: of 20 samples of three agents, three at most
            needed = truth.needed_samples(decoded[:, 1:], together=config.joint_weight > 0)
            needed = pad(1 + needed, (1, 0))  # (B, 1 + M): that of the posterior, 0, comes first
            scenes = torch.arange(len(needed), device=needed.device).unsqueeze(1)
            latents, decoded = both[scenes, needed], decoded[scenes, needed]
            decoded = self.future_decoder.one_pass(past, context, latents, decoded)
        rebuilt, futures = decoded[:, :1], decoded[:, 1:]
        reconstruction, closest = truth.closest(rebuilt), truth.closest(futures)
        divergence = truth.divergence(posterior.divergence(prior), config.divergence_floor)
        loss = (
            config.reconstruction_weight * reconstruction
            + config.divergence_weight * divergence
            + config.sample_weight * closest
        )
        if config.joint_weight:
            loss = loss + config.joint_weight * truth.closest_together(futures)
        output.loss, output.sample_loss = loss, closest
        output.reconstruction_loss, output.divergence = reconstruction, divergence
        return output

    def _noise(self, mean: Tensor, noise: Tensor | None) -> Tensor:
        """Standard normal draws `(B, A, K, Z)`."""
        scenes, agents, width = mean.shape
        if noise is None:
            return mean.new_empty(scenes, agents, self.config.num_modes, width).normal_()
        if noise.dim() != 4 or (*noise.shape[:2], noise.shape[3]) != (scenes, agents, width):
            raise ValueError(
                f"noise has shape {tuple(noise.shape)}: give ({scenes}, {agents}, samples, {width})"
            )
        return noise


def decode_samples(
    model: Any,
    past: Observed,
    context: Tensor,
    latents: Tensor,
    *,
    predicted_steps: int | None = None,
    samples_at_once: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """Positions `(B, N, P, A, 2)` relative to the origin, of latents `(B, N, A, Z)`.

    Args:
        model: with `config` and `future_decoder`.
        past: the observed part.
        context: `(B, T A, D)` of the context encoder.
        latents: `(B, N, A, Z)`.
        predicted_steps: P; None: as in training.
        samples_at_once: decode so many samples at a time; None: all.
        **kwargs: ignored.

    Raises:
        ValueError: a number is not positive.
    """
    steps = rollout_steps(model.config, predicted_steps)
    size = latents.shape[1] if samples_at_once is None else samples_at_once
    if size < 1:
        raise ValueError(f"samples_at_once={size}: give a positive number")
    parts = [model.future_decoder(past, context, part, steps) for part in latents.split(size, 1)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def scene_output(
    config: VanillaAgentFormerConfig, past: Observed, futures: Tensor
) -> VanillaJointTrajectoryOutput:
    """Futures `(B, N, P, A, 2)` relative to the origin as positions in the world; padding is 0."""
    tracks = futures.permute(0, 3, 1, 2, 4) + past.origin.unsqueeze(1)  # (B, A, N, P, 2)
    tracks = torch.where(past.is_agent[..., None, None, None], tracks * config.position_scale, 0)
    return VanillaJointTrajectoryOutput(
        trajectories=tracks, mode_logits=tracks.new_zeros(tracks.shape[:3])
    )


# --- the second stage: diverse futures from a frozen first stage (DLow) -------------------------

SMALLEST_VARIANCE = 1e-8  # as in the authors' code


class VanillaForDiverseTrajectoryPrediction(VanillaAgentFormerPreTrainedModel):
    """Second stage: K futures of a scene without chance, from K learned maps over the first stage.

    An agent's context gives the latent of each of its K samples. The first stage is frozen and
    stays in evaluation mode. Loss: the closest sample, the divergence of the K normal distributions
    from the prior, and the similarity of the samples.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_agentformer import (
        ...     VanillaAgentFormerConfig)
        >>> from hf_vanilla.models.modeling_vanilla_agentformer import (
        ...     VanillaForDiverseTrajectoryPrediction)
        >>> config = VanillaAgentFormerConfig(d_model=16, num_modes=5)
        >>> model = VanillaForDiverseTrajectoryPrediction(config).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 5, 12, 2])
    """

    def __init__(self, config: VanillaAgentFormerConfig) -> None:
        super().__init__(config)
        self.first_stage = VanillaForJointTrajectoryPrediction(config)
        self.map_hidden = HiddenLayers(config.d_model, config.map_dims, torch.tanh)
        width, size = self.map_hidden.width, config.num_modes * config.latent_dim
        self.map_scale = nn.Linear(width, size)
        self.map_shift = nn.Linear(width, size)
        bound: Any = 1 / math.sqrt(width)  # torch's own initial values
        self.map_scale.init_bound = self.map_shift.init_bound = bound
        self.post_init()

    def freeze(self) -> None:
        """Do not train the first stage."""
        self.first_stage.requires_grad_(requires_grad=False)

    def train(self, mode: bool = True) -> "VanillaForDiverseTrajectoryPrediction":
        """Training mode for the maps alone."""
        super().train(mode)
        self.first_stage.eval()
        return self

    @capture_outputs
    def forward(
        self,
        past_values: Tensor,
        past_observed_mask: Tensor | None = None,
        agent_mask: Tensor | None = None,
        future_values: Tensor | None = None,
        future_observed_mask: Tensor | None = None,
        *,
        return_loss: bool = True,
        **kwargs: Any,
    ) -> VanillaJointTrajectoryOutput:
        """Joint futures of the agents of each scene; with `future_values` the losses.

        Arguments and errors are those of the first stage, without `noise`.
        """
        config, first = self.config, self.first_stage
        past = read_observed(config, past_values, past_observed_mask, agent_mask)
        with torch.no_grad():
            context, agent_context = first.context_encoder(past)
            prior = first.future_decoder.prior(agent_context)
        maps = self._maps(agent_context)  # (B, K, A, Z)
        if future_values is None or not return_loss:
            futures = decode_samples(first, past, context, maps.mean, **kwargs)
            return scene_output(config, past, futures)
        truth = read_future(config, past, future_values, future_observed_mask, **kwargs)
        futures = decode_samples(first, past, context, maps.mean)
        # summed over the samples, as in the authors' code
        prior = Gaussian(prior.mean.unsqueeze(1), prior.log_variance.unsqueeze(1))
        nats = maps.divergence(prior).sum(dim=1)  # (B, A)
        output = scene_output(config, past, futures)
        output.sample_loss = truth.closest(futures)
        output.divergence = truth.divergence(nats, config.map_divergence_floor)
        output.similarity = truth.similarity(futures, config.diversity_scale)
        output.loss = (
            config.map_reconstruction_weight * output.sample_loss
            + config.map_divergence_weight * output.divergence
            + config.diversity_weight * output.similarity
        )
        if config.joint_weight:
            together = truth.closest_together(futures)
            output.loss = output.loss + config.joint_weight * together
        return output

    def _maps(self, agent_context: Tensor) -> Gaussian:
        """Normal distributions of the latents of each sample, `(B, K, A, Z)`."""
        hidden_states = self.map_hidden(agent_context)
        by_sample = (self.config.num_modes, self.config.latent_dim)
        scale, shift = (
            at_least_float32(layer(hidden_states)).unflatten(-1, by_sample).transpose(1, 2)
            for layer in (self.map_scale, self.map_shift)
        )
        return Gaussian(shift, (scale.square() + SMALLEST_VARIANCE).log())
