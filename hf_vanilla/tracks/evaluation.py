"""Score a trajectory forecaster on track files, from the command line."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_vanilla.families import entry_of
from hf_vanilla.options import UsageError, option, progress_bar

from .built_in_tracks import BUILT_IN
from .eth_ucy import TEST_FILES, leave_one_out
from .forecaster import ForecasterOptions, check_rate, load_forecaster
from .layout import rollout_arguments, scene_batches
from .scores import (
    COLLISION_DISTANCE,
    MISS_DISTANCE,
    JointSums,
    Protocol,
    TrackScores,
    TrackSums,
    add_windows,
    collision_share,
)
from .table import TrackTable, resample
from .windows import cut_windows


@dataclass(frozen=True, kw_only=True)
class EvaluateTracksOptions(ForecasterOptions):  # the files' options, flat on the command line
    """Score a forecaster: minADE, minFDE, misses, Brier, likelihood, collisions, with protocol."""

    dataset: str = option(
        text="file or folder of tracks, or built-in ones: walkers, forks, junctions"
    )
    test_scene: str | None = option(
        None,
        f"score the test windows of this scene of ETH and UCY: one of {', '.join(TEST_FILES)}",
        choices=tuple(TEST_FILES),
    )
    stride: int = option(1, "steps from one window to the next", at_least=1)
    with_company: bool = option(
        default=False, text="only scenes with two or more agents in the window, as Social-GAN"
    )
    allow_missing: bool = option(
        default=False, text="mask missing steps instead of leaving out windows that have some"
    )
    miss_distance: float = option(MISS_DISTANCE, "farther final positions are misses", above=0)
    collision_distance: float = option(
        COLLISION_DISTANCE, "tracks that come closer collide", above=0
    )
    observed_steps: int = option(8, "of a model without weights", at_least=2)
    predicted_steps: int = option(12, "of a model without weights", at_least=1)
    batch_size: int = option(1024, "windows at a time", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test_scene is None and self.dataset not in BUILT_IN:
            return
        if names := self.given_for_files:
            raise UsageError(
                f"{', '.join(names)}: for other files; the format of "
                f"{self.test_scene or self.dataset} is known: remove it"
            )


def evaluate_tracks(options: EvaluateTracksOptions) -> TrackScores:
    """Cut windows, predict and compare.

    Raises:
        ValueError: the tracks do not match the model, or no window fits.
        OSError: nothing is found under a name.
    """
    table, data = scored_table(options)
    model = load_forecaster(
        options.model,
        device=options.device,
        observed_steps=options.observed_steps,
        predicted_steps=options.predicted_steps,
        step_seconds=table.step_seconds,
        unit=table.unit,
    )
    config = model.config
    check_rate(table, config, options.dataset)
    protocol = scoring_protocol(table, options, data=data, config=config)
    return score_windows(model, protocol, options)


def scored_table(options: EvaluateTracksOptions) -> tuple[TrackTable, str]:
    """The tracks of a command line, and their name for the protocol."""
    if options.test_scene is None:
        return options.read(options.dataset, seed=2), options.dataset
    table = leave_one_out(options.dataset, options.test_scene).test
    return resample(table, options.step_seconds), f"ETH/UCY leave-one-out, {options.test_scene}"


def scoring_protocol(
    table: TrackTable, options: EvaluateTracksOptions, *, data: str, config: Any
) -> Protocol:
    """The windows of a command line, with their protocol.

    Args:
        table: of `scored_table`.
        options: how windows are cut.
        data: name for the protocol.
        config: of the model, with its steps.

    Raises:
        ValueError: no window fits.
    """
    windows = cut_windows(
        table,
        observed=config.observed_steps,
        predicted=config.predicted_steps,
        stride=options.stride,
        by_scene="others" in entry_of(config).reads,
        allow_missing=options.allow_missing,
    )
    if not len(windows):
        missing = "" if options.allow_missing else "set allow_missing, or "
        raise ValueError(
            f"{options.dataset} has no window of {config.observed_steps} + "
            f"{config.predicted_steps} steps without a gap: {missing}give longer tracks"
        )
    windows = windows.with_company() if options.with_company else windows
    if not len(windows):
        raise ValueError(f"{options.dataset} has no window of two agents: leave out with_company")
    known = {name: getattr(options, name) for name in ("stride", "with_company", "allow_missing")}
    return Protocol(windows=windows, data=data, **known)


def score_windows(model: Any, protocol: Protocol, options: EvaluateTracksOptions) -> TrackScores:
    """All scores of a model on the windows of a protocol."""
    windows = protocol.windows
    sums = TrackSums.of(model, miss_distance=options.miss_distance)
    together = JointSums(sums.modes, collision_distance=options.collision_distance)
    groups = windows.groups
    arguments = rollout_arguments(model, samples_at_once=options.samples_at_once)
    best = np.empty((len(windows), windows.predicted, 2))
    with progress_bar(text="Scoring", unit="windows", total=len(windows)) as bar:
        for rows in scene_batches(groups, options.batch_size):
            best[rows] = add_windows(sums, model, windows, rows, together, **arguments).numpy()
            bar.update(len(rows))
    collided = collision_share(best, groups, distance=options.collision_distance)
    values = {**sums.means(), **together.means(), "collision_share": collided}
    return TrackScores(values, protocol)
