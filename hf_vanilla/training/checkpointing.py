"""Save, resume, average (6.1). A checkpoint is written aside and renamed: a named one is whole."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

from hf_vanilla.files import PARTIAL, whole_folder
from hf_vanilla.models.configuration_vanilla import VanillaConfig
from hf_vanilla.models.modeling_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models.saving_vanilla import code_beside_weights
from hf_vanilla.recipes.recipe import MEASURES

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


def checkpoint_state(folder: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given; empty for a folder without it."""
    path = folder / STATE_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def best_checkpoints(folders: Sequence[Path], count: int, *, measure: str) -> list[Path]:
    """Those of the best validation, best first; of equals the newer. Unmeasured ones are left out.

    Args:
        folders: checkpoints, oldest first.
        count: how many, if there are as many.
        measure: `"nll"`, the lower the better, or `"bleu"`, the higher the better.
    """
    scores = [
        (MEASURES[measure](value), -place)
        for place, folder in enumerate(folders)
        if (value := checkpoint_state(folder).get("scores", {}).get(measure)) is not None
    ]
    return [folders[-place] for _, place in sorted(scores)[:count]]


@dataclass(frozen=True)
class Keeping:
    """Which checkpoints stay.

    Attributes:
        newest: how many of the newest.
        best: how many of the best besides.
        measure: what tells the better, see `best_checkpoints`.
    """

    newest: int
    best: int = 0
    measure: str = "nll"


def save_checkpoint(
    accelerator: Accelerator,
    output_dir: Path,
    state: dict[str, Any],
    *,
    keep: Keeping,
    weights: dict[str, Tensor] | None = None,
) -> Path:
    """Write everything needed to go on after `state["step"]`; prune older checkpoints.

    Call it on every process. The folder appears under its name only when it is complete.

    Args:
        accelerator: holds model, optimizer and schedule.
        output_dir: of the run.
        state: JSON-able progress; `step` is required.
        keep: which checkpoints remain.
        weights: those of `whole_weights`, to be averaged later, where accelerate saves shards.

    Raises:
        OSError: the disk is full, or refuses otherwise; the older checkpoints are untouched.
    """
    final = checkpoint_folder(output_dir, state["step"])
    unfinished = final.with_name(final.name + PARTIAL)
    is_main = accelerator.is_main_process
    if is_main:
        shutil.rmtree(unfinished, ignore_errors=True)
    accelerator.wait_for_everyone()
    try:
        accelerator.save_state(str(unfinished), safe_serialization=True)
        if is_main and weights is not None:
            save_file(weights, unfinished / WEIGHTS_FILE)
        if is_main:
            (unfinished / STATE_FILE).write_text(json.dumps(state, indent=2), encoding="utf-8")
    except (OSError, RuntimeError, SafetensorError) as error:  # each library has one of its own
        shutil.rmtree(unfinished, ignore_errors=True)
        raise OSError(
            f"cannot write {final}: {error}; make room, and the same command goes on from the last "
            "checkpoint, which is whole"
        ) from error
    accelerator.wait_for_everyone()
    if is_main:
        _remove(final)
        unfinished.replace(final)
        _prune(output_dir, keep)
    accelerator.wait_for_everyone()
    return final


def _prune(output_dir: Path, keep: Keeping) -> None:
    folders = all_checkpoints(output_dir)
    kept = {*folders[-keep.newest :], *best_checkpoints(folders, keep.best, measure=keep.measure)}
    for old in folders:
        if old not in kept:
            _remove(old)


def _remove(folder: Path) -> None:
    """Remove a checkpoint; cut off half-way, it is none any more."""
    if folder.exists():
        doomed = folder.with_name(f"{folder.name}.old{PARTIAL}")
        shutil.rmtree(doomed, ignore_errors=True)
        shutil.rmtree(folder.replace(doomed))


def remove_leftovers(output_dir: Path) -> None:
    """Remove what a run that was killed had not finished writing or removing."""
    for leftover in output_dir.glob(f"*{PARTIAL}"):
        shutil.rmtree(leftover, ignore_errors=True)


def resume(accelerator: Accelerator, output_dir: Path) -> dict[str, Any] | None:
    """Load the newest checkpoint and return its state; None where there is none.

    Call it on every process.
    """
    if accelerator.is_main_process:
        remove_leftovers(output_dir)
    accelerator.wait_for_everyone()
    folders = all_checkpoints(output_dir)
    if not folders:
        return None
    accelerator.load_state(str(folders[-1]))
    return checkpoint_state(folders[-1])


# --- models whose weights are spread over the processes (FSDP2) ---------------------------------


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether each process holds only its part of the weights."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def whole_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """All weights of a sharded model, on every process, tied tensors once. Call it on each."""
    full: dict[str, Any] = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True)
    )
    once = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    return {name: full[name].contiguous() for name in sorted(once.values())}


def whole_model(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, or an unsharded copy on this process's device. Call it on every process.

    Processes that translate their own sentences run out of step, which shards cannot.
    """
    if not is_sharded(model):
        return model
    copy = type(model)(model.config).to(model.device)
    copy.generation_config = model.generation_config
    load_weights(copy, whole_weights(model))
    return copy


# --- the mean ----------------------------------------------------------------------------------


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
    """Make a model of the mean of a run's last or best checkpoints."""

    run: str = field(metadata={"help": "folder of a training run, finished or not"})
    output: str = field(metadata={"help": "folder for the model"})
    last: int = field(default=5, metadata={"help": "how many of the newest checkpoints"})
    best: int = field(default=0, metadata={"help": "how many of the best instead; 0: the newest"})
    best_by: str = field(default="nll", metadata={"help": "what tells the best: nll or bleu"})


def average_run(options: AverageOptions) -> Path:
    """A model folder from the mean of a run's newest or best checkpoints; returns the folder.

    Raises:
        ValueError: the run has too few checkpoints, or a number is not positive.
        OSError: the output exists, or the run is not one.
    """
    run = Path(options.run)
    if options.best_by not in MEASURES:
        raise ValueError(f"best_by={options.best_by!r}: choose one of {', '.join(MEASURES)}")
    folders = all_checkpoints(run)
    if options.best:
        every = best_checkpoints(folders, len(folders), measure=options.best_by)
        if not 0 < options.best <= len(every):
            raise ValueError(
                f"best={options.best}: {run} has {len(every)} checkpoints whose {options.best_by} "
                "was measured; a run measures where save_steps is a multiple of eval_steps"
            )
        chosen = every[: options.best]
    else:
        if not 0 < options.last <= len(folders):
            raise ValueError(f"last={options.last}: {run} has {len(folders)} checkpoints")
        chosen = folders[-options.last :]
    with whole_folder(options.output) as folder:
        model = VanillaForConditionalGeneration(VanillaConfig.from_pretrained(run))
        model.generation_config = GenerationConfig.from_pretrained(run)
        load_weights(model, average_checkpoints(chosen))
        tokenizer = AutoTokenizer.from_pretrained(run)
        with code_beside_weights(model, tokenizer):
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return Path(options.output)


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
