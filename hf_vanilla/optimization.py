"""Adam and the learning rate of section 5.3."""

from collections.abc import Iterable

from torch import nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR


def peak_learning_rate(d_model: int, warmup_steps: int) -> float:
    """The paper's highest rate, reached at step `warmup_steps` (5.3)."""
    return (d_model * warmup_steps) ** -0.5


def share_of_peak(step: int, warmup_steps: int) -> float:
    """The rate of the update `step`, counted from 1, as a share of the highest (5.3)."""
    return min(step / warmup_steps, (warmup_steps / step) ** 0.5)


def paper_adam(
    parameters: Iterable[nn.Parameter],
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.98),
    epsilon: float = 1e-9,
) -> Adam:
    """Adam as in 5.3, without weight decay; `learning_rate` is the peak of the schedule.

    One fused pass over each parameter, on a CPU too, where torch's default takes a dozen.
    """
    return Adam(parameters, lr=learning_rate, betas=betas, eps=epsilon, fused=True)


def inverse_sqrt_schedule(optimizer: Optimizer, *, warmup_steps: int) -> LambdaLR:
    """Linear warmup to the optimizer's rate, then decay with the root of the step (5.3).

    The first update is step 1, as in the paper; transformers' schedule of this name starts with an
    update at rate 0. Call `step()` after each update.

    Raises:
        ValueError: `warmup_steps` is not positive.
    """
    if warmup_steps < 1:
        raise ValueError(f"warmup_steps={warmup_steps}: give a positive number")
    return LambdaLR(optimizer, lambda updates_done: share_of_peak(updates_done + 1, warmup_steps))
