"""The learning rate as a function of the step (5.3)."""


def peak_learning_rate(d_model: int, warmup_steps: int) -> float:
    """The paper's highest rate, reached at step `warmup_steps` (5.3)."""
    return (d_model * warmup_steps) ** -0.5


def share_of_peak(step: int, warmup_steps: int) -> float:
    """The rate of the update `step`, counted from 1, as a share of the highest (5.3)."""
    return min(step / warmup_steps, (warmup_steps / step) ** 0.5)
