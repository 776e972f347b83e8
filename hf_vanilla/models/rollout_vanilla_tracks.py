# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The length of a rollout, of all forecasters that predict one step after the other."""

import logging
from typing import Any

logger = logging.getLogger(__name__)


def rollout_steps(config: Any, predicted_steps: int | None) -> int:
    """The number of steps to predict; more than in training with a warning.

    Args:
        config: read for `predicted_steps`.
        predicted_steps: None: as in training.

    Raises:
        ValueError: the number is not positive.
    """
    trained = config.predicted_steps
    steps = trained if predicted_steps is None else predicted_steps
    if steps < 1:
        raise ValueError(f"predicted_steps={steps}: give a positive number")
    if steps > trained:
        logger.warning(
            "predicted_steps=%d: the model was trained on %d, later steps are less certain",
            *(steps, trained),
        )
    return steps
