# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""mmTransformer (2103.11624): proposals by region, in a form of ours and in that of its authors.

Shapes: R rows, N agents that a row sees, itself first, P polylines of S pieces, D `d_model`, K
proposals, G regions.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from transformers import initialization as init

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_forecaster import TrueFuture, distances, k_means, nearest, per_known_step
from .kernels_vanilla import at_least_float32
from .layers_vanilla import decoder_layers
from .modeling_vanilla_scene import (
    Mixture,
    MixtureHead,
    VanillaScenePreTrainedModel,
    huber,
    read_truth,
    seeds,
)
from .positions_vanilla import with_sinusoids
from .rows_vanilla_scene import Rows, read_rows
from .stacks_vanilla_scene import FullEncoder, Grid, SceneTokens, read_by_seeds

K_MEANS_ROUNDS = 50


class ProposalStage(nn.Module):
    """One of the three stages: an encoder over one family of tokens, and a decoder that reads it.

    Without a token, as of lanes where there is no map, the proposals attend to nothing here.
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.encoder = FullEncoder(config, config.encoder_layers)
        self.layers = decoder_layers(config, is_causal=False)

    def forward(self, proposals: Tensor, grid: Grid) -> Tensor:
        """Refined proposals `(R, K, D)`, of `(R, K, D)` or of `(K, D)` for every row."""
        return read_by_seeds(self.layers, proposals, *self.encoder([grid]).flat())


class RegionModel(VanillaScenePreTrainedModel):
    """The base of the forms whose proposals belong to G regions of end points.

    `set_regions` takes the regions from training data, along the agents' axes.

    Raises:
        ValueError: `num_seeds` is no multiple of `num_regions`.
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        if config.num_seeds % config.num_regions:
            raise ValueError(
                f"num_seeds={config.num_seeds} proposals cannot be divided among num_regions="
                f"{config.num_regions}: make it a multiple"
            )
        self.register_buffer("centres", torch.zeros(config.num_regions, 2))
        self._has_regions = config.num_regions == 1  # a GPU is read once, not at each step

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.zeros_(self.centres)

    @torch.no_grad()
    def set_regions(
        self, future_values: Tensor, future_observed_mask: Tensor | None = None, **inputs: Any
    ) -> None:
        """Take the regions from training data.

        Args:
            future_values: `(B, A, P, 2)`; agents whose last step is not known do not count.
            future_observed_mask: `(B, A, P)`, 1 = known; None: all are.
            **inputs: the others of `forward`.

        Raises:
            ValueError: there are fewer different end points than regions.
        """
        rows = read_rows(self.config, **inputs)
        truth = read_truth(self.config, rows, future_values, future_observed_mask)
        ends = truth.positions[truth.is_known[:, -1], -1]
        self.centres.copy_(fit_regions(ends, self.config.num_regions))

    def may_win(self, truth: TrueFuture) -> Tensor:
        """Proposals `(R, K)` of the truth's region; all where the last step is not known.

        Raises:
            ValueError: `set_regions` was never called.
        """
        config = self.config
        if not (torch.compiler.is_compiling() or self._has_regions):
            self._has_regions = bool(self.centres.any())
            if not self._has_regions:
                raise ValueError("there are no regions: call set_regions() with training scenes")
        regions = nearest(truth.positions[:, -1], self.centres)
        # proposals are divided evenly: the first K / G belong to region 0
        proposals = torch.arange(config.num_seeds, device=regions.device)
        owner = proposals // (config.num_seeds // config.num_regions)
        return (owner == regions.unsqueeze(1)) | ~truth.is_known[:, -1:]


class VanillaForProposalTrajectoryPrediction(RegionModel):
    """mmTransformer: K proposals, of which only those in the region of the truth are trained.

    A proposal belongs to one of G regions of end points along the agent's axes, which `fit_regions`
    takes from the training data. The closest proposal of the truth's region is regressed; the class
    of the loss is this proposal among all, instead of the paper's two separate ones for region and
    proposal. The paper refines all agents' proposals with those of each other; here the third stage
    reads the observed steps of the others.

    Examples:
        >>> import torch
        >>> from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
        >>> from hf_vanilla.models.modeling_vanilla_scene_proposals import (
        ...     VanillaForProposalTrajectoryPrediction)
        >>> config = VanillaSceneConfig(d_model=16, num_regions=3)
        >>> model = VanillaForProposalTrajectoryPrediction(config).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        self.tokens = SceneTokens(config)
        self.seeds = seeds(config)
        self.motion = ProposalStage(config)
        self.lanes = ProposalStage(config)
        self.others = ProposalStage(config)
        self.head = MixtureHead(config)
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """Proposals refined by own motion, lanes and others, in this order."""
        own, others, lanes = self.tokens(rows)
        proposals = self.motion(self.seeds.weight, own)
        proposals = self.lanes(proposals, lanes)
        proposals = self.others(proposals, others)
        return self.head(proposals, rows.velocity)


class VanillaForSocialProposalTrajectoryPrediction(RegionModel):
    """mmTransformer as in the authors' code, but for post-norm layers and the region loss.

    Everything is along the axes of the agent to forecast. Its steps and those of each other agent
    go through one motion stage; the proposals are fused with the agent's position and read the
    lanes, one token per polyline. Each agent's refined proposals make one vector, which is fused
    with its position; self-attention over these vectors of all agents is the third stage. The head
    reads it and each refined proposal. The loss is `region_loss`.

    Examples:
        >>> import torch
        >>> from hf_vanilla import (
        ...     VanillaForSocialProposalTrajectoryPrediction, VanillaSceneConfig)
        >>> config = VanillaSceneConfig(d_model=16, num_regions=3)
        >>> model = VanillaForSocialProposalTrajectoryPrediction(config).eval()
        >>> model(past_values=torch.randn(2, 3, 8, 2)).trajectories.shape
        torch.Size([2, 3, 6, 12, 2])
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__(config)
        width, place, count = config.d_model, config.d_model // 2, config.num_seeds
        self.steps = nn.Linear(4, width)
        self.seeds = seeds(config)
        self.motion = ProposalStage(config)
        self.position = perceptron(2, place)
        self.motion_fusion = perceptron(width + place, width)
        self.polylines = PolylineEncoder(config)
        self.lane_projection = nn.Linear(2 * (width // 4), width)
        self.lanes = ProposalStage(config)
        self.distance = perceptron(count * width, width)
        self.social_fusion = perceptron(width + place, width)
        self.social = FullEncoder(config, config.encoder_layers)
        wide, numbers = 2 * width, 2 * config.predicted_steps
        self.track_head = nn.Sequential(perceptron(wide, wide, width), nn.Linear(width, numbers))
        self.score_head = nn.Sequential(
            *(nn.Linear(wide, 2 * wide), nn.ReLU(), nn.Linear(2 * wide, wide)),
            *(nn.Linear(wide, width), nn.Linear(width, 1)),
        )
        self.post_init()

    def futures(self, rows: Rows) -> Mixture:
        """Proposals refined by motion and lanes, and what all agents' proposals say together."""
        count, dtype = self.config.num_seeds, self.steps.weight.dtype
        last = torch.cat((rows.own.last(), rows.others.last()), dim=1)  # (R, N, 4)
        is_agent = torch.cat((rows.own.is_real, rows.others.is_real), dim=1).any(dim=-1)
        place = self.position(last[..., :2].to(dtype))  # (R, N, D / 2)
        proposals = self.motion(self.seeds.weight, self._steps(rows))  # (R N, K, D)
        places = place.flatten(0, 1).unsqueeze(1).expand(-1, count, -1)
        proposals = self.motion_fusion(torch.cat((places, proposals), dim=-1))
        lanes, is_lane = self.lanes.encoder([self._lanes(rows)]).flat()
        agents = is_agent.shape[1]
        lanes, is_lane = (part.repeat_interleave(agents, 0) for part in (lanes, is_lane))
        proposals = read_by_seeds(self.lanes.layers, proposals, lanes, is_lane)
        proposals = proposals.unflatten(0, (-1, agents))  # (R, N, K, D)
        together = self.distance(proposals.flatten(2))
        social = self.social_fusion(torch.cat((place, together), dim=-1))
        social = self.social([Grid(social.unsqueeze(1), is_agent.unsqueeze(1))]).states[:, 0, :1]
        both = torch.cat((social.expand(-1, count, -1), proposals[:, 0]), dim=-1)  # (R, K, 2 D)
        moves = at_least_float32(self.track_head(both)).unflatten(-1, (-1, 2))
        logits = at_least_float32(self.score_head(both)).squeeze(-1)
        return Mixture(moves.cumsum(dim=2), None, logits)

    def _steps(self, rows: Rows) -> Grid:
        """Displacement, time and mask of each agent's steps but the first, `(R N, 1, T - 1, D)`."""
        features = torch.cat((rows.own.features, rows.others.features), dim=1)[:, :, 1:]
        is_real = torch.cat((rows.own.is_real, rows.others.is_real), dim=1)[:, :, 1:]
        steps = torch.arange(is_real.shape[-1], device=is_real.device)
        seconds = ((steps - len(steps)) * self.config.step_seconds).expand(is_real.shape)
        parts = (features[..., 2:], seconds.unsqueeze(-1), is_real.unsqueeze(-1))
        tokens = with_sinusoids(self.steps(torch.cat(parts, dim=-1).to(self.steps.weight.dtype)))
        return Grid(tokens.flatten(0, 1).unsqueeze(1), is_real.flatten(0, 1).unsqueeze(1))

    def _lanes(self, rows: Rows) -> Grid:
        """One token per polyline, `(R, 1, P, D)`."""
        lanes = rows.lanes
        middle, direction = lanes.features.split(2, dim=-1)
        kinds = one_hot(lanes.kinds, self.config.num_lane_kinds).unsqueeze(2)
        ends = (middle - direction / 2, middle + direction / 2)
        vectors = torch.cat((*ends, kinds.expand(*middle.shape[:3], -1)), dim=-1)
        tokens = self.polylines(vectors.to(self.steps.weight.dtype), lanes.is_real)
        tokens = self.lane_projection(tokens) * math.sqrt(self.config.d_model)
        return Grid(tokens.unsqueeze(1), lanes.is_real.any(dim=-1).unsqueeze(1))

    def loss(
        self, futures: Mixture, truth: TrueFuture, num_items_in_batch: "Tensor | float | None"
    ) -> Tensor:
        """`region_loss`."""
        total = region_loss(self.config, futures, truth, self.may_win(truth))
        return per_known_step(total, truth.is_known, num_items_in_batch)


def perceptron(inputs: int, hidden: int, outputs: int | None = None) -> nn.Sequential:
    """Linear, LayerNorm, ReLU and Linear; outputs: None: as many as hidden."""
    last = nn.Linear(hidden, hidden if outputs is None else outputs)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.ReLU(), last)


class PolylineEncoder(nn.Module):
    """One vector per polyline (LaneNet of the authors' code, after VectorNet, 2005.04259).

    Twice, a perceptron makes features of each piece, and their maximum over all pieces of the
    polyline stands beside them.

    Args:
        config: read for `d_model`, two quarters of which are the width of the vectors, and kinds.
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        hidden = config.d_model // 4
        widths = (4 + config.num_lane_kinds, 2 * hidden)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU())
            for width in widths
        )

    def forward(self, vectors: Tensor, is_real: Tensor) -> Tensor:
        """Vectors `(R, P, 2 (D // 4))` of pieces `(R, P, S, F)`; `(R, P, S)` are real."""
        is_real = is_real.unsqueeze(-1)
        for layer in self.layers:
            vectors = torch.where(is_real, layer(vectors), 0)  # features are not negative
            most = vectors.amax(dim=2, keepdim=True).expand_as(vectors)
            vectors = torch.cat((vectors, most), dim=-1)
        return vectors.amax(dim=2)


def region_loss(
    config: VanillaSceneConfig, futures: Mixture, truth: TrueFuture, of_region: Tensor
) -> Tensor:
    """Sum of the region-based training's losses, each weighted by known steps, `()`.

    Of the proposals in the truth's region: the mean of their Huber losses, and the divergence of
    their probabilities among each other from the softmax of minus their mean distances. Of the
    regions: the cross-entropy of the truth's, whose probability is the sum over its proposals.

    Args:
        config: read for the weight of divergence and cross-entropy, and for units of the world per
            unit of the futures.
        futures: proposals of each row.
        truth: of each row.
        of_region: `(R, K)` bool, proposals in the truth's region.
    """
    unit = config.velocity_std
    steps = truth.is_known.sum(dim=1)  # (R,)
    known = truth.is_known.unsqueeze(1)
    errors = (huber(futures.means, truth, unit) * known).sum(dim=-1)  # (R, K)
    regressed = (errors * of_region).sum(dim=1) / of_region.sum(dim=1)
    offsets = distances(futures.means, truth.positions.unsqueeze(1)).detach() * known * unit
    offsets = offsets.sum(dim=-1) / steps.clamp(min=1).unsqueeze(1)
    wanted = (-offsets).masked_fill(~of_region, -torch.inf).softmax(dim=1)
    logs = at_least_float32(futures.logits).log_softmax(dim=1)
    region = logs.masked_fill(~of_region, -torch.inf).logsumexp(dim=1)  # (R,)
    within = logs - region.unsqueeze(1)
    divergence = (torch.xlogy(wanted, wanted) - wanted * within).sum(dim=1)
    return (regressed + config.score_loss_weight * (divergence - region) * steps).sum()


def fit_regions(end_points: Tensor, count: int) -> Tensor:
    """Centres of `count` clusters of end points.

    Centres start at the point nearest to the mean and, one after another, at the point farthest
    from all centres, so equal data give equal regions and none is empty.

    Args:
        end_points: `(N, 2)`.
        count: regions G.

    Returns:
        `(G, 2)`.

    Raises:
        ValueError: there are fewer different end points than regions.
    """
    points = end_points.double()
    found = len(points.unique(dim=0))
    if found < count:
        raise ValueError(
            f"{found} different end points, so a region would be empty: lower num_regions={count}"
        )
    centres = points[(points - points.mean(dim=0)).norm(dim=1).argmin()].unsqueeze(0)
    while len(centres) < count:
        farthest = torch.cdist(points, centres).amin(dim=1).argmax()
        centres = torch.cat((centres, points[farthest].unsqueeze(0)))
    return k_means(points, centres, K_MEANS_ROUNDS).to(end_points.dtype)
