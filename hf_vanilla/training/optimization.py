"""Optimizer and learning rate by name; the defaults are Adam and the schedule of section 5.3.

Every schedule takes the number of the update, counted from 1 as in the paper, the step of the peak
and the last step of training. All but `one_cycle` begin with the paper's linear warmup.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from .options import TrainRecipe

OPTIMIZER_CLASSES: dict[str, type[Adam]] = {"adam": Adam, "adamw": AdamW}


def make_optimizer(model: PreTrainedModel, options: "TrainRecipe") -> Optimizer:
    """The optimizer that a recipe names, over all trained weights of a model.

    The paper's, by default: Adam without weight decay, one group, peak
    `(d_model * warmup_steps) ** -0.5` (5.3). `adam` adds `weight_decay` times a weight to its
    gradient; `adamw` subtracts it from the weight.

    Args:
        model: whose weights are trained; frozen ones are left out.
        options: read for the optimizer, its rates and its weight decay.

    Returns:
        An optimizer whose first group has the recipe's learning rate.

    Raises:
        ValueError: a prefix of `learning_rate_of` matches no trained weight.
    """
    peak = options.learning_rate or peak_learning_rate(
        model.config.hidden_size, options.warmup_steps
    )
    # one fused pass over each parameter, on a CPU too, where torch's default takes a dozen
    return OPTIMIZER_CLASSES[options.optimizer](
        parameter_groups(model, peak, options),
        lr=peak,
        betas=(options.adam.beta1, options.adam.beta2),
        eps=options.adam.epsilon,
        weight_decay=options.weight_decay,
        fused=True,
    )


def parameter_groups(model: PreTrainedModel, peak: float, options: "TrainRecipe") -> list[dict]:
    """Groups of trained weights that share learning rate and weight decay, for an optimizer.

    Args:
        model: whose weights are divided.
        peak: of all weights that `learning_rate_of` does not match; their groups come first.
        options: read for `learning_rate_of`, peaks by the beginning of a weight's name, with or
            without the model's own prefix: `backbone` and `model.backbone` are the same, and the
            longest match decides; and for the weight decay of matrices, not norms, biases and
            positions.

    Raises:
        ValueError: a prefix matches no trained weight.
    """
    rate_of = options.learning_rate_of
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    matched: set[str] = set()
    groups: dict[tuple[float, float], dict] = {}
    for name, weight in trained:
        names = (f"{name}.", f"{name.removeprefix(f'{model.base_model_prefix}.')}.")
        found = [prefix for prefix in rate_of if any(n.startswith(f"{prefix}.") for n in names)]
        prefix = max(found, key=len, default="")
        matched.add(prefix)
        rate = rate_of.get(prefix, peak)
        decay = options.weight_decay if (weight.ndim > 1 and "position" not in name) else 0.0
        group = {"params": [], "lr": rate, "weight_decay": decay}
        groups.setdefault((rate, decay), group)["params"].append(weight)
    for prefix in rate_of:
        if prefix not in matched:
            first = sorted({name.rpartition(".")[0].split(".", 2)[0] for name, _ in trained})
            raise ValueError(
                f"learning_rate_of={prefix!r}: no trained weight has a name that begins so; "
                f"names begin with {', '.join(first)}, such as {trained[0][0]}"
            )
    return sorted(groups.values(), key=lambda group: group["lr"] != peak)


def make_schedule(optimizer: Optimizer, options: "TrainRecipe") -> LambdaLR:
    """The learning rate that a recipe names; call `step()` after each update.

    Raises:
        ValueError: the schedule does not fit `warmup_steps` and `max_steps`.
    """
    share = partial(share_of_peak, schedule=options.schedule, max_steps=options.max_steps)
    steps = options.warmup_steps
    return LambdaLR(optimizer, lambda updates_done: share(updates_done + 1, steps))


def paper_adam(
    parameters: Iterable[nn.Parameter],
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.98),
    epsilon: float = 1e-9,
) -> Adam:
    """Adam as in 5.3, without weight decay, for a training loop of your own.

    Args:
        parameters: to be trained.
        learning_rate: the peak of the schedule.
        betas: decay of the first and second moment.
        epsilon: added to the root of the second moment.
    """
    return Adam(parameters, lr=learning_rate, betas=betas, eps=epsilon, fused=True)


def inverse_sqrt_schedule(optimizer: Optimizer, *, warmup_steps: int) -> LambdaLR:
    """Linear warmup to the optimizer's rate, then decay with the root of the step (5.3).

    The first update is step 1, as in the paper; transformers' schedule of this name starts with an
    update at rate 0. Call `step()` after each update.

    Raises:
        ValueError: `warmup_steps` is not positive.
    """
    return LambdaLR(optimizer, lambda updates_done: share_of_peak(updates_done + 1, warmup_steps))


# --- the learning rate as a share of its peak ----------------------------------------------------

# torch's OneCycleLR starts at a 25th of the peak and ends at a 10,000th of that start
ONE_CYCLE_FIRST = 1 / 25
ONE_CYCLE_LAST = ONE_CYCLE_FIRST / 10_000
# DETR trains 300 epochs and divides the rate by 10 after 200
STEP_AT, STEP_FACTOR = 2 / 3, 0.1


def peak_learning_rate(d_model: int, warmup_steps: int) -> float:
    """The paper's highest rate, reached at step `warmup_steps` (5.3)."""
    return (d_model * warmup_steps) ** -0.5


def share_of_peak(
    step: int, warmup_steps: int, *, schedule: str = "inverse_sqrt", max_steps: int | None = None
) -> float:
    """The learning rate of one update as a share of the highest (5.3).

    Args:
        step: number of the update, from 1.
        warmup_steps: update of the highest rate.
        schedule: a name of `SCHEDULES`; the default is the paper's.
        max_steps: last update; needed by the schedules of `BOUNDED_SCHEDULES`.

    Raises:
        ValueError: as `check_schedule`.
    """
    check_schedule(schedule, warmup_steps=warmup_steps, max_steps=max_steps)
    return SCHEDULES[schedule](step, warmup_steps, max_steps or 0)


def check_schedule(schedule: str, *, warmup_steps: int, max_steps: int | None) -> None:
    """Refuse a schedule that is unknown or does not fit the length of training.

    Raises:
        ValueError: the name is unknown, `warmup_steps` is not positive, or a schedule that ends
            at `max_steps` has its peak there or later.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r}: choose one of {', '.join(SCHEDULES)}")
    if warmup_steps < 1:
        raise ValueError(f"warmup_steps={warmup_steps}: give a positive number")
    if schedule in BOUNDED_SCHEDULES and (max_steps is None or max_steps <= warmup_steps):
        raise ValueError(
            f"schedule={schedule!r} falls from warmup_steps={warmup_steps} to max_steps="
            f"{max_steps}: give more max_steps than warmup_steps"
        )


def inverse_sqrt(step: int, warmup_steps: int, _max_steps: int = 0) -> float:
    """Linear warmup, then the inverse square root of the step: the paper's schedule (5.3)."""
    return min(step / warmup_steps, (warmup_steps / step) ** 0.5)


def one_cycle(step: int, warmup_steps: int, max_steps: int) -> float:
    """Half a cosine up to the peak, half a cosine down to almost nothing, as torch's OneCycleLR."""
    if step < warmup_steps:
        return _cosine_between(ONE_CYCLE_FIRST, 1.0, (step - 1) / (warmup_steps - 1))
    return _cosine_between(1.0, ONE_CYCLE_LAST, (step - warmup_steps) / (max_steps - warmup_steps))


def cosine(step: int, warmup_steps: int, max_steps: int) -> float:
    """Linear warmup, then half a cosine that reaches zero one step after the last."""
    done = (step - warmup_steps) / (max_steps + 1 - warmup_steps)
    return min(step / warmup_steps, 1.0) * _cosine_between(1.0, 0.0, max(done, 0.0))


def step_down(step: int, warmup_steps: int, max_steps: int) -> float:
    """Linear warmup, then the peak, and a tenth of it after two thirds of training (DETR)."""
    return min(step / warmup_steps, 1.0) * (STEP_FACTOR if step > STEP_AT * max_steps else 1.0)


def constant(step: int, warmup_steps: int, _max_steps: int = 0) -> float:
    """Linear warmup, then the peak."""
    return min(step / warmup_steps, 1.0)


def _cosine_between(first: float, last: float, progress: float) -> float:
    """From `first` at progress 0 to `last` at 1 and beyond, along half a period of a cosine."""
    return last + (first - last) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "one_cycle": one_cycle,
    "cosine": cosine,
    "step": step_down,
    "constant": constant,
}
# these depend on the last step: a run that goes on with other max_steps follows another curve
BOUNDED_SCHEDULES = ("one_cycle", "cosine", "step")
