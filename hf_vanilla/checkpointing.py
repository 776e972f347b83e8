"""Save, resume, average (6.1). A checkpoint is written aside and renamed: a named one is whole."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

from .configuration_vanilla import VanillaConfig
from .modeling_vanilla import VanillaForConditionalGeneration

STATE_FILE = "training_state.json"
WEIGHTS_FILE = "model.safetensors"


def checkpoint_folder(output_dir: Path, step: int) -> Path:
    """Where the checkpoint after `step` optimizer steps lies."""
    return output_dir / f"checkpoint-{step}"


def all_checkpoints(output_dir: Path) -> list[Path]:
    """Whole checkpoints of a run, oldest first."""
    found = [
        (int(folder.name.removeprefix("checkpoint-")), folder)
        for folder in output_dir.glob("checkpoint-*")
        if folder.name.removeprefix("checkpoint-").isdecimal()
    ]
    return [folder for _, folder in sorted(found)]


def save_checkpoint(
    accelerator: Accelerator, output_dir: Path, state: dict[str, Any], *, keep: int
) -> Path:
    """Write everything needed to go on after `state["step"]`; prune older checkpoints.

    Call it on every process. The folder appears under its name only when it is complete.

    Args:
        accelerator: holds model, optimizer and schedule.
        output_dir: of the run.
        state: JSON-able progress; `step` is required.
        keep: how many checkpoints remain.
    """
    final = checkpoint_folder(output_dir, state["step"])
    unfinished = final.with_name(final.name + ".partial")
    if accelerator.is_main_process:
        shutil.rmtree(unfinished, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(unfinished), safe_serialization=True)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (unfinished / STATE_FILE).write_text(json.dumps(state, indent=2), encoding="utf-8")
        if final.exists():
            shutil.rmtree(final)
        unfinished.replace(final)
        for old in all_checkpoints(output_dir)[:-keep]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()
    return final


def resume(accelerator: Accelerator, output_dir: Path) -> dict[str, Any] | None:
    """Load the newest checkpoint and return its state; None where there is none."""
    folders = all_checkpoints(output_dir)
    if not folders:
        return None
    accelerator.load_state(str(folders[-1]))
    return json.loads((folders[-1] / STATE_FILE).read_text(encoding="utf-8"))


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
            wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
            totals[name] = totals[name] + wide if name in totals else wide
    return {name: (total / len(folders)).to(dtypes[name]) for name, total in totals.items()}


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """Options of `average_run`."""

    run: str = field(metadata={"help": "folder of a training run, finished or not"})
    output: str = field(metadata={"help": "folder for the model"})
    last: int = field(default=5, metadata={"help": "how many of the newest checkpoints"})


def average_run(options: AverageOptions) -> Path:
    """A model folder from the mean of a run's newest checkpoints; returns the folder.

    Raises:
        ValueError: the run has too few checkpoints, or `last` is not positive.
        OSError: the output exists, or the run is not one.
    """
    run, output = Path(options.run), Path(options.output)
    if output.exists():
        raise FileExistsError(f"{output} exists: choose another name")
    folders = all_checkpoints(run)
    if not 0 < options.last <= len(folders):
        raise ValueError(f"last={options.last}: {run} has {len(folders)} checkpoints")
    model = VanillaForConditionalGeneration(VanillaConfig.from_pretrained(run))
    model.generation_config = GenerationConfig.from_pretrained(run)
    load_weights(model, average_checkpoints(folders[-options.last :]))
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(run).save_pretrained(output)
    return output


def load_weights(model: PreTrainedModel, weights: dict[str, Tensor]) -> None:
    """Put weights into a model whose tied tensors are stored once.

    Raises:
        ValueError: names are left over or missing; the message lists them all.
    """
    known = model.state_dict(keep_vars=True)
    left_over = sorted(weights.keys() - known.keys())
    filled = {id(known[name]) for name in weights.keys() & known.keys()}
    missing = sorted(name for name, tensor in known.items() if id(tensor) not in filled)
    if left_over or missing:
        raise ValueError(f"the weights do not fit: left over {left_over}, missing {missing}")
    model.load_state_dict(weights, strict=False)
