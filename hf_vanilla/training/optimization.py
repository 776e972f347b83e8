"""Adam and the learning rate of section 5.3."""

from collections.abc import Iterable

from torch import nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hf_vanilla.recipes.schedules import share_of_peak


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
