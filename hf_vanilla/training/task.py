"""What a task gives to the training engine: data, model, loss, validation, model card.

The engine keeps processes, micro-batches, seeds, resuming, averaging, logs and curves; it knows no
data. A task is a module with a function `prepare` that returns a frozen object with the attributes
and methods of `Task`. One row in `hf_vanilla.families.TASKS` adds it to the commands.

**Micro-batch number i** means the same in every run of one recipe: step s (from 1) of n
micro-batches consists of the numbers (s - 1) n to s n - 1, whatever the number of processes, after
every resume. Whatever a task draws at random for it comes from the generator that `batch` is
given, or from torch's global generator inside `losses`, which the engine seeds by the same number;
nothing else of a task may draw from a global generator.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from huggingface_hub import ModelCard
from torch import Tensor
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from .recipe import Recipe

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Work:
    """What a micro-batch contains and costs; the metrics log sums it up between two lines.

    Attributes:
        items: what throughput counts, named by `Task.items`: target tokens, images, windows.
        real_positions: positions that hold data.
        padded_positions: all positions, padding included.
        flops: floating-point operations of the matrix products of one forward and backward pass
            over the real positions (6 for each weight and position); 0 where nobody counts them.
    """

    items: int
    real_positions: int
    padded_positions: int
    flops: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Validation:
    """Result of `Task.validate`, equal on all processes.

    Attributes:
        values: numbers for the metrics log by name, those of the task's measures among them;
            others, such as a perplexity, are only logged.
        details: anything that `Task.card` needs beside the numbers, such as signatures of scores.
        samples: a few outputs as texts by name, for the metrics log and the curves.
    """

    values: dict[str, float]
    details: Any = None
    samples: Sequence[Mapping[str, str]] = ()


class Task(Protocol):
    """A prepared task: data that were read, and everything that was learned from them.

    Implementations are frozen dataclasses. `RowTask` has what most of them share.

    Attributes:
        recipe: data, model and training.
        items: plural name of what throughput counts, for `{items}_per_second` in the log: "tokens".
        counted: names of the numbers that `counts` returns, for the log: `("target_tokens",)`.
        shown_count: the one of `counted` whose total the model card states; empty: none.
        micro_batches: how many micro-batches the recipe wants in one step; the engine rounds up to
            a multiple of the number of processes.
        has_validation: whether there is a validation set; without one `validate` is not called.
        has_few_shapes: whether micro-batches have few shapes and `losses` reads no value of a
            tensor, so that a GPU may compute each shape as one CUDA graph.
    """

    recipe: "Recipe"
    items: ClassVar[str]
    counted: ClassVar[tuple[str, ...]]
    shown_count: ClassVar[str] = ""
    micro_batches: Any
    has_validation: Any
    has_few_shapes: Any = False

    @property
    def options(self) -> Any:
        """The recipe's data options."""
        return self.recipe.data

    def model(self) -> PreTrainedModel:
        """A new model with its initial weights; its generation config is set where it decodes.

        Called once, on every process, directly after torch's generator was seeded by the recipe.
        """
        ...

    def facts(self) -> dict[str, str]:
        """What a resumed run must find unchanged: names and short values for the error message.

        Fingerprints of training and validation data, of the vocabulary or of the class names. The
        engine adds the model's config.
        """
        ...

    def order(self, per_step: int) -> Any:
        """Which rows form micro-batch number i, where a step has `per_step` micro-batches.

        Returns:
            An object whose item i, for every i >= 0, are the rows in any picklable form that
            `batch` reads. They are a function of seed and i alone, at once for any i: the engine
            asks for them in any order, and in worker processes. Epochs follow each other without
            a gap.

        Raises:
            ValueError: the rows do not fit into so many micro-batches; the message has a remedy.
        """
        ...

    def batch(self, rows: Any, generator: torch.Generator) -> Batch:
        """Read, augment and collate the rows of one micro-batch, on the CPU.

        Runs on any process and in worker processes, so it changes no state.

        Args:
            rows: one value of `order`.
            generator: on the CPU, seeded by the recipe's seed and the number of the micro-batch.
        """
        ...

    def counts(self, batch: Batch) -> Sequence[int]:
        """This micro-batch's part of the loss's divisors, in the order of `counted`.

        The engine sums them over all micro-batches and processes of the step before the first
        forward pass.
        """
        ...

    def losses(
        self, model: torch.nn.Module, batch: Batch, totals: Tensor, *, is_logged: bool
    ) -> dict[str, Tensor]:
        """Run the model on one micro-batch; `()` shares of the step's values.

        The sum over all micro-batches and processes of the step is the step's value. `"loss"` is
        required and is differentiated; further entries go to the metrics log.

        Args:
            model: in training mode, possibly wrapped for parallelism.
            batch: on the model's device.
            totals: `(len(counted),)` int64 sums of `counts` over the whole step, on that device.
            is_logged: whether this step has a line in the log; leave out costly extras otherwise.
        """
        ...

    def derived(self, values: dict[str, float]) -> dict[str, float]:
        """Numbers that follow from the summed `losses` of a step, such as a perplexity."""
        return {}

    def work(self, config: Any, batch: Batch) -> Work:
        """What a micro-batch contains and costs, for a model of this config."""
        ...

    def validate(
        self, model: PreTrainedModel, accelerator: Accelerator, *, is_final: bool
    ) -> Validation:
        """Measure a model on the validation set; called on every process, without gradients.

        Each process measures its share; what comes back is equal on all of them.

        Args:
            model: in evaluation mode, whole on every process.
            accelerator: the processes; `reduce` and `gather_object` join their shares.
            is_final: True for the finished model: measure on all of the validation set, even what
                is too slow to do during training.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write what a model needs beside config and weights: tokenizer or image processor."""
        return

    def card(self, facts: Mapping[str, Any], validation: Validation | None) -> ModelCard:
        """The model card of a finished run.

        Args:
            facts: what the engine knows: fields of `hub.card.CardFacts`.
            validation: of the finished model; None without a validation set.
        """
        ...


def weights_fingerprint(model: PreTrainedModel) -> str:
    """A number that differs between trained models, for `Task.facts`."""
    return f"{sum(weight.double().abs().sum().item() for weight in model.parameters()):.9g}"


def data_fingerprint(rows: int, *arrays: np.ndarray) -> str:
    """Number of rows and a digest of arrays, for `Task.facts`."""
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays))
    return f"{rows}:{digest.hexdigest()[:16]}"


@dataclass(frozen=True)
class RowTask(Task):
    """Base class of tasks whose micro-batches have equally many rows, with `RowOptions`.

    Attributes:
        recipe: data, model and training.
        train: training data.
        validation: validation data; None where there are none.
    """

    recipe: "Recipe"
    train: Any
    validation: Any

    @property
    def has_validation(self) -> bool:
        """Whether there are validation data."""
        return self.validation is not None

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step."""
        return self.options.rows_per("step") // self.options.rows_per("batch")

    def micro_batch_size(self, per_step: int) -> int:
        """Rows of a micro-batch, where a step is cut into `per_step` equal ones.

        Raises:
            ValueError: it cannot be cut so.
        """
        rows = self.options.rows_per("step")
        if rows % per_step:
            raise ValueError(
                f"{self.options.rows}_per_step={rows} cannot be cut into {per_step} equal "
                "micro-batches: make it a multiple"
            )
        return rows // per_step
