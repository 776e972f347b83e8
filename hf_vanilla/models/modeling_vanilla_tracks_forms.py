# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Several futures at once: learned queries become whole tracks, or codes of velocities are drawn.

One form adds a standard deviation per step: a density of where an agent will be.

Shapes: B agents, T observed steps, P predicted steps, L any length, M modes, C codes, D `d_model`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from .configuration_vanilla_tracks import VanillaTracksConfig
from .inputs_vanilla_forecaster import (
    TrueFuture,
    k_means,
    known_part,
    nearest,
    per_known_step,
    rollout_steps,
)
from .kernels_vanilla import at_least_float32
from .layers_vanilla import CROSS_ATTENTIONS, decoder_layers
from .modeling_vanilla_tracks import (
    EncodedPast,
    VanillaTracksEncoder,
    VanillaTracksPreTrainedModel,
    VanillaTrajectoryOutput,
    VelocityEmbedding,
    closest_mode_loss,
    decode,
    mixture_nats,
)
from .pretrained_vanilla import CACHE_NAME, takes_cache

SMALLEST_SPREAD = 1e-3  # of velocity_std


class VanillaForMultimodalTrajectoryPrediction(VanillaTracksPreTrainedModel):
    """M futures per agent in one pass; the closest is regressed, its score is classified.

    A future is the last observed velocity plus what the model changes about it, step by step.
    The queries are the decoder's input. As positions over zeros, as in DETR, the modes collapse.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.models.modeling_vanilla_tracks_forms import (
        ...     VanillaForMultimodalTrajectoryPrediction)
        >>> config = VanillaTracksConfig(d_model=16, num_modes=5)
        >>> model = VanillaForMultimodalTrajectoryPrediction(config).eval()
        >>> out = model(past_values=torch.randn(3, 8, 2))
        >>> out.trajectories.shape, out.mode_logits.shape
        (torch.Size([3, 5, 12, 2]), torch.Size([3, 5]))
    """

    embedding_std = 1.0  # queries N(0, 1), so that modes differ from the start
    _can_record_outputs = CROSS_ATTENTIONS

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__(config)
        self.encoder = VanillaTracksEncoder(config)
        self.queries = nn.Embedding(config.num_modes, config.d_model)
        self.layers = decoder_layers(config, is_causal=False)
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.track_head = nn.Linear(config.d_model, 2 * config.predicted_steps)
        self.score_head = nn.Linear(config.d_model, 1)
        self.post_init()

    def futures(
        self, past: EncodedPast, truth: TrueFuture | None, **kwargs: Any
    ) -> VanillaTrajectoryOutput:
        """Futures of the decoded queries; the last observed velocity is added to each step."""
        hidden_states = self.queries.weight.expand(past.velocity.shape[0], -1, -1)  # (B, M, D)
        hidden_states = decode(self, hidden_states, past.hidden_states, past.attention_mask)
        hidden_states = self.layer_norm(hidden_states)
        changes = self.track_head(hidden_states).unflatten(-1, (-1, 2))  # (B, M, P, 2)
        logits = at_least_float32(self.score_head(hidden_states)).squeeze(-1)  # (B, M)
        trajectories = past.axes.positions(changes + past.velocity[:, None, None])
        loss = None
        if truth is not None:
            loss = closest_mode_loss(
                self.config,
                trajectories,
                logits,
                truth,
                temperature=kwargs.get("winner_temperature"),
                num_items_in_batch=kwargs.get("num_items_in_batch"),
            )
        return VanillaTrajectoryOutput(
            loss=loss,
            trajectories=trajectories,
            mode_logits=logits,
            spreads=self._spreads(hidden_states),
        )

    def _spreads(self, hidden_states: Tensor) -> Tensor | None:
        """`(B, M, P)` standard deviations from the modes' vectors; this form has none."""
        return None


class VanillaForTrajectoryDensityPrediction(VanillaForMultimodalTrajectoryPrediction):
    """The form with several modes, and the spread of each around its track.

    At each step the density is a mixture of round Gaussians: the modes with their probabilities.
    The spreads learn from the likelihood of the truth; its gradient ends at their Linear, so tracks
    and scores are those of the form without spreads.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.models.modeling_vanilla_tracks_forms import (
        ...     VanillaForTrajectoryDensityPrediction)
        >>> config = VanillaTracksConfig(d_model=16, num_modes=5)
        >>> model = VanillaForTrajectoryDensityPrediction(config).eval()
        >>> model(past_values=torch.randn(3, 8, 2)).spreads.shape
        torch.Size([3, 5, 12])
    """

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__(config)
        self.spread_head = nn.Linear(config.d_model, config.predicted_steps)
        self.post_init()

    def _spreads(self, hidden_states: Tensor) -> Tensor:
        """`(B, M, P)` in units of the world."""
        logs = at_least_float32(self.spread_head(hidden_states.detach()))
        return self.config.velocity_std * (logs.exp() + SMALLEST_SPREAD)

    def futures(
        self, past: EncodedPast, truth: TrueFuture | None, **kwargs: Any
    ) -> VanillaTrajectoryOutput:
        """Futures and spreads; the loss adds the negative log-likelihood in nats per step."""
        output: Any = super().futures(past, truth, **kwargs)
        if truth is not None:
            nats = mixture_nats(
                output.trajectories.detach(),
                output.mode_logits.detach(),
                output.spreads,
                truth.positions,
            )
            total, count = (nats * truth.is_known).sum(), kwargs.get("num_items_in_batch")
            output.loss = output.loss + per_known_step(total, truth.is_known, count)
        return output


# --- codes of velocities (TF_q, 2003.08111) -----------------------------------------------------

K_MEANS_ROUNDS = 10
K_MEANS_POINTS = 50  # per code, of which the codebook is made


class VanillaCodesDecoder(VanillaTracksPreTrainedModel, GenerationMixin):
    """Codes of velocities after codes of velocities: `generate()` continues them.

    The codebook is a buffer: `(C, 2)` velocities along an agent's axes. With `follows_paper`, codes
    have a table of vectors, which has one more for the start token, number C.

    Args:
        config: read for `num_codes` and the sizes of the decoder's layers.
    """

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__(config)
        self.codebook: Tensor
        self.register_buffer("codebook", torch.zeros(config.num_codes, 2))
        table = nn.Embedding(config.num_codes + 1, config.d_model) if config.follows_paper else None
        self.embedding = VelocityEmbedding(config, table)
        self.layers = decoder_layers(config)
        self.head = nn.Linear(config.d_model, config.num_codes)
        self.post_init()

    def nearest_codes(self, velocities: Tensor) -> Tensor:
        """Numbers `(...,)` of the codes closest to velocities `(..., 2)` along the axes."""
        return nearest(velocities.reshape(-1, 2), self.codebook).view(velocities.shape[:-1])

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        decoder_input_ids: Tensor,
        encoder_outputs: BaseModelOutput,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits `(B, L, C)` of the code after each of `decoder_input_ids`.

        Args:
            decoder_input_ids: `(B, L)` codes; the first is that of the last observed velocity, or
                the start token.
            encoder_outputs: with `last_hidden_state` `(B, T - 1, D)`.
            attention_mask: `(B, T - 1)`, 1 = known velocity; None: all are.
            cache: the KV cache of earlier codes, which are then left out of the ids.
            **kwargs: what `generate()` passes beside them.
        """
        encoded = encoder_outputs.last_hidden_state
        first = 0 if cache is None else cache.get_seq_length()
        is_table = self.config.follows_paper
        inputs = decoder_input_ids if is_table else self.codebook[decoder_input_ids]
        hidden_states = self.embedding(inputs, first)
        hidden_states = decode(self, hidden_states, encoded, attention_mask, cache)
        return Seq2SeqLMOutput(logits=self.head(hidden_states), **{CACHE_NAME: cache})


class VanillaForQuantizedTrajectoryPrediction(VanillaTracksPreTrainedModel):
    """Futures drawn from a distribution over codes of velocities, each as probable as the others.

    Call `fit_codebook` with training windows before training. A code enters the decoder as its
    velocity, by the same kind of embedding as an observed one. With `follows_paper`, encoder and
    decoder read codes by a table of vectors each, and the decoder begins with a start token.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
        >>> from hf_vanilla.models.modeling_vanilla_tracks_forms import (
        ...     VanillaForQuantizedTrajectoryPrediction)
        >>> config = VanillaTracksConfig(d_model=16, num_codes=9, num_modes=5)
        >>> model = VanillaForQuantizedTrajectoryPrediction(config).eval()
        >>> model.fit_codebook(torch.randn(30, 8, 2), torch.randn(30, 12, 2))
        >>> model(past_values=torch.randn(3, 8, 2)).trajectories.shape
        torch.Size([3, 5, 12, 2])
    """

    is_rollout = True

    def __init__(self, config: VanillaTracksConfig) -> None:
        super().__init__(config)
        table = nn.Embedding(config.num_codes, config.d_model) if config.follows_paper else None
        self.encoder = VanillaTracksEncoder(config, table)
        self.decoder = VanillaCodesDecoder(config)
        self._has_codes = False  # a GPU is read once, not at each step
        self.post_init()

    def tokens(self, velocities: Tensor) -> Tensor:
        """Velocities `(B, L, 2)`, with `follows_paper` their codes `(B, L)`."""
        return self.decoder.nearest_codes(velocities) if self.config.follows_paper else velocities

    @torch.no_grad()
    def fit_codebook(
        self,
        past_values: Tensor,
        future_values: Tensor,
        past_observed_mask: Tensor | None = None,
        future_observed_mask: Tensor | None = None,
    ) -> None:
        """Set the codebook to the centres of k-means over the velocities of training windows.

        Those are the future ones; with `follows_paper` the observed ones too.

        The result depends on the windows alone; the random state is not touched.

        Args:
            past_values: `(B, T, 2)` positions in the world.
            future_values: `(B, P, 2)`.
            past_observed_mask: `(B, T)`, 1 = observed; None: all are.
            future_observed_mask: `(B, P)`, 1 = observed; None: all are.

        Raises:
            ValueError: an input does not fit, there are fewer velocities than codes, or no agent
                moves.
        """
        axes, seen, is_seen = self.encoder.observed(past_values, past_observed_mask)
        future = known_part(self.config, "future", future_values, future_observed_mask)
        true, is_known = TrueFuture(*future).velocities(axes)
        points, count = true[is_known], self.config.num_codes
        if self.config.follows_paper:
            points = torch.cat((seen[is_seen], points))
        if len(points) < count:
            raise ValueError(
                f"num_codes={count}, but the windows have {len(points)} velocities: lower "
                "model.num_codes"
            )
        if not points.any():
            raise ValueError("no agent of the windows moves: give other tracks, or another form")
        draw = torch.Generator().manual_seed(0)
        rows = torch.randperm(len(points), generator=draw)[: K_MEANS_POINTS * count]
        points = points[rows.to(points.device)]
        self.decoder.codebook.copy_(k_means(points, points[:count], K_MEANS_ROUNDS))

    def futures(
        self, past: EncodedPast, truth: TrueFuture | None, **kwargs: Any
    ) -> VanillaTrajectoryOutput:
        """`num_modes` sampled futures of each agent; the loss is in nats per step.

        In training mode with the truth, the one trajectory takes the most probable code after each
        true velocity.

        Raises:
            ValueError: `fit_codebook` was never called.
        """
        if not (torch.compiler.is_compiling() or self._has_codes):
            self._has_codes = bool(self.decoder.codebook.any())
            if not self._has_codes:
                raise ValueError("the codebook is empty: call fit_codebook() with training windows")
        if self.config.follows_paper:
            start = torch.full_like(past.attention_mask[:, 0], self.config.num_codes)
        else:
            start = self.decoder.nearest_codes(past.velocity)
        loss = codes = None
        if truth is not None:
            true, is_known = truth.velocities(past.axes)
            wanted = self.decoder.nearest_codes(true)  # (B, P)
            inputs = torch.cat((start.unsqueeze(1), wanted[:, :-1]), dim=1)
            encoded = BaseModelOutput(last_hidden_state=past.hidden_states)
            logits = self.decoder(inputs, encoded, past.attention_mask).logits
            wanted = wanted.masked_fill(~is_known, -100)
            total = cross_entropy(
                at_least_float32(logits).flatten(0, 1), wanted.flatten(), reduction="sum"
            )
            loss = per_known_step(total, truth.is_known, kwargs.get("num_items_in_batch"))
            codes = logits.argmax(dim=-1).unsqueeze(1)  # (B, 1, P)
        if codes is None or not self.training:
            codes = self.sample(past, start, kwargs.get("predicted_steps"))
        tracks = past.axes.positions(self.decoder.codebook[codes])
        return VanillaTrajectoryOutput(
            loss=loss, trajectories=tracks, mode_logits=tracks.new_zeros(tracks.shape[:2])
        )

    @torch.no_grad()
    def sample(
        self, past: EncodedPast, start: Tensor, predicted_steps: int | None = None
    ) -> Tensor:
        """`num_modes` sequences of codes of each agent, `(B, M, P)`, drawn by `generate()`.

        Args:
            past: of the encoder.
            start: `(B,)` first input of the decoder.
            predicted_steps: P; None: as in training.
        """
        modes, steps = self.config.num_modes, rollout_steps(self.config, predicted_steps)
        drawing = GenerationConfig(
            do_sample=True,
            top_k=0,
            num_return_sequences=modes,
            max_new_tokens=steps,
            pad_token_id=0,
            decoder_start_token_id=start.tolist(),
        )
        drawn = self.decoder.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=past.hidden_states),
            attention_mask=past.attention_mask,
            generation_config=drawing,
        )
        return drawn[:, 1:].view(-1, modes, steps)
