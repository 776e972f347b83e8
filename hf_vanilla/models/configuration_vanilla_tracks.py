# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""Every number that shapes the weights or the function of the trajectory forecasters."""

from huggingface_hub.dataclasses import strict

from .configuration_vanilla_forecaster import VanillaForecasterConfig
from .sizes_vanilla import LAYER_TP_PLAN


@strict
class VanillaTracksConfig(VanillaForecasterConfig):
    r"""Configuration of the trajectory forecasters of all forms.

    Args:
        velocity_std (`float`, defaults to 1.0): standard deviation of the training data's
            displacements, in units per step; inputs are divided by it.
        follows_heading (`bool`, defaults to `True`): turn each agent so that its heading points
            along x.
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
    follows_heading: bool = True
    heading_decay: float | int = 0.7
    num_modes: int = 20
    num_codes: int = 1000
    score_loss_weight: float | int = 0.2
    final_loss_weight: float | int = 0.3
    forcing_loss_weight: float | int = 0.0
    rollout_loss_weight: float | int = 1.0

    def validate_weights(self) -> None:
        """Counts and units are positive, weights of the loss are not negative."""
        self.require_positive("num_modes", "num_codes", "velocity_std")
        parts = ("forcing_loss_weight", "rollout_loss_weight")
        self.require_at_least_zero(*parts, "score_loss_weight", "final_loss_weight")
        if not any(getattr(self, name) for name in parts):
            raise ValueError(f"{' and '.join(parts)} are both 0: raise one")
