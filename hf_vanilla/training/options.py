"""The options of a training run that every task has, with the paper's numbers as defaults (5.3)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from accelerate.utils import LoggerType

from hf_vanilla.file_values import is_finite_number, shown, yaml_value
from hf_vanilla.options import Options, option

from .optimization import OPTIMIZER_CLASSES, SCHEDULES, check_schedule

PRECISIONS = ("no", "bf16", "fp16")
TRACKERS = tuple(str(kind) for kind in LoggerType if kind is not LoggerType.ALL)


def _rates_of_text(text: str) -> dict[str, Any]:
    parts = [part.partition("=") for part in text.split(",") if part]
    return {prefix.strip(): yaml_value(rate) for prefix, _, rate in parts}


@dataclass(frozen=True, kw_only=True)
class Adam(Options):
    """The numbers of Adam; the defaults are the paper's (5.3)."""

    beta1: float = option(0.9, "decay of the first moment", at_least=0, below=1)
    beta2: float = option(0.98, "decay of the second moment", at_least=0, below=1)
    epsilon: float = option(1e-9, "added to the root of the second moment", above=0)


@dataclass(frozen=True, kw_only=True)
class TrainRecipe(Options):
    """How to train: the options that every task has. The defaults train the paper's way."""

    _argument_group_name = "options of every task"

    output_dir: str = option("runs/train", "folder: checkpoints, then the model", may_change=True)
    model_license: str | None = option(
        None, "licence of the weights; default: initial_model's", may_change=True, of_data=True
    )

    initial_model: str | None = option(
        None,
        "folder or Hub id of a trained model to start from, with its tokenizer or image processor; "
        "other classes get a new head; default: random weights",
    )
    max_steps: int = option(100_000, "optimizer steps", at_least=1, may_change=True)
    learning_rate: float | None = option(
        None, "peak; default: (d_model * warmup_steps) ** -0.5, as in the paper", above=0
    )
    learning_rate_of: dict[str, float] = option(
        {},
        "other peaks by the beginning of a weight's name: PREFIX=RATE, several by commas, such as "
        "backbone=1e-5; in a file, keys and values",
        read=_rates_of_text,
    )
    schedule: str = option("inverse_sqrt", "learning rate over the steps", choices=tuple(SCHEDULES))
    warmup_steps: int = option(4000, "optimizer steps to the peak", at_least=1)
    optimizer: str = option("adam", "of the weights", choices=tuple(OPTIMIZER_CLASSES))
    weight_decay: float = option(
        0.0, "of matrices per unit of learning rate; norms, biases, positions: none", at_least=0
    )
    adam: Adam = option(
        Adam(), "--adam.KEY VALUE: beta1, beta2, epsilon; default: 0.9, 0.98, 1e-9", is_section=True
    )
    max_grad_norm: float = option(0.0, "gradients are cut to this norm; 0: never", at_least=0)
    average_checkpoints: int = option(
        5,
        "last checkpoints to average; the finished model is the best by validation of this mean, "
        "the best checkpoint and the last one",
        at_least=1,
        may_change=True,
    )
    average_best: bool = option(
        False, "average the best checkpoints, by validation, instead of the last", may_change=True
    )
    best_by: str | None = option(
        None, "measure that compares validations, such as nll or bleu; default: the task's first"
    )
    patience: int = option(
        0, "end after N validations without a better one; 0: never", at_least=0, may_change=True
    )
    seed: int = option(0, "of weights, order and dropout", at_least=0)
    mixed_precision: str | None = option(
        None, "of products; default: accelerate's, else bf16 on GPUs with it", choices=PRECISIONS
    )
    compile: bool = option(False, "compile layers and loss by torch.compile", may_change=True)
    gradient_checkpointing: bool = option(
        False, "compute the forward pass twice: slower, less memory", may_change=True
    )
    use_cpu: bool = option(False, "train on the CPU even where there is a GPU", may_change=True)
    dataloader_workers: int = option(
        0, "helpers of each process, which prepare batches; 0: none", at_least=0, may_change=True
    )

    eval_steps: int = option(1000, "steps between validations", at_least=1, may_change=True)
    save_steps: int = option(1000, "steps between checkpoints", at_least=1, may_change=True)
    save_total_limit: int = option(
        5, "checkpoints kept; at least average_checkpoints", at_least=1, may_change=True
    )
    logging_steps: int = option(50, "steps between lines of the log", at_least=1, may_change=True)
    trackers: list[str] | None = option(
        None,
        "accelerate's trackers, by commas, or none; default: tensorboard where installed",
        choices=TRACKERS,
        read=lambda text: [] if text in ("none", "[]") else [n.strip() for n in text.split(",")],
        may_change=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for prefix, rate in self.learning_rate_of.items():
            if not (is_finite_number(rate) and rate > 0):
                raise ValueError(
                    f"learning_rate_of {prefix}={shown(rate)}: give a positive number, such as "
                    "backbone=1e-5"
                )
        check_schedule(self.schedule, warmup_steps=self.warmup_steps, max_steps=self.max_steps)
        if self.save_total_limit < self.average_checkpoints:
            raise ValueError(
                f"save_total_limit={self.save_total_limit} is smaller than average_checkpoints="
                f"{self.average_checkpoints}: keep as many as are averaged"
            )
        if self.average_best and self.save_steps % self.eval_steps:
            raise ValueError(
                f"average_best needs each checkpoint validated: save_steps={self.save_steps} must "
                f"be a multiple of eval_steps={self.eval_steps}"
            )


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    """Base of data options that cut a step into micro-batches of equally many rows.

    Attributes:
        rows: their plural name, in the options `ROWS_per_step` and `ROWS_per_batch`.
    """

    rows: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        step, batch = self.rows_per("step"), self.rows_per("batch")
        if step % batch:
            names = f"{self.rows}_per_step={step}", f"{self.rows}_per_batch={batch}"
            raise ValueError(f"{names[0]} is not a multiple of {names[1]}: change either")

    def rows_per(self, part: str) -> int:
        """Rows of a `step`, or of a process and micro-batch (`batch`)."""
        return getattr(self, f"{self.rows}_per_{part}")

    def check_with(self, train: Any) -> None:
        """Compare with the options of every task; here nothing depends on them."""
