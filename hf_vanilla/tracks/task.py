"""What the tasks of forecasting share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub import ModelCard

from hf_vanilla.loading import load_model, load_saved
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

    def new_model(self, option: str, classes: Mapping[str, type]) -> Any:
        """A model with rate, unit and displacements of the training tracks, or the initial model.

        Args:
            option: data option that names the class.
            classes: by the values of that option.

        Raises:
            ValueError: the initial model is of another class.
        """
        recipe, scenes = self.recipe, self.tracks.train.scenes
        form, start = classes[getattr(recipe.data, option)], recipe.train.initial_model
        learned = {
            "step_seconds": scenes.step_seconds,
            "unit": scenes.unit,
            "velocity_std": self.tracks.velocity_std,
            "largest_step": self.tracks.largest_step,
        }
        if start is not None:  # rate, unit and scale are its own
            largest_step = max(recipe.config().largest_step, self.tracks.largest_step)
            learned = {"largest_step": largest_step}
        config = recipe.config(
            **{name: value for name, value in learned.items() if name in recipe.entry.set_by_data}
        )
        config.architectures = [form.__name__]
        if start is None:
            return form(config)
        (saved,) = load_saved(type(config), start).architectures
        if saved != form.__name__:
            names = [name for name, other in classes.items() if other.__name__ == saved]
            raise ValueError(f"initial_model={start!r} holds {saved}: set {option} to {names[0]}")
        return load_model(form, start, config=config, dtype="float32")

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
