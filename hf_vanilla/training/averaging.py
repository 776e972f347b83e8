"""The mean of several checkpoints (6.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import GenerationConfig

from hf_vanilla.families import load_part, task_entry, validation_measures
from hf_vanilla.files import whole_folder
from hf_vanilla.hub.card import carry_over
from hf_vanilla.loading import load_saved, task_of_model
from hf_vanilla.options import Options, option

from .checkpointing import WEIGHTS_FILE, all_checkpoints, best_checkpoints, load_weights


def average_checkpoints(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Plain mean of the weights of several checkpoints, in float32 at least (6.1).

    Args:
        folders: checkpoints of one run, or model folders.

    Returns:
        Names and means, in the dtype of the first folder; tied tensors once, as they are stored.

    Raises:
        ValueError: there is none, or their tensors differ in name or shape.
        FileNotFoundError: a folder holds no `model.safetensors`.
    """
    if not folders:
        raise ValueError("no checkpoints to average")
    totals: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for folder in folders:
        path = Path(folder) / WEIGHTS_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; give folders that hold {WEIGHTS_FILE}")
        weights = load_file(path)
        shapes = {name: weight.shape for name, weight in weights.items()}
        if totals and shapes != {name: total.shape for name, total in totals.items()}:
            odd = sorted(
                n
                for n in shapes.keys() | totals.keys()
                if n not in shapes or n not in totals or shapes[n] != totals[n].shape
            )
            raise ValueError(f"{folder} is of another model than {folders[0]}: {odd} differ")
        for name, weight in weights.items():
            dtypes.setdefault(name, weight.dtype)
            weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
            totals[name] = totals[name] + weight if name in totals else weight
    return {name: (total / len(folders)).to(dtypes[name]) for name, total in totals.items()}


@dataclass(frozen=True, kw_only=True)
class AverageOptions(Options):
    """Make a model from the mean of a run's last or best checkpoints."""

    run: str = option(text="folder of a training run, finished or not")
    output: str = option(text="folder for the model")
    last: int = option(5, "how many of the newest checkpoints")
    best: int = option(0, "how many of the best instead; 0: the newest", at_least=0)
    best_by: str | None = option(
        None, "measure that compares checkpoints, such as nll or bleu; default: the task's first"
    )


def average_run(options: AverageOptions) -> Path:
    """A model folder from the mean of a run's newest or best checkpoints; returns the folder.

    Raises:
        ValueError: the run has too few checkpoints, or a number is not positive.
        OSError: the output exists, or the run is not one.
    """
    run = Path(options.run)
    if not run.is_dir():
        raise FileNotFoundError(f"{run}: no such folder; give the output_dir of a training run")
    with whole_folder(options.output) as folder:
        entry = task_entry(task_of_model(str(run)))
        chosen = _chosen_checkpoints(options)
        config = load_saved(load_part(entry.config), run)
        model = load_part(entry.model)(config)
        if model.can_generate():
            model.generation_config = load_saved(GenerationConfig, run)
        load_weights(model, average_checkpoints(chosen))
        processor = load_saved(load_part(entry.processor), run) if entry.processor else None
        model.save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)
        names = ", ".join(path.name for path in chosen)
        change = f"Mean of {names} of {run.resolve().name}, by `hf-vanilla average`."
        carry_over(str(run), folder, change=change)
    return Path(options.output)


def _chosen_checkpoints(options: AverageOptions) -> list[Path]:
    run = Path(options.run)
    folders = all_checkpoints(run)
    if not options.best:
        if not 0 < options.last <= len(folders):
            raise ValueError(f"last={options.last}: {run} has {len(folders)} checkpoints")
        return folders[-options.last :]
    measures = validation_measures(task_of_model(str(run)))
    by = options.best_by or next(iter(measures))
    if by not in measures:
        raise ValueError(f"best_by={by!r}: choose one of {', '.join(measures)}")
    measured = best_checkpoints(folders, len(folders), measures=measures, by=by)
    if options.best > len(measured):
        raise ValueError(
            f"best={options.best}: {run} has {len(measured)} checkpoints whose {by} was measured; "
            "a run measures where save_steps is a multiple of eval_steps"
        )
    return measured[: options.best]
