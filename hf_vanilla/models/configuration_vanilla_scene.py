# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Every number that shapes the weights or the function of the forecasters of agents and lanes."""

from huggingface_hub.dataclasses import strict

from .configuration_vanilla_tracks import VanillaForecasterConfig

FUSION_NAMES = ("late", "early", "hierarchical")
# fields whose inputs Wayformer alone reads
OPTIONAL_INPUTS = ("num_agent_kinds", "reads_sizes", "num_light_states")
ENCODER_NAMES = ("full", "sequential", "interleaved", "latent")


@strict
class VanillaSceneConfig(VanillaForecasterConfig):
    r"""Configuration of the forecasters that read agents and lanes of a scene.

    Of `encoder_layers`, hierarchical fusion has half for each kind of token and half across; the
    sequential and interleaved encoders have as many for each of their two axes.

    Args:
        velocity_std (`float`, defaults to 1.0): standard deviation of the training data's
            displacements, in units per step; velocities are divided by it, positions by it times
            `predicted_steps`.
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
        learned_positions (`int`, defaults to 0): vectors of a table of learned positions for each
            family of tokens, whose projection then ends with a ReLU (Wayformer, section 3); later
            positions share the last. 0: sinusoids and no ReLU.
        max_others (`int`, defaults to 32): other agents that an agent sees, the nearest.
        max_lanes (`int`, defaults to 64): polylines that an agent sees, the nearest.
        reads_lanes (`bool`, defaults to `True`): the model reads polylines; `False`: it was trained
            without, and leaves out those that it is given.
        map_distance (`float`, defaults to 1000.0): a map of which no point is so close to an agent
            of its scene is refused, in units of the world.
        num_agent_kinds (`int`, defaults to 0): kinds of agents that Wayformer tells apart, of which
            0 is an unknown one; 0: it reads no kinds.
        reads_sizes (`bool`, defaults to `False`): Wayformer reads length and width of agents.
        num_light_states (`int`, defaults to 0): states of traffic lights that Wayformer reads, of
            which 0 is an unknown one; 0: it reads no lights.
        num_lane_kinds (`int`, defaults to 3): kinds of polylines: lane, crossing, boundary.
        num_regions (`int`, defaults to 6): regions of end points, in the form with proposals;
            `num_seeds` is a multiple.
        neighbor_distance (`float`, defaults to 0.0): agents that are farther apart do not see each
            other, in the form with neighbors, in units of the world; 0: no limit. Its picture
            reaches as far; 0: as an agent of mean speed moves in the predicted steps.
        num_neighbors (`int`, defaults to 0): nearest agents that an agent sees there; 0: all.
        field_of_view (`float`, defaults to 360.0): degrees around its heading in which it sees.
        raster_cells (`int`, defaults to 32): cells of a side of its picture, a multiple of 8.
        gate_reduction (`int`, defaults to 4): the gate of agents has 1 + `max_others`, divided by
            this, hidden numbers, one at least.

    Raises:
        huggingface_hub.errors.StrictDataclassError: a value has the wrong type or cannot be built;
            the message names the value and the remedy.

    Examples:
        >>> from hf_vanilla.models.configuration_vanilla_scene import VanillaSceneConfig
        >>> VanillaSceneConfig(fusion="late", encoder="latent").num_latents
        32
    """

    model_type = "vanilla_scene"

    velocity_std: float | int = 1.0
    heading_decay: float | int = 0.7
    num_modes: int = 6
    num_seeds: int = 6
    thinning_distance: float | int = 2.0
    score_loss_weight: float | int = 1.0
    fusion: str = "early"
    encoder: str = "full"
    num_latents: int = 32
    learned_positions: int = 0
    max_others: int = 32
    max_lanes: int = 64
    reads_lanes: bool = True
    map_distance: float | int = 1000.0
    num_agent_kinds: int = 0
    reads_sizes: bool = False
    num_light_states: int = 0
    num_lane_kinds: int = 3
    num_regions: int = 6
    neighbor_distance: float | int = 0.0
    num_neighbors: int = 0
    field_of_view: float | int = 360.0
    raster_cells: int = 32
    gate_reduction: int = 4

    def validate_sizes(self) -> None:
        """Counts and units are positive, weights and limits are not negative.

        A prediction keeps no more futures than the decoder computes.
        """
        self.require_positive(
            *("num_modes", "num_seeds", "num_latents", "max_others", "max_lanes"),
            *("num_lane_kinds", "num_regions", "gate_reduction", "raster_cells"),
            *("velocity_std", "map_distance", "thinning_distance"),
        )
        self.require_at_least_zero("score_loss_weight", "neighbor_distance", "num_neighbors")
        self.require_at_least_zero("learned_positions", "num_agent_kinds", "num_light_states")
        if self.raster_cells % 8:
            raise ValueError(f"raster_cells={self.raster_cells}: give a multiple of 8")
        if not 0 < self.field_of_view <= 360:
            raise ValueError(f"field_of_view={self.field_of_view}: give up to 360 degrees")
        if self.num_modes > self.num_seeds:
            raise ValueError(
                f"num_modes={self.num_modes} futures cannot be kept of num_seeds="
                f"{self.num_seeds}: raise num_seeds"
            )

    def validate_names(self) -> None:
        """Fusion and encoder are known; hierarchical fusion has layers for both its parts."""
        self.require_choice("fusion", FUSION_NAMES)
        self.require_choice("encoder", ENCODER_NAMES)
        if self.fusion == "hierarchical" and self.encoder_layers < 2:
            raise ValueError(
                f"encoder_layers={self.encoder_layers}: hierarchical fusion needs 2 or more"
            )
