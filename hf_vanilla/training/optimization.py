"""Optimizer and learning rate by name; the defaults are Adam and the schedule of section 5.3."""

from collections.abc import Iterable, Mapping

from torch import nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from .recipe import TrainRecipe
from .schedules import check_schedule, peak_learning_rate, share_of_peak

OPTIMIZER_CLASSES: dict[str, type[Adam]] = {"adam": Adam, "adamw": AdamW}


def make_optimizer(model: PreTrainedModel, options: TrainRecipe) -> Optimizer:
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
    groups = parameter_groups(
        model,
        learning_rate=peak,
        rate_of=options.learning_rate_of,
        weight_decay=options.weight_decay,
    )
    # one fused pass over each parameter, on a CPU too, where torch's default takes a dozen
    return OPTIMIZER_CLASSES[options.optimizer](
        groups,
        lr=peak,
        betas=(options.adam.beta1, options.adam.beta2),
        eps=options.adam.epsilon,
        weight_decay=options.weight_decay,
        fused=True,
    )


def parameter_groups(
    model: PreTrainedModel,
    *,
    learning_rate: float,
    rate_of: Mapping[str, float],
    weight_decay: float,
) -> list[dict]:
    """Groups of trained weights that share learning rate and weight decay, for an optimizer.

    Args:
        model: whose weights are divided.
        learning_rate: peak of all weights that `rate_of` does not match; their groups come first.
        rate_of: peaks by the beginning of a weight's name, with or without the model's own prefix:
            `backbone` and `model.backbone` are the same. The longest match decides.
        weight_decay: of weight matrices; norms, biases and positions have none.

    Raises:
        ValueError: a prefix matches no trained weight.
    """
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    matched: set[str] = set()
    groups: dict[tuple[float, float], dict] = {}
    for name, weight in trained:
        prefix = _longest_prefix(name, rate_of, model.base_model_prefix)
        matched.add(prefix)
        rate = rate_of.get(prefix, learning_rate)
        decay = weight_decay if _is_decayed(name, weight) else 0.0
        group = {"params": [], "lr": rate, "weight_decay": decay}
        groups.setdefault((rate, decay), group)["params"].append(weight)
    for prefix in rate_of:
        if prefix not in matched:
            first = sorted({name.rpartition(".")[0].split(".", 2)[0] for name, _ in trained})
            raise ValueError(
                f"learning_rate_of={prefix!r}: no trained weight has a name that begins so; "
                f"names begin with {', '.join(first)}, such as {trained[0][0]}"
            )
    return sorted(groups.values(), key=lambda group: group["lr"] != learning_rate)


def _longest_prefix(name: str, prefixes: Iterable[str], own_prefix: str) -> str:
    """The longest of the prefixes that a weight's name begins with; empty where there is none."""
    names = (f"{name}.", f"{name.removeprefix(f'{own_prefix}.')}.")
    found = [prefix for prefix in prefixes if any(n.startswith(f"{prefix}.") for n in names)]
    return max(found, key=len, default="")


def _is_decayed(name: str, weight: nn.Parameter) -> bool:
    """Whether weight decay applies: norms and biases are vectors, positions are named so."""
    return weight.ndim > 1 and "position" not in name


def make_schedule(optimizer: Optimizer, options: TrainRecipe) -> LambdaLR:
    """The learning rate that a recipe names; call `step()` after each update.

    Raises:
        ValueError: the schedule does not fit `warmup_steps` and `max_steps`.
    """
    schedule, warmup_steps, max_steps = options.schedule, options.warmup_steps, options.max_steps
    check_schedule(schedule, warmup_steps=warmup_steps, max_steps=max_steps)
    return LambdaLR(
        optimizer,
        lambda updates_done: share_of_peak(
            updates_done + 1, warmup_steps, schedule=schedule, max_steps=max_steps
        ),
    )


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
    check_schedule("inverse_sqrt", warmup_steps=warmup_steps, max_steps=None)
    return LambdaLR(optimizer, lambda updates_done: share_of_peak(updates_done + 1, warmup_steps))
