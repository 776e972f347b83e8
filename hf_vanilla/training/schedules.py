"""The learning rate as a function of the step, as a share of its peak (5.3).

Every schedule takes the number of the update, counted from 1 as in the paper, the step of the peak
and the last step of training. All but `one_cycle` begin with the paper's linear warmup.
"""

import math
from collections.abc import Callable

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
