"""What the tasks of forecasting share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub import ModelCard

from hf_vanilla.training.recipe import Recipe
from hf_vanilla.training.task import RunFacts, Validation

from .card import track_card
from .data import TrackData
from .scores import Protocol, TrackScores
from .windows import Windows


@dataclass(frozen=True)
class TrackTask:
    """Base class of the tasks of forecasting; see `hf_vanilla.training.task.Task`.

    Attributes:
        recipe: data, model and training.
        tracks: training and validation windows with their statistics.
    """

    recipe: Recipe
    tracks: TrackData
    processor: ClassVar[Any] = None

    @property
    def has_validation(self) -> bool:
        """Whether there are validation windows."""
        return self.tracks.validation is not None

    @property
    def validation(self) -> Windows:
        """The validation windows, for a task with `has_validation`."""
        assert self.tracks.validation is not None
        return self.tracks.validation

    def derived(self, values: dict[str, float]) -> dict[str, float]:
        """Nothing follows from the logged values."""
        return {}

    def validated(self, values: dict[str, float], means: dict[str, float]) -> Validation:
        """Values to log, and all scores with their protocol.

        Args:
            values: by the names of the task's measures.
            means: scores over all validation windows.
        """
        windows, options = self.validation, self.recipe.data
        data = "validation part"
        if options.left_out:
            data = f"ETH/UCY without {options.test_scene}, validation cut"
        protocol = Protocol(
            data=data,
            observed=windows.observed,
            predicted=windows.predicted,
            step_seconds=windows.scenes.step_seconds,
            unit=windows.scenes.unit,
            windows=len(windows),
            seed=str(self.recipe.train.seed),
        )
        return Validation(values, TrackScores(means, protocol))

    def save(self, folder: Path) -> None:
        """Nothing is needed beside config and weights."""

    def describe_training(self) -> str:
        """What the training data is cut into, in words."""
        return f"{len(self.tracks.train):,} windows"

    def card(self, facts: RunFacts, validation: Validation | None) -> ModelCard:
        """The model card with data, protocol and scores."""
        options = self.recipe.data
        tracks = self.tracks.train.scenes.describe() + options.left_out
        run = facts.of_card()
        run["training"] = f"{tracks}; {self.describe_training()}\n\n{run['training']}"
        return track_card(
            **run,
            license=self.recipe.train.model_license,
            dataset=Path(options.dataset).name,
            scores=None if validation is None else validation.details,
        )
