# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""mmTransformer (2103.11624): learned proposals, refined by own motion, lanes and others in turn.

Shapes: R rows, K proposals, G regions.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .configuration_vanilla_scene import VanillaSceneConfig
from .inputs_vanilla_forecaster import k_means, nearest
from .inputs_vanilla_scene import Rows, read_rows
from .loss_vanilla_scene import Mixture, MixtureHead, Truth, read_truth
from .modeling_vanilla_scene import VanillaScenePreTrainedModel, seeds
from .stacks_vanilla_scene import FullEncoder, Grid, SceneTokens, decoder_layers, read_by_seeds

K_MEANS_ROUNDS = 50


class ProposalStage(nn.Module):
    """One of the three stages: an encoder over one family of tokens, and a decoder that reads it.

    Proposals that find no token, such as lanes where there is no map, attend to nothing here.
    """

    def __init__(self, config: VanillaSceneConfig) -> None:
        super().__init__()
        self.encoder = FullEncoder(config, config.encoder_layers)
        self.layers = decoder_layers(config)

    def forward(self, proposals: Tensor, grid: Grid) -> Tensor:
        """Refined proposals `(R, K, D)`."""
        return read_by_seeds(self.layers, proposals, *self.encoder([grid]).flat())


class VanillaForProposalTrajectoryPrediction(VanillaScenePreTrainedModel):
    """mmTransformer: K proposals, of which only those in the region of the truth are trained.

    A proposal belongs to one of G regions of end points along the agent's axes, which `fit_regions`
    takes from the training data. The closest proposal of the truth's region is regressed; the class
    of the loss is this proposal among all, in place of the paper's two separate ones for region and
    proposal. The paper refines all agents' proposals with those of each other; here the third stage
    reads the observed steps of the others.

    Raises:
        ValueError: `num_seeds` is no multiple of `num_regions`.

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
        if config.num_seeds % config.num_regions:
            raise ValueError(
                f"num_seeds={config.num_seeds} proposals cannot be divided among num_regions="
                f"{config.num_regions}: make it a multiple"
            )
        self.tokens = SceneTokens(config)
        self.seeds = seeds(config)
        self.motion = ProposalStage(config)
        self.lanes = ProposalStage(config)
        self.others = ProposalStage(config)
        self.head = MixtureHead(config)
        self.register_buffer("centres", torch.zeros(config.num_regions, 2))
        self.gradient_checkpointing = False
        self.post_init()

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

    def futures(self, rows: Rows) -> Mixture:
        """Proposals refined by own motion, lanes and others, in this order."""
        own, others, lanes = self.tokens(rows)
        proposals = self.seeds.weight.expand(rows.scene.shape[0], -1, -1)
        proposals = self.motion(proposals, own)
        proposals = self.lanes(proposals, lanes)
        proposals = self.others(proposals, others)
        return self.head(proposals, rows.velocity)

    def may_win(self, truth: Truth) -> Tensor:
        """Proposals `(R, K)` of the truth's region; all where the last step is not known.

        Raises:
            ValueError: `set_regions` was never called.
        """
        config = self.config
        is_empty = config.num_regions > 1 and not torch.compiler.is_compiling()
        if is_empty and not self.centres.any():
            raise ValueError(
                "there are no regions, so only the proposals of the first would be trained: call "
                "set_regions() with training scenes first"
            )
        regions = nearest(truth.positions[:, -1], self.centres)
        found = proposals_of_regions(regions, config.num_seeds, config.num_regions)
        return found | ~truth.is_known[:, -1:]


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
    different = len(points.unique(dim=0))
    if different < count:
        raise ValueError(
            f"num_regions={count}, but the training data have {different} different end points, so "
            "a region would be empty: lower num_regions"
        )
    centres = points[(points - points.mean(dim=0)).norm(dim=1).argmin()].unsqueeze(0)
    while len(centres) < count:
        farthest = torch.cdist(points, centres).amin(dim=1).argmax()
        centres = torch.cat((centres, points[farthest].unsqueeze(0)))
    return k_means(points, centres, K_MEANS_ROUNDS).to(end_points.dtype)


def proposals_of_regions(regions: Tensor, proposals: int, count: int) -> Tensor:
    """Which proposals belong to the region `(R,)` of each row, `(R, K)` bool.

    Proposals are divided evenly: the first K / G belong to region 0.
    """
    owner = torch.arange(proposals, device=regions.device) // (proposals // count)
    return owner == regions.unsqueeze(1)
